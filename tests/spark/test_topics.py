from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.address import Address
from tailrace.core.headers import pack_headers
from tailrace.protocol.topics import filter_fault, topic_fault
from tailrace.shard.directory import DataDirectory
from tailrace.spark.columns import SCHEMA, BatchMaker, Part
from tailrace.spark.options import InvalidOption, parse_options
from tailrace.spark.plan import make_plan
from tailrace.spark.reading import read_task
from tailrace.spark.source import Source, SourceOptions, StreamRef, open_source
from tailrace.spark.topics import TopicPicker, filter_pattern
from tests.broker.topics.naive import matches
from tests.spark.data import START_US, Sent, append, make_directory, open_log, plain
from tests.spark.test_live import Query
from tests.system.node import running

LEVELS = st.sampled_from(["", "a", "b", "$s", "ü", "a.b", "x\ny"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, *last]),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
)


@given(FILTERS, TOPICS)
def test_a_filter_matches_as_the_brokers_own(topic_filter: str, topic: str) -> None:
    if filter_fault(topic_filter.encode()) or topic_fault(topic.encode()):
        return
    found = filter_pattern(topic_filter.encode()).fullmatch(topic.encode()) is not None
    assert found == matches(topic_filter, topic)


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    topics = ["s/1", "s/1", None, "s/2", "other", "s/1", None]
    sent = [
        Sent(START_US + i, b"%d" % i, pack_headers({"n": str(i)}, topic=topic) if i != 2 else b"")
        for i, topic in enumerate(topics)
    ]
    return make_directory(tmp_path / "data", {"s": sent, "t": plain(2)})


@pytest.fixture
def source(data: DataDirectory) -> Source:
    return open_source(SourceOptions(str(data.path)))


def read(source: Source, topics: str, *columns: str) -> list[dict[str, object]]:
    schema = pa.schema([SCHEMA.field(name) for name in columns or ("stream", "seq", "topic", "payload")])
    tasks = make_plan(source, (), topics=topics.encode()).tasks
    found = [b for task in tasks for b in read_task(source, task, BatchMaker(schema, "binary"), False, topics.encode())]
    rows: list[dict[str, object]] = pa.Table.from_batches(found, schema).to_pylist()
    return rows


def test_a_message_without_a_topic_has_the_name_of_its_stream(source: Source) -> None:
    assert [row["topic"] for row in read(source, "")] == ["s/1", "s/1", "s", "s/2", "other", "s/1", "s", "t", "t"]


@pytest.mark.parametrize(
    ("topics", "places"),
    [
        ("s/1", [("s", 0), ("s", 1), ("s", 5)]),
        ("s/#", [("s", 0), ("s", 1), ("s", 2), ("s", 3), ("s", 5), ("s", 6)]),
        ("+", [("s", 2), ("s", 4), ("s", 6), ("t", 0), ("t", 1)]),
        ("t", [("t", 0), ("t", 1)]),
        ("#", [*(("s", seq) for seq in range(7)), ("t", 0), ("t", 1)]),
        ("nobody", []),
    ],
)
def test_only_messages_that_a_filter_matches(source: Source, topics: str, places: list[tuple[str, int]]) -> None:
    rows = read(source, topics)
    assert [(row["stream"], row["seq"]) for row in rows] == places
    assert [row["payload"] for row in rows] == [
        b"%d" % seq if name == "s" else b"message %d" % seq for name, seq in places
    ]
    assert read(source, topics, "seq") == [{"seq": seq} for _, seq in places], "the frames are read for it"


def test_a_live_query_of_some_topics(data: DataDirectory) -> None:
    query = Query(data, topics="s/1")
    assert query.batch() == [("s", 0), ("s", 1), ("s", 5)]
    log = open_log(data, "s")
    append(log, [Sent(START_US + 10, b"", pack_headers({}, topic=topic)) for topic in ("s/2", "s/1")])
    log.close()
    assert query.batch() == [("s", 8)]
    assert query.batch() == []


@pytest.mark.system
def test_over_a_connection(data: DataDirectory, source: Source) -> None:
    expected = [read(source, topics) for topics in ("", "s/1", "s/#", "+")]
    with (
        running(data.path, workers=1) as node,
        closing(open_source(SourceOptions("", (Address("127.0.0.1", node.port),)))) as connected,
    ):
        assert [read(connected, topics) for topics in ("", "s/1", "s/#", "+")] == expected


@given(topics=st.lists(st.sampled_from(["a", "b", "a/b", ""]), min_size=1, max_size=30), topic_filter=FILTERS)
def test_runs_have_the_messages_that_match(
    tmp_path_factory: pytest.TempPathFactory, topics: list[str], topic_filter: str
) -> None:
    if filter_fault(topic_filter.encode()):
        return
    sent = [Sent(START_US + i, b"", pack_headers({}, topic=topic or None)) for i, topic in enumerate(topics)]
    data = make_directory(tmp_path_factory.mktemp("topics") / "data", {"s": sent}, shards=1)
    opened = open_source(SourceOptions(str(data.path)))
    ((slice_,),) = make_plan(opened, ()).tasks
    with opened.open(slice_) as reader:
        parts = [Part(StreamRef(0, "s"), block) for block in reader.blocks(frames=True)]
    found = [seq for part in TopicPicker(topic_filter.encode()).pick(parts) for seq in part.block.entries.seq.tolist()]
    assert found == [seq for seq, topic in enumerate(topics) if matches(topic_filter, topic or "s")]


@pytest.mark.parametrize("topics", ["", "a/#/b", "a+", "x" * 1_025, "a\0"])
def test_what_is_no_filter_is_said(topics: str) -> None:
    with pytest.raises(InvalidOption, match="topics"):
        parse_options({"path": "/d", "topics": topics})


def test_a_filter_is_an_option() -> None:
    assert parse_options({"path": "/d", "topics": "s/+"}).topics == b"s/+"
    assert parse_options({"path": "/d"}).topics == b""
