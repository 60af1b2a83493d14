"""The beginning of an MQTT connection: CONNECT, the login, the claim of the client identifier, CONNACK; and its state
when it moves to another worker.
"""

from __future__ import annotations

import secrets
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tailrace.broker.access.identity import LoginFailure
from tailrace.broker.connection.login import NO_LOGIN_TEXT
from tailrace.broker.connection.mqtt import enhanced_login
from tailrace.broker.connection.mqtt.durable import DurableSession, Handed, OpenedSession, SessionElsewhere
from tailrace.broker.connection.mqtt.publishing import ALIASES_MAX, RECEIVE_MAXIMUM
from tailrace.broker.connection.mqtt.session_state import pack_numbers, unpack_numbers
from tailrace.broker.connection.mqtt.sessions import FREE, OTHERS, WAIT, ClaimAnswer
from tailrace.broker.sessions.record import Will
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.metadata import PLAIN_QOS, pack_metadata
from tailrace.protocol.mqtt.outgoing_aliases import OutgoingAliases
from tailrace.protocol.mqtt.packets import MQTT_5, ConnectPacket, WillMessage
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.mqtt.publishes import NO_LIMIT, PublishForm
from tailrace.protocol.mqtt.reasons import Reason
from tailrace.protocol.mqtt.responses import pack_connack
from tailrace.protocol.sniff import PEEKED_BYTES, mqtt_level
from tailrace.shard.frame import pack_frame
from tailrace.shard.names import new_name_fault

if TYPE_CHECKING:
    from tailrace.broker.connection.mqtt.client import MqttClient

CLIENT_ID_BYTES_MAX: Final = 1_024
ASSIGNED_PREFIX: Final = b"tailrace-"
ASSIGNED_BYTES: Final = 10
"""Of the random part of an assigned client identifier."""

_IN_CONNACK: Final = frozenset(
    {
        Reason.UNSPECIFIED,
        Reason.MALFORMED_PACKET,
        Reason.PROTOCOL_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.UNSUPPORTED_VERSION,
        Reason.CLIENT_ID_NOT_VALID,
        Reason.BAD_USER_OR_PASSWORD,
        Reason.NOT_AUTHORIZED,
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.BAD_AUTHENTICATION_METHOD,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_TOO_LARGE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
        Reason.RETAIN_NOT_SUPPORTED,
        Reason.QOS_NOT_SUPPORTED,
        Reason.CONNECTION_RATE_EXCEEDED,
        Reason.USE_ANOTHER_SERVER,
    }
)
"""Table 3-1 of MQTT 5."""
_OPENING_REFUSALS: Final = {Code.DENIED: Reason.CLIENT_ID_NOT_VALID, Code.OVERLOADED: Reason.QUOTA_EXCEEDED}
"""Reasons why no session is opened; after any other one the client may try again."""
DECIDING_RETRY_S: Final = 0.05
DECIDING_MAX: Final = 600
"""How often a CONNECT asks for a session whose messages are not decided: for about half a minute, longer than any
publish waits."""
DECIDING_TEXT: Final = "messages of the connection before are not decided yet"
ELSEWHERE_TEXT: Final = "durable sessions are copied here from another node; connect to {address}"
OTHERS_TEXT: Final = "this client identifier belongs to another connection"
_Offers: TypeAlias = list[tuple[PropertyId, Any]]
_UNAVAILABLE: Final = frozenset({Code.CLOSING, Code.TIMEOUT, Code.OVERLOADED})


def refusal_of(reason: Reason, code: Code) -> Reason:
    """The reason in a CONNACK for a connection that is refused with this reason, or error."""
    if code in _UNAVAILABLE and reason is not Reason.QUOTA_EXCEEDED:
        return Reason.SERVER_UNAVAILABLE
    return reason if reason in _IN_CONNACK else Reason.UNSPECIFIED


