"""One subscription: its rule for seqs, its window, its ends."""

from __future__ import annotations

import pytest

from tailrace.errors import DamagedMessage, SeqFault, StreamBehind, StreamDiverged, Trimmed, UnknownStream
from tailrace.message import Message
from tailrace.places import NEW, NOW, START, Seq, StartPlace, Time
from tailrace.protocol import messages as m
from tailrace.reading import Reading, State
from tailrace.shard.leaves import load
from tailrace.wishes import wish_of
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
) -> Reading:
    """A subscription that the broker has answered."""
    wish = wish_of("s", start, None, 0, window_bytes, True, on_trimmed, 30.0)  # type: ignore[arg-type]
    reading = Reading(1, wish, lambda: 0.5, 0.0)
    reading.request()
    reading.subscribed(m.Subscribed(1, next_seq, 0, None))
    return reading


def feed(reading: Reading, first_seq: int, *payloads: bytes) -> None:
    reading.chunk(m.Chunk(1, memoryview(frames_of(first_seq, *payloads))))


def pop(reading: Reading) -> list[Message]:
    """The next item, which is done with at once; [] for nothing."""
    while (arrived := reading.first()) is not None:
        reading.done_with(arrived)
        if arrived.trimmed is not None:
            raise arrived.trimmed
        if arrived.messages:
            return arrived.messages
    return []


def seqs(reading: Reading) -> list[int]:
    found = []
    while reading.has_news and (batch := pop(reading)):
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
    reading = pair.subscribe(start, skip=skip)
    pair.run()
    assert reading.start_seq == first
    pair.model.publish(b"s", b"6")
    pair.run()
    assert pair.payloads(reading) == [b"%d" % number for number in range(first, 7)]


@pytest.mark.parametrize("end", [NOW, Seq(4), Time(FIRST_TIME_US + 4)])
def test_up_to_an_end(end: object) -> None:
    pair = Pair()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    if end is not NOW:
        pair.model.publish(b"s", b"4", b"5")
    reading = pair.subscribe(end=end)  # type: ignore[arg-type]
    pair.run()
    pair.model.publish(b"s", b"later")
    pair.run()
    assert reading.end_seq == 4
    assert pair.payloads(reading) == [b"0", b"1", b"2", b"3"]
    assert reading.state is State.OVER
    assert pop(reading) == []


def test_what_a_message_has() -> None:
    pair = Pair()
    pair.model.publish(b"s", b"a", b"b")
    reading = pair.subscribe(Seq(1))
    pair.run()
    assert pair.read(reading) == [Message("s", 1, FIRST_TIME_US + 1, b"b", b"", 1)]


def test_each_message_has_the_epoch_of_the_master_that_logged_it() -> None:
    reading, before, after = live(), frames_of(0, b"a", b"b"), frames_of(2, b"c")
    leaf.stamp(after, 2, 1_000, 4, 0)
    reading.chunk(m.Chunk(1, memoryview(before + after)))
    assert [(message.seq, message.epoch) for message in pop(reading)] == [(0, 1), (1, 1), (2, 4)]


@pytest.mark.parametrize("window_bytes", [1, 40, 100, 1_000])
def test_the_broker_never_sends_more_ahead_than_the_window(window_bytes: int) -> None:
    """At least one message, though, however large it is."""
    model = Model()
    model.publish(b"s", *(bytes(8) for _ in range(50)))
    pair = Pair(model)
    reading = pair.subscribe(Seq(0), NOW, credit_bytes=window_bytes)
    pair.run()
    count, before = 0, None
    while (arrived := pair.session.next_arrived(reading, before)) is not None or reading.state is not State.OVER:
        if arrived is not None:
            assert len(arrived.messages) * 40 <= window_bytes + 40
            count += len(arrived.messages)
        before = arrived
        pair.run()
    assert count == 50
    assert reading.state is State.OVER


# --- its rule for seqs ------------------------------------------------------------------------------------------------


def test_what_was_seen_is_dropped() -> None:
    reading = live()
    feed(reading, 0, b"0", b"1")
    feed(reading, 0, b"0", b"1")
    feed(reading, 1, b"1", b"2", b"3")
    assert seqs(reading) == [0, 1, 2, 3]
    assert reading.next_seq == 4


def test_what_is_dropped_is_credited_too() -> None:
    reading = live(window_bytes=80)
    feed(reading, 0, b"0")
    assert seqs(reading) == [0]
    assert reading.take_grant() == 0
    feed(reading, 0, b"0")
    assert reading.take_grant() == 66


