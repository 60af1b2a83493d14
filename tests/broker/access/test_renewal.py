"""Rights that a reload changes, at connections that stay in their worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.broker.access.identity import LOCAL
from tailrace.broker.access.policy import policy_of
from tailrace.broker.access.renewal import change_between, change_file, read_change
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.process import drain
from tailrace.broker.process.settings import Settings
from tailrace.protocol import messages as m
from tailrace.shard.frame import pack_frame
from tests.broker.connection.doors import ANN, TOKEN
from tests.broker.mqtt import MqttPeer
from tests.broker.world import Peer, World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5

EVERYTHING = AccessRule(True, ("*",), frozenset(Right), ("*",))
BOB = User("bob", token_hashes=ANN.token_hashes)
SETTINGS = Settings(users=(ANN, BOB), rules=(EVERYTHING,))


def test_only_what_concerns_rights_is_a_change() -> None:
    assert change_between(SETTINGS, replace(SETTINGS, max_streams=7)) is None
    for other in ({"users": None}, {"rules": ()}, {"token": "t"}, {"allow_anonymous": True}, {"users": (ANN,)}):
        assert change_between(SETTINGS, replace(SETTINGS, **other)) is not None, other


def test_a_policy_goes_by_what_has_changed() -> None:
    moved = replace(BOB, groups=frozenset({"ops"}))
    ops = AccessRule(True, ("@ops",), frozenset({Right.PUBLISH}), ("*",))
    fresh = replace(SETTINGS, users=(moved, User("new")), rules=(ops,))
    change = change_between(SETTINGS, fresh)
    assert change is not None
    policy, open_before = policy_of(SETTINGS), len(os.listdir("/proc/self/fd"))
    before = policy.named("bob")
    assert before is not None and policy.may(before, Right.SUBSCRIBE, b"s")
    secret = policy.secret
    policy.renew(read_change(change_file(change)))
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert policy.named("ann") is None and policy.named("new") is not None and policy.secret == secret
    bob = policy.named("bob")
    assert bob is not None and policy.may(bob, Right.PUBLISH, b"s") and not policy.may(bob, Right.SUBSCRIBE, b"s")
    without = change_between(fresh, replace(fresh, users=None))
    assert without is not None
    policy.renew(without)
    assert not policy.has_users and policy.may(LOCAL, Right.ADMIN, b"")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, users=(ANN, BOB), rules=(EVERYTHING,), allow_anonymous=True) as made:
        yield made


def renew(node: World, *rules: AccessRule, users: tuple[User, ...] = (ANN, BOB), anonymous: bool = True) -> None:
    fresh = replace(node.settings, rules=rules, users=users, allow_anonymous=anonymous)
    change = change_between(node.settings, fresh)
    assert change is not None
    for worker in node.workers:
        drain.renew_rights(worker.services, change)
    node.settle()


def without(*rights: Right) -> AccessRule:
    return replace(EVERYTHING, rights=frozenset(Right) - set(rights))


def as_user(node: World, name: str = "ann") -> Peer:
    peer = node.connect()
    assert node.ask(peer, f"auth {name} {TOKEN}") == [f"ok auth {name}"]
    return peer


def test_subscriptions_and_waiting_gets_end(node: World) -> None:
    peer, reader = as_user(node), as_user(node, "bob")
    node.ask(peer, "pub s |one", "consume s c 0", "get s c", "ack s c 0")
    node.ask(reader, "sub s 1")
    peer.send("get s c 60000")
    node.settle()
    renew(node, without(Right.SUBSCRIBE, Right.CONSUME))
    ended, waited = reader.take()[-1], peer.take()[-1]
    assert ended.startswith("err denied s: the user bob") and waited.startswith("ok get s c 0"), (ended, waited)
    assert node.ask(peer, "get s c")[0].startswith("err denied")
    assert node.ask(peer, "pub s |two", "ping") == ["ok pong"]
    assert node.ask(reader, "ping") == ["ok pong"], "no message"


def test_a_removed_user_is_disconnected_and_others_are_not(node: World) -> None:
    ann, bob, nobody = as_user(node), as_user(node, "bob"), node.connect()
    node.ask(nobody, "ping")
    renew(node, EVERYTHING, users=(BOB,))
    assert ann.ended and "err denied this user may not log in any more" in ann.lines[-1]
    assert node.ask(bob, "ping") == node.ask(nobody, "ping") == ["ok pong"]
    renew(node, EVERYTHING, anonymous=False)
    assert nobody.ended and not bob.ended


def test_single_publishes_of_those_who_needed_no_right_before(tmp_path: Path) -> None:
    """They are read together, without a look at rights."""
    with world(tmp_path) as node:
        line, device, binary = node.connect(), MqttPeer(node, V5), node.connect()
        node.ask(line, "ack on")
        binary.send_raw(m.pack(m.Hello(1, (), "test")) + m.pack(m.Open(1, b"s")))

        def publish() -> None:
            line.send("pub s |x")
            device.send(wire.publish(V5, "s", b"x", 1, 1))
            frames = pack_frame(b"x")
            binary.send_raw(m.pack_publish(1, m.Ack.APPENDED, [1], frames) + frames)
            node.settle()

        for _ in range(3):
            publish()
        singles = node.workers[0].singles
        assert singles._lines and singles._packets and singles._binary
        before = node.workers[0].owner.stream(b"s").log.next_seq
        renew(node, replace(EVERYTHING, who=("anonymous",), rights=frozenset({Right.SUBSCRIBE})))
        publish()
        assert node.workers[0].owner.stream(b"s").log.next_seq == before == 9, "nothing more"
        assert line.take()[-1].startswith("err denied s: ")


def test_handles_of_a_group_that_a_user_has_left(tmp_path: Path) -> None:
    publishing, member = AccessRule(True, ("@ops",), frozenset(Right), ("*",)), replace(BOB, groups=frozenset({"ops"}))
    with world(tmp_path, users=(member,), rules=(publishing,)) as node:
        peer = node.connect()
        peer.send_raw(m.pack(m.Hello(1, (), "test", mechanism=m.BEARER, user="bob", login=TOKEN.encode())))
        peer.send_raw(m.pack(m.Open(1, b"s")))
        node.settle()
        assert b"denied" not in peer.received
        renew(node, publishing, users=(BOB,))
        peer.send_raw(m.pack(m.Open(2, b"s")))
        node.settle()
        assert b"bob does not have the right" in peer.received


def test_shared_mqtt_subscriptions_end(node: World) -> None:
    peer = MqttPeer(node, V5, user="ann", password=TOKEN.encode())
    assert peer.subscribe(("$share/g/s", 1)) == [1]
    renew(node, without(Right.SUBSCRIBE))
    assert wire.reason(peer.take()[-1]) == 0x87 and peer.ended
    assert not MqttPeer(node, V5, "other", user="ann", password=TOKEN.encode()).ended


def test_many_connections_take_several_turns(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "RENEWAL_S", 0.0)
    peers = [as_user(node) for _ in range(3)]
    fresh = change_between(node.settings, replace(node.settings, users=()))
    assert fresh is not None
    services = node.workers[0].services
    drain.renew_rights(services, fresh)
    assert not any(client.lingering_since_s for client in services.clients.values())
    monkeypatch.setattr(drain, "RENEWAL_S", 60.0)  # enough for all of them, however slow the machine is
    services.now_s += 1
    services.delays.tick(services.now_s)
    node.settle()
    assert all(peer.ended for peer in peers)