def peeked_version(client: MqttClient) -> int:
    """The version of a CONNECT that waits in the socket, for a refusal before it is read; 0 if that is not known."""
    if client.layer is not None:
        return 0
    try:
        data = client.sock.recv(PEEKED_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return 0
    return mqtt_level(data)


def connect(client: MqttClient, packet: ConnectPacket) -> None:
    """The first packet. It is answered once the login is checked and no other worker has the client identifier."""
    client.packet_bytes_max = packet.properties.get(PropertyId.MAXIMUM_PACKET_SIZE, NO_LIMIT)
    refusal = _refusal(client, packet)
    if refusal is not None:
        client.end_for(*refusal)
    else:
        _log_in(client, packet)


def _refusal(client: MqttClient, packet: ConnectPacket) -> tuple[Reason, Code, str] | None:
    """Why no client can have this connection."""
    if PropertyId.AUTHENTICATION_METHOD in packet.properties and not client.services.access.has_users:
        text = "no authentication method is offered, since the broker has no users"
        return Reason.BAD_AUTHENTICATION_METHOD, Code.UNSUPPORTED, text
    if len(packet.client_id) > CLIENT_ID_BYTES_MAX:
        text = f"a client identifier has at most {CLIENT_ID_BYTES_MAX} bytes"
        return Reason.CLIENT_ID_NOT_VALID, Code.NAME, text
    if not (packet.client_id or packet.clean or packet.version == MQTT_5):
        text = "without a client identifier a session must be clean"
        return Reason.CLIENT_ID_NOT_VALID, Code.NAME, text
    return None


def _log_in(client: MqttClient, packet: ConnectPacket) -> None:
    access = client.services.access
    if PropertyId.AUTHENTICATION_METHOD in packet.properties:
        enhanced_login.begin(client, packet, partial(_admit, client, packet))
        return
    if packet.user is not None and access.has_users:
        client.end_reason = Reason.BAD_USER_OR_PASSWORD  # of a login that fails
        user, secret = packet.user.decode(), (packet.password or b"").decode("utf-8", "replace")
        client.mqtt.logins.with_secret(client, user, secret, lambda: _admit(client, packet))
        return
    if not access.has_users:
        token = None if packet.password is None else packet.password.decode("utf-8", "replace")
        client.become_user(access.greeted(client.identity, token))
        if access.is_token_wrong(client.identity, token):
            client.end_reason = Reason.NOT_AUTHORIZED
            client.mqtt.logins.fail(client, "", LoginFailure.SECRET, NO_LOGIN_TEXT)
            return
    if access.admits(client.identity):
        _admit(client, packet)
    else:
        client.end_for(Reason.NOT_AUTHORIZED, Code.DENIED, NO_LOGIN_TEXT)


def _admit(client: MqttClient, packet: ConnectPacket, proof: bytes = b"") -> None:
    """It is known who the client is: check its will, and take its identifier. `proof`: the broker's own, after a login
    with a method.
    """
    client.end_reason = None
    will = packet.will
    refusal = None if will is None else _will_refusal(client, will)
    if refusal is not None:
        client.end_for(*refusal)
        return
    client.will = will  # it is published by a client that is accepted only
    client.claimed_ns = time.monotonic_ns()
    client.client_id = packet.client_id or ASSIGNED_PREFIX + secrets.token_hex(ASSIGNED_BYTES).encode()
    offers = _offers(client, packet, proof)
    size = len(pack_connack(client.version, Reason.SUCCESS, offers))
    if size > client.packet_bytes_max:
        text = f"CONNACK has {size} bytes, more than the Maximum Packet Size {client.packet_bytes_max}"
        client.end_for(Reason.PACKET_TOO_LARGE, Code.SIZE, text)
        return
    client.hold_up()
    client.mqtt.sessions.claim(client, partial(_claimed, client, packet, offers))


def _claimed(client: MqttClient, packet: ConnectPacket, offers: _Offers, answer: ClaimAnswer, attempt: int = 1) -> None:
    """All workers have seen the CONNECT: open the session, if the identifier is this client's."""
    durable = client.mqtt.durable
    handed = Handed(*answer) if isinstance(answer, list) else None
    if client.closed or client.lingering_since_s:
        if handed is not None:
            durable.give_back(client.client_id, handed)
        client.go_on()
    elif answer == WAIT and attempt < DECIDING_MAX:
        again = partial(_claim_again, client, packet, offers, attempt + 1)
        client.services.delays.at(client.services.now_s + DECIDING_RETRY_S, again)
    elif answer == WAIT:
        client.end_for(Reason.SERVER_BUSY, Code.UNAVAILABLE, DECIDING_TEXT)
        client.go_on()
    elif isinstance(answer, str) and answer != FREE:
        reason = Reason.CLIENT_ID_NOT_VALID if answer == OTHERS else Reason.SERVER_BUSY
        client.end_for(reason, Code.DENIED, OTHERS_TEXT)
        client.go_on()
    else:
        will = None if packet.will is None else made_will(client, packet.will)
        durable.open(client, packet, will, handed, partial(_opened, client, packet, offers, handed))


def _claim_again(client: MqttClient, packet: ConnectPacket, offers: _Offers, attempt: int) -> None:
    if client.closed or client.lingering_since_s:
        client.go_on()
    else:
        client.mqtt.sessions.claim(client, partial(_claimed, client, packet, offers, attempt=attempt))


def _opened(
    client: MqttClient,
    packet: ConnectPacket,
    offers: _Offers,
    handed: Handed | None,
    opened: OpenedSession | SessionElsewhere | Refused,
) -> None:
    """The session is this connection's, or cannot be had."""
    durable = client.mqtt.durable
    expiry_s = durable.granted_s(client.version, packet)
    is_gone = client.closed or client.lingering_since_s
    if isinstance(opened, Refused):
        if handed is not None:
            durable.give_back(client.client_id, handed)
        if not is_gone:
            reason = _OPENING_REFUSALS.get(opened.code, Reason.SERVER_UNAVAILABLE)
            client.end_for(reason, opened.code, opened.text)
    elif isinstance(opened, SessionElsewhere):
        if not is_gone:
            _refer(client, opened.address)
    elif is_gone:
        if opened.turn:
            state = opened.state if opened.is_exact else b""
            durable.give_back(client.client_id, Handed(opened.turn, state, expiry_s, False))  # not accepted yet
    else:
        connack = pack_connack(client.version, Reason.SUCCESS, offers, session_present=opened.is_present)
        _greet(client, packet, connack)
        durable.begin(client, opened, expiry_s, client.go_on)
        return
    client.go_on()


def _refer(client: MqttClient, address: str) -> None:
    """The session is another node's. MQTT 5 names it."""
    properties = [(PropertyId.SERVER_REFERENCE, address.encode())] if address else []
    connack = pack_connack(client.version, Reason.USE_ANOTHER_SERVER, properties)
    if client.version == MQTT_5 and len(connack) <= client.packet_bytes_max:
        client.send_packet(connack)
        client.end_reason = Reason.SUCCESS  # it has its answer
    client.end_for(Reason.USE_ANOTHER_SERVER, Code.UNAVAILABLE, ELSEWHERE_TEXT.format(address=address or "its master"))


def _will_refusal(client: MqttClient, will: WillMessage) -> tuple[Reason, Code, str] | None:
    if not will.topic or b"+" in will.topic or b"#" in will.topic:
        return Reason.TOPIC_NAME_INVALID, Code.TOPIC, "the topic of the will is empty or has a wildcard"
    destination = client.mqtt.destination_of(will.topic)
    if destination.refusal is not None:
        return Reason.TOPIC_NAME_INVALID, *destination.refusal
    placed = destination.placed
    fault = new_name_fault(placed.stream.decode())
    if fault:
        return Reason.TOPIC_NAME_INVALID, Code.NAME, f"the will's topic would be a stream {fault}"
    denied = client.publish_refusal(placed)
    if denied is not None:
        return Reason.NOT_AUTHORIZED, denied.code, denied.text
    metadata = destination.metadata
    if will.properties or will.qos != PLAIN_QOS or will.retain:
        metadata = pack_metadata(placed.topic, will.qos, will.properties, retain=will.retain)
    if client.is_too_large(metadata, will.payload):
        return Reason.QUOTA_EXCEEDED, Code.SIZE, "the will is larger than max_message_bytes"
    text = client.mqtt.wills.refusal(client.accounts[-1], will)
    return (Reason.QUOTA_EXCEEDED, Code.OVERLOADED, text) if text else None


def made_will(client: MqttClient, will: WillMessage) -> Will:
    """A will, which has been checked, as the frame that is published after its delay."""
    placed = client.mqtt.destination_of(will.topic).placed
    metadata = pack_metadata(placed.topic, will.qos, will.properties, retain=will.retain)
    return Will(
        will.properties.get(PropertyId.WILL_DELAY, 0), placed.stream, pack_frame(will.payload, metadata=metadata)
    )


def _greet(client: MqttClient, packet: ConnectPacket, connack: bytes) -> None:
    """Accept it."""
    properties = packet.properties
    client.greeted = True
    _give_aliases(client, properties.get(PropertyId.TOPIC_ALIAS_MAXIMUM, 0))
    client.asked_to_last = bool(properties.get(PropertyId.SESSION_EXPIRY))
    if packet.will is not None and packet.will.retain:
        client.mqtt.retained.keep(client.mqtt.destination_of(packet.will.topic).placed.stream)
    client.keep_alive_s = _keep_alive_s(client, packet)
    client.window.size = min(client.window.size, properties.get(PropertyId.RECEIVE_MAXIMUM, client.window.size))
    client.services.deadlines.login.stop(client)
    client.mqtt.keep_alives.add(client)
    client.send_packet(connack)


def _give_aliases(client: MqttClient, allowed: int) -> None:
    client.given_aliases = OutgoingAliases(allowed) if allowed else None


def _offers(client: MqttClient, packet: ConnectPacket, proof: bytes) -> list[tuple[PropertyId, Any]]:
    """The properties of a CONNACK: what MQTT 5 assumes and is not so here."""
    offers: list[tuple[PropertyId, Any]] = [
        (PropertyId.RECEIVE_MAXIMUM, RECEIVE_MAXIMUM),
        (PropertyId.MAXIMUM_PACKET_SIZE, client.codec.packet_bytes_max),
        (PropertyId.TOPIC_ALIAS_MAXIMUM, ALIASES_MAX),
        (PropertyId.SHARED_AVAILABLE, 1),
    ]
    granted_s = client.mqtt.durable.granted_s(client.version, packet)
    if packet.properties.get(PropertyId.SESSION_EXPIRY, 0) != granted_s:
        offers.append((PropertyId.SESSION_EXPIRY, granted_s))
    if not packet.client_id:
        offers.append((PropertyId.ASSIGNED_CLIENT_ID, client.client_id))
    if _keep_alive_s(client, packet) != packet.keep_alive_s:
        offers.append((PropertyId.SERVER_KEEP_ALIVE, _keep_alive_s(client, packet)))
    if client.auth_method:
        offers.append((PropertyId.AUTHENTICATION_METHOD, client.auth_method))
        offers.append((PropertyId.AUTHENTICATION_DATA, proof))
    return offers


def _keep_alive_s(client: MqttClient, packet: ConnectPacket) -> int:
    """The keep alive that counts. MQTT 3.1.1 has no word for another one than the client's."""
    limit_s = client.services.settings.max_keep_alive_s
    is_bounded = limit_s and client.version == MQTT_5
    return limit_s if is_bounded and not 0 < packet.keep_alive_s <= limit_s else packet.keep_alive_s


# --- moving to another worker -----------------------------------------------------------------------------------------


def export_state(client: MqttClient) -> dict[str, Any]:
    will, session = client.will, client.session
    return {
        "codec": client.codec.export_state(),
        "client_id": client.client_id,
        "claimed_ns": client.claimed_ns,
        "mark": client.mark,
        "asked_to_last": client.asked_to_last,
        "auth_method": client.auth_method,
        "greeted": client.greeted,
        "keep_alive_s": client.keep_alive_s,
        "packet_bytes_max": client.packet_bytes_max,
        "will": None if will is None else [*will[:4], [[int(key), value] for key, value in will.properties.items()]],
        "aliases": list(client.aliases.items()),
        "given_aliases": 0 if client.given_aliases is None else client.given_aliases.allowed,
        "unreleased": list(client.unreleased),
        "window": client.window.export_state(),
        "numbers": pack_numbers(client.numbers),
        "session": None if session is None else _packed_session(session),
        "half": [client.half_id, client.rendered_us, client.last_key],
        "forms": [[key, list(form)] for key, form in client.forms.items()],
        "subscriptions": [each.export_state() for each in client.subscriptions.values()],
    }


def _packed_session(session: DurableSession) -> list[Any]:
    return [session.turn, session.expiry_s, session.in_flight.export_state(), session.is_stepwise]


def restore_state(client: MqttClient, state: dict[str, Any]) -> None:
    client.codec.restore_state(state["codec"])
    client.client_id, client.claimed_ns = state["client_id"], state["claimed_ns"]
    client.mark, client.greeted = state["mark"], state["greeted"]
    client.asked_to_last = state["asked_to_last"]
    client.auth_method = state.get("auth_method", b"")  # a worker of an earlier release does not send it
    client.keep_alive_s, client.packet_bytes_max = state["keep_alive_s"], state["packet_bytes_max"]
    if state["will"] is not None:
        topic, payload, qos, retain, properties = state["will"]
        kept = {PropertyId(key): value for key, value in properties}
        client.will = WillMessage(topic, payload, qos, retain, kept)
    client.aliases = dict(state["aliases"])
    _give_aliases(client, state.get("given_aliases", 0))  # each topic gets one again
    client.unreleased = set(state["unreleased"])
    client.window.restore_state(state["window"])
    client.half_id, client.rendered_us, client.last_key = state["half"]
    client.forms = {key: PublishForm(*form) for key, form in state["forms"]}
    if state.get("session") is not None:  # a worker of an earlier release does not send it
        turn, expiry_s, in_flight, *stepwise = state["session"]
        client.session = DurableSession(turn, expiry_s)
        client.session.in_flight.restore_state(in_flight)
        client.session.is_stepwise = stepwise == [True]
        client.numbers = unpack_numbers(state.get("numbers", []))
    client.mqtt.subscribing.restore(client, state["subscriptions"])
