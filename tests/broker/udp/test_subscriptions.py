"""Subscriptions: filters beside topics, and the sets of streams that are wanted."""

from __future__ import annotations

from tailrace.broker.udp.addresses import pack_name
from tailrace.broker.udp.subscriptions import UdpSubscriptions, WantedStreams
from tests.broker.udp.test_table_cy import frame_of

ONE, OTHER = pack_name(("10.0.0.1", 1)), pack_name(("10.0.0.1", 2))


class Subscribed:
    """Subscriptions, and the streams that they want."""

    def __init__(self, most: int = 64, filter_bytes: int = 1 << 20) -> None:
        self.wanted: dict[WantedStreams, None] = {}
        self.topics: set[bytes] = set()
        self.subscriptions = UdpSubscriptions(most, filter_bytes, 1 << 20, self._on_streams, self._on_topic)

    def _on_streams(self, streams: WantedStreams, wanted: bool) -> None:
        assert (streams in self.wanted) != wanted
        if wanted:
            self.wanted[streams] = None
        else:
            del self.wanted[streams]

    def _on_topic(self, topic: bytes, streams: WantedStreams, wanted: bool) -> None:
        assert streams in self.wanted and (topic in self.topics) != wanted
        self.topics ^= {topic}

    def matched(self, topic: bytes) -> int:
        buffers = bytearray(400), bytearray(160), bytearray(1_000)
        return self.subscriptions.collect(frame_of(topic, b""), 0, b"udp", 0, buffers)[2]


def test_streams_are_wanted_while_a_topic_may_lie_there() -> None:
    found = Subscribed()
    add, remove = found.subscriptions.add, found.subscriptions.remove
    assert add(ONE, b"a", (b"x",), 5) and add(OTHER, b"a", (b"x",), 5) and add(ONE, b"b", (b"x",), 5)
    assert add(ONE, b"+", (b"x", b"y"), 5) and list(found.wanted) == [(b"x",), (b"x", b"y")]
    assert found.matched(b"a") == 3 and found.matched(b"c") == 1
    assert remove(ONE, b"a") and not remove(ONE, b"a") and remove(ONE, b"b")
    assert remove(ONE, b"+") and list(found.wanted) == [(b"x",)]
    assert found.matched(b"a") == 1 and found.matched(b"c") == 0
    assert found.topics == {b"a"}
    assert remove(OTHER, b"a") and not found.wanted and not found.topics and not found.subscriptions.peers


def test_leases_end_filters_too() -> None:
    found = Subscribed()
    found.subscriptions.add(ONE, b"a/+", (b"x",), 5)
    found.subscriptions.add(OTHER, b"a/+", (b"x",), 9)
    found.subscriptions.add(ONE, b"b", (b"y",), 5)
    assert found.subscriptions.expire(6) == 1
    assert list(found.wanted) == [(b"x",)] and found.matched(b"a/b") == 1
    assert found.subscriptions.expire(10) == 1 and not found.wanted and not found.topics
    assert found.subscriptions.expire(10) == 0


def test_what_has_no_room_leaves_nothing_behind() -> None:
    found = Subscribed(16, 64 << 10)
    for number in range(16):
        assert found.subscriptions.add(ONE, b"t%d" % number, (b"x",), 5)
    assert not found.subscriptions.add(ONE, b"+", (b"y",), 5) and list(found.wanted) == [(b"x",)]
    sizes = (size for size in range(100, 10_000, 10) if Subscribed(64, size).subscriptions.add(ONE, b"+", (b"x",), 5))
    few = Subscribed(64, next(sizes))
    assert few.subscriptions.add(ONE, b"+", (b"x",), 5)
    assert not few.subscriptions.add(ONE, b"a/+", (b"y",), 5) and list(few.wanted) == [(b"x",)]
    assert few.matched(b"a") == 1 and few.matched(b"a/b") == 0
