"""The table of topics: by both engines, bounded, kept when messages are trimmed, and left alone by runs without it."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.core.headers import pack_headers
from tailrace.shard.directory import open_data_dir
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.stream_files import stream_paths
from tailrace.spark import directory_source
from tailrace.spark.rollup import units
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.job import Job, run_locked
from tailrace.spark.rollup.remote import open_remote
from tests.spark.data import Sent, append, make_directory, open_log, trim
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.test_job import run_with

Key = tuple[str, int, str | None]


def sent_to(*topics: str | None, first_us: int = DAY_START_US, step_us: int = MINUTE_US) -> list[Sent]:
    """A message to each topic in turn; None for one without a topic."""
    return [
        Sent(first_us + i * step_us, bytes(i % 97), b"" if topic is None else pack_headers({}, topic=topic))
        for i, topic in enumerate(topics)
    ]


def expected(streams: dict[str, list[Sent]], topics: dict[str, list[str | None]], most: int) -> dict[Key, list[int]]:
    """A plain pass over all messages of the day."""
    rows: dict[Key, list[int]] = {}
    seen = defaultdict[tuple[str, int], set[str]](set)
    for name, messages in streams.items():
        for seq, (message, topic) in enumerate(zip(messages, topics[name], strict=True)):
            hour = (message.timestamp_us - DAY_START_US) // HOUR_US
            if not 0 <= hour < 24:
                continue
            known, shown = seen[name, hour], topic or name
            if shown not in known and len(known) < most:
                known.add(shown)
            size = len(message.payload) + len(message.metadata)
            row = rows.setdefault((name, hour, shown if shown in known else None), [0, 0, size, size, seq, seq])
            row[0] += 1
            row[1] += size
            row[2:] = [min(row[2], size), max(row[3], size), row[4], seq]
    return rows


def table(out: Path) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for file in sorted((out / "topics" / f"day={DAY}").rglob("*.parquet")):
        for row in pq.ParquetFile(file).read().to_pylist():
            hour = (int(row["start"].timestamp()) * 1_000_000 - DAY_START_US) // HOUR_US
            names = "messages", "bytes", "size_min", "size_max", "first_seq", "last_seq"
            key = row["stream"], hour, row["topic"]
            assert key not in found
            found[key] = [row[name] for name in names]
    return found


def test_every_number_is_that_of_a_plain_pass(
    tmp_path: Path, engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_source, "FRAMES_BLOCK_ENTRIES", 64)
    chance = random.Random(18)
    names: list[str | None] = [None, "s/ключ", "t//", *(f"s/{number}" for number in range(9))]
    topics = {name: [chance.choice(names) for _ in range(400)] for name in ("s", "t", "u")}
    streams = {name: sent_to(*topics[name], first_us=DAY_START_US - HOUR_US) for name in topics}
    make_directory(tmp_path / "data", {**streams, "empty": []})
    outcome = run_with(engine, tmp_path, topics=5)
    wanted = expected(streams, topics, 5)
    assert table(tmp_path / "out") == wanted
    assert outcome.rows["topics"] == len(wanted)
    assert any(topic is None for _stream, _hour, topic in wanted)


def test_a_large_day_is_counted_once(
    tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "WHOLE_ROWS_MAX", 100)
    monkeypatch.setattr(units.cut_units, "__defaults__", (100,))
    topics: dict[str, list[str | None]] = {"s": [f"s/{number % 3}" for number in range(400)]}
    streams = {"s": sent_to(*topics["s"], step_us=MINUTE_US // 4)}
    make_directory(tmp_path / "data", streams)
    run_with(local_engine, tmp_path, topics=9)
    assert table(tmp_path / "out") == expected(streams, topics, 9)


def test_it_is_made_only_on_request_and_left_alone_otherwise(tmp_path: Path, local_engine: ChooseEngine) -> None:
    make_directory(tmp_path / "data", {"s": sent_to("s/1", "s/2")})
    assert "topics" not in run_with(local_engine, tmp_path).rows
    assert not (tmp_path / "out" / "topics").exists()
    run_with(local_engine, tmp_path, topics=9)
    before = table(tmp_path / "out")
    assert len(before) == 2
    run_with(local_engine, tmp_path)
    assert table(tmp_path / "out") == before


def test_hours_that_were_trimmed_since_keep_their_rows(tmp_path: Path, local_engine: ChooseEngine) -> None:
    topics = {"s": [f"s/{number % 3}" for number in range(150)], "gone": ["gone/1"] * 3}
    streams = {name: sent_to(*each) for name, each in topics.items()}
    data = make_directory(tmp_path / "data", streams)
    run_with(local_engine, tmp_path, topics=9)
    later: list[str | None] = ["s/new"] * 40
    log = open_log(data, "s")
    added = sent_to(*later, first_us=DAY_START_US + 150 * MINUTE_US)
    append(log, added)
    log.close()
    trim(tmp_path / "data", "s", 90)
    for path in (
        stream_paths(data.stream_directory("gone"), "gone").content_file,
        stream_paths(data.stream_directory("gone"), "gone").index_file,
    ):
        Path(path).unlink()
    run_with(local_engine, tmp_path, topics=9)
    wanted = expected(
        {**streams, "s": streams["s"] + added}, {"gone": list(topics["gone"]), "s": [*topics["s"], *later]}, 9
    )
    assert table(tmp_path / "out") == wanted
    run_with(local_engine, tmp_path, topics=9, replace=True)
    assert table(tmp_path / "out") == {key: row for key, row in wanted.items() if key[0] == "s"}


def test_only_the_rows_of_the_streams_asked_for_change(tmp_path: Path, local_engine: ChooseEngine) -> None:
    data = make_directory(tmp_path / "data", {"a": sent_to("a/1"), "b": sent_to("b/1")})
    run_with(local_engine, tmp_path, topics=9)
    for name in "ab":
        log = open_log(data, name)
        append(log, sent_to(f"{name}/2", first_us=DAY_START_US + MINUTE_US))
        log.close()
    run_with(local_engine, tmp_path, topics=9, streams=("b",))
    assert {key[2] for key in table(tmp_path / "out")} == {"a/1", "b/1", "b/2"}


def test_a_stream_that_cannot_be_read_is_named(tmp_path: Path, local_engine: ChooseEngine) -> None:
    data = make_directory(tmp_path / "data", {"a": sent_to("a/1"), "b": sent_to("b/1", "b/2")})
    content = Path(stream_paths(open_data_dir(data.path).stream_directory("b"), "b").content_file)
    content.write_bytes(content.read_bytes()[: 4096 + HEADER_BYTES // 2])
    outcome = run_with(local_engine, tmp_path, topics=9)
    assert {key[2] for key in table(tmp_path / "out")} >= {"a/1"}
    assert "b" in outcome.failed


def test_at_a_url_the_table_is_in_the_state(tmp_path: Path, local_engine: ChooseEngine) -> None:
    make_directory(tmp_path / "data", {"a": sent_to("a/1", "a/2")})
    (tmp_path / "out").mkdir()
    url = f"file://{tmp_path}/out"
    for topics in (9, 0, 9):
        with open_remote(url) as store, store.locked():
            store.prepare(DAY)
            wanted = Job({"path": str(tmp_path / "data")}, store.path, DAY, topics=topics)
            run_locked(store, wanted, local_engine, lambda _phase, _done, _total: None)
            state: Any = store._state
        (file,) = state.files("topics")
        assert pq.ParquetFile(tmp_path / "out" / file).read()["topic"].to_pylist() == ["a/1", "a/2"]
