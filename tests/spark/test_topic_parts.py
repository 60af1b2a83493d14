from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailrace.core.headers import pack_headers
from tailrace.shard.directory import DataDirectory
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.topic_index import BLOCK_BYTES, topics_path
from tailrace.shard.topic_index_build import build_index
from tailrace.spark import topic_parts
from tailrace.spark.batch import TailraceReader
from tailrace.spark.directory_source import DirectorySource
from tailrace.spark.options import parse_options
from tailrace.spark.plan import make_plan
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions
from tests.broker.topics.naive import matches
from tests.spark.data import START_US, Sent, append, make_directory, open_log, trim

MESSAGES, TOPICS = 3_000, 300
SEED = 1818


def topic_of(number: int) -> str:
    """Those of a topic come in a row now and then."""
    return f"s/{random.Random(SEED * MESSAGES + number // 3).randrange(TOPICS)}/x"


def messages(first: int, end: int) -> list[Sent]:
    return [Sent(START_US + i, bytes(600), pack_headers({}, topic=topic_of(i))) for i in range(first, end)]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    made = make_directory(tmp_path / "data", {"s": messages(0, MESSAGES)}, shards=1)
    index(made)
    return made


def index(data: DataDirectory) -> None:
    directory = data.stream_directory("s")
    with StreamReader.open(directory, "s") as reader:
        assert build_index(stream_paths(directory, "s"), reader, lambda: True) > 0


@pytest.fixture(autouse=True)
def close_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_parts, "JOIN_BYTES", 0)
    monkeypatch.setattr(topic_parts, "WINDOW_BLOCKS", 7)


def planned(data: DataDirectory, topics: str) -> list[Slice]:
    plan = make_plan(DirectorySource(SourceOptions(str(data.path))), (), topics=topics.encode())
    assert not plan.bad
    return [slice_ for task in plan.tasks for slice_ in task]


def check(data: DataDirectory, topics: str, first: int, end: int, most: float) -> int:
    """All messages that match are in the plan, each once, which has at most this part of all."""
    slices = planned(data, topics)
    seqs = [seq for slice_ in slices for seq in range(slice_.first_seq, slice_.end_seq)]
    assert seqs == sorted(set(seqs)) and set(seqs) <= set(range(first, end))
    assert {seq for seq in range(first, end) if matches(topics, topic_of(seq))} <= set(seqs)
    assert len(seqs) <= most * (end - first)
    return len(slices)


@pytest.mark.parametrize("topics", [topic_of(0), topic_of(MESSAGES - 1), topic_of(1_500), "s/7/#", "s/7/+", "no/such"])
def test_only_parts_that_may_have_the_topic_are_read(data: DataDirectory, topics: str) -> None:
    check(data, topics, 0, MESSAGES, 0.4)


@pytest.mark.parametrize("topics", ["#", "+/7/x", "s/#", "s/+/x"])
def test_a_filter_of_which_the_index_says_nothing_reads_all(data: DataDirectory, topics: str) -> None:
    assert check(data, topics, 0, MESSAGES, 1) == 1


def test_messages_behind_the_index_and_before_a_trim(data: DataDirectory) -> None:
    log = open_log(data, "s")
    append(log, messages(MESSAGES, MESSAGES + 500))
    log.close()
    check(data, topic_of(0), 0, MESSAGES + 500, 0.5)
    trim(data.path, "s", 100)
    for topics in (topic_of(0), topic_of(1_500)):
        check(data, topics, 100, MESSAGES + 500, 0.5)


def test_an_index_that_cannot_be_believed_leaves_nothing_out(data: DataDirectory) -> None:
    path = Path(topics_path(stream_paths(data.stream_directory("s"), "s")))
    whole = path.read_bytes()
    for spoilt in (whole[:-300], whole[:5_000] + bytes([whole[5_000] ^ 1]) + whole[5_001:], b""):
        path.write_bytes(spoilt)
        check(data, topic_of(0), 0, MESSAGES, 1)
    path.write_bytes(whole)
    log = open_log(data, "s")
    log.set_aside(1_000)
    append(log, messages(1_000, 1_500))
    log.close()
    assert check(data, topic_of(0), 0, 1_500, 1) == 1
    path.unlink()
    assert check(data, topic_of(0), 0, 1_500, 1) == 1


def test_a_slice_of_other_files_than_the_index(data: DataDirectory) -> None:
    (slice_,) = planned(data, "#")
    other = slice_._replace(identity=(1, 1))
    source = DirectorySource(SourceOptions(str(data.path)))
    assert source.prune(other, topic_of(0).encode()) == [other]
    assert len(source.prune(slice_, topic_of(0).encode())) > 1


def test_parts_close_together_are_joined_and_their_number_is_bounded(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = topic_of(1_500)
    apart = check(data, topics, 0, MESSAGES, 0.4)
    monkeypatch.setattr(topic_parts, "JOIN_BYTES", 20 * BLOCK_BYTES)
    joined = check(data, topics, 0, MESSAGES, 0.9)
    assert 1 < joined < apart
    monkeypatch.setattr(topic_parts, "PARTS_MAX", 2)
    assert check(data, topics, 0, MESSAGES, 1) <= 2


def test_a_query_reads_few_messages(data: DataDirectory) -> None:
    from pyspark.sql.types import LongType, StructType

    options = parse_options({"path": str(data.path), "topics": topic_of(1_500)})
    reader = TailraceReader(options, StructType().add("seq", LongType()))
    seqs = [seq for task in reader.partitions() for batch in reader.read(task) for seq in batch["seq"].to_pylist()]
    assert seqs == [seq for seq in range(MESSAGES) if topic_of(seq) == topic_of(1_500)]
