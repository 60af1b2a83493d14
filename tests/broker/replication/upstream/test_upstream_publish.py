"""A turn's publishes on their way up: the messages sent, and the meaning of each answer to the publisher."""

from __future__ import annotations

import pytest

from tailrace.broker.replication.upstream.upstream_publish import UpstreamPublish
from tailrace.broker.routing.batch import StreamBatch
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack, Failed, Op, Publish
from tailrace.shard.frame import pack_frame
from tests.broker.owning import Sink, batch
from tests.broker.replication.upstream_node import Ears

S = b"s"


class Link:
    """An uplink that is up, where the stream has the handle 3."""

    def __init__(self) -> None:
        self.out = bytearray()

    def queue(self, *buffers: bytes | bytearray | memoryview) -> None:
        self.out += b"".join(buffers)

    def handle_of(self, name: bytes) -> int:
        assert name == S
        return 3

    def heard(self) -> Publish:
        (message,) = Ears().hear(bytes(self.out))
        assert isinstance(message, Publish)
        return message


def two_parts() -> tuple[StreamBatch, list[Sink]]:
    """Two publishers, of two messages and of one."""
    sinks = [Sink(), Sink()]
    made = batch(S, b"a", b"b", sink=sinks[0])
    made.add(sinks[1], 7, 1, bytearray(pack_frame(b"c")))
    return made, sinks


@pytest.mark.parametrize(
    ("sync", "replicas", "ack"),
    [
        (False, 0, Ack.APPENDED),
        (True, 0, Ack.SYNCED),
        (False, 2, Ack.REPLICATED),
        (True, 2, Ack.REPLICATED),
    ],
)
def test_a_batch_goes_up_as_one_publish(sync: bool, replicas: int, ack: Ack) -> None:
    made, _sinks = two_parts()
    made.sync, made.replicas = sync, replicas
    forward = UpstreamPublish(9, made)
    assert (forward.name, forward.nbytes, forward.request_id) == (S, made.nbytes, 9)
    link = Link()
    forward.send(link)
    said = link.heard()
    assert (said.request, said.ack, said.handles, said.count, said.replicas) == (9, ack, (3,), 3, replicas)
    assert bytes(said.frames) == b"".join(map(pack_frame, (b"a", b"b", b"c")))


def test_each_part_hears_its_own_seqs() -> None:
    made, sinks = two_parts()
    UpstreamPublish(9, made).published(40, 5)
    assert [sink.published_at for sink in sinks] == [{0: 40}, {7: 42}]


@pytest.mark.parametrize(
    ("code", "told"),
    [("full", Code.FULL), ("disabled", Code.DISABLED), ("a code of later", Code.UNAVAILABLE), ("", Code.UNAVAILABLE)],
)
def test_a_refusal_goes_to_every_part(code: str, told: Code) -> None:
    made, sinks = two_parts()
    UpstreamPublish(9, made).failed(Failed(code, "why", False, Op.PUBLISH, 9))
    assert [sink.refusals for sink in sinks] == [{0: (told, "why")}, {7: (told, "why")}]


def test_what_is_logged_and_not_held_tells_its_seqs() -> None:
    made, sinks = two_parts()
    row = (40, 3, 0, "unreplicated", "held by 1 of 2")
    UpstreamPublish(9, made).failed(Failed("unreplicated", "why", False, Op.PUBLISH, 9, (row,)))
    assert [sink.logged_at for sink in sinks] == [{0: 40}, {7: 42}]
    assert sinks[0].refusals == {0: (Code.UNREPLICATED, "held by 1 of 2")}


def test_without_seqs_it_is_a_refusal() -> None:
    made, sinks = two_parts()
    UpstreamPublish(9, made).failed(Failed("unreplicated", "why", False, Op.PUBLISH, 9))
    assert sinks[1].refusals == {7: (Code.UNREPLICATED, "why")} and not sinks[1].logged_at


def test_one_that_was_never_sent_fails_as_its_route_says() -> None:
    made, sinks = two_parts()
    UpstreamPublish(9, made).fail(Code.OVERLOADED, "too far behind")
    assert sinks[0].refusals == {0: (Code.OVERLOADED, "too far behind")}
