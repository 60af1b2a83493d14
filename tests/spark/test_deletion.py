"""Streams that are deleted, or deleted and made again, while Spark reads them: from the files and from the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

import tailrace
from tailrace.errors import StreamBehind, StreamDeleted, UnknownStream
from tailrace.shard.errors import StreamCut, StreamMissing
from tailrace.spark import live, offsets
from tailrace.spark.broker_connection import BrokerConnection, ListedEnd
from tailrace.spark.live import TailraceStreamReader
from tailrace.spark.offsets import DataLoss, Offset
from tailrace.spark.options import parse_options
from tailrace.spark.plan import make_plan
from tailrace.spark.slices import NO_IDENTITY, BadStreams, StreamReplaced
from tailrace.spark.source import Source, open_source
from tests.spark.test_live import SCHEMA, Query, seqs
from tests.system.node import Node, running

pytestmark = pytest.mark.system

OLD, NEW = 10, 12
COUNTS = [OLD - 3, OLD, NEW]
LARGE = 40_000  # several times what a broker sends ahead


readers: list[TailraceStreamReader] = []
"""Those of the present test."""


class NodeQuery(Query):
    """A live query by one of both ways of reading."""

    def __init__(self, **options: str) -> None:
        self._schema = SCHEMA
        self._said = options
        self.done = None
        self.planned = None
        self.restart()

    def restart(self) -> None:
        super().restart()
        readers.append(self.reader)

    def with_options(self, **options: str) -> NodeQuery:
        """The same query, stopped and started from its checkpoint with these options."""
        found = NodeQuery(**{**self._said, **options})
        found.done, found.planned = self.done, self.planned
        return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("deletion") / "data", workers=2) as found:
        yield found


@pytest.fixture(params=["path", "brokers"])
def way(request: pytest.FixtureRequest, node: Node) -> Iterator[dict[str, str]]:
    publish(node, "a", OLD)
    publish(node, "b", OLD)
    yield {"path": str(node.data)} if request.param == "path" else {"brokers": f"127.0.0.1:{node.port}"}
    while readers:
        readers.pop().stop()
    with node.client() as client:
        client.send("delete a", "delete b")
        client.read_answers(2)


def publish(node: Node, stream: str, count: int, text: str = "old") -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        client.publish_many(stream, [f"{text} {number}".encode() for number in range(count)])


def delete(node: Node, stream: str) -> None:
    with node.client() as client:
        assert client.ask(f"delete {stream}") == f"ok delete {stream}"


def renew(node: Node, stream: str, count: int) -> None:
    delete(node, stream)
    publish(node, stream, count, "new")


# --- between two batches of a live query ------------------------------------------------------------------------------


def test_a_stream_that_is_deleted_between_two_batches_and_made_again_later(node: Node, way: dict[str, str]) -> None:
    query = NodeQuery(**way)
    assert query.batch() == seqs("a", 0, OLD) + seqs("b", 0, OLD)
    delete(node, "a")
    publish(node, "b", 2)
    assert query.batch() == seqs("b", OLD, OLD + 2)
    publish(node, "a", 3, "new")
    with pytest.raises(DataLoss, match=r"stream 'a'.*it was made anew"):
        query.batch()
    query = query.with_options(failOnDataLoss="false")
    assert query.batch() == seqs("a", 0, 3)
    assert query.batch() == []


def test_a_named_stream_that_is_deleted_stops_the_query_or_is_left_out(node: Node, way: dict[str, str]) -> None:
    query = NodeQuery(**way, streams="a b")
    query.batch()
    delete(node, "a")
    publish(node, "b", 2)
    with pytest.raises(BadStreams if "path" in way else DataLoss, match="stream 'a'"):
        query.batch()
    query = query.with_options(failOnDataLoss="false", badStreams="skip")
    assert query.batch() == seqs("b", OLD, OLD + 2)
    publish(node, "a", 3, "new")
    assert query.batch() == seqs("a", 0, 3)


@pytest.mark.parametrize("count", COUNTS)
def test_a_stream_that_is_made_again_between_two_batches(node: Node, way: dict[str, str], count: int) -> None:
    """Also with as many messages as before, which over a connection were once noticed when there were more."""
    query = NodeQuery(**way)
    query.batch()
    renew(node, "a", count)
    with pytest.raises(DataLoss, match=r"stream 'a'.*it was made anew"):
        query.batch()
    query = query.with_options(failOnDataLoss="false")
    assert query.batch() == seqs("a", 0, count)
    publish(node, "a", 1, "new")
    assert query.batch() == seqs("a", count, count + 1)


@pytest.mark.parametrize("count", COUNTS)
def test_a_stream_that_is_made_again_before_a_query_of_what_is_there(
    node: Node, way: dict[str, str], count: int
) -> None:
    """It looks at the streams first, and gets its offset then."""
    query = NodeQuery(**way)
    query.batch()
    renew(node, "a", count)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"stream 'a'.*it was made anew"):
        query.batch()


@pytest.mark.parametrize("way", ["brokers"], indirect=True)
def test_a_stream_that_is_made_again_on_a_node_that_sends_no_files(
    node: Node, way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nodes of earlier versions: as many messages as before are noticed when there are more."""
    listed_ends = BrokerConnection.listed_ends

    def without_files(connection: BrokerConnection, streams: Sequence[str]) -> dict[str, ListedEnd]:
        return {name: each._replace(files=NO_IDENTITY) for name, each in listed_ends(connection, streams).items()}

    monkeypatch.setattr(BrokerConnection, "listed_ends", without_files)
    query = NodeQuery(**way)
    query.batch()
    publish(node, "a", 1)
    assert query.batch() == seqs("a", OLD, OLD + 1)
    renew(node, "a", OLD + 1)
    assert query.batch() == []
    publish(node, "a", 1, "new")
    with pytest.raises(DataLoss, match=r"stream 'a'.*it was made anew"):
        query.batch()


