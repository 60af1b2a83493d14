"""What a connection with messages of QoS 2 does only once its durable session is stored: publish them under their
numbers, forget their identifiers, send messages and PUBREL. So a crash at any point leaves no message to be sent or
logged twice. A session that is not stepwise, and a connection without one, does it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tailrace.broker.connection.mqtt.durable import DurableClient, DurableSessions, step_of
from tailrace.broker.connection.mqtt.publishing import PublishGroups, PublishRow
from tailrace.broker.routing.batch import Pending
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.packets import AckPacket
from tailrace.protocol.mqtt.properties import PacketType
from tailrace.protocol.mqtt.reasons import FAILURE, Reason
from tailrace.protocol.mqtt.responses import pack_ack

UNHELD_TEXT: Final = "messages may be lost with this node: {text}"


class StepwiseServices(Protocol):
    """The collaborators that are used here: see `MqttServices`."""

    @property
    def durable(self) -> DurableSessions: ...


class StepwiseClient(DurableClient, Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    withheld_bytes: int

    @property
    def mqtt(self) -> StepwiseServices: ...

    def acknowledge(self, packet: AckPacket) -> None: ...

    def await_answer(self, pending: Pending) -> None: ...

    def answer_in_order(self, data: bytes) -> None: ...

    def answers_ready(self) -> None: ...

    def settle_stored(self, pending: Pending, text: bytes) -> None: ...

    def publish_groups(self, row: PublishRow, groups: PublishGroups) -> None: ...

    def go_on(self) -> None: ...

    def hold_cursors(self) -> None: ...

    def grant_room(self) -> None: ...


# --- from the client --------------------------------------------------------------------------------------------------


def publish(client: StepwiseClient, row: PublishRow, groups: PublishGroups, stored: bool) -> None:
    """The session has the numbers of these messages, or could not be stored."""
    if stored:
        client.publish_groups(row, groups)
    else:
        row.abandon()
    client.go_on()


def receive_pubrel(client: StepwiseClient, packet: AckPacket) -> None:
    """The client uses the identifier for another message once it has PUBCOMP."""
    packet_id = packet.packet_id
    known = packet_id in client.unreleased
    client.unreleased.discard(packet_id)
    client.numbers.pop(packet_id, None)
    reason = Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND
    text = pack_ack(PacketType.PUBCOMP, client.version, packet_id, reason)
    if step_of(client) is None or not known:
        client.answer_in_order(text)
    else:
        pending = Pending(client.answers_ready)
        client.await_answer(pending)
        client.settle_stored(pending, text)


# --- to the client ----------------------------------------------------------------------------------------------------


class _Withheld:
    """Messages that are sent once the session is stored, and they are as safe as it is."""

    __slots__ = ("_client", "_is_refused", "_messages", "_missing")

    def __init__(self, client: StepwiseClient, messages: bytes) -> None:
        self._client = client
        self._messages = messages
        self._missing = 2
        self._is_refused = False

    def held(self, refused: Refused | None) -> None:
        client = self._client
        if refused is not None and client.session is not None and not client.closed:
            client.end_with(Code.UNAVAILABLE, UNHELD_TEXT.format(text=refused.text))
        self.stored(refused is None)

    def stored(self, is_stored: bool) -> None:
        client, self._is_refused = self._client, self._is_refused or not is_stored
        self._missing -= 1
        if self._missing:
            return
        client.withheld_bytes -= len(self._messages)
        if not (self._is_refused or client.closed):
            client.send_packet(self._messages)
            client.grant_room()


def withhold(client: StepwiseClient, messages: bytes, stream: bytes, seqs: Sequence[int]) -> None:
    """Send these once the session is stored, and they are on as many nodes as are configured. Meanwhile there is no
    room for others. seqs: of those with identifiers; without a `stream` no session sends them again.
    """
    withheld = _Withheld(client, messages)
    client.withheld_bytes += len(messages)
    client.hold_cursors()
    client.mqtt.durable.step(client, withheld.stored)
    client.mqtt.durable.await_held(stream, seqs[-1] + 1 if stream and seqs else 0, withheld.held)


def receive_pubrec(client: StepwiseClient, packet: AckPacket) -> None:
    """A message that the client has released by PUBREL must not be sent to it again."""
    if packet.reason >= FAILURE:
        client.acknowledge(packet)
        return
    known = client.window.holds(packet.packet_id)
    reason = Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND
    text = pack_ack(PacketType.PUBREL, client.version, packet.packet_id, reason)
    if known and client.session is not None:
        client.window.received.add(packet.packet_id)
        client.mqtt.durable.note(client)
    if known and step_of(client) is not None:
        client.mqtt.durable.step(client, lambda stored: client.send_packet(text) if stored else None)
    else:
        client.send_packet(text)