def test_a_hole_ends_it_after_what_came_before() -> None:
    reading = live()
    feed(reading, 0, b"0")
    feed(reading, 2, b"2")
    feed(reading, 1, b"1")
    assert pop(reading)[0].seq == 0
    for _ in range(2):
        with pytest.raises(SeqFault, match="seq 2 came where 1 was next"):
            pop(reading)
    assert reading.state is State.OVER


def test_a_hole_that_was_told_is_a_trim() -> None:
    reading = live()
    feed(reading, 0, b"0")
    reading.trimmed()
    feed(reading, 5, b"5")
    feed(reading, 6, b"6")
    assert pop(reading)[0].seq == 0
    with pytest.raises(Trimmed, match="messages 1 to 4 were trimmed") as caught:
        pop(reading)
    assert (caught.value.first_seq, caught.value.last_seq, caught.value.stream) == (1, 4, "s")
    assert seqs(reading) == [5, 6]
    feed(reading, 9, b"9")  # raised once, valid for one hole
    with pytest.raises(SeqFault):
        pop(reading)


def test_a_trim_may_be_passed_over() -> None:
    reading = live(on_trimmed="skip")
    reading.trimmed()
    feed(reading, 5, b"5")
    assert seqs(reading) == [5]
    assert reading.trimmed_count == 5


def test_beginning_behind_what_was_trimmed() -> None:
    with pytest.raises(Trimmed, match="messages 3 to 9"):
        pop(live(Seq(3), next_seq=10))
    assert live(START, next_seq=10).next_seq == 10


def test_a_stream_that_ends_before_the_seq_asked_for() -> None:
    with pytest.raises(StreamBehind, match="at seq 3, but the next seq is 2") as caught:
        pop(live(Seq(3), next_seq=2))
    assert (caught.value.asked_seq, caught.value.end_seq) == (3, 2)


def test_a_stream_that_has_become_shorter() -> None:
    reading = live()
    feed(reading, 0, b"0", b"1", b"2")
    reading.connection_lost()
    assert reading.request().start == ("seq", 2)
    reading.subscribed(m.Subscribed(1, 1, 0, None))
    assert seqs_until_error(reading, StreamBehind) == [0, 1, 2]


def resumed(*payloads: bytes, next_seq: int) -> Reading:
    """One that has had these messages, has lost its connection, and is answered by another node."""
    reading = live()
    feed(reading, 0, *payloads)
    reading.connection_lost()
    reading.request()
    reading.subscribed(m.Subscribed(1, next_seq, 0, None))
    return reading


def test_the_last_message_is_looked_at_again() -> None:
    reading = resumed(b"0", b"1", next_seq=1)
    feed(reading, 1, b"1")
    feed(reading, 2, b"2")
    assert seqs(reading) == [0, 1, 2] and reading.state is State.LIVE


@pytest.mark.parametrize(("timestamp_us", "epoch"), [(1_000, 2), (1_001, 1)])
def test_a_last_message_that_has_become_another_one(timestamp_us: int, epoch: int) -> None:
    reading = resumed(b"0", b"1", next_seq=1)
    frames = frames_of(0, b"x", b"y")[33:]
    leaf.stamp(frames, 1, timestamp_us, epoch, 0)
    reading.chunk(m.Chunk(1, memoryview(frames)))
    assert seqs_until_error(reading, StreamDiverged) == [0, 1]
    with pytest.raises(StreamDiverged, match="message 1, and perhaps some before it, differ from those") as caught:
        pop(reading)
    assert caught.value.next_seq == 1


def test_nothing_was_read_so_there_is_nothing_to_look_at() -> None:
    reading = live(Seq(5), next_seq=5)
    reading.connection_lost()
    assert reading.request().start == ("seq", 5)


def test_a_copy_that_lags_is_asked_again_until_it_has_what_was_read() -> None:
    pair = Pair(addresses=2).ready()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    reading = pair.subscribe(end=Seq(6))
    pair.run()
    stream = pair.model.stream(b"s")
    kept, stream.frames = stream.frames, stream.frames[:1]
    pair.cut()
    pair.wait(3.0)
    assert [each.seq for each in pair.read(reading)] == [0, 1, 2, 3]
    assert not pair.peer.cursors, "what it was answered with is not wanted"
    stream.frames = kept
    pair.model.publish(b"s", b"4", b"5")
    pair.wait(10.0)
    assert [each.seq for each in pair.read(reading)] == [4, 5]
    assert reading.state is State.OVER


