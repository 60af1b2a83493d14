"""What the peers' descriptions count is what the servers say; samples of it are written out here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import make_peers
from bench.peers.base import Site, Unavailable, stream_names
from bench.peers.jetstream import PULL_BATCH, JetStream, JetStreamPuller
from bench.peers.mosquitto import Mosquitto
from bench.peers.nats import Nats
from bench.peers.plain import ANSWER_BYTES, Plain
from bench.peers.programs import find_program
from bench.peers.redis import Redis, RedisPubSub, RedisPuller
from bench.peers.tailrace import Tailrace

PAYLOAD = b"@hello"


def test_tailrace_lines() -> None:
    peer = Tailrace()
    assert peer.publish("b.000000", PAYLOAD) == b"pub b.000000 |@hello\r\n"
    lines = [b"msg b.000000 %d 1790000000000000 6 |@hello\r\n" % seq for seq in range(1_234)]
    assert peer.delivered_bytes("b.000000", 1_234, 6) == len(b"".join(lines))
    assert peer.replay_bytes("b.000000", 1_234, 6) == len(b"ok sub b.000000 0\r\n" + b"".join(lines))


@pytest.mark.parametrize("messages", [0, 1, 7, 11, 250])
def test_tailrace_answers_over_several_streams(messages: int) -> None:
    names = [*stream_names(3), "longer-name"]
    answers = [b"ok pub %s %d\r\n" % (names[i % 4].encode(), i // 4) for i in range(messages)]
    assert Tailrace(acked=True).answers_bytes(names, messages) == len(b"".join(answers))


def test_tailrace_runs_the_build_that_is_asked_for() -> None:
    assert Tailrace(interpreted=True).environment() == {"TAILRACE_INTERPRETED": "1"}
    assert Tailrace().environment() == {"TAILRACE_INTERPRETED": "0"}


def test_nats_lines() -> None:
    assert Nats().publish("b.1", PAYLOAD) == b"PUB b.1 6\r\n@hello\r\n"
    assert Nats().delivered_bytes("b.1", 10, 6) == 10 * len(b"MSG b.1 1 6\r\n@hello\r\n")


def test_jetstream_answers_count_from_one_over_all_subjects() -> None:
    bodies = [b'{"stream":"BENCH","seq":%d}' % seq for seq in range(1, 1_201)]
    answers = [b"MSG _IN.000007 1 %d\r\n%s\r\n" % (len(body), body) for body in bodies]
    assert JetStream().answers_bytes(stream_names(9), 1_200) == len(b"".join(answers))
    assert JetStream().publish("b.1", PAYLOAD, client=7) == b"PUB b.1 _IN.000007 6\r\n@hello\r\n"


def test_jetstream_puller_keeps_two_batches_asked_for() -> None:
    puller = JetStreamPuller(3)
    assert puller.open().count(b"CONSUMER.MSG.NEXT.BENCH.r3") == 2
    assert puller.feed(b"@" * (PULL_BATCH - 1)) == b""
    assert puller.feed(b"@").count(b"MSG.NEXT") == 1
    assert puller.feed(b"@" * 2 * PULL_BATCH).count(b"MSG.NEXT") == 2
    assert puller.messages == 3 * PULL_BATCH


def test_redis_commands() -> None:
    expected = b"*5\r\n$4\r\nXADD\r\n$3\r\nb.1\r\n$1\r\n*\r\n$1\r\nd\r\n$6\r\n@hello\r\n"
    assert Redis().publish("b.1", PAYLOAD) == expected
    assert Redis().answer_mark == b"$"
    message = b"*3\r\n$7\r\nmessage\r\n$3\r\nb.1\r\n$6\r\n@hello\r\n"
    assert RedisPubSub().delivered_bytes("b.1", 10, 6) == 10 * len(message)


def _entries(*ids: bytes) -> bytes:
    body = b"".join(b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nd\r\n$6\r\n@hello\r\n" % (len(name), name) for name in ids)
    return b"*1\r\n*2\r\n$8\r\nb.000000\r\n*%d\r\n" % len(ids) + body


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_redis_puller_asks_again_from_the_last_entry_once_the_answer_is_whole(piece: int) -> None:
    puller = RedisPuller("b.000000", block=True)
    assert puller.open().endswith(b"$3\r\n0-0\r\n")
    for ids in ((b"1700000000000-0", b"1700000000000-1"), (b"1700000000002-0",)):
        answer = _entries(*ids)
        requests = [puller.feed(answer[i : i + piece]) for i in range(0, len(answer), piece)]
        assert requests[:-1] == [b""] * (len(requests) - 1)
        assert requests[-1].endswith(b"$15\r\n%s\r\n" % ids[-1])
    assert puller.messages == 3


def test_mosquitto_packets() -> None:
    assert Mosquitto().publish("b.1", PAYLOAD) == b"\x30\x0b\x00\x03b.1@hello"
    assert Mosquitto(qos=1).publish("b.1", PAYLOAD, serial=4) == b"\x32\x0d\x00\x03b.1\x00\x05@hello"
    assert Mosquitto(qos=1).answers_bytes(["b.1"], 5) == 20
    assert Mosquitto().delivered_bytes("b.1", 3, 6) == 3 * 13
    assert Mosquitto().delivered_bytes("b.1", 1, 200) == 2 + 1 + 5 + 200


def test_mosquitto_packet_identifiers_are_never_zero() -> None:
    assert Mosquitto(qos=1).publish("b", b"", serial=0xFFFF)[-2:] == b"\x00\x01"
    assert Mosquitto(qos=1).publish("b", b"", serial=0xFFFE)[-2:] == b"\xff\xff"


def test_plain_publishes_are_as_long_as_ours() -> None:
    plain = Plain(100)
    assert len(plain.publish("b.000000", bytes(100))) == len(Tailrace().publish("b.000000", bytes(100)))
    assert plain.answers_bytes([], 3) == 3 * ANSWER_BYTES


def test_every_peer_has_a_name_of_its_own_and_takes_part_in_something() -> None:
    peers = make_peers(interpreted=False, workers=2, payload_bytes=100, replay_messages=10)
    assert len({peer.name for peer in peers}) == len(peers)
    assert all(peer.kinds and peer.title for peer in peers)


def test_a_server_that_is_not_installed_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no-such-server-here is not installed"):
        find_program("no-such-server-here")
    site = Site(tmp_path, 1, 2)
    assert "serve" in Tailrace().command(site)
