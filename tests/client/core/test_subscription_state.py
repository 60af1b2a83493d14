"""One subscription: its rule for seqs, its window, its ends."""

from __future__ import annotations

import pytest

from tailrace.core.message import Message
from tailrace.core.places import NEW, NOW, START, Seq, StartPlace, Time
from tailrace.core.subscribe_options import subscribe_options
from tailrace.core.subscription_state import SubscriptionPhase, SubscriptionState
from tailrace.errors import DamagedMessage, SeqFault, StreamBehind, StreamDiverged, Trimmed, UnknownStream
from tailrace.protocol import messages as m
from tailrace.shard.leaves import load
from tests.client.model import FIRST_TIME_US, Model
from tests.client.pair import Pair

leaf = load("tailrace.shard.frame_cy")
FIRST = Seq(0)


def frames_of(first_seq: int, *payloads: bytes) -> bytearray:
    frames = bytearray(leaf.pack_frames(list(payloads), b""))
    leaf.stamp(frames, first_seq, 1_000, 1, 0)
    return frames


def live(
    start: StartPlace = FIRST, next_seq: int = 0, *, on_trimmed: str = "raise", window_bytes: int = 1_000
) -> SubscriptionState:
    """A subscription that the broker has answered."""
    chosen = subscribe_options("s", start, None, 0, window_bytes, True, on_trimmed, 30.0)  # type: ignore[arg-type]
    subscription = SubscriptionState(1, chosen, lambda: 0.5, 0.0)
    subscription.request()
    subscription.subscribed(m.Subscribed(1, next_seq, 0, None))
    return subscription


def feed(subscription: SubscriptionState, first_seq: int, *payloads: bytes) -> None:
    subscription.chunk(m.Chunk(1, memoryview(frames_of(first_seq, *payloads))))


def pop(subscription: SubscriptionState) -> list[Message]:
    """The next item, which is done with at once; [] for nothing."""
    while (arrived := subscription.first()) is not None:
        subscription.done_with(arrived)
        if arrived.trimmed is not None:
            raise arrived.trimmed
        if arrived.messages:
            return arrived.messages
    return []


def seqs(subscription: SubscriptionState) -> list[int]:
    found = []
    while subscription.has_news and (batch := pop(subscription)):
        found += [message.seq for message in batch]
    return found


# --- against the broker in memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "skip", "first"),
    [
        (START, 0, 0),
        (0, 0, 0),
        (Seq(4), 0, 4),
        (Time(FIRST_TIME_US + 3), 0, 3),
        (Time(FIRST_TIME_US + 3), 2, 5),
        (NEW, 0, 6),
    ],
)
def test_from_anywhere(start: StartPlace, skip: int, first: int) -> None:
    pair = Pair()
    pair.model.publish(b"s", *(b"%d" % number for number in range(6)))
    subscription = pair.subscribe(start, skip=skip)
    pair.run()
    assert subscription.start_seq == first
    pair.model.publish(b"s", b"6")
    pair.run()
    assert pair.payloads(subscription) == [b"%d" % number for number in range(first, 7)]


@pytest.mark.parametrize("end", [NOW, Seq(4), Time(FIRST_TIME_US + 4)])
def test_up_to_an_end(end: object) -> None:
    pair = Pair()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    if end is not NOW:
        pair.model.publish(b"s", b"4", b"5")
    subscription = pair.subscribe(end=end)  # type: ignore[arg-type]
    pair.run()
    pair.model.publish(b"s", b"later")
    pair.run()
    assert subscription.end_seq == 4
    assert pair.payloads(subscription) == [b"0", b"1", b"2", b"3"]
    assert subscription.phase is SubscriptionPhase.OVER
    assert pop(subscription) == []


def test_what_a_message_has() -> None:
    pair = Pair()
    pair.model.publish(b"s", b"a", b"b")
    subscription = pair.subscribe(Seq(1))
    pair.run()
    assert pair.read(subscription) == [Message("s", 1, FIRST_TIME_US + 1, b"b", b"", 1)]


