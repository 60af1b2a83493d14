"""Enhanced authentication of MQTT 5 (4.12 of the standard) with SCRAM-SHA-256: the login in CONNECT, AUTH and CONNACK,
and the same user's once more while the connection lasts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.broker.access.identity import LoginFailure, Proof
from tailrace.broker.access.users import MARK_BYTES
from tailrace.broker.connection.client import ClientConnection
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.properties import Properties, PropertyId
from tailrace.protocol.mqtt.reasons import PacketError, Reason, protocol_error
from tailrace.protocol.mqtt.responses import pack_auth
from tailrace.protocol.scram import MECHANISM, ScramError, ScramServer, ScramVerifier

if TYPE_CHECKING:
    from tailrace.broker.connection.login import Logins
    from tailrace.protocol.mqtt.packets import AuthPacket, ConnectPacket

METHOD: Final = MECHANISM.encode()
METHOD_TEXT: Final = f"the authentication method of this broker is {MECHANISM}"


class ScramExchange(NamedTuple):
    """A login that waits for the client's proof. `done` gets the broker's own. `held_bytes`: those of CONNECT, which
    are held meanwhile for a peer that is not known yet.
    """

    server: ScramServer
    verifier: ScramVerifier
    done: Callable[[bytes], None]
    held_bytes: int


class EnhancedLoginClient(ClientConnection):
    """`auth_method`: that of CONNECT, empty without one. `exchange`: of a login, while it waits for the client.
    `greeted`: CONNACK has accepted the connection. `end_reason`: of its end, if that has one of its own.
    """

    __slots__ = ("auth_method", "end_reason", "exchange", "greeted")

    auth_method: bytes
    end_reason: Reason | None
    exchange: ScramExchange | None
    greeted: bool

    @property
    @abstractmethod
    def logins(self) -> Logins: ...

    @property
    @abstractmethod
    def version(self) -> int: ...

    @abstractmethod
    def malformed(self, error: PacketError) -> None: ...

    @abstractmethod
    def send_fitting(self, data: bytes) -> bool: ...


def begin(client: EnhancedLoginClient, packet: ConnectPacket, admit: Callable[[bytes], None]) -> None:
    """A CONNECT that names a method. `admit` gets the broker's proof once the client has given its own. The user name
    and the password of the packet, if any, are not looked at.
    """
    client.auth_method = packet.properties[PropertyId.AUTHENTICATION_METHOD]
    if client.auth_method != METHOD:
        client.end_reason = Reason.BAD_AUTHENTICATION_METHOD
        user = (packet.user or b"").decode()
        client.logins.fail(client, user, LoginFailure.MECHANISM, METHOD_TEXT, Code.UNSUPPORTED)
        return
    _challenge(client, packet.properties, admit, _size_of(packet))


def proceed(client: EnhancedLoginClient, packet: AuthPacket) -> None:
    """AUTH: the client's proof, or the beginning of another login."""
    fault = _fault(client, packet)
    if fault:
        client.malformed(protocol_error(fault))
    elif packet.reason == Reason.REAUTHENTICATE:
        _challenge(client, packet.properties, lambda proof: _prove(client, Reason.SUCCESS, proof), 0)
    else:
        _finish(client, packet.properties.get(PropertyId.AUTHENTICATION_DATA, b""))


def _fault(client: EnhancedLoginClient, packet: AuthPacket) -> str:
    """Why this AUTH may not come here; empty if it may."""
    if not client.auth_method:
        return "AUTH without an authentication method in CONNECT"
    if packet.properties.get(PropertyId.AUTHENTICATION_METHOD) != client.auth_method:
        return "the authentication method of AUTH must be that of CONNECT"
    if packet.reason == Reason.REAUTHENTICATE:
        return "a login is under way already" if client.exchange is not None or not client.greeted else ""
    if packet.reason != Reason.CONTINUE_AUTHENTICATION:
        return f"a client sends no AUTH with the reason 0x{packet.reason:02X}"
    return "" if client.exchange is not None else "no login is under way"


def _challenge(
    client: EnhancedLoginClient, properties: Properties, done: Callable[[bytes], None], held_bytes: int
) -> None:
    try:
        server = ScramServer(properties.get(PropertyId.AUTHENTICATION_DATA, b""))
    except ScramError:
        _fail(client, client.identity.user, LoginFailure.EXCHANGE)
        return
    verifier = client.logins.verifier_of(server.user)
    client.exchange = ScramExchange(server, verifier, done, held_bytes)
    _prove(client, Reason.CONTINUE_AUTHENTICATION, server.challenge(verifier))


def _finish(client: EnhancedLoginClient, data: bytes) -> None:
    """The client's proof. An unknown user fails as a wrong password does, and so does another user than before: the
    session belongs to one.
    """
    exchange, client.exchange = client.exchange, None
    assert exchange is not None
    name = exchange.server.user
    known = name in client.services.access.users and name == (client.identity.user if client.greeted else name)
    try:
        proof = exchange.server.finish(exchange.verifier, data)
    except ScramError:
        _fail(client, name, LoginFailure.SECRET if known else LoginFailure.USER)
        return
    if not known:
        _fail(client, name, LoginFailure.USER)
        return
    before, client.end_reason = client.end_reason, _failure_reason(client)
    if client.logins.succeed(client, name, Proof.SCRAM, exchange.verifier.stored_key[:MARK_BYTES]):
        client.end_reason = before
        exchange.done(proof)


def _prove(client: EnhancedLoginClient, reason: Reason, data: bytes) -> None:
    client.send_fitting(pack_auth(reason, client.auth_method, data))


def _fail(client: EnhancedLoginClient, user: str, reason: LoginFailure) -> None:
    client.end_reason = _failure_reason(client)
    client.logins.fail(client, user, reason)


def _failure_reason(client: EnhancedLoginClient) -> Reason:
    """DISCONNECT has no reason for a wrong password."""
    return Reason.NOT_AUTHORIZED if client.greeted else Reason.BAD_USER_OR_PASSWORD


def _size_of(value: Any) -> int:
    """The bytes of a parsed packet, or of a part of it."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return _size_of(list(value.values()))
    return sum(map(_size_of, value)) if isinstance(value, tuple | list) else 0
