"""Sends the messages again that a session had under way when its last connection ended: in their order, with their
identifiers, before all others ([MQTT-4.4.0-1], [MQTT-4.6.0-1]).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tailrace.broker.connection.last import each_value
from tailrace.broker.connection.mqtt.in_flight import SentRun
from tailrace.broker.connection.mqtt.window import SendWindow
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.process.timers import now_us
from tailrace.broker.topics.picking import SCAN_BYTES, read_piece
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.publishes import render_publishes
from tailrace.protocol.mqtt.responses import pack_ack
from tailrace.shard.epochs import NEVER_SEQ
from tailrace.shard.errors import StorageError, StreamDamaged, StreamMissing, Trimmed, peer_text
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.topics import topic_in

log = logging.getLogger(__name__)

AHEAD_BYTES: Final = 64 << 10
"""Unsent, from which on no more is read."""
AT_ONCE: Final = 64
"""Messages that are looked at in one step."""
QOS_RELEASED: Final = 2
"""The client keeps the identifier of a message with this QoS until PUBREL."""
_DUP: Final = 0x08
_ALL_TOPICS: Final = b"#"

_pick = load("tailrace.broker.topics.pick_cy").pick


class ResendingClient(Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    lingering_since_s: float
    packet_bytes_max: int
    sendings: list[Any]
    window: SendWindow

    @property
    def version(self) -> int: ...

    @property
    def unsent_bytes(self) -> int: ...

    def send_packet(self, data: bytes) -> None: ...

    def end_with(self, code: Code, text: str) -> None: ...

    def readable_topics(self, stream: bytes, topic_filter: bytes) -> bytes: ...

    def note_acknowledged(self) -> None: ...


class Resending:
    """The runs of one session, as its client takes them; then `done` is called."""

    def __init__(
        self,
        readers: StreamReaders,
        client: ResendingClient,
        runs: Sequence[SentRun],
        partings: Mapping[bytes, int],
        done: Callable[[], None],
    ) -> None:
        """partings: by stream, the first seq from which on it has other messages than those that were sent."""
        self._readers = readers
        self._partings = partings
        self._client = client
        self._left = deque(runs)
        self._place = 0  # in the first of them
        self._done = done
        self._looping = False

    def go_on(self) -> None:
        """Send as much as the client takes."""
        if self._looping:
            return
        self._looping = True
        while self._left and self._may_send():
            self._step()
        self._looping = False
        if not self._left:
            self._end()

    def _may_send(self) -> bool:
        client = self._client
        if client.lingering_since_s:
            self._left.clear()
            return False
        return client.unsent_bytes <= AHEAD_BYTES and client.window.resend_room > 0

    def _end(self) -> None:
        sendings = self._client.sendings
        if sendings and sendings[0] is self:
            sendings.pop(0)
            self._done()
            if sendings:
                sendings[0].go_on()

    def _step(self) -> None:
        """Some messages of the first run: those that are still under way."""
        run, window = self._left[0], self._client.window
        parting = self._partings.get(run.stream, NEVER_SEQ)
        end = min(self._place + min(AT_ONCE, window.resend_room), len(run.seqs))
        wanted: dict[int, int] = {}
        for place in range(self._place, end):
            packet_id = run.id_at(place)
            if not window.holds(packet_id):
                continue
            window.unsent -= 1
            is_gone = run.seqs[place] >= parting
            if is_gone and run.qos < QOS_RELEASED:
                window.acknowledge(packet_id)
            elif is_gone or packet_id in window.received:
                window.received.add(packet_id)
                self._send(run, wanted)
                wanted = {}
                self._client.send_packet(pack_ack(PacketType.PUBREL, self._client.version, packet_id))
            else:
                wanted[run.seqs[place]] = packet_id
        self._send(run, wanted)
        self._place = end
        if end == len(run.seqs):
            self._left.popleft()
            self._place = 0

    def _send(self, run: SentRun, ids: dict[int, int]) -> None:
        """Send these messages, by seq. One that is not kept any more, or that the client may not read any more, counts
        as acknowledged; none expires now, since it was sent before ([MQTT-4.3.3-7]). If they cannot be read for now the
        connection ends, and the next one sends them.
        """
        client = self._client
        if not ids or client.lingering_since_s:
            return
        form = run.form(client.version, client.packet_bytes_max)
        try:
            frames = _frames_of(self._readers, run.stream, list(ids))
        except (StorageError, OSError) as error:
            client.end_with(Code.UNAVAILABLE, f"{run.stream.decode()}: {peer_text(error)}")
            return
        allowed = b"".join(each for each in frames if client.readable_topics(run.stream, _topic_of(each, run.stream)))
        rendering = render_publishes(allowed, run.stream, form, now_us(), expires=False)
        data, start = bytearray(rendering.data), 0
        for place, end, seq in zip(rendering.id_places, rendering.id_ends, rendering.id_seqs, strict=True):
            data[start] |= _DUP
            data[place : place + 2] = ids.pop(seq).to_bytes(2, "big")
            start = end
        if data:
            client.send_packet(bytes(data))
        for packet_id in ids.values():
            client.window.acknowledge(packet_id)
        if ids:
            client.note_acknowledged()


def _topic_of(frame: bytes, stream: bytes) -> bytes:
    return topic_in(frame[HEADER_BYTES : HEADER_BYTES + unpack_header(frame).metadata_bytes]) or stream


def _frames_of(readers: StreamReaders, stream: bytes, seqs: list[int]) -> list[bytes]:
    """The frames of these messages, in their order, as far as they are kept. Raises StorageError, OSError if they may
    be readable later.
    """
    found: list[bytes] = []
    try:
        reader = readers.get(stream)
        next_seq = reader.next_seq()
        end_offset = reader.offset_of(next_seq)
        left = deque(seq for seq in seqs if reader.first_seq() <= seq < next_seq)
        buffer = memoryview(bytearray(SCAN_BYTES))
        while left:
            content, size = read_piece(reader, buffer, reader.offset_of(left[0]), end_offset)
            frames = _pick(content, size, left[0], left[-1] + 1, stream, _ALL_TOPICS, size)[0]
            if not frames:
                left.popleft()
                continue
            for frame in each_value(frames):
                if left and unpack_header(frame).seq == left[0]:
                    found.append(frame)
                    left.popleft()
    except StreamMissing:
        pass  # it was deleted
    except (StreamDamaged, Trimmed) as error:
        log.warning("messages of stream %r cannot be sent again: %s", stream.decode(), error)
    return found
