"""An MQTT client of raw packets at a real node, which may break any rule."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5, Answer, Delivered
from tests.system.node import PATIENCE_S

CONNACK, PUBLISH, DISCONNECT = 2, 3, 14
RECEIVE_BYTES = 1 << 16


class MqttSocket:
    """`connack`: its answer to CONNECT, if it has sent one. Messages are kept apart from the other packets."""

    def __init__(
        self,
        port: int,
        version: int,
        client_id: str | bytes = "",
        *,
        opened: bool = True,
        host: str = "127.0.0.1",
        **connect: Any,
    ):
        self.version = version
        self.sock = socket.create_connection((host, port))
        self.sock.settimeout(PATIENCE_S)
        self.ended = False
        self._buffer = b""
        self._answers: deque[Answer] = deque()
        self._messages: deque[Delivered] = deque()
        if opened:
            try:
                self.connack = self.ask(wire.connect(version, client_id, **connect))
                assert self.connack.kind == CONNACK and not self.connack.body[1], self.connack
            except BaseException:  # nobody else has it
                self.close()
                raise

    @property
    def present(self) -> bool:
        return bool(self.connack.body[0])

    def send(self, *packets: bytes) -> None:
        self.sock.sendall(b"".join(packets))

    def ask(self, *packets: bytes) -> Answer:
        """The next packet of the server that is no message."""
        self.send(*packets)
        answer = self.answer()
        assert answer is not None, "the connection has ended"
        return answer

    def answer(self) -> Answer | None:
        """The next packet that is no message; None at the end of the connection."""
        while not self._answers and self._read():
            pass
        return self._answers.popleft() if self._answers else None

    def message(self) -> Delivered:
        """The next message."""
        while not self._messages:
            assert self._read(), "the connection has ended"
        return self._messages.popleft()

    def messages(self, count: int) -> list[Delivered]:
        return [self.message() for _ in range(count)]

    def until(self, payload: bytes) -> list[Delivered]:
        """The messages before the one with this payload."""
        found: list[Delivered] = []
        while (message := self.message()).payload != payload:
            found.append(message)
        return found

    def rest(self) -> list[Answer]:
        """All packets up to the end of the connection, but for messages."""
        while self._read():
            pass
        found = list(self._answers)
        self._answers.clear()
        return found

    def refused(self, reason: int, *packets: bytes) -> None:
        """The connection ends for these packets: without a word in MQTT 3.1.1, for this reason in MQTT 5."""
        self.send(*packets)
        found = [(answer.kind, wire.reason(answer)) for answer in self.rest()]
        assert found[-1:] == ([(DISCONNECT, reason)] if self.version == V5 else found[-1:]), found
        assert self.version == V5 or all(kind != DISCONNECT for kind, _ in found)

    def subscribe(self, *filters: tuple[str | bytes, int], raw: bytes = b"") -> list[int]:
        """The reasons in SUBACK."""
        answer = self.ask(wire.subscribe(self.version, 1, *filters, raw=raw))
        assert answer.kind == 9 and answer.body[:2] == b"\0\1", answer
        return list(answer.body[3 if self.version == V5 else 2 :])

    def publish(self, topic: str | bytes, payload: bytes, qos: int = 1, packet_id: int = 1, **more: Any) -> int:
        """Until it is acknowledged; the reason."""
        self.send(wire.publish(self.version, topic, payload, qos, packet_id, **more))
        if not qos:
            return 0
        answer = self.answer()
        assert answer is not None and answer.body[:2] == packet_id.to_bytes(2, "big"), answer
        reason: int = wire.reason(answer)
        if answer.kind == 5 and reason < 0x80:
            assert self.ask(wire.ack(wire.PUBREL, packet_id)).kind == 7
        return reason

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> MqttSocket:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _read(self) -> bool:
        """Take all that is here; False at the end of the connection."""
        try:
            data = b"" if self.ended else self.sock.recv(RECEIVE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
            return False
        self._buffer += data
        while (size := _size_of_packet(self._buffer)) and size <= len(self._buffer):
            packets = wire.split(self._buffer[:size])
            self._buffer = self._buffer[size:]
            self._messages += wire.delivered(self.version, packets)
            self._answers += [each for each in packets if each.kind != PUBLISH]
        return True


def _size_of_packet(data: bytes) -> int:
    """The size of the first packet; 0 if its head is not whole."""
    size = 0
    for place, byte in enumerate(data[1:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return place + 2 + size
    return 0
