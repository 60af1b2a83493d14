"""Who may do what, by door: the documented answer in the protocol's own words; and what a failed login costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.policy import policy_of
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.connection import handover
from tailrace.broker.connection import login as login_module
from tailrace.broker.process.settings import ClientCertificates, Settings
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.scram import ITERATIONS, ITERATIONS_MIN, MECHANISM, ScramClient, ScramVerifier, make_verifier
from tailrace.supervisor.user_file import hash_token
from tests.broker.connection.doors import (
    ANN,
    CELLS,
    DOORS,
    PASSWORD,
    STREAM,
    TOKEN,
    Certificates,
    answer_to,
    rules_for,
    sections_for,
)
from tests.broker.world import Peer, World, world

ALL = AccessRule(True, ("*",), frozenset(Right), ("*",))


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "FAILED_S", 0.0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[dict[Right, World]]:
    """A node for each right, in which the user has that right alone."""
    settings: dict[str, Any] = {
        "tls_certificate": str(certificates.server.certificate),
        "tls_key": str(certificates.server.key),
        "tls_client_ca": str(certificates.authority.certificate),
        "tls_client_certificates": ClientCertificates.OPTIONAL,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(login_module, "FAILED_S", 0.0)
        made: dict[Right, World] = {}
        with ExitStack() as stack:
            for right in Right:
                path = tmp_path_factory.mktemp(right)
                settings |= {"rules": rules_for(right), "udp": True, "udp_peers": sections_for(right)}
                made[right] = node = stack.enter_context(world(path, users=(ANN,), **settings))
                node.workers[0].owner.create(STREAM.encode(), by_command=True)
            yield made


@pytest.mark.few(42)
@pytest.mark.parametrize(("door", "login"), CELLS)
def test_the_matrix(worlds: dict[Right, World], certificates: Certificates, door: str, login: str) -> None:
    """Each door x each login x each right: only the right user does what the rules allow, and nothing else."""
    row = DOORS[door]
    for granted, node in worlds.items():
        peer = row.connect(node, login, certificates)
        answered = row.log_in(node, peer, login)
        assert answered == row.welcomes(login), granted
        for right in row.rights:
            allowed = login == "right" and (right is granted or (granted is Right.CREATE and right is Right.PUBLISH))
            expected = "closed" if answered != "ok" else "ok" if allowed else "denied"
            assert row.ask(node, peer, right) == expected, (granted, right)
        peer.close()
        node.settle()


def test_what_fails_is_answered_late_counted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login_module, "FAILED_S", 3_600.0)
    caplog.set_level(logging.INFO)
    with world(tmp_path, users=(ANN,), rules=(ALL,)) as node:
        peer, other = node.connect(), node.connect()
        peer.send("auth ann wrong", "ping", "pub s |x")
        worker = node.workers[0]
        deadline_s = time.monotonic() + 60
        while not worker.services.metrics.login_failures.counts and time.monotonic() < deadline_s:
            worker.turn()
        assert worker.services.metrics.login_failures.counts == {"secret": 1}
        assert "event=login-failed peer=peer:1 user=ann uid=- proof=loopback reason=secret" in caplog.text
        other.send("ping")
        while not other.lines and time.monotonic() < deadline_s:  # meanwhile others are served
            worker.turn()
            other.read()
        peer.read()
        assert other.lines == ["ok pong"] and peer.lines == []
        worker.services.now_s += 3_600.0
        worker.logins.tick()
        node.settle()
        assert peer.lines == ["err denied the login failed: no such user, or not with this secret"] and peer.ended
        assert len([line for line in caplog.messages if "peer=peer:1" in line]) == 1, "one line for one login"
        assert not worker.owner.catalog.names


def test_a_secret_is_not_taken_from_another_machine_in_clear(tmp_path: Path) -> None:
    with world(tmp_path, users=(ANN,), rules=(ALL,)) as node:
        peer = node.connect(local=False)
        (answer,) = node.ask(peer, f"auth ann {TOKEN}")
        assert answer.startswith("err denied a secret is taken only over TLS") and peer.ended
        peer = node.connect(local=False)
        node.client_of(peer).encrypted = True
        assert node.ask(peer, f"auth ann {TOKEN}") == ["ok auth ann"]
        assert node.client_of(peer).identity.proof is Proof.BEARER


def test_a_password_is_checked_by_the_helper_thread_and_commands_behind_it_wait(tmp_path: Path) -> None:
    with world(tmp_path, users=(ANN,), rules=(ALL,)) as node:
        peer, worker = node.connect(), node.workers[0]
        peer.send(f"auth ann {PASSWORD}", "pub s |x", "stat s")
        deadline_s = time.monotonic() + 60
        while not worker.logins.busy and time.monotonic() < deadline_s:
            worker.turn()
        node.settle()
        assert [line.split()[:2] for line in peer.lines[:2]] == [["ok", "auth"], ["ok", "field"]]


@pytest.mark.parametrize("secret", [PASSWORD, TOKEN, "wrong"])
def test_what_comes_behind_a_hello_waits_for_its_login(tmp_path: Path, secret: str) -> None:
    """A worker that is being replaced does not give the connection away meanwhile, either."""
    with world(tmp_path, users=(ANN,), rules=(ALL,)) as node:
        peer, worker = node.connect(), node.workers[0]
        hello = m.Hello(m.VERSION, (), "t", mechanism=m.BEARER, user="ann", login=secret.encode())
        peer.send_raw(m.pack(hello) + m.pack(m.Open(1, b"s")) + m.pack(m.Ping()))
        client = node.binary_client_of(peer)
        deadline_s = time.monotonic() + 60
        while not client.codec.welcomed and time.monotonic() < deadline_s:
            worker.turn()
        assert secret == TOKEN or not handover.possible(client)
        node.settle()
        answers = list(ClientCodec().feed(peer.received))
        if secret == "wrong":
            assert [type(each) for each in answers] == [m.Failed] and peer.ended
        else:
            assert [type(each) for each in answers] == [m.Welcome, m.Opened, m.Pong]
            assert handover.possible(client)


def test_a_node_asks_about_its_own_streams_only(tmp_path: Path) -> None:
    own = AccessRule(True, ("ann",), frozenset({Right.NODE}), ("own*",))
    with world(tmp_path, users=(ANN,), rules=(own,)) as node:
        for name in (b"own1", b"other"):
            node.workers[0].owner.create(name, by_command=True)
        peer, door = node.connect(local=False), DOORS["node with SCRAM, plain"]
        assert door.log_in(node, peer, "right") == "ok"
        asked = {
            "own": r.Ask(1, streams=(b"own1", b"own2")),
            "one": r.Ask(2, b"own1"),
            "all": r.Ask(3),
            "other": r.Ask(4, b"other"),
            "others": r.Ask(5, streams=(b"own1", b"$cursor/other")),
            "no such": r.Ask(6, b"nothing"),
        }
        found = {what: answer_to(node, peer, each) for what, each in asked.items()}
        denied = dict.fromkeys(("other", "others", "no such"), "denied")
        assert found == {**dict.fromkeys(("own", "one", "all"), "ok"), **denied}


@pytest.mark.parametrize("imported", [make_verifier(PASSWORD, 5_000), None])
def test_users_that_do_not_exist_look_as_the_others_do(tmp_path: Path, imported: ScramVerifier | None) -> None:
    """Also those without a password, and after another user has come."""
    users = (User("imported", scram=imported), User("web", token_hashes=(hash_token(TOKEN),)))
    shown = []
    for number, more in enumerate([(), (ANN,)]):
        with world(tmp_path / str(number), users=(*users, *more), rules=(ALL,)) as node:
            shown += [node.workers[0].logins.verifier_of(name) for name in ("web", "nobody")]
    iterations = {5_000, ITERATIONS_MIN} if imported else {ITERATIONS, ITERATIONS_MIN}
    assert {each.iterations for each in shown} <= iterations
    assert shown[0].salt == shown[2].salt and shown[1].salt == shown[3].salt and shown[0].salt != shown[1].salt


def test_a_user_without_a_password_fails_as_one_that_does_not_exist(tmp_path: Path) -> None:
    """As late, by the same way: the first failure would otherwise come a hash earlier."""
    web = User("web", token_hashes=(hash_token(TOKEN),))
    with world(tmp_path, users=(web, ANN), rules=(ALL,)) as node:
        for name in ("web", "nobody", "ann"):
            peer, worker = node.connect(), node.workers[0]
            client = node.client_of(peer)
            worker.logins.with_secret(client, name, "wrong", lambda: None)
            assert client.held_up and not client.barred, name
            node.settle()
            assert peer.lines[-1].startswith("err denied the login failed") and peer.ended


def test_answers_keep_their_order_where_some_streams_are_denied(tmp_path: Path) -> None:
    own = AccessRule(True, ("ann",), frozenset({Right.PUBLISH, Right.CREATE}), ("{user}/*",))
    with world(tmp_path, users=(ANN,), rules=(own,)) as node:
        peer = node.connect()
        node.ask(peer, f"auth ann {TOKEN}", "ack on")
        answers = node.ask(peer, "pub ann/1 |a", "pub bob/1 |b", "pub ann/1 |c", "pub bob/1 |d")
        denied = "err denied bob/1: the user ann does not have the right publish to this stream"
        assert answers == ["ok pub ann/1 0", denied, "ok pub ann/1 1", denied]
        assert node.ask(peer, "ack off", "pub bob/1 |b", "pub ann/1 |c") == ["ok ack off", denied]


def test_a_connection_that_moves_keeps_its_user_and_loses_what_was_taken_away(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, users=(ANN,), rules=(ALL,)) as node:
        peer = node.connect(0)
        node.ask(peer, f"auth ann {TOKEN}", f"sub {node.name(0)} 0 wait")
        client = node.client_of(peer)
        node.workers[1].services.access = policy_of(Settings(users=(ANN,), rules=()))
        _move(node, peer)
        assert node.client_of(peer) is not client and node.client_of(peer).identity.user == "ann"
        assert "err denied" in node.peers[0].lines[-1]
        assert node.ask(peer, "pub x |y")[0].startswith("err denied x: the user ann")


def test_a_handle_that_is_denied_after_a_move_counts_no_more(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, users=(ANN,), rules=(ALL,)) as node:
        peer = node.connect(0)
        hello = m.Hello(m.VERSION, (), "t", mechanism=m.BEARER, user="ann", login=TOKEN.encode())
        peer.send_raw(m.pack(hello) + m.pack(m.Open(1, b"kept")) + m.pack(m.Open(2, b"taken")))
        node.settle()
        kept = AccessRule(True, ("ann",), frozenset(Right), ("kept",))
        node.workers[1].services.access = policy_of(Settings(users=(ANN,), rules=(kept,)))
        _move(node, peer)
        client = node.binary_client_of(peer)
        assert client.handles == {1: b"kept"} and client.account.handles == 1


def test_a_login_that_a_move_interrupts_goes_on(tmp_path: Path) -> None:
    """The new worker completes it, or asks the client to try again if it lacks the state of the exchange."""
    with world(tmp_path, workers=2, users=(ANN,), rules=(ALL,)) as node:
        lines = node.connect(0)
        node.client_of(lines)
        lines.send_raw(b"auth an")
        binary, scram = node.connect(0), ScramClient("ann", PASSWORD)
        binary.send_raw(m.pack(m.Hello(1, (), "t", mechanism=MECHANISM, user="ann", login=scram.first())))
        node.settle()
        (challenge,) = ClientCodec().feed(binary.received)
        assert isinstance(challenge, m.Challenge)
        for peer in (lines, binary):
            _move(node, peer)
            assert not peer.ended
        binary.received.clear()
        lines.send_raw(f"n {TOKEN}\r\n".encode())
        binary.send_raw(m.pack(m.Prove(scram.answer(challenge.data))))
        node.settle()
        (answer,) = ClientCodec().feed(binary.received)
        assert isinstance(answer, m.Failed) and answer.code == "unavailable"
        assert lines.lines == ["ok auth ann"]


def test_a_connection_whose_user_is_gone_ends(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, users=(ANN,), rules=(ALL,)) as node:
        peer = node.connect(0)
        assert node.ask(peer, f"auth ann {TOKEN}") == ["ok auth ann"]
        node.workers[1].services.access = policy_of(Settings(users=(), rules=(ALL,)))
        _move(node, peer)
        assert peer.lines[-1].startswith("err denied this user may not log in any more") and peer.ended


def _move(node: World, peer: Peer) -> None:
    client = node.speaker_of(peer)
    source, target = node.workers
    link = source.links.routes[1].link
    assert link is not None and handover.possible(client)
    source.links.hand_over(link, *handover.detach(client))
    source.siblings.flush()
    target.turn()
    node.settle()
