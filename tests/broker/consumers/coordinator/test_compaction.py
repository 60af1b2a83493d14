"""Logs of consumers as a slave keeps them short, which decides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.consumers.coordinator import compaction, cursor_log
from tailrace.broker.consumers.state.records import (
    CheckpointBegun,
    CheckpointEnded,
    ConsumerCreated,
    ConsumerRows,
    Record,
    pack,
)
from tailrace.shard.names import cursor_name
from tests.broker.consumers.desks import C, Office, S
from tests.broker.owning import publish

LOG = cursor_name(S)
SHORT_BYTES = 4_096
FILLER: list[Record] = [ConsumerCreated(C, 1, 0, 1, 0)] * 100
CHECKPOINT: list[Record] = [CheckpointBegun(()), ConsumerRows(()), CheckpointEnded(1)]


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(compaction, "COMPACT_BYTES", SHORT_BYTES)
    office = Office(tmp_path / "data", retention_interval_s=10.0)
    office.publish()
    return office


def append(office: Office, records: list[Record]) -> int:
    """Messages of the log, as they would come from a master; the seq after them."""
    publish(office.owner, LOG, *map(pack, records))
    return office.owner.stream(LOG).log.next_seq


def sweep(office: Office) -> int:
    """The first seq after housekeeping."""
    office.clock.now_s += 10.0
    office.upkeep.sweep()
    office.upkeep.sweep()
    return office.owner.stream(LOG).log.first_seq


def test_a_log_is_trimmed_to_the_last_checkpoint_that_is_on_the_disk(office: Office) -> None:
    begun_seq = append(office, FILLER)
    append(office, CHECKPOINT + FILLER)
    assert sweep(office) == 0, "it is not on the disk"
    office.clock.now_s += 60
    office.sync()
    assert sweep(office) == begun_seq
    again_seq = append(office, FILLER)
    append(office, CHECKPOINT)
    append(office, [CheckpointBegun(()), ConsumerRows(())])
    office.clock.now_s += 60
    office.sync()
    assert sweep(office) == again_seq, "the one that was cut short counts for nothing"


def test_what_was_read_is_not_read_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = cursor_log.read_records

    def counted(stream_log: object, seq: int) -> object:
        read.append(seq)
        return real(stream_log, seq)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "read_records", counted)
    end = append(office, FILLER)
    assert sweep(office) == sweep(office) == 0
    assert read == [0, end]


def test_short_logs_are_not_opened(office: Office) -> None:
    append(office, CHECKPOINT)
    office.owner.close_logs()
    compaction.Compactor(office.owner).visit(LOG, SHORT_BYTES)
    assert LOG not in office.owner.catalog.open
    compaction.Compactor(office.owner).visit(LOG, SHORT_BYTES + 1)
    assert LOG in office.owner.catalog.open


def test_a_log_that_cannot_be_read_is_left_alone(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    append(office, FILLER)
    publish(office.owner, LOG, b"no record")
    assert sweep(office) == 0
    assert "cannot be trimmed" in caplog.text