def test_each_message_has_the_epoch_of_the_master_that_logged_it() -> None:
    subscription, before, after = live(), frames_of(0, b"a", b"b"), frames_of(2, b"c")
    leaf.stamp(after, 2, 1_000, 4, 0)
    subscription.chunk(m.Chunk(1, memoryview(before + after)))
    assert [(message.seq, message.epoch) for message in pop(subscription)] == [(0, 1), (1, 1), (2, 4)]


@pytest.mark.parametrize("window_bytes", [1, 40, 100, 1_000])
def test_the_broker_never_sends_more_ahead_than_the_window(window_bytes: int) -> None:
    """At least one message, though, however large it is."""
    model = Model()
    model.publish(b"s", *(bytes(8) for _ in range(50)))
    pair = Pair(model)
    subscription = pair.subscribe(Seq(0), NOW, credit_bytes=window_bytes)
    pair.run()
    count, before = 0, None
    while (
        arrived := pair.session.next_arrived(subscription, before)
    ) is not None or subscription.phase is not SubscriptionPhase.OVER:
        if arrived is not None:
            assert len(arrived.messages) * 40 <= window_bytes + 40
            count += len(arrived.messages)
        before = arrived
        pair.run()
    assert count == 50
    assert subscription.phase is SubscriptionPhase.OVER


# --- its rule for seqs ------------------------------------------------------------------------------------------------


def test_what_was_seen_is_dropped() -> None:
    subscription = live()
    feed(subscription, 0, b"0", b"1")
    feed(subscription, 0, b"0", b"1")
    feed(subscription, 1, b"1", b"2", b"3")
    assert seqs(subscription) == [0, 1, 2, 3]
    assert subscription.next_seq == 4


def test_what_is_dropped_is_credited_too() -> None:
    subscription = live(window_bytes=80)
    feed(subscription, 0, b"0")
    assert seqs(subscription) == [0]
    assert subscription.take_grant() == 0
    feed(subscription, 0, b"0")
    assert subscription.take_grant() == 66


def test_a_hole_ends_it_after_what_came_before() -> None:
    subscription = live()
    feed(subscription, 0, b"0")
    feed(subscription, 2, b"2")
    feed(subscription, 1, b"1")
    assert pop(subscription)[0].seq == 0
    for _ in range(2):
        with pytest.raises(SeqFault, match="seq 2 came where 1 was next"):
            pop(subscription)
    assert subscription.phase is SubscriptionPhase.OVER


def test_a_hole_that_was_told_is_a_trim() -> None:
    subscription = live()
    feed(subscription, 0, b"0")
    subscription.trimmed()
    feed(subscription, 5, b"5")
    feed(subscription, 6, b"6")
    assert pop(subscription)[0].seq == 0
    with pytest.raises(Trimmed, match="messages 1 to 4 were trimmed") as caught:
        pop(subscription)
    assert (caught.value.first_seq, caught.value.last_seq, caught.value.stream) == (1, 4, "s")
    assert seqs(subscription) == [5, 6]
    feed(subscription, 9, b"9")  # raised once, valid for one hole
    with pytest.raises(SeqFault):
        pop(subscription)


def test_a_trim_may_be_passed_over() -> None:
    subscription = live(on_trimmed="skip")
    subscription.trimmed()
    feed(subscription, 5, b"5")
    assert seqs(subscription) == [5]
    assert subscription.trimmed_count == 5


def test_beginning_behind_what_was_trimmed() -> None:
    with pytest.raises(Trimmed, match="messages 3 to 9"):
        pop(live(Seq(3), next_seq=10))
    assert live(START, next_seq=10).next_seq == 10


def test_a_stream_that_ends_before_the_seq_asked_for() -> None:
    text = "s: seq 3 is beyond the end of the stream: its last message has seq 1, and the next one will have 2"
    with pytest.raises(StreamBehind, match=text) as caught:
        pop(live(Seq(3), next_seq=2))
    assert (caught.value.asked_seq, caught.value.end_seq) == (3, 2)


