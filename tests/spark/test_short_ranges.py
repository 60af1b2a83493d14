from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Never

import pytest

import tailrace
from tailrace.core.address import Address
from tailrace.errors import BrokerError, ConnectionLost
from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.shard.frame import pack_frame
from tailrace.spark import broker_source, short_ranges
from tailrace.spark.broker_connection import BrokerConnection, Chunk
from tailrace.spark.broker_source import BrokerSource
from tailrace.spark.plan import make_plan
from tailrace.spark.short_ranges import RANGE_BYTES, TOTAL_BYTES, fetch
from tailrace.spark.slices import FETCHED_MAX, Slice, Stamp, StreamReplaced
from tailrace.spark.source import SourceOptions, fetched
from tests.spark.test_broker_connection import FakeBroker, serve
from tests.spark.test_broker_source import all_of
from tests.system.node import Node

MESSAGES = 3
FRAMES = pack_frame(b"one") + pack_frame(b"two")

Answers = Callable[[m.Subscribe], list[m.Response]]


def whole(asked: m.Subscribe) -> list[m.Response]:
    return [m.Subscribed(asked.id, 0, 0, MESSAGES), m.Chunk(asked.id, memoryview(FRAMES)), m.Ended(asked.id, MESSAGES)]


def serve_ranges(request: pytest.FixtureRequest, answers: Answers, ends: Sequence[str]) -> FakeBroker:
    """A broker whose streams have MESSAGES messages; it knows the ends of some."""

    def answer(asked: m.Request) -> list[m.Response]:
        if isinstance(asked, m.Hello):
            return [m.Welcome(1, (listing.FEATURE,), "test/1", "n", 0, {})]
        if isinstance(asked, listing.List):
            names = tuple(name.decode() for name in asked.names if name.decode() in ends)
            return [listing.Listed(asked.id, names, ends=(listing.EndRow(0, MESSAGES, 1, 1),) * len(names))]
        if isinstance(asked, m.Unsubscribe):
            return [m.Ended(asked.id, 1)]
        return answers(asked) if isinstance(asked, m.Subscribe) else []

    return serve(answer, request)


def read(broker: FakeBroker, *slices: Slice) -> dict[str, list[tuple[int, bool]]]:
    """The streams that were read: the bytes of their chunks, and whether messages are missing before each."""
    with BrokerConnection([broker.address], features=(listing.FEATURE,)) as connection:
        found = fetch(connection, slices)
    broker.close()
    return {slice_.stream: [(len(frames), trimmed) for frames, trimmed in found[slice_]] for slice_ in found}


def slice_of(stream: str, end_seq: int = MESSAGES) -> Slice:
    return Slice(stream, -1, 0, end_seq)


def test_all_are_asked_for_before_the_first_is_answered(request: pytest.FixtureRequest) -> None:
    held: list[m.Subscribe] = []

    def answers(asked: m.Subscribe) -> list[m.Response]:
        held.append(asked)
        return [m.Ping(), *(each for one in reversed(held) for each in whole(one))] if len(held) == 3 else []

    broker = serve_ranges(request, answers, "abc")
    assert read(broker, *map(slice_of, "abc")) == {name: [(len(FRAMES), False)] for name in "abc"}
    assert not any(isinstance(each, m.Unsubscribe) for each in broker.heard)


def test_what_cannot_be_read_at_once_is_left_to_its_reader(request: pytest.FixtureRequest) -> None:
    def answers(asked: m.Subscribe) -> list[m.Response]:
        if asked.stream == b"refused":
            return [m.Failed("denied", "not yours", False, 7, asked.id)]
        if asked.stream == b"deleted":
            return [*whole(asked)[:2], m.Ended(asked.id, 2, "deleted", "it was deleted")]
        if asked.stream == b"trimmed":
            return [m.Subscribed(asked.id, 1, 1, MESSAGES), *whole(asked)[1:]]
        if asked.stream == b"later":
            trimmed = m.Failed("trimmed", "messages were trimmed", False, 7, asked.id)
            return [*whole(asked)[:2], trimmed, *whole(asked)[1:]]
        if asked.stream == b"empty":
            return [m.Subscribed(asked.id, 3, 3, MESSAGES), m.Ended(asked.id, MESSAGES)]
        return whole(asked)

    names = ("refused", "deleted", "trimmed", "later", "empty", "a", "short", "unknown")
    broker = serve_ranges(request, answers, names[:-1])
    slices = [slice_of(name, MESSAGES + (name == "short")) for name in names]
    length = len(FRAMES)
    assert read(broker, *slices) == {
        "trimmed": [(length, True)],
        "later": [(length, False), (length, True)],
        "a": [(length, False)],
    }
    asked = [each.stream for each in broker.heard if isinstance(each, m.Subscribe)]
    assert asked == [name.encode() for name in names[:-2]], "neither one that ends before its slice, nor an unknown one"


