"""Room for new connections: by address, at whose cost when it is used up, at what rate, and in what time."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from tailrace.broker.connection import admission
from tailrace.broker.connection import login as login_module
from tailrace.broker.connection.accept import DELAY_MAX_S, DELAYED_MAX
from tailrace.broker.connection.admission import SILENT_S, reserved_descriptors
from tailrace.broker.process.settings import Settings
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tests.broker.world import Peer, World, world


def dial(node: World, source: str = "127.0.0.1", slot: int = 0) -> Peer:
    """A connection from this address."""
    sock = socket.create_connection(node.listeners[slot].getsockname(), source_address=(source, 0))
    peer = Peer(sock)
    node.peers.append(peer)
    node.settle()
    return peer


def speaking(node: World, source: str = "127.0.0.1", slot: int = 0) -> Peer:
    peer = dial(node, source, slot)
    assert node.ask(peer, "ping") == ["ok pong"]
    return peer


def later(node: World, seconds: float) -> None:
    """What the timer does when this much time has passed."""
    for worker in node.workers:
        worker.services.now_s += seconds
        worker.acceptor.tick()
        worker.services.now_s -= seconds
    node.settle()


def code(peer: Peer) -> str:
    return peer.lines[-1].split()[1] if peer.lines else ""


def test_an_address_has_its_share_over_all_workers(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_address_connections=3) as node:
        kept = [speaking(node, slot=slot) for slot in (0, 1, 0)]
        late = dial(node, slot=1)
        assert [line.split()[1] for line in node.ask(late, "ping")] == ["connections"] and late.ended
        assert node.ask(dial(node, "127.0.0.2"), "ping") == ["ok pong"], "others have theirs"
        kept[0].close()
        late.close()
        node.settle()
        speaking(node, slot=1)


def test_silent_connections_give_way_to_newcomers(tmp_path: Path) -> None:
    """Else they hold all places for ever, and the administrator cannot come in."""
    with world(tmp_path, max_connections=3) as node:
        silent = [dial(node) for _ in range(3)]
        first_byte = node.workers[0].services.deadlines.first_byte
        first_byte.peers = dict.fromkeys(first_byte.peers, node.workers[0].services.now_s - 2 * SILENT_S)
        newcomers = [speaking(node) for _ in range(3)]
        assert [code(peer) for peer in silent] == ["connections"] * 3 and all(peer.ended for peer in silent)
        assert not any(peer.ended for peer in newcomers)
        assert node.workers[0].metrics.dropped.counts["evicted"] == 3


def test_the_address_with_the_most_gives_way_and_its_idlest_connection_first(tmp_path: Path) -> None:
    with world(tmp_path, max_connections=5) as node:
        greedy = [speaking(node) for _ in range(4)]
        modest = speaking(node, "127.0.0.2")
        node.workers[0].services.now_s += 1
        assert node.ask(greedy[0], "ping") == ["ok pong"]
        newcomer = speaking(node, "127.0.0.3")
        assert not newcomer.ended and not modest.ended and not greedy[0].ended
        assert [peer.ended for peer in greedy].count(True) == 2, "half of its excess over the newcomer"
        late = [dial(node) for _ in range(2)]
        assert not late[0].ended and node.ask(late[1], "ping") != ["ok pong"]


def test_descriptors_are_kept_for_files_when_connections_take_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as node:
        acceptor = node.workers[0].acceptor
        monkeypatch.setattr(acceptor._admission, "_descriptors_max", 3)
        refused = dial(node)
        assert [line.split()[1] for line in node.ask(refused, "ping")] == ["connections"] and refused.ended
        monkeypatch.undo()
        speaking(node)


@pytest.mark.parametrize(
    ("settings", "limit", "reserved"),
    [
        (Settings(), 1 << 20, 5_120),
        (Settings(), 1_024, 512),
        (Settings(max_open_streams=8), 1 << 20, 64),
        (Settings(reserved_descriptors=9_000), 1 << 20, 9_000),
    ],
)
def test_how_many_descriptors_are_reserved(settings: Settings, limit: int, reserved: int) -> None:
    assert reserved_descriptors(settings, limit) == reserved


def test_connections_ahead_of_their_rate_are_delayed_and_not_refused(tmp_path: Path) -> None:
    with world(tmp_path, max_address_accepts=2) as node:
        worker = node.workers[0]
        first = [dial(node) for _ in range(4)]
        ahead = [dial(node) for _ in range(2)]
        for peer in ahead:
            peer.send("ping")
        node.settle()
        assert [node.ask(peer, "ping") for peer in first] == [["ok pong"]] * 4
        assert node.ask(dial(node, "127.0.0.2"), "ping") == ["ok pong"], "others are not delayed"
        assert [peer.lines for peer in ahead] == [[], []] and worker.metrics.delayed == 2
        later(node, 0.6)
        assert [peer.lines for peer in ahead] == [["ok pong"], []]
        later(node, 1.1)
        assert ahead[1].lines == ["ok pong"]


def test_the_queue_of_delayed_connections_is_bounded(tmp_path: Path) -> None:
    with world(tmp_path, max_address_accepts=1) as node:
        peers = [dial(node) for _ in range(2 + int(DELAY_MAX_S) + 3)]
        assert [peer.ended for peer in peers] == [False] * (2 + int(DELAY_MAX_S)) + [True] * 3
        assert DELAYED_MAX < 1 << 16
        node.workers[0].acceptor.stop()
        node.settle()
        assert len(node.workers[0].services.clients) == 2 + int(DELAY_MAX_S), "a worker that leaves loses none"


def test_the_first_byte_the_login_and_the_rest_of_a_request_must_come_in_time(tmp_path: Path) -> None:
    with world(tmp_path, first_byte_timeout_s=10.0, login_timeout_s=20.0, request_timeout_s=30.0) as node:
        silent, half, torn, idle = dial(node), dial(node), dial(node), speaking(node)
        half.send_raw(b"\x01\0")
        torn.send_raw(b"pub s |begun")
        node.settle()
        later(node, 10.5)
        assert code(silent) == "timeout" and silent.ended
        assert [peer.ended for peer in (half, torn)] == [False, False]
        later(node, 20.5)
        assert [peer.ended for peer in (half, torn)] == [True, False] and b"timeout" in half.received
        later(node, 30.5)
        assert code(torn) == "timeout" and torn.ended
        later(node, 1_000.0)
        assert not idle.ended, "who has spoken may be silent"
        assert node.workers[0].metrics.overdue.counts == {"first byte": 1, "login": 1, "request": 1}


def test_one_request_after_another_is_never_late(tmp_path: Path) -> None:
    with world(tmp_path, request_timeout_s=30.0) as node:
        peer = speaking(node)
        peer.send_raw(b"pub s |begun")
        node.settle()
        node.workers[0].services.now_s += 29
        peer.send_raw(b" and ended\r\npub s |begun again")
        node.workers[0]._handle(node.workers[0].poller.poll(1))
        deadline = node.workers[0].services.deadlines.request
        (since_s,) = deadline.peers.values()
        deadline.tick(since_s + 29)
        node.settle()
        assert not peer.ended


def test_bytes_beyond_the_rate_are_read_later(tmp_path: Path) -> None:
    with world(tmp_path, max_address_rate_bytes=4_096) as node:
        peer, other = speaking(node), speaking(node, "127.0.0.2")
        peer.send_raw(b"pub s |" + b"x" * 16_000 + b"\r\n")
        node.settle()
        assert node.ask(peer, "ping") == [], "it is not read"
        assert node.ask(other, "ping") == ["ok pong"]
        assert node.workers[0].metrics.throttled == 1
        later(node, 3.0)
        assert peer.lines == ["ok pong"]


def test_streams_of_an_address_are_bounded_over_its_connections(tmp_path: Path) -> None:
    with world(tmp_path, max_address_streams=2) as node:
        for name in "ab":
            assert node.ask(speaking(node), f"pub {name} |x", "ping") == ["ok pong"]
        assert [line.split()[1] for line in node.ask(speaking(node), "pub c |x", "ping")] == ["streams", "pong"]
        assert node.ask(speaking(node, "127.0.0.2"), "pub c |x", "ping") == ["ok pong"]


def test_handles_of_an_address_are_bounded_over_its_connections(tmp_path: Path) -> None:
    def greet(opens: int) -> Peer:
        peer = dial(node)
        peer.send_raw(m.pack(m.Hello(m.VERSION, (), "test")))
        for number in range(opens):
            peer.send_raw(m.pack(m.Open(number, b"s%d" % number)))
        node.settle()
        return peer

    with world(tmp_path, max_address_handles=5) as node:
        first, second = greet(3), greet(3)
        assert b"limit of one address" not in first.received
        assert second.received.count(b"limit of one address") == 1
        first.close()
        node.settle()
        assert b"limit of one address" not in greet(3).received


def test_no_more_than_some_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "EVICTIONS_A_SCAN", 1)
    with world(tmp_path, max_connections=4) as node:
        greedy = [speaking(node) for _ in range(4)]
        speaking(node, "127.0.0.2")
        assert [peer.ended for peer in greedy].count(True) == 1


def test_tokens_are_a_line_each_and_a_wrong_one_is_answered_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(login_module, "FAILED_S", 3_600.0)
    caplog.set_level(logging.INFO, "tailrace.broker.process.event_log")
    hellos = [m.Hello(m.VERSION, (), "test", token) for token in ("secret", "wrong", None)]
    with world(tmp_path, token="secret", replication_token="among us", admin="unix") as node:
        peers = [dial(node) for _ in range(4)]
        worker = node.workers[0]
        hellos.append(m.Hello(1, (r.FEATURE,), "test", "secret", "n2", ":5050", "wrong"))
        for number, (peer, hello) in enumerate(zip(peers, hellos, strict=True)):
            peer.send_raw(m.pack(hello) + m.pack(m.Ping()))
            for _ in range(10_000):
                worker.turn()
                if len(caplog.messages) > number:
                    break
        login, wrong, missing, no_node = caplog.messages
        assert login.startswith("event=login peer=127.0.0.1:") and login.endswith(" user=- uid=- proof=token")
        assert missing.startswith("event=refused peer=127.0.0.1:") and " code=denied " in missing
        for line in (wrong, no_node):
            assert line.startswith("event=login-failed peer=127.0.0.1:") and line.endswith(" reason=secret")
        assert worker.metrics.login_failures.counts == {"secret": 2}
        late = peers[1], peers[3]
        for peer in late:
            peer.read()
            assert not (peer.received or peer.ended)
        worker.services.now_s += 3_600.0
        worker.logins.tick()
        node.settle()
        for peer in late:
            (failed,) = ClientCodec().feed(peer.received)
            assert isinstance(failed, m.Failed) and failed.code == "denied" and failed.fatal and peer.ended