def test_a_stream_that_has_become_shorter() -> None:
    subscription = live()
    feed(subscription, 0, b"0", b"1", b"2")
    subscription.connection_lost()
    assert subscription.request().start == ("seq", 2)
    subscription.subscribed(m.Subscribed(1, 1, 0, None))
    assert seqs_until_error(subscription, StreamBehind) == [0, 1, 2]


def resumed(*payloads: bytes, next_seq: int) -> SubscriptionState:
    """One that has had these messages, has lost its connection, and is answered by another node."""
    subscription = live()
    feed(subscription, 0, *payloads)
    subscription.connection_lost()
    subscription.request()
    subscription.subscribed(m.Subscribed(1, next_seq, 0, None))
    return subscription


def test_the_last_message_is_looked_at_again() -> None:
    subscription = resumed(b"0", b"1", next_seq=1)
    feed(subscription, 1, b"1")
    feed(subscription, 2, b"2")
    assert seqs(subscription) == [0, 1, 2] and subscription.phase is SubscriptionPhase.LIVE


@pytest.mark.parametrize(("timestamp_us", "epoch"), [(1_000, 2), (1_001, 1)])
def test_a_last_message_that_has_become_another_one(timestamp_us: int, epoch: int) -> None:
    subscription = resumed(b"0", b"1", next_seq=1)
    frames = frames_of(0, b"x", b"y")[33:]
    leaf.stamp(frames, 1, timestamp_us, epoch, 0)
    subscription.chunk(m.Chunk(1, memoryview(frames)))
    assert seqs_until_error(subscription, StreamDiverged) == [0, 1]
    with pytest.raises(StreamDiverged, match="message 1, and perhaps some before it, differ from those") as caught:
        pop(subscription)
    assert caught.value.next_seq == 1


def test_nothing_was_read_so_there_is_nothing_to_look_at() -> None:
    subscription = live(Seq(5), next_seq=5)
    subscription.connection_lost()
    assert subscription.request().start == ("seq", 5)


def test_a_copy_that_lags_is_asked_again_until_it_has_what_was_read() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    subscription = pair.subscribe(end=Seq(6))
    pair.run()
    stream = pair.model.stream(b"s")
    kept, stream.frames = stream.frames, stream.frames[:1]
    pair.cut()
    pair.wait(3.0)
    assert [each.seq for each in pair.read(subscription)] == [0, 1, 2, 3]
    assert not pair.peer.cursors, "the subscription was given up after the answer"
    stream.frames = kept
    pair.model.publish(b"s", b"4", b"5")
    pair.wait(10.0)
    assert [each.seq for each in pair.read(subscription)] == [4, 5]
    assert subscription.phase is SubscriptionPhase.OVER


def test_a_copy_that_lags_for_ever_is_told_in_the_end() -> None:
    pair = Pair(addresses=2, reconnect_s=60.0).ready()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    subscription = pair.subscribe()
    pair.run()
    del pair.model.stream(b"s").frames[1:]
    pair.cut()
    pair.run()
    pair.wait(59.0)
    assert pair.read(subscription)[-1].seq == 3
    pair.wait(2.0)
    assert seqs_until_error(subscription, StreamBehind) == []


def seqs_until_error(subscription: SubscriptionState, kind: type[Exception]) -> list[int]:
    found = []
    try:
        while batch := pop(subscription):
            found += [message.seq for message in batch]
    except kind:
        return found
    raise AssertionError(f"no {kind.__name__} after {found}")


def test_a_stream_trimmed_while_the_connection_was_away() -> None:
    subscription = live()
    feed(subscription, 0, b"0")
    subscription.connection_lost()
    subscription.request()
    subscription.subscribed(m.Subscribed(1, 4, 4, None))
    feed(subscription, 4, b"4")
    assert pop(subscription)[0].seq == 0
    with pytest.raises(Trimmed, match="messages 1 to 3"):
        pop(subscription)
    assert seqs(subscription) == [4]


