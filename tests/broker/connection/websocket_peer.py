"""A peer in a test's world whose bytes go in frames of WebSocket; `received` holds the payload of binary ones."""

from __future__ import annotations

import struct

from tests.broker.world import Peer, World
from tests.protocol.test_websocket import frame
from tests.protocol.test_websocket_upgrade import REQUEST

LENGTHS = {126: ">H", 127: ">Q"}


class WebSocketPeer(Peer):
    """`answer`: to the request; `controls`: opcodes and payloads of frames that are not binary ones, in order."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.sock)
        self.below = peer
        self.answer = b""
        self.controls: list[tuple[int, bytes]] = []
        self._wire = b""

    @classmethod
    def of(cls, node: World, request: bytes = REQUEST, *, peer: Peer | None = None) -> WebSocketPeer:
        """A new connection, or one that exists, after its request."""
        plain = node.connect() if peer is None else peer
        made = node.peers[node.peers.index(plain)] = cls(plain)
        made.below.send_raw(request)
        node.settle()
        return made

    def send_raw(self, data: bytes) -> None:
        self.below.send_raw(frame(data))

    def read(self) -> bool:
        if self.deaf or self.ended or not self.below.read():
            return False
        self._wire += bytes(self.below.received)
        self.below.received.clear()
        self.ended = self.below.ended
        if not self.answer:
            head, empty, self._wire = self._wire.partition(b"\r\n\r\n")
            self.answer = head + empty
        while self._take_frame():
            continue
        return True

    def _take_frame(self) -> bool:
        wire = self._wire
        if not self.answer.startswith(b"HTTP/1.1 101 ") or len(wire) < 2:
            return False
        assert not wire[1] & 0x80, "a server masks nothing"
        size, at = wire[1], 2
        if size in LENGTHS:
            form = LENGTHS[size]
            at += struct.calcsize(form)
            if len(wire) < at:
                return False
            (size,) = struct.unpack(form, wire[2:at])
        if len(wire) < at + size:
            return False
        payload, self._wire = wire[at : at + size], wire[at + size :]
        if wire[0] == 0x82:
            self.received += payload
        else:
            self.controls.append((wire[0] & 0x0F, payload))
        return True
