"""CONNECT and CONNACK, logins, client identifiers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.renewal import change_between
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.connection import login
from tailrace.broker.connection.detect import UndetectedConnection
from tailrace.broker.connection.mqtt.opening import CLIENT_ID_BYTES_MAX, refusal_of
from tailrace.broker.process import drain
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.reasons import Reason
from tailrace.protocol.scram import ITERATIONS_MIN, make_verifier
from tailrace.supervisor.user_file import hash_token
from tests.broker.mqtt import MqttPeer
from tests.broker.world import world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)
TOKEN, PASSWORD = "a-long-random-token", b"correct-horse"
USERS = (
    User("ann", frozenset({"ops"}), make_verifier(PASSWORD.decode(), ITERATIONS_MIN), (hash_token(TOKEN),)),
    User("bob", frozenset({"ops"}), make_verifier("bob", ITERATIONS_MIN)),
)
RULES = (
    AccessRule(True, ("@ops",), frozenset({Right.PUBLISH, Right.SUBSCRIBE, Right.CREATE}), ("open*",)),
    AccessRule(True, ("@ops",), frozenset({Right.SUBSCRIBE}), ("read",)),
)


def first(peer: MqttPeer, **connect: Any) -> wire.Answer | None:
    """The answer to a CONNECT; None if it just ends."""
    answers = peer.ask(wire.connect(peer.version, **connect))
    assert len(answers) <= 1
    return answers[0] if answers else None


def refused(node: Any, version: int, return_code: int, reason: int, **connect: Any) -> None:
    """Such a CONNECT gets this return code (0: nothing) or reason, and the connection ends."""
    peer = MqttPeer(node, version, opened=False)
    answer = first(peer, **connect)
    if version == V4:
        assert (None if answer is None else answer.body) == (bytes((0, return_code)) if return_code else None)
    else:
        assert answer is not None and (answer.kind, wire.reason(answer)) == (2, reason)
    assert peer.ended


# --- accepted ---------------------------------------------------------------------------------------------------------


@both
def test_connack_is_the_first_packet(tmp_path: Path, version: int) -> None:
    """[MQTT-3.2.0-1], with packets right behind CONNECT."""
    with world(tmp_path) as node:
        peer = MqttPeer(node, version, opened=False)
        answers = peer.ask(wire.connect(version) + wire.PINGREQ + wire.publish(version, "s", b"x", 1, 5))
        assert [each.kind for each in answers] == [2, 13, 4]


def test_connack_of_version_5_gives_the_limits(tmp_path: Path) -> None:
    with world(tmp_path, max_session_expiry_s=100) as node:
        peer = MqttPeer(node, V5, "", raw=b"\x11\0\0\1\0")
        body = peer.connack.body
        assert b"\x25\0" not in body and b"\x2a\1" in body and b"\x22\0\x20" in body
        assert b"\x11\0\0\0\x64" in body, "the session expiry that counts"
        assert b"\x12" + wire.text(peer.client.client_id) in body, "[MQTT-3.1.3-7]"
        assert b"\x12" not in MqttPeer(node, V5, "mine").connack.body[3:5]


def test_connack_is_no_larger_than_the_client_takes(tmp_path: Path) -> None:
    """[MQTT-3.1.2-24]: without its text at first, and else no packet at all."""
    with world(tmp_path) as node:
        nbytes = len(MqttPeer(node, V5, "c").connack.body) + 2

        def ask(bytes_max: int, **connect: Any) -> list[wire.Answer]:
            peer = MqttPeer(node, V5, opened=False)
            answers = peer.ask(wire.connect(V5, raw=b"\x27" + bytes_max.to_bytes(4, "big"), **connect))
            assert peer.ended or answers[0].body[1] == 0
            return answers

        assert [wire.reason(each) for each in ask(nbytes)] == [0]
        old = MqttPeer(node, V5, "old")
        assert ask(nbytes - 1, client_id="old") == [wire.Answer(2, 0, b"\0\x95\0")] and not old.ended
        assert ask(5) == [wire.Answer(2, 0, b"\0\x95\0")]
        assert ask(4) == []
        assert ask(30, will=("a/#", b"", 0)) == [wire.Answer(2, 0, b"\0\x90\0")]
        assert len(ask(300, will=("a/#", b"", 0))[0].body) > 30


@both
@pytest.mark.parametrize("topic", ["", "a/+", "s/$dead", "a/" * 128, "x" * 1_025])
def test_a_will_that_would_be_refused(tmp_path: Path, version: int, topic: str) -> None:
    """It is refused in CONNECT: later nobody could be given an answer."""
    with world(tmp_path) as node:
        refused(node, version, 0, 0x90, will=(topic, b"x", 0))


@both
def test_a_will_that_is_too_large(tmp_path: Path, version: int) -> None:
    with world(tmp_path, max_message_bytes=1_000) as node:
        assert MqttPeer(node, version, "fits", will=("w", bytes(1_000), 1)).client.will is not None
        refused(node, version, 3, 0x97, will=("w", bytes(1_001), 1))


@both
def test_assigned_identifiers_differ(tmp_path: Path, version: int) -> None:
    """[MQTT-3.1.3-6], [MQTT-3.1.3-7]."""
    with world(tmp_path) as node:
        one, other = MqttPeer(node, version, ""), MqttPeer(node, version, "")
        assert one.client.client_id != other.client.client_id and not one.ended


@pytest.mark.parametrize("client_id", ["x", "é" * 300, "a/+#", " ", "A" * 23])
@both
def test_any_utf_8_is_an_identifier(tmp_path: Path, version: int, client_id: str) -> None:
    with world(tmp_path) as node:
        assert MqttPeer(node, version, client_id).client.client_id == client_id.encode()


@pytest.mark.parametrize(("asked_s", "given_s"), [(0, 100), (5, None), (100, None), (101, 100), (65_535, 100)])
@both
def test_the_keep_alive_of_the_server_counts(tmp_path: Path, version: int, asked_s: int, given_s: int | None) -> None:
    """[MQTT-3.1.2-21], [MQTT-3.2.2-21]: MQTT 3.1.1 has no word for it, and its clients have their own."""
    with world(tmp_path, max_keep_alive_s=100) as node:
        peer = MqttPeer(node, version, keep_alive_s=asked_s)
        given = None if version == V4 else given_s
        body = peer.connack.body
        assert (b"\x13" + (given or 0).to_bytes(2, "big") in body[3:]) == (given is not None)
        assert peer.client.keep_alive_s == (asked_s if given is None else given)
        assert len(node.workers[0].mqtt.keep_alives) == (peer.client.keep_alive_s > 0)


# --- refused ----------------------------------------------------------------------------------------------------------


@both
def test_connects_that_any_client_is_refused(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        refused(node, version, 2, 0x85, client_id="i" * (CLIENT_ID_BYTES_MAX + 1))
        refused(node, version, 0, 0x90, will=("a/#", b"x", 0))
        refused(node, version, 0, 0x90, will=("$SYS/x", b"x", 0))
        if version == V4:
            refused(node, version, 2, 0, client_id="", clean=False)  # [MQTT-3.1.3-8]
            refused(node, version, 0, 0, flags=3)
        else:
            refused(node, version, 0, 0x81, flags=3)
            refused(node, version, 0, 0x8C, raw=b"\x15" + wire.text("SCRAM-SHA-256"))  # [MQTT-4.12.0-1]


@pytest.mark.parametrize(("level", "answer"), [(3, b"\0\1"), (6, b"\0\x84"), (0x84, b"\0\1")])
def test_other_versions(tmp_path: Path, level: int, answer: bytes) -> None:
    """[MQTT-3.1.2-2]."""
    with world(tmp_path) as node:
        peer = MqttPeer(node, opened=False)
        (connack,) = peer.ask(wire.connect(level))
        assert connack.kind == 2 and connack.body.startswith(answer) and peer.ended


def test_another_protocol_is_closed(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        for data in (wire.connect(V4, name=b"MQTTX"), b"\x10\0", b"\x10\xff\xff\xff\xff\xff"):
            peer = MqttPeer(node, opened=False)
            assert peer.ask(data) == [] and peer.ended


@both
def test_one_that_is_refused_before_it_is_read(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node, version, opened=False)
        newcomer = node.connection_of(peer.peer)
        assert isinstance(newcomer, UndetectedConnection)
        newcomer.refused = Code.CONNECTIONS, "full"
        (answer,) = peer.ask(wire.connect(version))
        assert (answer.kind, answer.body[:2]) == (2, b"\0\x97" if version == V5 else b"\0\3") and peer.ended


def test_one_without_a_whole_connect_is_late(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node, opened=False)
        peer.ask(wire.connect(V5)[:5])
        deadlines = node.workers[0].services.deadlines
        assert peer.client.must_log_in and len(deadlines.login.peers) == 1
        deadlines.login.tick(node.workers[0].services.now_s + 1_000)
        assert peer.take() == [] and peer.ended


def test_a_reason_that_connack_has_not() -> None:
    assert refusal_of(Reason.SESSION_TAKEN_OVER, Code.PROTOCOL) is Reason.UNSPECIFIED
    assert refusal_of(Reason.SERVER_SHUTTING_DOWN, Code.CLOSING) is Reason.SERVER_UNAVAILABLE
    assert refusal_of(Reason.NOT_AUTHORIZED, Code.DENIED) is Reason.NOT_AUTHORIZED


def test_mqtt_can_be_turned_off(tmp_path: Path) -> None:
    with world(tmp_path, mqtt=False) as node:
        peer = MqttPeer(node, V4, opened=False)
        (answer,) = peer.ask(wire.connect(V4))
        assert (answer.kind, answer.body) == (2, b"\0\1") and peer.ended
        peer = MqttPeer(node, V5, opened=False)
        (answer,) = peer.ask(wire.connect(V5))
        assert (answer.kind, answer.body) == (2, b"\0\x84\0") and peer.ended


# --- logins -----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("user", "password", "return_code", "reason"),
    [
        ("ann", TOKEN.encode(), 0, 0),
        ("ann", PASSWORD, 0, 0),
        ("ann", b"wrong", 4, 0x86),
        ("eve", PASSWORD, 4, 0x86),
        ("ann", None, 4, 0x86),
        (None, None, 5, 0x87),
    ],
)
def test_users(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    user: str | None,
    password: bytes | None,
    return_code: int,
    reason: int,
) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.01)
    with world(tmp_path, users=USERS, rules=RULES) as node:
        peer = MqttPeer(node, version, opened=False)
        # Behind CONNECT comes more, which waits until the login is checked.
        answers = peer.ask(wire.connect(version, user=user, password=password), wire.PINGREQ)
        assert answers[0].kind == 2 and answers[0].body[1] == (return_code if version == V4 else reason)
        assert [each.kind for each in answers[1:]] == ([] if reason else [13])
        assert peer.ended == bool(reason)


def test_a_secret_is_not_taken_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.01)
    with world(tmp_path, users=USERS, rules=RULES) as node:
        peer = MqttPeer(node, opened=False, local=False)
        answer = first(peer, user="ann", password=PASSWORD)
        assert answer is not None and wire.reason(answer) == 0x86 and b"TLS" in answer.body


@both
def test_the_listen_token_is_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr(login, "FAILED_S", 0.01)
    with world(tmp_path, token="t0ken") as node:
        assert MqttPeer(node, version, local=False, user="any", password=b"t0ken").client.greeted
        secrets: list[dict[str, Any]] = [{}, {"user": "any", "password": b"wrong"}]
        for secret in secrets:
            peer = MqttPeer(node, version, opened=False, local=False)
            answer = first(peer, **secret)
            assert answer is not None and answer.body[1] == (5 if version == V4 else 0x87) and peer.ended
        assert node.workers[0].metrics.login_failures.counts == {"secret": 1}, "the wrong one, answered late"


@both
def test_rights(tmp_path: Path, version: int) -> None:
    with world(tmp_path, users=USERS, rules=RULES) as node:
        node.workers[0].owner.create(b"read")  # the right to make it is another one
        login_of: dict[str, Any] = {"user": "ann", "password": TOKEN.encode()}
        peer = MqttPeer(node, version, **login_of)
        assert peer.subscribe(("open", 1), ("read", 1), ("other", 1)) == [1, 1, 0x87 if version == V5 else 0x80]
        (answer,) = peer.ask(wire.publish(version, "open", b"x", 1, 7))
        assert answer.kind == 4 and wire.reason(answer) == 0
        assert peer.payloads() == [b"x"]
        answers = peer.ask(wire.publish(version, "read", b"x", 0), wire.publish(version, "read", b"x", 1, 8))
        assert [wire.reason(each) for each in answers] == ([0x87] if version == V5 else [])
        assert peer.ended == (version == V4)
        willed = MqttPeer(node, version, opened=False)
        refusal = first(willed, client_id="w", will=("read", b"x", 0), **login_of)
        assert refusal is not None and refusal.body[1] == (0x87 if version == V5 else 5)


@both
def test_a_filter_over_several_streams_is_granted_whatever_the_user_may_read(tmp_path: Path, version: int) -> None:
    """A filter for a single stream is not."""
    with world(tmp_path, users=USERS, rules=RULES, topics=(TopicRule("#", "{1}"),)) as node:
        for name in (b"other", b"open"):
            node.workers[0].owner.create(name)
        peer = MqttPeer(node, version, user="ann", password=TOKEN.encode())
        denied = 0x87 if version == V5 else 0x80
        filters = ["+/a", "#", "other/a", "other/#", "other/+"]
        assert peer.subscribe(*((each, 1) for each in filters)) == [1, 1, denied, denied, denied]


@both
@pytest.mark.parametrize("topics", [(), (TopicRule("#", "{1}"),)], ids=["streams", "topics"])
def test_a_shared_subscription_needs_the_right_to_all_that_it_matches(
    tmp_path: Path, version: int, topics: tuple[TopicRule, ...]
) -> None:
    """Whether there are streams already or not."""
    denied = 0x87 if version == V5 else 0x80
    with world(tmp_path, users=USERS, rules=RULES, topics=topics) as node:
        peer = MqttPeer(node, version, user="ann", password=TOKEN.encode())
        filters = ["$share/g/#", "$share/g/+/a", "$share/g/other", "$share/g/read", "$share/g/open", "$share/g/open/+"]
        assert peer.subscribe(*((each, 1) for each in filters)) == [denied, denied, denied, 1, 1, 1]
        node.workers[0].owner.create(b"read")
        assert peer.subscribe(("$share/h/#", 1), ("$share/h/read", 1), ("#", 1)) == [denied, 1, 1]


@both
def test_the_will_of_a_revoked_user_is_not_published(tmp_path: Path, version: int) -> None:
    """That of another user is, with the same outcome of its connection."""
    with world(tmp_path, users=USERS, rules=RULES) as node:
        reader = MqttPeer(node, version, "reader", user="bob", password=b"bob")
        reader.subscribe(("open", 0))
        secrets = {"ann": TOKEN.encode(), "bob": b"bob"}
        for user, secret in secrets.items():
            will = ("open", user.encode(), 1)
            peer = MqttPeer(node, version, f"of-{user}", will=will, user=user, password=secret)
            services, settings = node.workers[0].services, node.settings
            if user == "ann":
                others = tuple(each for each in USERS if each.name != user)
                change = change_between(settings, replace(settings, users=others))
                assert change is not None
                drain.renew_rights(services, change)
            else:
                peer.client.end_with(Code.DENIED, "for a test")
            assert peer.ended
        assert reader.payloads() == [b"bob"]


# --- client identifiers -----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_an_identifier_is_taken_over(tmp_path: Path, version: int, slot: int) -> None:
    """[MQTT-3.1.4-3] of both versions, on whichever workers the two connections are."""
    with world(tmp_path, 2, affinity=False) as node:
        reader = MqttPeer(node, version, "reader")
        reader.subscribe(("will", 0))
        old = MqttPeer(node, version, "same", 0, will=("will", b"gone", 0))
        new = MqttPeer(node, version, "same", slot)
        answers = old.take()
        assert [wire.reason(each) for each in answers] == ([0x8E] if version == V5 else [])
        assert old.ended and not new.ended and new.ask(wire.PINGREQ)
        assert reader.payloads() == [b"gone"]
        assert sum(len(worker.mqtt.sessions) for worker in node.workers) == 2


def test_a_user_cannot_take_over_the_identifier_of_another(tmp_path: Path) -> None:
    with world(tmp_path, 2, users=USERS, rules=RULES) as node:
        ann = MqttPeer(node, V5, "same", user="ann", password=TOKEN.encode())
        bob = MqttPeer(node, V5, "same", 1, opened=False)
        answer = first(bob, client_id="same", user="bob", password=b"bob")
        assert answer is not None and wire.reason(answer) == 0x85 and bob.ended and not ann.ended
