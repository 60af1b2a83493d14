"""Logins by SCRAM in CONNECT, AUTH and CONNACK, and again later (4.12 of MQTT 5)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.users import User
from tailrace.broker.connection import handover, login
from tailrace.broker.connection.mqtt.enhanced_login import EnhancedLoginClient
from tailrace.protocol.errors import Code
from tailrace.protocol.scram import ITERATIONS_MIN, MECHANISM, ScramClient, make_verifier
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import Answer

PASSWORD = "correct-horse"
USERS = tuple(User(name, frozenset(), make_verifier(PASSWORD, ITERATIONS_MIN)) for name in ("ann", "bob"))
CONNACK, DISCONNECT, AUTH = 2, 14, 15


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(login, "FAILED_S", 0.01)
    with world(tmp_path, users=USERS) as node:
        yield node


@dataclass
class Login:
    """One exchange of a peer on another machine. `server`: what the broker has sent of it."""

    peer: MqttPeer
    user: str = "ann"
    password: str = PASSWORD
    server: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scram = ScramClient(self.user, self.password)

    def connect(self, **more: object) -> list[Answer]:
        raw = wire.authentication(MECHANISM, self.scram.first())
        return self.peer.ask(wire.connect(wire.V5, raw=raw, **more))  # type: ignore[arg-type]

    def prove(self, challenge: Answer) -> list[Answer]:
        assert (challenge.kind, challenge.body[0]) == (AUTH, 0x18)
        return self.peer.ask(wire.auth(0x18, MECHANISM, self.scram.answer(wire.authentication_data(challenge))))

    def again(self) -> list[Answer]:
        (challenge,) = self.peer.ask(wire.auth(0x19, MECHANISM, self.scram.first()))
        return self.prove(challenge)


def arrived(node: World) -> MqttPeer:
    return MqttPeer(node, opened=False, local=False)


def logged_in(node: World, user: str = "ann") -> MqttPeer:
    made = Login(arrived(node), user)
    (connack,) = made.prove(*made.connect())
    made.scram.check(wire.authentication_data(connack))
    assert connack.kind == CONNACK and connack.body[1] == 0
    assert wire.text(MECHANISM) in connack.body, "[MQTT-4.12.0-5]"
    return made.peer


def failures(node: World) -> dict[str, int]:
    return dict(node.workers[0].services.metrics.login_failures.counts)


# --- the first login --------------------------------------------------------------------------------------------------


def test_a_password_is_proven_from_another_machine_in_the_clear(node: World) -> None:
    peer = logged_in(node)
    identity = peer.client.identity
    assert (identity.user, identity.proof) == ("ann", Proof.SCRAM)
    assert [each.kind for each in peer.ask(wire.PINGREQ)] == [13]


def test_nothing_of_a_connect_is_held_any_more_after_its_login(tmp_path: Path) -> None:
    """Also while other workers are asked about the identifier, when nothing more is read."""
    with world(tmp_path, 2, users=USERS, affinity=False) as node:
        peer = logged_in(node)
        assert not node.workers[0].services.deadlines.request.peers and not peer.client.held_bytes


@pytest.mark.parametrize(("user", "password", "why"), [("ann", "wrong", "secret"), ("eve", PASSWORD, "user")])
def test_a_wrong_proof(node: World, user: str, password: str, why: str) -> None:
    """It gets the same answer, as late, whether the user exists or not; it is counted [MQTT-4.12.0-4]."""
    made = Login(arrived(node), user, password)
    (connack,) = made.prove(*made.connect())
    assert (connack.kind, wire.reason(connack)) == (CONNACK, 0x86) and made.peer.ended
    assert failures(node) == {why: 1}


def test_a_failure_is_answered_late_and_nothing_more_is_read(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FAILED_S", 3_600.0)
    made, worker = Login(arrived(node), password="wrong"), node.workers[0]
    (challenge,) = made.connect()
    proof = made.scram.answer(wire.authentication_data(challenge))
    made.peer.send(wire.auth(0x18, MECHANISM, proof), wire.PINGREQ)
    deadline_s = time.monotonic() + 60
    while not failures(node) and time.monotonic() < deadline_s:
        worker.turn()
    made.peer.peer.read()
    assert made.peer.collect() == [] and not made.peer.peer.ended
    worker.services.now_s += 3_600.0
    worker.logins.tick()
    assert [wire.reason(each) for each in made.peer.take()] == [0x86] and made.peer.ended


def test_another_method_is_refused(node: World) -> None:
    """[MQTT-4.12.0-1]; it counts as a failed login, as at the other doors."""
    peer = arrived(node)
    (connack,) = peer.ask(wire.connect(wire.V5, raw=wire.authentication("GS2-KRB5", b"x")))
    assert wire.reason(connack) == 0x8C and peer.ended and failures(node) == {"mechanism": 1}


def test_without_users_there_is_no_method(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = arrived(node)
        (connack,) = Login(peer).connect()
        assert wire.reason(connack) == 0x8C and peer.ended


@pytest.mark.parametrize("data", [None, b"", b"nonsense", b"n,,n=ann,r=" + bytes(2_000), b"p=tls-unique,,n=ann,r=x"])
def test_first_messages_that_are_none(node: World, data: bytes | None) -> None:
    peer = arrived(node)
    (connack,) = peer.ask(wire.connect(wire.V5, raw=wire.authentication(MECHANISM, data)))
    assert wire.reason(connack) == 0x86 and peer.ended and failures(node) == {"exchange": 1}


@pytest.mark.parametrize(
    "packet",
    [
        wire.PINGREQ,
        wire.publish(wire.V5, "s", b"x", 1),
        wire.publish(wire.V5, "s", b"x"),
        wire.subscribe(wire.V5, 1, ("s", 0)),
        wire.auth(0x18, "SCRAM-SHA-1", b"x"),
        wire.auth(0x19, MECHANISM, b"n,,n=ann,r=x"),
        wire.auth(0, MECHANISM, b"x"),
        wire.packet(0xF0),
        wire.packet(0xF0, b"\x18\0"),
    ],
    ids=lambda packet: packet.hex()[:12],
)
def test_packets_that_may_not_come_during_a_login(node: World, packet: bytes) -> None:
    """[MQTT-3.1.2-30], [MQTT-4.12.0-3], [MQTT-4.12.0-5]."""
    made = Login(arrived(node))
    made.connect()
    (connack,) = made.peer.ask(packet)
    assert (connack.kind, wire.reason(connack)) == (CONNACK, 0x82) and made.peer.ended
    assert not node.workers[0].owner.catalog.names


def test_a_client_may_disconnect_during_a_login(node: World) -> None:
    made = Login(arrived(node))
    made.connect(will=("s", b"x", 0))
    assert made.peer.ask(wire.DISCONNECT) == [] and made.peer.ended and not node.workers[0].owner.catalog.names


def test_a_login_that_is_not_finished_is_late(node: World) -> None:
    made = Login(arrived(node))
    made.connect()
    services = node.workers[0].services
    services.deadlines.login.tick(services.now_s + 1_000)
    assert [each.kind for each in made.peer.take()] == [CONNACK] and made.peer.ended


def test_what_is_held_of_a_connect_meanwhile_is_bounded(tmp_path: Path) -> None:
    """It is an unfinished request, which those share `max_partial_bytes` for."""
    with world(tmp_path, users=USERS, max_partial_bytes=100_000) as node:
        peers = [Login(arrived(node)) for _ in range(3)]
        for each in peers:
            each.connect(will=("s", bytes(40_000), 0))
        assert 0 < node.workers[0].services.partial_bytes <= 100_000
        assert sum(each.peer.ended for each in peers) == 1


def test_a_challenge_that_is_larger_than_the_client_takes(node: World) -> None:
    peer, scram = arrived(node), ScramClient("ann", PASSWORD)
    raw = wire.authentication(MECHANISM, scram.first()) + b"\x27" + (60).to_bytes(4, "big")
    assert [(each.kind, wire.reason(each)) for each in peer.ask(wire.connect(wire.V5, raw=raw))] == [(CONNACK, 0x95)]
    assert peer.ended


# --- another login of the same connection -----------------------------------------------------------------------------


def test_a_connection_logs_in_again(node: World) -> None:
    """Twice, with messages between the steps."""
    peer = logged_in(node)
    for _ in range(2):
        made = Login(peer)
        (challenge,) = peer.ask(wire.auth(0x19, MECHANISM, made.scram.first()))
        assert [each.kind for each in peer.ask(wire.PINGREQ)] == [13]
        (answer,) = made.prove(challenge)
        assert (answer.kind, answer.body[0]) == (AUTH, 0)
        made.scram.check(wire.authentication_data(answer))
    assert [each.kind for each in peer.ask(wire.PINGREQ)] == [13] and not peer.ended


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("bob", PASSWORD), ("eve", PASSWORD)])
def test_another_login_that_fails_ends_the_connection(node: World, user: str, password: str) -> None:
    """[MQTT-4.12.1-2]; so does one of another user than that of the session."""
    peer = logged_in(node)
    (answer,) = Login(peer, user, password).again()
    assert (answer.kind, wire.reason(answer)) == (DISCONNECT, 0x87) and peer.ended
    assert sum(failures(node).values()) == 1


@pytest.mark.parametrize("reason", [0, 0x18, 0x01])
def test_auth_that_may_not_come_then(node: World, reason: int) -> None:
    peer = logged_in(node)
    (answer,) = peer.ask(wire.auth(reason, MECHANISM, b"x"))
    assert (answer.kind, wire.reason(answer)) == (DISCONNECT, 0x82) and peer.ended


def test_two_logins_at_once(node: World) -> None:
    peer = logged_in(node)
    first = wire.auth(0x19, MECHANISM, Login(peer).scram.first())
    answers = peer.ask(first, first)
    assert [(each.kind, each.body[0]) for each in answers] == [(AUTH, 0x18), (DISCONNECT, 0x82)]


def test_another_method_than_before(node: World) -> None:
    """[MQTT-4.12.1-1]."""
    peer = logged_in(node)
    (answer,) = peer.ask(wire.auth(0x19, "SCRAM-SHA-1", b"n,,n=ann,r=x"))
    assert (answer.kind, wire.reason(answer)) == (DISCONNECT, 0x82)


# --- moving to another worker -----------------------------------------------------------------------------------------


def test_the_method_moves_with_the_connection_and_an_exchange_does_not(node: World) -> None:
    peer = logged_in(node)
    client: EnhancedLoginClient = peer.client
    assert handover.possible(client)
    assert client.export_state()["auth_method"] == MECHANISM.encode()
    made = Login(arrived(node))
    made.connect()
    assert not handover.possible(made.peer.client)
    made.peer.client.end_with(Code.CLOSING, "the worker is replaced")
    assert [wire.reason(each) for each in made.peer.take()] == [0x88]