@pytest.mark.parametrize("way", ["brokers"], indirect=True)
def test_streams_that_have_grown_are_not_asked_for_one_by_one(
    node: Node, way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each is asked for once: 100,000 of them had as many questions, one after the other."""
    query = NodeQuery(**way)
    query.batch()
    asked: list[str] = []
    listed_ends = BrokerConnection.listed_ends

    def listing(connection: BrokerConnection, streams: Sequence[str]) -> dict[str, ListedEnd]:
        asked.extend(streams)
        return listed_ends(connection, streams)

    def refuse(*_asked: object) -> None:
        raise AssertionError("a question about one stream")

    publish(node, "a", 2)
    publish(node, "b", 2)
    with monkeypatch.context() as patch:
        patch.setattr(BrokerConnection, "listed_ends", listing)
        for name in ("place", "chunks"):
            patch.setattr(BrokerConnection, name, refuse)
        query.plan()
    assert asked == ["a", "b"]
    assert query.run() == seqs("a", OLD, OLD + 2) + seqs("b", OLD, OLD + 2)


# --- between the plan of a batch and its reading ----------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_batch_whose_stream_is_deleted_before_it_is_read(
    node: Node, way: dict[str, str], first: bool, restarted: bool
) -> None:
    query = NodeQuery(**way)
    if not first:
        query.batch()
        publish(node, "a", 2)
        publish(node, "b", 2)
    query.plan()
    delete(node, "a")
    if restarted:
        query.restart()
    with pytest.raises(DataLoss, match="it was deleted before the query has read it"):
        query.run()
    assert query.with_options(failOnDataLoss="false").run() == (seqs("b", 0, OLD) if first else seqs("b", OLD, OLD + 2))


@pytest.mark.few(4)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_a_batch_whose_stream_is_made_again_before_it_is_read(
    node: Node, way: dict[str, str], count: int, restarted: bool
) -> None:
    """None of its messages is taken for one of the batch; the next batch begins with them."""
    query = NodeQuery(**way)
    query.plan()
    renew(node, "a", count)
    if restarted:
        query.restart()
    if "brokers" in way or not restarted:  # else the batch is known to have nothing of it, and the next one fails
        with pytest.raises(StreamCut):
            query.run()
    query = query.with_options(failOnDataLoss="false")
    assert query.run() == seqs("b", 0, OLD)
    assert query.planned is not None
    query.done = query.planned[1]
    publish(node, "a", 1, "new")
    with pytest.raises(DataLoss, match="it was made anew"):
        query.with_options(failOnDataLoss="true").batch()
    assert query.batch() == seqs("a", 0, count + 1)


def test_a_stream_that_is_made_again_while_a_batch_is_planned(
    node: Node, way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its end and that at the last message of the batch."""
    query = NodeQuery(**way)
    query.batch()
    publish(node, "a", 2)
    publish(node, "b", 2)
    advance = offsets.advance

    def renew_first(start: Offset, latest: Offset, rows: int | None) -> Offset:
        renew(node, "a", OLD + 7)
        return advance(start, latest, rows)

    with monkeypatch.context() as patch:
        patch.setattr(live, "advance", renew_first)
        query.plan()
    lenient = query.with_options(failOnDataLoss="false")
    assert lenient.run() == seqs("b", OLD, OLD + 2)
    assert lenient.planned is not None
    lenient.done = lenient.planned[1]
    with pytest.raises(DataLoss, match="it was made anew"):
        lenient.with_options(failOnDataLoss="true").batch()
    assert lenient.batch() == seqs("a", 0, OLD + 7)


# --- a query of the past ----------------------------------------------------------------------------------------------


@pytest.fixture
def source(way: dict[str, str]) -> Iterator[Source]:
    with closing(open_source(parse_options(way).source)) as found:
        yield found


def read_all(source: Source, plan_of: list[str]) -> list[tuple[str, int]]:
    found = []
    for task in make_plan(source, plan_of).tasks:
        for slice_ in task:
            with source.open(slice_) as reader:
                found += [
                    (slice_.stream, seq) for block in reader.blocks(frames=True) for seq in block.entries.seq.tolist()
                ]
    return found


def test_a_plan_whose_stream_is_gone_or_another_one(node: Node, source: Source) -> None:
    plan = make_plan(source, ["a"])
    ((slice_,),) = plan.tasks
    delete(node, "a")
    with pytest.raises((StreamMissing, UnknownStream)), source.open(slice_) as reader:
        list(reader.blocks(frames=True))
    for count in COUNTS:
        publish(node, "a", count, "new")
        for part in (slice_, slice_._replace(first_seq=OLD - 1)):  # the latter may lie behind the end of the new one
            with pytest.raises(StreamCut), source.open(part) as reader:
                list(reader.blocks(frames=True))
        assert read_all(source, ["a", "b"]) == seqs("a", 0, count) + seqs("b", 0, OLD)
        delete(node, "a")


def test_a_stream_that_is_made_again_while_it_is_read(node: Node, source: Source) -> None:
    """What was read is of the former one; it ends with an error, unless the files were held."""
    publish(node, "large", LARGE, "old" + 320 * " ")
    ((slice_,),) = make_plan(source, ["large"], rows_per_task=10 * LARGE).tasks
    read: list[bytes] = []
    with pytest.raises((StreamCut, StreamDeleted, StreamBehind, UnknownStream)), source.open(slice_) as reader:
        for block in reader.blocks(frames=True):
            assert block.frames is not None
            read.append(bytes(block.frames))
            if len(read) == 1:
                renew(node, "large", LARGE)
    delete(node, "large")
    assert read and b"old " in read[0]
    assert not any(b"new " in frames for frames in read)


def test_the_error_names_the_message_and_what_may_have_happened() -> None:
    assert str(StreamReplaced("a", 7)) == (
        "stream 'a' has another message 7 than when this was planned: it was deleted and made again, or its node has"
        " lost the end of it"
    )
