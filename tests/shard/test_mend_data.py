from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.check import check_data
from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.errors import ShardLocked
from tailrace.shard.lock import DirectoryLock, ShardLock
from tailrace.shard.mend_data import mend_data
from tailrace.shard.report import MendReport, StreamReport
from tests.shard.helpers import BOOT, filled, flip, payloads


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    """Twelve streams of ten messages; "s1" has an index without a header, "s2" a damaged frame, the rest are whole."""
    made = make_data_dir(tmp_path / "data", 4)
    for i in range(12):
        filled(made.stream_directory(f"s{i}"), 10, name=f"s{i}")
    flip(made.stream_directory("s1") / "s1.indx", 5)
    flip(made.stream_directory("s2") / "s2.content", 4_096 + 41 * 6 + 35)
    return made


def mended(data: DataDirectory, *, may_rebuild: bool, may_repair: bool) -> dict[str, StreamReport | MendReport]:
    reports = mend_data(data, may_rebuild=may_rebuild, may_repair=may_repair, boot_id=BOOT)
    return {report.name: report for report in reports}


def damaged(data: DataDirectory) -> set[str]:
    return {report.name for report in check_data(data, boot_id=BOOT) if not report.ok}


def outcomes(reports: dict[str, StreamReport | MendReport]) -> dict[str, str]:
    return {name: report.error for name, report in reports.items() if isinstance(report, MendReport)}


def test_only_the_index_where_only_that_is_allowed(data: DataDirectory) -> None:
    reports = mended(data, may_rebuild=True, may_repair=False)
    assert len(reports) == 12
    errors = outcomes(reports)
    assert errors.keys() == {"s1", "s2"}
    assert errors["s1"] == ""
    assert errors["s2"].endswith("s2.content at byte 4342: the frame's checksum does not fit")
    assert damaged(data) == {"s2"}


@pytest.mark.parametrize("may_rebuild", [True, False])
def test_repair_mends_all(data: DataDirectory, may_rebuild: bool) -> None:
    reports = mended(data, may_rebuild=may_rebuild, may_repair=True)
    assert outcomes(reports) == {"s1": "", "s2": ""}
    assert damaged(data) == set()
    second = reports["s2"]
    assert isinstance(second, MendReport)
    assert (second.messages, second.next_seq, second.cut_bytes) == (6, 6, 4 * 41)
    assert second.kept_in == data.stream_directory("s2") / "s2.torn"
    assert len(payloads(data.stream_directory("s1"), "s1")) == 10


def test_nothing_allowed_mends_nothing(data: DataDirectory) -> None:
    errors = outcomes(mended(data, may_rebuild=False, may_repair=False))
    assert all(errors.values())
    assert damaged(data) == {"s1", "s2"}


def test_a_stream_in_the_wrong_folder_stays_an_error(data: DataDirectory) -> None:
    home = data.shard_of("s5")
    for suffix in (".content", ".indx"):
        file = f"s5{suffix}"
        os.rename(data.shard_path(home) / file, data.shard_path((home + 1) % 4) / file)
    errors = outcomes(mended(data, may_rebuild=True, may_repair=True))
    assert "belongs in" in errors["s5"]


def test_a_running_broker_keeps_it_out(data: DataDirectory) -> None:
    with DirectoryLock(data.path), pytest.raises(ShardLocked, match="data/LOCK is locked by process"):
        mended(data, may_rebuild=True, may_repair=True)
    with ShardLock(data.shard_path(2)), pytest.raises(ShardLocked, match="shard-02/LOCK"):
        mended(data, may_rebuild=True, may_repair=True)
    assert damaged(data) & {"s1", "s2"}
    mended(data, may_rebuild=True, may_repair=True)
