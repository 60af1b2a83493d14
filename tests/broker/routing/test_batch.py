"""From the edge to the log: batches, their parts, and the answers that come of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.broker.process.work import NOBODY, Asker, Nobody
from tailrace.broker.routing.batch import LinePublication, Pending, StreamBatch
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.frame import pack_frame


def frames(*payloads: bytes) -> bytearray:
    return bytearray(b"".join(pack_frame(payload) for payload in payloads))


@dataclass
class FakePublisher(Nobody):
    """Both kinds of publisher: one that gets no outcomes, and one that gets the outcome of each part."""

    asker: Asker = NOBODY

    may: bool = True
    created: int = 0
    heard: list[tuple[object, ...]] = field(default_factory=list)

    def publish_refused(self, name: bytes, count: int, code: Code, text: str) -> None:
        self.heard.append((name, count, code, text))

    def note_refused(self, code: Code, text: str, count: int) -> None:
        """`publication` looks at the answers."""

    def published(self, key: int, first_seq: int, _subscribers: int) -> None:
        self.heard.append((key, first_seq))

    def refused(self, key: int, code: Code, text: str) -> None:
        self.heard.append((key, code, text))

    def unreplicated(self, key: int, first_seq: int, text: str) -> None:
        self.heard.append((key, first_seq, text))

    def may_create(self, _name: bytes) -> bool:
        return self.may

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.STREAMS, "no more streams")

    def count_created(self) -> None:
        self.created += 1


# --- batches ----------------------------------------------------------------------------------------------------------


def test_parts_get_the_seqs_of_their_place_in_the_batch() -> None:
    batch = StreamBatch(b"s", 0)
    quiet, one, two = FakePublisher(), FakePublisher(), FakePublisher()
    batch.add(one, 7, 2, frames(b"a", b"b"))
    batch.add_quiet(quiet, 3, frames(b"c", b"d", b"e"))
    batch.add(two, 8, 1, frames(b"f"))
    assert (batch.count, batch.nbytes) == (6, 6 * 33)
    assert batch.take_frames() == frames(b"a", b"b", b"c", b"d", b"e", b"f")
    assert batch.frames == []
    batch.published(100, 0)
    assert (one.heard, quiet.heard, two.heard) == ([(7, 100)], [], [(8, 105)])


def test_frames_of_one_part_are_not_copied() -> None:
    batch = StreamBatch(b"s", 0)
    mine = frames(b"a")
    batch.add_quiet(FakePublisher(), 1, mine)
    assert batch.take_frames() is mine


def test_a_refusal_reaches_everybody() -> None:
    batch = StreamBatch(b"s", 0)
    quiet, one = FakePublisher(), FakePublisher()
    batch.add_quiet(quiet, 3, frames(b"c", b"d", b"e"))
    batch.add(one, 7, 2, frames(b"a", b"b"))
    batch.refused(Code.FULL, "no room")
    assert quiet.heard == [(b"s", 3, Code.FULL, "no room")]
    assert one.heard == [(7, Code.FULL, "no room")]


def test_what_is_logged_and_not_replicated_says_where_it_is() -> None:
    batch = StreamBatch(b"s", 0, None, 2)
    one, two = FakePublisher(), FakePublisher()
    batch.add(one, 7, 2, frames(b"a", b"b"))
    batch.add(two, 8, 1, frames(b"c"))
    batch.unreplicated(40, "0 of 2")
    assert (one.heard, two.heard) == ([(7, 40, "0 of 2")], [(8, 42, "0 of 2")])


def test_whoever_may_still_create_is_the_creator() -> None:
    batch = StreamBatch(b"s", 0)
    spent, able, sink = FakePublisher(may=False), FakePublisher(), FakePublisher()
    batch.add(sink, 0, 1, frames(b"a"))
    batch.add_quiet(spent, 1, frames(b"a"))
    assert batch.creator() is sink
    batch.add_quiet(able, 1, frames(b"a"))
    assert batch.creator() is able
    able.may = sink.may = False
    assert batch.creator() is None


# --- publications -----------------------------------------------------------------------------------------------------


def publication(order: list[int], *groups: tuple[bytes, int]) -> tuple[LinePublication, list[bytes]]:
    """A publication over these streams, and the answers it was settled with."""
    settled: list[bytes] = []
    made: LinePublication

    def ready() -> None:
        assert made.text is not None
        settled.append(made.text)

    made = LinePublication(ready, FakePublisher(), [(name, count, bytearray()) for name, count in groups], order)
    return made, settled


def test_acknowledgements_come_in_the_order_of_the_messages() -> None:
    made, settled = publication([0, 1, 0, 1, 1], (b"a", 2), (b"b", 3))
    made.published(1, 10, 0)
    assert settled == [], "not before all streams have answered"
    made.published(0, 5, 0)
    assert settled == [b"ok pub a 5\r\nok pub b 10\r\nok pub a 6\r\nok pub b 11\r\nok pub b 12\r\n"]


def test_a_refused_stream_is_refused_message_by_message() -> None:
    made, settled = publication([0, 1, 0, 1], (b"a", 2), (b"b", 2))
    made.refused(0, Code.DISABLED, "not here")
    made.published(1, 3, 0)
    assert settled[0].splitlines() == [
        b"err disabled a: not here", b"ok pub b 3", b"err disabled a: not here", b"ok pub b 4",
    ]  # fmt: skip


def test_without_acknowledgements_only_failures_are_told() -> None:
    made, settled = publication([], (b"a", 2), (b"b", 2))
    made.published(0, 1, 0)
    made.published(1, 1, 0)
    assert settled == [b""]
    made, settled = publication([], (b"a", 2), (b"b", 1))
    made.refused(0, Code.FULL, "no room")
    made.refused(1, Code.FULL, "no room")
    assert settled[0].splitlines() == [b"err full a: 2 messages: no room", b"err full b: no room"]


def test_only_the_first_filling_of_a_place_counts() -> None:
    heard: list[str] = []
    pending = Pending(lambda: heard.append("ready"))
    pending.settle(b"one")
    pending.settle(b"two")
    assert (pending.text, heard) == (b"one", ["ready"])


def test_a_numbered_batch_comes_apart_into_its_publishes() -> None:
    first, second = FakePublisher(), FakePublisher()
    batch = StreamBatch(b"s", 1, None, 2)
    batch.numbered = batch.sync = True
    batch.add(first, 0, 2, frames(b"a", b"b"))
    assert batch.apart() == [batch]
    batch.add(second, 3, 1, frames(b"c"))
    apart = batch.apart()
    assert [(each.count, each.nbytes, each.numbered, each.sync, each.replicas) for each in apart] == [
        (2, 66, True, True, 2),
        (1, 33, True, True, 2),
    ]
    assert [bytes(each.take_frames()) for each in apart] == [frames(b"a", b"b"), frames(b"c")]
    apart[1].published(7, 0)
    assert (first.heard, second.heard) == ([], [(3, 7)])
