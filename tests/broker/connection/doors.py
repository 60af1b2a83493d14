"""The table of doors: how each door and transport logs in, asks for a right, and answers. Later doors add a row.

A row makes a connection to one worker of a `World` with users, logs in, and says in the protocol's own words whether
something may be done: "ok", or the code of the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.places import From
from tailrace.protocol.scram import ITERATIONS_MIN, MECHANISM, ScramClient, make_verifier
from tailrace.shard.epochs import DEFAULT_HISTORY
from tailrace.shard.frame import pack_frame
from tailrace.supervisor.user_file import hash_token
from tests.broker.world import Peer, World

TOKEN, PASSWORD = "a-long-random-token", "correct-horse"
VERIFIER = make_verifier(PASSWORD, ITERATIONS_MIN)
ANN = User("ann", frozenset({"ops"}), VERIFIER, (hash_token(TOKEN),))
LOGINS = ("no user", "wrong", "revoked", "right")
REVOKED = "bob"
"""A user that is not in the file any more."""
STREAM = "s0"


def rules_for(right: Right) -> tuple[AccessRule, ...]:
    """The user has this right alone; with `create` also what there is to create a stream by."""
    rights = frozenset({Right.CREATE, Right.PUBLISH} if right is Right.CREATE else {right})
    return (AccessRule(True, ("@ops",), rights, ("*",)),)


@dataclass(frozen=True, slots=True)
class Door:
    """`log_in` returns what was answered; `ask` whether what needs the right is done. `local`: from this machine."""

    log_in: Callable[[World, Peer, str], str]
    ask: Callable[[World, Peer, Right], str]
    rights: frozenset[Right] = frozenset(Right) - {Right.NODE}
    local: bool = True


# --- lines ------------------------------------------------------------------------------------------------------------


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


CLIENT, NODE = (c.FEATURE,), (r.FEATURE,)
BINARY_RIGHTS = frozenset({Right.PUBLISH, Right.CREATE, Right.SUBSCRIBE, Right.CONSUME})
DOORS: Mapping[str, Door] = {
    "line, plain": Door(_line_log_in, _line_ask),
    "binary with a token, plain": Door(_binary_log_in(CLIENT, m.BEARER), _binary_ask, BINARY_RIGHTS),
    "binary with SCRAM, plain": Door(_binary_log_in(CLIENT, MECHANISM), _binary_ask, BINARY_RIGHTS, False),
    "node with SCRAM, plain": Door(_binary_log_in(NODE, MECHANISM), _node_ask, frozenset({Right.NODE}), False),
}
