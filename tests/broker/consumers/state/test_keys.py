"""Which keys are in flight where."""

from __future__ import annotations

from tailrace.broker.consumers.state.keys import Keys
from tailrace.broker.consumers.state.ranges import DeliveryRun
from tests.broker.consumers.stream import Stream


def keyed(text: str) -> Stream:
    """A stream with a message for each letter, of that key; "." has none."""
    stream = Stream()
    stream.publish(None if letter == "." else letter.encode() for letter in text)
    return stream


def test_keys_are_asked_for_once() -> None:
    stream, keys = keyed("ab.ab."), Keys()
    keys.learn(stream, 2, 3)
    keys.learn(stream, 0, 5)
    keys.learn(stream, 0, 5)
    assert stream.asked == 6
    assert [keys.by_seq[seq] for seq in range(6)] == [b"a", b"b", None, b"a", b"b", None]


def test_a_key_is_free_where_no_other_member_has_it() -> None:
    stream, keys = keyed("ab.ab.aa"), Keys()
    keys.learn(stream, 0, 7)
    keys.took_off(DeliveryRun(0, 0, 0, b"m"))
    assert list(keys.free(0, 7, b"m")) == [(0, 7)]
    assert list(keys.free(1, 7, b"n")) == [(1, 2), (4, 5)]
    assert list(keys.free(4, 5, b"n")) == [(4, 5)]


def test_it_is_free_again_when_all_of_its_messages_have_landed() -> None:
    stream, keys = keyed("aa.a"), Keys()
    keys.learn(stream, 0, 3)
    keys.took_off(DeliveryRun(0, 2, 0, b"m"))
    keys.landed(DeliveryRun(0, 0, 0, b"m"))
    assert list(keys.free(3, 3, b"n")) == []
    keys.landed(DeliveryRun(1, 2, 0, b"m"))
    assert list(keys.free(3, 3, b"n")) == [(3, 3)]
    keys.forget(DeliveryRun(0, 9, 0))
    assert not keys.by_seq
