"""The table of doors: how each door and transport logs in, asks for a right, and answers. Later doors add a row.

A row makes a connection to one worker of a `World` with users, logs in, and asks in the protocol's own terms whether an
action is allowed: "ok", or the code of the refusal.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.places import From
from tailrace.protocol.scram import ITERATIONS_MIN, MECHANISM, ScramClient, make_verifier
from tailrace.shard.epochs import DEFAULT_HISTORY
from tailrace.shard.frame import pack_frame
from tailrace.supervisor.user_file import hash_token
from tests.broker.connection.tls_peer import TLSPeer
from tests.broker.connection.websocket_peer import WebSocketPeer
from tests.broker.world import Peer, World
from tests.certificates import Authority
from tests.protocol.mqtt import wire

TOKEN, PASSWORD = "a-long-random-token", "correct-horse"
VERIFIER = make_verifier(PASSWORD, ITERATIONS_MIN)
ANN = User("ann", frozenset({"ops"}), VERIFIER, (hash_token(TOKEN),), ("CN=ann",))
LOGINS = ("no user", "wrong", "expired", "revoked", "right")
"""`expired`: with a certificate; passwords and tokens do not expire."""
REVOKED = "bob"
"""A user that is not in the file any more."""
KNOWN, UNKNOWN = "127.0.0.1", "127.0.0.2"
"""Addresses of datagrams: with a section of its own, and without."""
PLAIN, TLS, MTLS = "plain", "TLS", "mTLS"
STREAM = "s0"


def rules_for(right: Right) -> tuple[AccessRule, ...]:
    """Give the user this right and no other; with `create` also `publish`, by which streams are created."""
    rights = frozenset({Right.CREATE, Right.PUBLISH} if right is Right.CREATE else {right})
    return (AccessRule(True, ("@ops",), rights, ("*",)),)


def sections_for(right: Right) -> tuple[UdpPeer, ...]:
    """The same right for the datagrams of KNOWN, as far as there are such sections."""
    may_publish = right in (Right.PUBLISH, Right.CREATE)
    return (UdpPeer((KNOWN,), ("#",) if may_publish else (), ("#",) if right is Right.SUBSCRIBE else ()),)


class Certificates:
    """Certificates of the node and, by login, of its clients under mTLS; None: no certificate."""

    def __init__(self, folder: Path) -> None:
        known, unknown = Authority(folder / "ca"), Authority(folder / "other")
        self.authority, self.server = known, known.issue("server")
        shown = {
            "no user": None,
            "wrong": unknown.issue("ann"),
            "expired": known.issue_expired("ann"),
            "revoked": known.issue(REVOKED),
            "right": known.issue("also-ann", subject="/CN=ann"),
        }
        self.contexts = {login: known.client_context(pair) for login, pair in shown.items()}

    def context(self, security: str, login: str) -> ssl.SSLContext:
        return self.contexts[login if security == MTLS else "no user"]


@dataclass(frozen=True, slots=True)
class Door:
    """`log_in` returns the answer to a login; `ask` the outcome of an action that needs the right. `local`: from this
    machine. `datagrams`: its peers are addresses, and nothing logs in.
    """

    log_in: Callable[[World, Peer, str], str]
    ask: Callable[[World, Peer, Right], str]
    rights: frozenset[Right] = frozenset(Right) - {Right.NODE}
    local: bool = True
    security: str = PLAIN
    websocket: bool = False
    datagrams: bool = False

    @property
    def logins(self) -> tuple[str, ...]:
        if self.datagrams:
            return "no user", "right"
        return LOGINS if self.security == MTLS else tuple(login for login in LOGINS if login != "expired")

    def connect(self, node: World, login: str, certificates: Certificates) -> Peer:
        """A peer that has not logged in; one that the node has refused has ended."""
        if self.datagrams:
            return _datagrams_of(node, KNOWN if login == "right" else UNKNOWN)
        if self.security == PLAIN:
            peer = node.connect(local=self.local)
        else:
            peer = TLSPeer.of(node, certificates.context(self.security, login), local=self.local)
        return WebSocketPeer.of(node, peer=peer) if self.websocket and not peer.ended else peer

    def welcomes(self, login: str) -> str:
        """The code of what answers the login; "closed" if the handshake fails."""
        if self.security == MTLS and login in ("wrong", "expired"):
            return "closed"
        is_silent = self.datagrams or (self.ask is _line_ask and (login == "no user" or self.security == MTLS))
        return "ok" if login == "right" or is_silent else "denied"


# --- lines ------------------------------------------------------------------------------------------------------------


def _line_certificate(node: World, peer: Peer, login: str) -> str:
    """The handshake is the login."""
    return "closed" if peer.ended else "ok"


def _line_log_in(node: World, peer: Peer, login: str) -> str:
    if login == "no user":
        return "ok"
    user, secret = {"wrong": ("ann", "x"), "revoked": (REVOKED, TOKEN), "right": ("ann", TOKEN)}[login]
    return _word(node.ask(peer, f"auth {user} {secret}"))


def _line_ask(node: World, peer: Peer, right: Right) -> str:
    if peer.ended:
        return "closed"
    asked = {
        Right.PUBLISH: ["ack on", f"pub {STREAM} |x"],
        Right.CREATE: ["ack on", "pub fresh |x"],
        Right.SUBSCRIBE: [f"sub {STREAM} 0"],
        Right.CONSUME: [f"consume {STREAM} c 0"],
        Right.ADMIN: [f"trim {STREAM} 0"],
    }[right]
    return _word([line for line in node.ask(peer, *asked) if not line.startswith(("ok ack", "msg"))])


def _word(lines: list[str]) -> str:
    """ "ok", or the code of the first line."""
    words = lines[0].split() if lines else ["none"]
    return words[1] if words[0] == "err" else words[0]


# --- the binary protocol ----------------------------------------------------------------------------------------------


def _binary_log_in(features: tuple[str, ...], mechanism: str) -> Callable[[World, Peer, str], str]:
    def log_in(node: World, peer: Peer, login: str) -> str:
        base: dict[str, Any] = {"node": "n2", "address": ":5050"} if features == (r.FEATURE,) else {}
        if peer.ended:
            return "closed"
        if mechanism == m.EXTERNAL:
            return answer_to(node, peer, m.Hello(1, features, "test", mechanism=mechanism, **base))
        if login == "no user":
            return answer_to(node, peer, m.Hello(1, features, "test", **base))
        user = REVOKED if login == "revoked" else "ann"
        if mechanism == m.BEARER:
            shown = b"x" if login == "wrong" else TOKEN.encode()
            hello = m.Hello(1, features, "test", mechanism=m.BEARER, user=user, login=shown, **base)
            return answer_to(node, peer, hello)
        scram = ScramClient(user, "x" if login == "wrong" else PASSWORD)
        first = m.Hello(1, features, "test", mechanism=MECHANISM, user=user, login=scram.first(), **base)
        (challenge,) = _exchange(node, peer, first)
        assert isinstance(challenge, m.Challenge)
        (answer,) = _exchange(node, peer, m.Prove(scram.answer(challenge.data)))
        if isinstance(answer, m.Welcome):
            assert answer.login is not None
            scram.check(answer.login)
        return _code(answer)

    return log_in


def _binary_ask(node: World, peer: Peer, right: Right) -> str:
    if peer.ended:
        return "closed"
    name = b"fresh" if right is Right.CREATE else STREAM.encode()
    if right in (Right.PUBLISH, Right.CREATE):
        handle = len(name)
        opened = answer_to(node, peer, m.Open(handle, name))
        return opened if opened != "ok" else _published(node, peer, handle)
    asked: m.AnyMessage = m.Subscribe(7, name, From("seq", 0))
    if right is Right.CONSUME:
        asked = c.Consume(7, "create", name, b"c", From("seq", 0))
    return answer_to(node, peer, asked)


def _published(node: World, peer: Peer, handle: int) -> str:
    frames = pack_frame(b"x")
    peer.send_raw(m.pack_publish(1, m.Ack.APPENDED, [handle], frames) + frames)
    return _code(_take(node, peer)[0])


def _node_ask(node: World, peer: Peer, right: Right) -> str:
    """Each of the messages that only nodes may send; they must agree."""
    if peer.ended:
        return "closed"
    name = STREAM.encode()
    asked: list[m.AnyMessage] = [
        r.Follow(1, name, 0, 0, start=From("seq", 0)),
        r.Fence(3, name, 1),
        r.Claim(4, name, DEFAULT_HISTORY),
    ]
    found = {answer_to(node, peer, each) for each in asked}
    denied = found == {"denied"}
    return "denied" if denied else "ok" if "denied" not in found else f"mixed {found}"


def answer_to(node: World, peer: Peer, message: m.AnyMessage) -> str:
    answers = _exchange(node, peer, message)
    return _code(answers[0]) if answers else "none"


def _exchange(node: World, peer: Peer, message: m.AnyMessage) -> list[m.Response]:
    peer.send_raw(m.pack(message))
    return _take(node, peer)


def _take(node: World, peer: Peer) -> list[m.Response]:
    node.settle()
    data = bytes(peer.received)
    peer.received.clear()
    features = frozenset({c.FEATURE, r.FEATURE})
    return [each for each in ClientCodec(features=features).feed(data) if not isinstance(each, m.Chunk)]


def _code(message: m.Response) -> str:
    return message.code if isinstance(message, m.Failed) else "ok"


# --- MQTT -------------------------------------------------------------------------------------------------------------


def _mqtt_log_in(node: World, peer: Peer, login: str) -> str:
    if peer.ended:
        return "closed"
    user = None if login == "no user" else REVOKED if login == "revoked" else "ann"
    password = None if user is None else b"x" if login == "wrong" else TOKEN.encode()
    return _mqtt_answer(node, peer, wire.connect(wire.V5, user=user, password=password))


def _mqtt_scram_log_in(node: World, peer: Peer, login: str) -> str:
    if peer.ended or login == "no user":
        return "closed" if peer.ended else _mqtt_answer(node, peer, wire.connect(wire.V5))
    user, password = REVOKED if login == "revoked" else "ann", "x" if login == "wrong" else PASSWORD
    scram = ScramClient(user, password)
    peer.send_raw(wire.connect(wire.V5, raw=wire.authentication(MECHANISM, scram.first())))
    node.settle()
    (challenge,) = wire.split(bytes(peer.received))
    peer.received.clear()
    proof = scram.answer(wire.authentication_data(challenge))
    return _mqtt_answer(node, peer, wire.auth(0x18, MECHANISM, proof))


def _mqtt_certificate(node: World, peer: Peer, login: str) -> str:
    return "closed" if peer.ended else _mqtt_answer(node, peer, wire.connect(wire.V5))


def _mqtt_ask(node: World, peer: Peer, right: Right) -> str:
    if peer.ended:
        return "closed"
    if right is Right.SUBSCRIBE:
        return _mqtt_answer(node, peer, wire.subscribe(wire.V5, 1, (STREAM, 0)))
    name = "fresh" if right is Right.CREATE else STREAM
    return _mqtt_answer(node, peer, wire.publish(wire.V5, name, b"x", 1))


def _mqtt_answer(node: World, peer: Peer, packet: bytes) -> str:
    peer.send_raw(packet)
    node.settle()
    answers = [each for each in wire.split(bytes(peer.received)) if each.kind != 3]
    peer.received.clear()
    if not answers:
        return "none"
    reason = answers[0].body[3] if answers[0].kind == 9 else wire.reason(answers[0])
    return {0: "ok", 0x86: "denied", 0x87: "denied", 0x97: "connections"}.get(reason, hex(reason))


def _mqtt_3_log_in(node: World, peer: Peer, login: str) -> str:
    if peer.ended:
        return "closed"
    user = None if login == "no user" else REVOKED if login == "revoked" else "ann"
    password = None if user is None else b"x" if login == "wrong" else TOKEN.encode()
    return _mqtt_3_answer(node, peer, wire.connect(wire.V4, user=user, password=password))


def _mqtt_3_certificate(node: World, peer: Peer, login: str) -> str:
    return "closed" if peer.ended else _mqtt_3_answer(node, peer, wire.connect(wire.V4))


def _mqtt_3_ask(node: World, peer: Peer, right: Right) -> str:
    """MQTT 3.1.1 has no answer for a message that is refused: the connection ends. So a row has one right."""
    if peer.ended:
        return "closed"
    if right is Right.SUBSCRIBE:
        return _mqtt_3_answer(node, peer, wire.subscribe(wire.V4, 1, (STREAM, 0)))
    name = "fresh" if right is Right.CREATE else STREAM
    return _mqtt_3_answer(node, peer, wire.publish(wire.V4, name, b"x", 1))


def _mqtt_3_answer(node: World, peer: Peer, packet: bytes) -> str:
    """By the return code of a CONNACK or SUBACK; a PUBACK has none, and the end is a refusal."""
    peer.send_raw(packet)
    node.settle()
    answers = [each for each in wire.split(bytes(peer.received)) if each.kind != 3]
    peer.received.clear()
    if not answers:
        return "denied" if peer.ended else "none"
    kind, _flags, body = answers[0]
    code = {2: body[1], 9: body[-1]}.get(kind, 0)
    refusals = {2: {3: "connections", 4: "denied", 5: "denied"}, 9: {0x80: "denied"}}
    return "ok" if not code else refusals[kind].get(code, hex(code))


# --- datagrams --------------------------------------------------------------------------------------------------------


def _datagrams_of(node: World, address: str) -> Peer:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.connect(node.udp_sockets[0].getsockname())
    node.peers.append(Peer(sock))
    return node.peers[-1]


def _datagram_log_in(node: World, peer: Peer, login: str) -> str:
    return "ok"


def _datagram_ask(node: World, peer: Peer, right: Right) -> str:
    verb, body = (b"SUB", b"") if right is Right.SUBSCRIBE else (b"PUB?", b"x")
    peer.send_raw(b"%b %b\n%b" % (verb, STREAM.encode(), body))
    node.settle()
    words = bytes(peer.received).split()
    peer.received.clear()
    return words[1].decode() if words[0] == b"ERR" else words[0].decode().lower()


CLIENT, NODE = (c.FEATURE,), (r.FEATURE,)
BINARY_RIGHTS = frozenset({Right.PUBLISH, Right.CREATE, Right.SUBSCRIBE, Right.CONSUME})
MQTT_RIGHTS = BINARY_RIGHTS - {Right.CONSUME}
_NODE_RIGHTS = frozenset({Right.NODE})
_BEARER, _SCRAM = _binary_log_in(CLIENT, m.BEARER), _binary_log_in(CLIENT, MECHANISM)
_NODE = _binary_log_in(NODE, MECHANISM)
DOORS: Mapping[str, Door] = {
    "line, plain": Door(_line_log_in, _line_ask),
    "binary with a token, plain": Door(_BEARER, _binary_ask, BINARY_RIGHTS),
    "binary with SCRAM, plain": Door(_SCRAM, _binary_ask, BINARY_RIGHTS, False),
    "node with SCRAM, plain": Door(_NODE, _node_ask, _NODE_RIGHTS, False),
    "MQTT, plain": Door(_mqtt_log_in, _mqtt_ask, MQTT_RIGHTS),
    "MQTT with SCRAM, plain": Door(_mqtt_scram_log_in, _mqtt_ask, MQTT_RIGHTS, False),
    "MQTT, TLS": Door(_mqtt_log_in, _mqtt_ask, MQTT_RIGHTS, False, TLS),
    "MQTT with SCRAM, TLS": Door(_mqtt_scram_log_in, _mqtt_ask, MQTT_RIGHTS, False, TLS),
    "MQTT with SCRAM, WebSocket, TLS": Door(_mqtt_scram_log_in, _mqtt_ask, MQTT_RIGHTS, False, TLS, True),
    "MQTT, mTLS": Door(_mqtt_certificate, _mqtt_ask, MQTT_RIGHTS, False, MTLS),
    "MQTT, WebSocket, plain": Door(_mqtt_log_in, _mqtt_ask, MQTT_RIGHTS, websocket=True),
    "MQTT, WebSocket, TLS": Door(_mqtt_log_in, _mqtt_ask, MQTT_RIGHTS, False, TLS, True),
    "MQTT, WebSocket, mTLS": Door(_mqtt_certificate, _mqtt_ask, MQTT_RIGHTS, False, MTLS, True),
    **{
        f"MQTT 3.1.1, {right}, {security}": Door(log_in, _mqtt_3_ask, frozenset({right}), security == PLAIN, security)
        for right, log_in, security in (
            (Right.PUBLISH, _mqtt_3_log_in, PLAIN),
            (Right.CREATE, _mqtt_3_log_in, PLAIN),
            (Right.SUBSCRIBE, _mqtt_3_log_in, PLAIN),
            (Right.PUBLISH, _mqtt_3_log_in, TLS),
            (Right.CREATE, _mqtt_3_log_in, TLS),
            (Right.SUBSCRIBE, _mqtt_3_log_in, TLS),
            (Right.CREATE, _mqtt_3_certificate, MTLS),
            (Right.PUBLISH, _mqtt_3_certificate, MTLS),
            (Right.SUBSCRIBE, _mqtt_3_certificate, MTLS),
        )
    },
    "datagrams, plain": Door(
        _datagram_log_in, _datagram_ask, frozenset({Right.PUBLISH, Right.SUBSCRIBE}), datagrams=True
    ),
    "line, TLS": Door(_line_log_in, _line_ask, local=False, security=TLS),
    "binary with a token, TLS": Door(_BEARER, _binary_ask, BINARY_RIGHTS, False, TLS),
    "binary with SCRAM, TLS": Door(_SCRAM, _binary_ask, BINARY_RIGHTS, False, TLS),
    "node with SCRAM, TLS": Door(_NODE, _node_ask, _NODE_RIGHTS, False, TLS),
    "line, mTLS": Door(_line_certificate, _line_ask, local=False, security=MTLS),
    "binary, mTLS": Door(_binary_log_in(CLIENT, m.EXTERNAL), _binary_ask, BINARY_RIGHTS, False, MTLS),
    "node, mTLS": Door(_binary_log_in(NODE, m.EXTERNAL), _node_ask, _NODE_RIGHTS, False, MTLS),
}
CELLS = tuple((door, login) for door, row in DOORS.items() for login in row.logins)
