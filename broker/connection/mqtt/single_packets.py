"""The acknowledgements of an MQTT connection in their order, and the side of it that `broker.connection.singles` uses:
messages and acknowledgements that come one at a time are read, and answered, together with those of other connections.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from tailrace.broker.access.identity import Identity
from tailrace.broker.connection.mqtt.enhanced_login import EnhancedLoginClient
from tailrace.broker.connection.mqtt.publishing import RECEIVE_MAXIMUM
from tailrace.broker.connection.singles import SINGLES_TOGETHER_MAX
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.routing.batch import Pending
from tailrace.broker.services import Services
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.codec import AckRun, AnyPacket, MqttCodec, StagedPublishes
from tailrace.protocol.mqtt.packets import MQTT_5, PingPacket
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.reasons import reason_of
from tailrace.protocol.mqtt.responses import PINGRESP, pack_ack

_NONE: Final[deque[Pending]] = deque(maxlen=0)  # of all connections that have no answers yet: each takes 620 bytes


class SinglePacketsClient(EnhancedLoginClient):
    """`answers`: acknowledgements, the first of which is not known yet.

    `under_way`: those messages whose outcome is not known yet, one of them with QoS 1 at most; `in_row`: since
    something else has come behind them. `unacknowledged`: all messages of the client with QoS 1 without an
    acknowledgement.
    """

    __slots__ = ("_outcome", "_place", "answers", "in_row", "last_publish", "unacknowledged", "under_way")

    codec: MqttCodec
    unreleased: set[int]

    def __init__(self, services: Services, sock: AnySocket, peer: str, identity: Identity) -> None:
        super().__init__(services, sock, peer, identity)
        self.answers: deque[Pending] = _NONE
        self.unacknowledged = self.under_way = 0
        self.in_row = False
        self.last_publish: tuple[object, ...] | None = None  # see `broker.connection.singles_cy.receive_packets`
        self._place: Pending | None = None
        self._outcome = b""

    def send_packet(self, data: bytes) -> None:
        if self.lingering_since_s:  # nothing follows DISCONNECT
            return
        self.services.answered_bytes += len(data)
        self.out += data
        self.services.note_answered(self)

    def ping(self, _packet: PingPacket) -> None:
        self.send_packet(PINGRESP)

    def answers_ready(self) -> None:
        """Some acknowledgements are known: those in front go out."""
        row = self.answers
        while row and (text := row[0].text) is not None:
            pending = row.popleft()
            self.out += text
            if pending.after is not None:
                row.clear()  # nothing behind a message that is refused is acknowledged
                pending.after()
        self.services.note_answered(self)

    def await_answer(self, pending: Pending) -> None:
        if self.answers is _NONE:
            self.answers = deque()
        self.answers.append(pending)

    def answer_in_order(self, data: bytes) -> None:
        """An acknowledgement behind those that are not known yet."""
        if not self.answers:
            self.send_packet(data)
            return
        settled = Pending(self.answers_ready)
        settled.text = data
        self.await_answer(settled)

    def is_single(self, packet: AnyPacket | None) -> bool:
        """Whether the next read is likely to be one message, or acknowledgements, and may be taken with others'."""
        if type(packet) is StagedPublishes:
            is_one = len(packet.groups) == 1 and packet.groups[0][1] <= (1 if packet.ids else SINGLES_TOGETHER_MAX)
        else:
            is_one = type(packet) is AckRun
        is_plain = self.layer is None and not (self.rates or self.codec.pending_bytes)
        return is_one and is_plain and not self.services.settings.mqtt_replicas

    @property
    def is_in_order(self) -> bool:
        """Whether one more of them needs no place in the row: nothing is to be answered before it."""
        return not (self.answers or self.unacknowledged or self.held_up) and len(self.unreleased) < RECEIVE_MAXIMUM

    def put_in_row(self) -> None:
        """Something else comes behind those whose outcome is not known."""
        if self.under_way and not self.in_row:
            self.in_row = True
            self._place = Pending(self.answers_ready)
            self.await_answer(self._place)

    def send_envelope(self, answer: bytes) -> None:
        """The acknowledgement of one, or a part of it; `outcome_known` follows."""
        if self.in_row:
            self._outcome += answer
        else:
            self.send_packet(answer)

    def outcome_known(self) -> None:
        if self.under_way:
            return
        if self._place is not None:
            place, outcome = self._place, self._outcome
            self.in_row, self._place, self._outcome = False, None, b""
            place.settle(outcome)
        elif self.paused or self.lingering_since_s:
            self.services.note_answered(self)

    def single_refused(self, name: bytes, packet_id: bytes, code: Code, text: str) -> None:
        """packet_id: as in a packet; empty with QoS 0."""
        self.under_way -= 1
        self.unacknowledged -= bool(packet_id)
        self.note_refused(code, text)
        if self.closed:
            return
        if packet_id and self.version == MQTT_5:
            identifier = int.from_bytes(packet_id, "big")
            self.send_envelope(pack_ack(PacketType.PUBACK, self.version, identifier, reason_of(code)))
        elif packet_id and self._place is not None:
            self._place.after = partial(self.end_with, code, text)
        elif packet_id:
            self.end_with(code, text)
        self.outcome_known()
