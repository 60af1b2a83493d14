"""Who may do what, by door: the documented answer in the protocol's own words; and what a failed login costs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.policy import policy_of
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.connection import handover
from tailrace.broker.connection import login as login_module
from tailrace.broker.process.settings import Settings
from tests.broker.connection.doors import ANN, DOORS, LOGINS, PASSWORD, STREAM, TOKEN, rules_for
from tests.broker.world import Peer, World, world

ALL = AccessRule(True, ("*",), frozenset(Right), ("*",))


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "FAILED_S", 0.0)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Right, World]]:
    """A node for each right, in which the user has that right alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(login_module, "FAILED_S", 0.0)
        made: dict[Right, World] = {}
        with ExitStack() as stack:
            for right in Right:
                path = tmp_path_factory.mktemp(right)
                made[right] = node = stack.enter_context(world(path, users=(ANN,), rules=rules_for(right)))
                node.workers[0].owner.create(STREAM.encode(), by_command=True)
            yield made


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("door", DOORS)
def test_the_matrix(worlds: dict[Right, World], door: str, login: str) -> None:
    """Each door x each login x each right: only the right user does what the rules allow, and nothing else."""
    row = DOORS[door]
    for granted, node in worlds.items():
        peer = node.connect(local=row.local)
        answered = row.log_in(node, peer, login)
        if login == "no user":
            assert answered == ("ok" if door.startswith("line") else "denied")
        else:
            assert answered == ("ok" if login == "right" else "denied")
        for right in row.rights:
            allowed = login == "right" and (right is granted or (granted is Right.CREATE and right is Right.PUBLISH))
            found = row.ask(node, peer, right)
            if login == "right" or (login == "no user" and door.startswith("line")):
                assert found == ("ok" if allowed else "denied"), (granted, right)
            else:
                assert found == "closed", (granted, right)
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
        node.ask(peer, f"auth ann {TOKEN}", f"sub {node.name(0)} 0")
        client = node.client_of(peer)
        node.workers[1].services.access = policy_of(Settings(users=(ANN,), rules=()))
        _move(node, peer)
        assert node.client_of(peer) is not client and node.client_of(peer).identity.user == "ann"
        assert "err denied" in node.peers[0].lines[-1]
        assert node.ask(peer, "pub x |y")[0].startswith("err denied x: the user ann")


def test_a_connection_whose_user_is_gone_ends(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, users=(ANN,), rules=(ALL,)) as node:
        peer = node.connect(0)
        assert node.ask(peer, f"auth ann {TOKEN}") == ["ok auth ann"]
        node.workers[1].services.access = policy_of(Settings(users=(), rules=(ALL,)))
        _move(node, peer)
        assert peer.lines[-1].startswith("err denied this user may not log in any more") and peer.ended


def _move(node: World, peer: Peer) -> None:
    client = node.client_of(peer)
    source, target = node.workers
    link = source.links.routes[1].link
    assert link is not None and handover.possible(client)
    source.links.hand_over(link, *handover.detach(client))
    source.siblings.flush()
    target.turn()
    node.settle()
