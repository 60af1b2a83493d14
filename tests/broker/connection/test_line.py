"""A connection: reading, its row of answers, writing to a full socket, and every way it can end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tailrace.broker.connection.base import OUT_HIGH_BYTES, Pause
from tailrace.broker.connection.client import READ_BYTES_LEAST, READ_BYTES_MAX, READ_BYTES_MIN
from tailrace.broker.connection.line import LineClient, _streams_of
from tailrace.broker.routing.batch import Pending
from tailrace.protocol.commands import Ping, Staged
from tailrace.shard.names import NAME_BYTES_MAX
from tests.broker.world import world


def payloads(count: int, nbytes: int = 100) -> list[bytes]:
    return [b"%d %s" % (number, b"x" * nbytes) for number in range(count)]


def first_words(lines: list[str]) -> list[str]:
    return [" ".join(line.split(" ")[:2]) for line in lines]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_line_may_come_in_any_pieces(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        for byte in b"ack on\r\npub a |x|y\r\nping\n":
            peer.send_raw(bytes([byte]))
            node.settle()
        assert peer.lines == ["ok ack on", "ok pub a 0", "ok pong"]


def test_reads_grow_with_publishes_and_shrink_after_anything_else(tmp_path: Path) -> None:
    """So that little input cannot ask for much output before it is noticed."""
    with world(tmp_path) as node:
        peer = node.connect()
        client = node.client_of(peer)
        seen = []
        for _ in range(60):
            peer.send_raw(b"pub a |%s\r\n" % (b"x" * 1_000) * 100)
            node.settle()
            seen.append(client.read_bytes)
        assert seen[0] >= READ_BYTES_MIN
        assert seen == sorted(seen) and seen[-1] > 4 * READ_BYTES_MIN
        assert seen[-1] <= READ_BYTES_MAX
        node.ask(peer, "ping")
        assert client.read_bytes == READ_BYTES_MIN
        peer.send_raw(b"\r\n" * 60_000)
        node.settle()
        assert client.read_bytes <= READ_BYTES_MIN, "empty lines ask for nothing, but cost"


def test_reads_are_as_small_as_what_they_ask_for_is_expensive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        client = node.client_of(peer)
        for work_s, nbytes in ((0.0, READ_BYTES_LEAST), (60.0, READ_BYTES_MIN)):
            monkeypatch.setattr("tailrace.broker.connection.client.READ_WORK_S", work_s)
            peer.send_raw(b"ping\r\n" * 8_000)
            node.settle()
            assert client.read_bytes == nbytes


def test_who_makes_streams_is_read_in_small_pieces(tmp_path: Path) -> None:
    """However many publishes there are: the turn that only notes the streams to be made would be long."""
    with world(tmp_path) as node:
        peer = node.connect()
        client = node.client_of(peer)
        node.workers[0].work.block(b"new")
        peer.send_raw(b"pub a |x\r\n" * 16_000)
        node.settle()
        assert client.read_bytes > READ_BYTES_MIN
        peer.send_raw(b"pub new |x\r\n")
        node.settle()
        assert client.read_bytes == READ_BYTES_LEAST
        node.workers[0].work.unblock(b"new")
        for _ in range(4):
            peer.send_raw(b"pub a |x\r\n" * 8_000)
            node.settle()
        assert client.read_bytes > READ_BYTES_MIN, "it grows again with what is cheap"


def test_publishes_that_are_answered_are_no_reason_to_read_more() -> None:
    groups = [(b"a", 1, bytearray()), (b"b", 1, bytearray())]
    assert _streams_of(Staged(groups, [])) == 2
    assert _streams_of(Staged(groups, [0, 1])) == 1
    assert _streams_of(Ping()) == 0


def test_lines_that_have_begun_are_counted_and_forgotten(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        worker = node.workers[0]
        one, two = node.connect(), node.connect()
        one.send_raw(b"pub a |12")
        two.send_raw(b"pub b |12345")
        node.settle()
        assert worker.services.partial_bytes == 9 + 12
        one.send_raw(b"\r\n")
        node.settle()
        assert worker.services.partial_bytes == 12
        two.close()
        node.settle()
        assert worker.services.partial_bytes == 0


def test_the_oldest_unfinished_line_gives_way_and_not_the_newcomers(tmp_path: Path) -> None:
    """Otherwise the peer with the most unfinished input would lock everybody else out for ever."""
    with world(tmp_path, max_partial_bytes=1_000) as node:
        one, two = node.connect(), node.connect()
        one.send_raw(b"pub a |" + b"x" * 600)
        node.settle()
        two.send_raw(b"pub a |" + b"x" * 600)
        node.settle()
        assert first_words(one.lines) == ["err overloaded"] and one.ended
        assert not two.ended
        assert node.workers[0].services.partial_bytes == 607, "what it held is given back before it is gone"
        assert node.ask(two, "", "ping") == ["ok pong"]


# --- the row of answers -----------------------------------------------------------------------------------------------


def test_answers_wait_for_the_one_in_front(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        client = node.client_of(peer)
        first, second = Pending(client.answers_ready), Pending(client.answers_ready)
        client.pend(first)
        client.answer(b"one\r\n")
        client.pend(second)
        client.answer(b"two\r\n")
        second.settle(b"second\r\n")
        node.settle()
        assert peer.lines == []
        first.settle(b"first\r\n")
        first.settle(b"again\r\n")
        node.settle()
        assert peer.lines == ["first", "one", "second", "two"]


def test_what_comes_after_an_answer_happens_when_it_has_its_place(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        client = node.client_of(node.connect())
        happened: list[str] = []
        first = Pending(client.answers_ready)
        second = Pending(client.answers_ready, lambda: happened.append("second"))
        client.pend(first)
        client.pend(second)
        second.settle(b"2\r\n")
        assert happened == []
        first.settle(b"1\r\n")
        assert happened == ["second"]
        assert bytes(client.out) == b"1\r\n2\r\n"


def test_too_many_answers_that_are_not_known_stop_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.connection.client.ANSWERS_PENDING_MAX", 512)
    with world(tmp_path, workers=2) as node:
        peer = node.connect(0)
        client = node.client_of(peer)
        command = f"stat {node.name(1)}"
        a_read = READ_BYTES_MIN // len(command) + 1
        asked = 512 + 2 * a_read
        peer.send(*[command] * asked)
        for _ in range(40):
            node.settle(0)
        assert client.paused == Pause.ANSWERS
        assert 512 < len(client.answers) <= 512 + a_read
        node.settle()
        assert not client.paused
        assert len(peer.lines) == asked


def test_who_does_not_take_its_answers_is_not_read(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect(small=True)
        client = node.client_of(peer)
        peer.deaf = True
        asked = 0
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        while not client.paused:
            peer.send_raw(b"help\r\n" * 50)
            asked += 50
            node.settle()
        assert len(client.out) < OUT_HIGH_BYTES + READ_BYTES_MIN * 300, "a read more than the bound"
        assert node.workers[0].services.unsent_bytes == len(client.out)
        peer.deaf = False
        node.settle()
        assert peer.lines.count(".") == asked
        assert not client.paused and node.workers[0].services.unsent_bytes == 0


def test_answers_that_nobody_takes_are_bounded_over_all(tmp_path: Path) -> None:
    with world(tmp_path, max_unsent_bytes=1 << 20) as node:
        for _ in range(2):
            peer = node.connect(small=True)
            peer.deaf = True
            peer.send_raw(b"help\r\n" * 2_000)
            node.settle()
        assert len(node.workers[0].services.clients) == 1, "the one that came to exceed it is closed"
        assert 0 < node.workers[0].services.unsent_bytes <= 1 << 20
        assert node.workers[0].metrics.dropped.counts == {"slow": 1}


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_half_close_gets_every_answer(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        peer = node.connect(0)
        here, there = node.name(0), node.name(1)
        peer.send("ack on", f"pub {here} |x", f"pub {there} |x", f"pub {here} |x")
        peer.send_raw(b"pub half")
        peer.sock.shutdown(socket.SHUT_WR)
        node.settle(0)
        assert peer.lines == ["ok ack on"] and not peer.ended, "the owner of the second stream has not answered"
        node.settle()
        assert peer.lines[:4] == ["ok ack on", f"ok pub {here} 0", f"ok pub {there} 0", f"ok pub {here} 1"]
        assert first_words(peer.lines[4:]) == ["err incomplete"]
        assert peer.ended


def test_a_half_close_keeps_subscriptions_until_the_peer_is_gone(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        peer.send("sub a 0 wait")
        node.settle()
        peer.sock.shutdown(socket.SHUT_WR)
        node.settle()
        assert not peer.ended
        node.fill("a", [b"one"])
        assert peer.messages() == [("a", 0, "one")]
        peer.close()
        node.settle()
        node.fill("a", [b"two", b"three"])
        assert node.workers[0].services.clients == {} and node.workers[0].fanout.feeds == {}


def test_close_ends_after_its_answer_whatever_is_still_sent(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        peer.send("ack on", "pub a |x", "close", "pub a |y", "ping")
        node.settle()
        assert peer.lines == ["ok ack on", "ok pub a 0", "ok close"] and peer.ended
        peer.send(b"pub a |" + b"z" * 10_000)
        node.settle()
        assert len(node.workers[0].services.clients) == 1, "it waits for the peer, reading and forgetting"
        peer.close()
        node.settle()
        assert node.workers[0].services.clients == {}
        assert "messages 1" in node.ask(node.connect(), "stat a")


def test_close_in_the_middle_of_a_chunk_lets_it_end(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.fill("a", payloads(2_000))
        peer = node.connect(small=True)
        peer.deaf = True
        peer.send("sub a 0 wait", "close")
        node.settle()
        # The subscription was given up before its first chunk; only a chunk already begun is finished.
        peer.deaf = False
        node.settle()
        assert peer.lines == ["ok sub a 0", "ok close"] and peer.ended
        peer = node.connect(small=True)
        peer.deaf = True
        peer.send("sub a 0 wait")
        node.settle()
        client = node.client_of(peer)
        assert client.current is not None and client.current.skip > 0 and client.blocked
        peer.send("close")
        node.settle()
        peer.deaf = False
        node.settle()
        assert peer.lines[-1] == "ok close" and peer.ended
        seqs = [seq for _, seq, _ in peer.messages()]
        assert seqs == list(range(len(seqs))) and 0 < len(seqs) < 2_000


def test_a_reset_closes_at_once(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        sock = socket.create_connection(node.listeners[0].getsockname())
        node.settle()
        assert len(node.workers[0].services.clients) == 1
        sock.sendall(b"sub a 0 wait\r\n")
        node.settle()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        node.settle()
        assert node.workers[0].services.clients == {} and node.workers[0].fanout.feeds == {}
        assert node.workers[0].metrics.dropped.counts == {"reset": 1}


def test_other_protocols_get_one_refusal(tmp_path: Path) -> None:
    with world(tmp_path, mqtt=False) as node:
        for first in (b"\x10", b"\x16", b"\x00"):
            peer = node.connect()
            peer.send_raw(first + b"x" * 70_000)
            node.settle()
            assert peer.received and peer.ended
        assert node.workers[0].metrics.refused.counts == {"protocol": 3}
        assert node.workers[0].metrics.line.bytes_in == 0


def test_a_damaged_stream_ends_the_subscription_not_the_connection(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.fill("a", payloads(10))
        node.fill("b", payloads(3))
        content = next((tmp_path / "data").glob("shard-*/a.content"))
        with content.open("r+b") as file:
            file.seek(4_096 + 40)
            file.write(b"????")
        peer = node.connect()
        lines = node.ask(peer, "sub a 0 wait", "sub b 0 wait", "ping")
        assert first_words(lines)[:3] == ["ok sub", "ok sub", "ok pong"]
        assert first_words([line for line in lines[3:] if not line.startswith("msg")]) == ["err damaged"]
        assert len([line for line in lines if line.startswith("msg b ")]) == 3
        assert first_words(node.ask(peer, "unsub a", "unsub b")) == ["err unsubscribed", "ok unsub"]


@pytest.mark.parametrize("command", ["help", "streams"])
def test_few_bytes_do_not_ask_for_more_than_is_held_for_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    held: list[int] = []
    original = LineClient._account

    def account(client: LineClient) -> None:
        held.append(len(client.out) + sum(len(pending.text or b"") for pending in client.answers))
        original(client)

    with world(tmp_path, workers=2) as node:
        other = node.connect()
        names = [f"s{number}".ljust(NAME_BYTES_MAX, "-") for number in range(20)]
        node.ask(other, *(f"pub {name} |x" for name in names))
        lines = node.ask(other, command)
        first = lines[0].encode()
        monkeypatch.setattr(LineClient, "_account", account)
        peer = node.connect(small=True)
        peer.deaf = True
        answers = 2 * OUT_HIGH_BYTES // len("\r\n".join(lines))
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        peer.send(*[command] * answers)
        for _ in range(30):
            for worker in node.workers:
                worker.turn()
        assert max(held) <= OUT_HIGH_BYTES + (64 << 10)
        peer.deaf = False
        still = 0
        while still < 100:
            for worker in node.workers:
                worker.turn()
            still = 0 if peer.read() else still + 1
        assert peer.received.count(first) == answers
        assert node.ask(peer, "ping") == ["ok pong"]
