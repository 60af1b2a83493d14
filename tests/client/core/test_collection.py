"""A COLLECT across connections, and the subscriptions that it begins."""

from __future__ import annotations

import math
from functools import partial

from tailrace import NEW
from tailrace.core.collection import Collection, MemberState
from tailrace.core.subscribe_options import subscribe_options
from tailrace.core.subscription_state import NO_LAST, SubscriptionPhase
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.protocol.collecting import Added, Collect, Collected
from tailrace.protocol.messages import Chunk, Ended
from tailrace.protocol.places import FROM_NEW
from tailrace.shard.frame import pack_frame
from tests.protocol.wires import stamped

MAKE = partial(
    subscribe_options,
    start=NEW,
    end=None,
    skip=0,
    credit_bytes=100,
    check_crc=True,
    on_trimmed="raise",
    timeout_s=3.0,
    topics="t/#",
)


class Collector:
    waiter: object = None

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_collected(self, time_us: int, now_s: float) -> None:
        self.heard.append(time_us)

    def on_added(self, member: MemberState, now_s: float) -> None:
        raise NotImplementedError

    def on_interrupted(self, now_s: float) -> None:
        self.heard.append("interrupted")

    def on_refused(self, error: TailraceError) -> None:
        self.heard.append(type(error))


def made() -> tuple[Collection, Collector]:
    collector = Collector()
    collection = Collection("s*", MAKE("any"), 4, collector, lambda: 1.0)
    collection.begin(0.0)
    return collection, collector


def live() -> tuple[Collection, Collector]:
    collection, collector = made()
    collection.request(7)
    collection.collected(Collected(7, 0, 123), 0.0)
    collector.heard.clear()
    return collection, collector


def test_it_is_asked_for_on_each_connection() -> None:
    collection, collector = made()
    assert collection.is_due(0.0)
    assert collection.request(7) == Collect(7, b"s*", FROM_NEW, credit=100, topics=b"t/#", at_once=4)
    assert collection.waits_for_answer and not collection.is_due(0.0)
    collection.collected(Collected(7, 0, 123), 1.0)
    collection.connection_lost(2.0)
    assert collector.heard == [123, "interrupted"]
    assert collection.is_due(2.0) and not collection.take_former()
    collection.connection_lost(2.5)
    collection.expire(99.0)
    assert collector.heard == [123, "interrupted"], "it has begun, and goes on when it can"


def test_what_ends_it_for_the_moment_is_asked_for_again_and_the_former_request_ended() -> None:
    collection, collector = live()
    collection.refused("unavailable", "why", 5.0)
    assert collector.heard == ["interrupted"]
    assert not collection.is_due(5.0) and collection.is_due(collection.due_s)
    assert [collection.take_former() for _ in range(2)] == [7, 0]


def test_one_that_has_too_much_to_read_waits_until_all_is_read() -> None:
    collection, _collector = live()
    collection.refused("overloaded", "why", 5.0)
    assert collection.due_s == math.inf
    collection.go_on(6.0)
    assert 6.0 < collection.due_s < 7.0
    due_s = collection.due_s
    collection.go_on(6.5)
    assert collection.due_s == due_s


def test_it_fails_for_good_before_it_has_begun() -> None:
    collection, collector = made()
    collection.request(1)
    collection.refused("denied", "why", 0.0)
    assert collection.is_over and len(collector.heard) == 1
    collection, collector = made()
    collection.expire(2.9)
    assert not collector.heard
    collection.expire(3.0)
    assert collector.heard == [OperationTimeout]


def member_of(collection: Collection) -> MemberState:
    return collection.added(Added(7, 2**31, "s1", 4, 0), 0.0)


def test_a_member_is_there_at_once_and_ends_with_the_connection() -> None:
    collection, collector = live()
    member = member_of(collection)
    assert (member.id, member.stream, member.start_seq, member.ready) == (2**31, "s1", 4, True)
    member.chunk(Chunk(member.id, memoryview(frame(4))))
    member.connection_lost()
    assert member.phase is SubscriptionPhase.OVER and member.holds_any and member.error is None
    assert not collector.heard


def test_a_member_that_is_read_to_its_end_knows_how_far_that_is() -> None:
    """Messages of other topics were passed over behind its last one."""
    member = member_of(live()[0])
    member.chunk(Chunk(member.id, memoryview(frame(4))))
    member.ended(Ended(member.id, 9), 0.0, 1.0)
    assert (member.phase, member.next_seq, member.end_seq) == (SubscriptionPhase.OVER, 5, 9)


def test_a_member_that_ends_in_its_middle_interrupts_all() -> None:
    collection, collector = live()
    member = member_of(collection)
    member.ended(Ended(member.id, 4, "unavailable", "why"), 0.0, 1.0)
    assert member.phase is SubscriptionPhase.OVER and member.error is None
    assert collector.heard == ["interrupted"] and not collection.is_live


def test_what_was_read_elsewhere_is_skipped_and_credited() -> None:
    member = member_of(live()[0])
    frames = [frame(seq) for seq in range(4, 8)]
    member.chunk(Chunk(member.id, memoryview(frames[0] + frames[1])))
    member.chunk(Chunk(member.id, memoryview(frames[2])))
    member.skip_to(5, NO_LAST)
    first = member.first()
    assert first is not None and [each.seq for each in first.messages] == [5]
    member.skip_to(7, NO_LAST)
    assert member.first() is None and member.next_seq == 7
    assert member.take_grant() == sum(map(len, frames[:3]))
    member.chunk(Chunk(member.id, memoryview(frames[3])))
    first = member.first()
    assert first is not None and [each.seq for each in first.messages] == [7]


def frame(seq: int) -> bytes:
    return bytes(stamped(pack_frame(b"x"), seq))
