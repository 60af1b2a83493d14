"""A binary peer of a `World`: it sends messages, receives answers, and collects the frames of its subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.messages import (
    Ack,
    AnyMessage,
    Chunk,
    Hello,
    Open,
    Response,
    Subscribe,
    Welcome,
    pack,
    pack_publish,
)
from tailrace.protocol.places import From
from tailrace.protocol.replication import FEATURE
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tests.broker.world import World

_parse = load("tailrace.shard.frame_cy").parse

FROM_START = From("seq", 0)


class BinaryPeer:
    """`got`: (seq, payload) by subscription; `sizes`: bytes of frames of each chunk, in the order they came."""

    def __init__(
        self,
        node: World,
        slot: int = 0,
        *,
        local: bool = True,
        small: bool = False,
        hello: bool = True,
        node_id: str = "",
    ):
        """`node_id`: of a peer that is itself a node, and speaks as nodes do."""
        self.node = node
        self.peer = node.connect(slot, local=local, small=small)
        self.codec = ClientCodec(features=frozenset({FEATURE} if node_id else ()))
        self.got: dict[int, list[tuple[int, bytes]]] = {}
        self.sizes: list[int] = []
        self.requests = 0
        if hello:
            features = (FEATURE,) if node_id else ()
            (answer,) = self.ask(Hello(1, features, "test", node=node_id or None, address=":5050" if node_id else None))
            assert isinstance(answer, Welcome)
            self.welcome = answer

    def say(self, *messages: AnyMessage) -> None:
        self.peer.send_raw(b"".join(map(pack, messages)))

    def publish(
        self, handles: int | Sequence[int], *payloads: bytes, ack: Ack = Ack.APPENDED, replicas: int = 0
    ) -> int:
        """Send a PUBLISH; its request's number."""
        self.requests += 1
        frames = b"".join(map(pack_frame, payloads))
        numbers = [handles] if isinstance(handles, int) else handles
        self.peer.send_raw(pack_publish(self.requests, ack, numbers, frames, replicas) + frames)
        return self.requests

    def open(self, *names: str) -> None:
        """Let handles 1, 2, … stand for these streams."""
        self.ask(*(Open(number, name.encode()) for number, name in enumerate(names, start=1)))

    def subscribe(self, number: int, name: str, start: From = FROM_START, **more: object) -> list[Response]:
        """Begins to read a stream, which need not exist yet."""
        return self.ask(Subscribe(number, name.encode(), start, **{"wait": True, **more}))  # type: ignore[arg-type]

    def ask(self, *messages: AnyMessage) -> list[Response]:
        self.say(*messages)
        self.node.settle()
        return self.take()

    def take(self) -> list[Response]:
        """Take the messages received, except chunks, which are taken apart into `got`."""
        data = bytes(self.peer.received)
        self.peer.received.clear()
        answers: list[Response] = []
        for message in self.codec.feed(data):
            if isinstance(message, Chunk):
                frames = message.frames
                found = _parse(frames, 0, len(frames), True)
                self.got.setdefault(message.id, []).extend((each[0], bytes(each[5])) for each in found)
                self.sizes.append(len(frames))
            else:
                answers.append(message)
        return answers