def test_a_long_message_ends_its_range_and_many_end_them_all(request: pytest.FixtureRequest) -> None:
    long = pack_frame(bytes(RANGE_BYTES))

    def answers(asked: m.Subscribe) -> list[m.Response]:
        if asked.stream == b"waits":
            return whole(asked)[:2]
        frames = bytes(TOTAL_BYTES) if asked.stream == b"huge" else long
        return [m.Subscribed(asked.id, 0, 0, MESSAGES), m.Chunk(asked.id, memoryview(frames))]

    broker = serve_ranges(request, answers, ["long"])
    assert read(broker, slice_of("long")) == {"long": [(len(long), False)]}
    assert [each.credit for each in broker.heard if isinstance(each, m.Subscribe)] == [RANGE_BYTES]
    assert sum(isinstance(each, m.Unsubscribe) for each in broker.heard) == 1
    broker = serve_ranges(request, answers, ["waits", "long", "huge"])
    found = read(broker, *map(slice_of, ("waits", "long", "huge")))
    assert {name: sum(length for length, _ in chunks) for name, chunks in found.items()} == {
        "waits": len(FRAMES),
        "long": len(long),
        "huge": TOTAL_BYTES,
    }
    assert sorted(each.id for each in broker.heard if isinstance(each, m.Unsubscribe)) == sorted(
        each.id for each in broker.heard if isinstance(each, m.Subscribe)
    ), "each once"


def test_an_end_of_the_connection_is_raised(request: pytest.FixtureRequest) -> None:
    broker = serve_ranges(request, lambda _asked: [m.Failed("closing", "it ends", True, 0, 0)], "a")
    with pytest.raises(BrokerError, match="it ends"):
        read(broker, slice_of("a"))


# --- with a node ------------------------------------------------------------------------------------------------------

STREAMS = FETCHED_MAX + 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Many streams with few messages, one of them trimmed, and some with longer ones."""
    made = Node(tmp_path_factory.mktemp("short") / "data", workers=2).start()
    with tailrace.connect(f"127.0.0.1:{made.port}") as client:
        for number in range(STREAMS):
            client.publish_many(f"s{number:03}", [b"%d" % seq for seq in range(1 + number % MESSAGES)])
        client.publish_many("long", [bytes(20_000)] * 5)
        client.publish_many("many", [b"x"] * (short_ranges.MESSAGES_MAX + 1))
        client.publish_many("trimmed", [b"x"] * 5)
    with made.client() as lines:
        assert lines.ask("trim trimmed #2").startswith("ok trim")
    yield made
    made.kill()


@pytest.fixture
def source(node: Node) -> Iterator[BrokerSource]:
    with closing(BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", node.port),)))) as found:
        yield found


@pytest.mark.thorough
@pytest.mark.system
def test_the_same_messages_with_few_requests(source: BrokerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [slice_ for task in make_plan(source, (), rows_per_task=10_000).tasks for slice_ in task]
    slices[-1] = slices[-1]._replace(first_seq=0)  # of the stream that is trimmed
    task = (*slices, slices[-1])
    one_by_one = [rows for slice_ in task for rows in all_of(source, (slice_,))]
    asked: list[tuple[str, int]] = []

    def chunks(self: BrokerConnection, stream: str, first_seq: int, end_seq: int) -> Iterator[Chunk]:
        asked.append((stream, first_seq))
        return real(self, stream, first_seq, end_seq)

    real = BrokerConnection.chunks
    monkeypatch.setattr(BrokerConnection, "chunks", chunks)
    assert [rows for slice_ in fetched(source, task) for rows in all_of(source, (slice_,))] == one_by_one
    assert len(one_by_one) > STREAMS
    assert sorted(asked) == [("long", 2), ("many", 0), ("trimmed", 0)], "a rest, a long one, and one that comes again"


@pytest.mark.thorough
@pytest.mark.system
def test_other_messages_than_those_that_were_planned_for(source: BrokerSource) -> None:
    task = (Slice("s001", -1, 0, 2, latest=Stamp(1, 1)), Slice("s002", -1, 0, 3))
    slices = fetched(source, task)
    with pytest.raises(StreamReplaced, match="'s001' has another message 0"):
        all_of(source, (next(slices),))
    assert len(all_of(source, (next(slices),))) == 3


@pytest.mark.system
def test_readers_find_out_themselves_what_is_wrong(source: BrokerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_args: object) -> Never:
        raise ConnectionLost("just now")

    monkeypatch.setattr(short_ranges, "fetch", lost)
    task = (Slice("s001", -1, 0, 2), Slice("s002", -1, 0, 3))
    assert [len(all_of(source, (slice_,))) for slice_ in fetched(source, task)] == [2, 3]


def test_nobody_is_asked_for_a_single_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Slice, ...]] = []

    def fetch(_connection: object, slices: Sequence[Slice]) -> dict[Slice, list[Chunk]]:
        asked.append(tuple(slices))
        return {}

    monkeypatch.setattr(short_ranges, "fetch", fetch)
    monkeypatch.setattr(broker_source, "BrokerConnection", lambda *_args: None)
    source = BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", 1),)))
    a, b, long = slice_of("a"), slice_of("b"), slice_of("long", short_ranges.MESSAGES_MAX + 1)
    for slices in ((a,), (a, long), (a, long, b), ()):
        source.fetch(slices)
    assert asked == [(a, b)]
