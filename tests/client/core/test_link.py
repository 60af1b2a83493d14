"""One connection's handles."""

from __future__ import annotations

from tailrace.core.heartbeat import Heartbeat
from tailrace.core.link import BrokerLink
from tailrace.core.options import ClientOptions
from tailrace.core.publications import PendingPublication
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame
from tests.protocol.plain_codec import PlainCodec


def said(link: BrokerLink) -> list[object]:
    data = b"".join(link.outgoing.head())
    return list(PlainCodec(1 << 20, 1 << 20).feed(data, len(data)))


def publish(link: BrokerLink, *streams: str) -> None:
    link.publish(PendingPublication(streams, pack_frame(b"a"), 1, Ack.APPENDED, 1.0))


def test_a_stream_is_opened_once() -> None:
    link = BrokerLink(ClientOptions(), Heartbeat(30.0, 5.0, 0.0))
    publish(link, "a")
    publish(link, "b", "a")
    publish(link, "a")
    hello, *rest = said(link)
    assert isinstance(hello, m.Hello)
    opened = {each.stream: each.id for each in rest if isinstance(each, m.Open)}
    assert list(opened) == [b"a", b"b"]
    named = [each.handles for each in rest if isinstance(each, m.Publish)]
    a, b = opened[b"a"], opened[b"b"]
    assert named == [(a,), (b, a), (a,)]


def test_a_refused_handle_is_remembered() -> None:
    link = BrokerLink(ClientOptions(), Heartbeat(30.0, 5.0, 0.0))
    publish(link, "a")
    publish(link, "b")
    refused = m.Failed("handles", "enough", False, m.Op.OPEN, 2)
    link.handle_refused(refused)
    assert link.refusal_of(("a",)) is None
    assert link.refusal_of(("a", "b")) is refused
    results = ((7, 1, 0, "", ""), (0, 0, 0, "usage", "handle 2 stands for no stream"))
    assert link.explained(("a", "b"), results) == (results[0], (0, 0, 0, "handles", "enough"))
    assert link.explained(("a",), results) is results, "an answer that cannot be"
    link.handle_refused(m.Failed("handles", "enough", False, m.Op.OPEN, 77))
    assert link.refusal_of(()) is None