def test_a_wrong_checksum_ends_it() -> None:
    subscription = live()
    frames = frames_of(0, b"0")
    frames[-1] ^= 1
    subscription.chunk(m.Chunk(1, memoryview(frames)))
    with pytest.raises(DamagedMessage, match="s: from seq 0 on: the frame at byte 0 of 33 is wrong: crc"):
        pop(subscription)


def test_checksums_may_be_left_alone() -> None:
    subscription = SubscriptionState(
        1, subscribe_options("s", START, None, 0, 1, False, "raise", 1.0), lambda: 0.5, 0.0
    )
    subscription.request()
    subscription.subscribed(m.Subscribed(1, 0, 0, None))
    frames = frames_of(0, b"0")
    frames[-1] ^= 1
    subscription.chunk(m.Chunk(1, memoryview(frames)))
    assert pop(subscription)[0].payload == b"1"


# --- asking and ending ------------------------------------------------------------------------------------------------


def test_what_is_held_is_not_asked_for_again() -> None:
    subscription = live(window_bytes=100)
    feed(subscription, 0, b"0", b"1")
    subscription.connection_lost()
    asked = subscription.request()
    assert (asked.start, asked.credit) == (("seq", 1), 34)
    assert seqs(subscription) == [0, 1]
    assert subscription.take_grant() == 0  # not answered yet
    subscription.subscribed(m.Subscribed(1, 2, 0, None))
    assert subscription.take_grant() == 66


def test_bytes_held_beyond_the_window_are_not_credited() -> None:
    subscription = live(window_bytes=50)
    feed(subscription, 0, b"0", b"1")
    subscription.connection_lost()
    assert subscription.request().credit == 0
    assert seqs(subscription) == [0, 1]
    subscription.subscribed(m.Subscribed(1, 2, 0, None))
    assert subscription.take_grant() == 50


def test_an_answer_that_was_not_asked_for_means_nothing() -> None:
    subscription = live()
    subscription.subscribed(m.Subscribed(1, 7, 0, None))
    assert subscription.next_seq == 0
    subscription.cancel()
    feed(subscription, 0, b"0")
    subscription.refused("unknown", "", 0.0, 1.0)
    subscription.ended(m.Ended(1, 9), 0.0, 1.0)
    subscription.expire(1e9)
    assert pop(subscription) == []


def test_the_broker_ends_it() -> None:
    subscription = live()
    feed(subscription, 0, b"0")
    subscription.ended(m.Ended(1, 1, "unknown", "it is gone"), 0.0, 60.0)
    assert pop(subscription)[0].seq == 0
    with pytest.raises(UnknownStream, match="it is gone"):
        pop(subscription)


def test_what_was_set_aside_after_it_was_read_is_told() -> None:
    subscription = live()
    feed(subscription, 0, b"0", b"1", b"2")
    subscription.ended(m.Ended(1, 1, "diverged", "s: messages from 1 on were set aside"), 0.0, 60.0)
    assert [each.seq for each in pop(subscription)] == [0, 1, 2]
    with pytest.raises(StreamDiverged, match="set aside") as caught:
        pop(subscription)
    assert (caught.value.stream, caught.value.code, caught.value.next_seq) == ("s", "diverged", 1)


def test_an_end_before_everything_came_is_a_fault() -> None:
    subscription = live()
    subscription.ended(m.Ended(1, 5), 0.0, 60.0)
    with pytest.raises(SeqFault):
        pop(subscription)


def test_an_end_behind_what_was_trimmed() -> None:
    subscription = live(on_trimmed="skip")
    subscription.trimmed()
    subscription.ended(m.Ended(1, 5), 0.0, 60.0)
    assert subscription.phase is SubscriptionPhase.OVER
    assert pop(subscription) == []


def test_a_slow_reader_is_resumed() -> None:
    subscription = live()
    subscription.ended(m.Ended(1, 0, "slow", "too slow"), 0.0, 60.0)
    assert subscription.phase is SubscriptionPhase.WANTED
    assert 0 < subscription.not_before_s < 1
    assert subscription.deadline_s == 60.0