def test_a_copy_that_lags_for_ever_is_told_in_the_end() -> None:
    pair = Pair(addresses=2, reconnect_s=60.0).ready()
    pair.model.publish(b"s", b"0", b"1", b"2", b"3")
    reading = pair.subscribe()
    pair.run()
    del pair.model.stream(b"s").frames[1:]
    pair.cut()
    pair.run()
    pair.wait(59.0)
    assert pair.read(reading)[-1].seq == 3
    pair.wait(2.0)
    assert seqs_until_error(reading, StreamBehind) == []


def seqs_until_error(reading: Reading, kind: type[Exception]) -> list[int]:
    found = []
    try:
        while batch := pop(reading):
            found += [message.seq for message in batch]
    except kind:
        return found
    raise AssertionError(f"no {kind.__name__} after {found}")


def test_a_stream_trimmed_while_the_connection_was_away() -> None:
    reading = live()
    feed(reading, 0, b"0")
    reading.connection_lost()
    reading.request()
    reading.subscribed(m.Subscribed(1, 4, 4, None))
    feed(reading, 4, b"4")
    assert pop(reading)[0].seq == 0
    with pytest.raises(Trimmed, match="messages 1 to 3"):
        pop(reading)
    assert seqs(reading) == [4]


def test_a_wrong_checksum_ends_it() -> None:
    reading = live()
    frames = frames_of(0, b"0")
    frames[-1] ^= 1
    reading.chunk(m.Chunk(1, memoryview(frames)))
    with pytest.raises(DamagedMessage, match="s: from seq 0 on: the frame at byte 0 of 33 is wrong: crc"):
        pop(reading)


def test_checksums_may_be_left_alone() -> None:
    reading = Reading(1, wish_of("s", START, None, 0, 1, False, "raise", 1.0), lambda: 0.5, 0.0)
    reading.request()
    reading.subscribed(m.Subscribed(1, 0, 0, None))
    frames = frames_of(0, b"0")
    frames[-1] ^= 1
    reading.chunk(m.Chunk(1, memoryview(frames)))
    assert pop(reading)[0].payload == b"1"


# --- asking and ending ------------------------------------------------------------------------------------------------


def test_what_is_held_is_not_asked_for_again() -> None:
    reading = live(window_bytes=100)
    feed(reading, 0, b"0", b"1")
    reading.connection_lost()
    asked = reading.request()
    assert (asked.start, asked.credit) == (("seq", 1), 34)
    assert seqs(reading) == [0, 1]
    assert reading.take_grant() == 0  # not answered yet
    reading.subscribed(m.Subscribed(1, 2, 0, None))
    assert reading.take_grant() == 66


def test_an_answer_that_was_not_asked_for_means_nothing() -> None:
    reading = live()
    reading.subscribed(m.Subscribed(1, 7, 0, None))
    assert reading.next_seq == 0
    reading.cancel()
    feed(reading, 0, b"0")
    reading.refused("unknown", "", 0.0, 1.0)
    reading.ended(m.Ended(1, 9), 0.0, 1.0)
    reading.expire(1e9)
    assert pop(reading) == []


def test_the_broker_ends_it() -> None:
    reading = live()
    feed(reading, 0, b"0")
    reading.ended(m.Ended(1, 1, "unknown", "it is gone"), 0.0, 60.0)
    assert pop(reading)[0].seq == 0
    with pytest.raises(UnknownStream, match="it is gone"):
        pop(reading)


def test_what_was_set_aside_after_it_was_read_is_told() -> None:
    reading = live()
    feed(reading, 0, b"0", b"1", b"2")
    reading.ended(m.Ended(1, 1, "diverged", "s: messages from 1 on were set aside"), 0.0, 60.0)
    assert [each.seq for each in pop(reading)] == [0, 1, 2]
    with pytest.raises(StreamDiverged, match="set aside") as caught:
        pop(reading)
    assert (caught.value.stream, caught.value.code, caught.value.next_seq) == ("s", "diverged", 1)


def test_an_end_before_everything_came_is_a_fault() -> None:
    reading = live()
    reading.ended(m.Ended(1, 5), 0.0, 60.0)
    with pytest.raises(SeqFault):
        pop(reading)


def test_an_end_behind_what_was_trimmed() -> None:
    reading = live(on_trimmed="skip")
    reading.trimmed()
    reading.ended(m.Ended(1, 5), 0.0, 60.0)
    assert reading.state is State.OVER
    assert pop(reading) == []


def test_a_slow_reader_is_resumed() -> None:
    reading = live()
    reading.ended(m.Ended(1, 0, "slow", "too slow"), 0.0, 60.0)
    assert reading.state is State.WANTED
    assert 0 < reading.not_before_s < 1
    assert reading.deadline_s == 60.0
