"""The bytes are those of the codec that the broker reads and writes with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.load.sockets import steps_succeed
from bench.peers.base import make_feed, make_payload, stream_names
from bench.peers.tailrace_binary import TailraceBinary
from tailrace.protocol.messages import (
    Ack,
    Failed,
    Hello,
    Malformed,
    Open,
    Ping,
    Pong,
    Publish,
    Published,
    Request,
    Subscribe,
    Subscribed,
    pack,
)
from tailrace.protocol.places import From
from tailrace.shard.names import shard_of
from tests.protocol.plain_codec import PlainCodec
from tests.system.binary_peer import peer_of
from tests.system.node import PATIENCE_S, running
from tests.system.processes import worker_pid

NAME = "b.000000"
PAYLOAD = make_payload(100)


def _read(*parts: bytes) -> list[Request | Malformed]:
    """What a broker would understand."""
    codec = PlainCodec(64 << 20, 8 << 20)
    requests: list[Request | Malformed] = []
    for part in parts:
        for message in codec.feed(memoryview(bytearray(part)), len(part)):
            requests.append(message)
    return requests


@pytest.mark.parametrize("acked", [False, True])
def test_single_messages_are_requests_of_their_own(acked: bool) -> None:
    peer = TailraceBinary(acked=acked, single=True)
    assert peer.name == ("tailrace-single-acks" if acked else "tailrace-single")
    feed = make_feed(peer, stream_names(3), PAYLOAD, 0, 30)
    sent = [each for each in _read(peer.ready()[0].send, feed.data) if isinstance(each, Publish)]
    assert [each.count for each in sent] == [1] * 30 == [1] * feed.requests


def test_a_publisher_says_hello_and_opens_its_streams() -> None:
    names = stream_names(300)
    hello, opens = TailraceBinary().publisher(0, names)
    said = _read(hello.send, opens.send)
    assert isinstance(said[0], Hello)
    assert isinstance(said[1], Ping)
    assert [request.stream.decode() for request in said[2:] if isinstance(request, Open)] == names
    assert len({request.id for request in said[2:] if isinstance(request, Open)}) == 300
    assert len(TailraceBinary().publisher(0)) == 1


@pytest.mark.parametrize("acked", [False, True])
def test_a_feed_is_read_as_batches(acked: bool) -> None:
    peer = TailraceBinary(acked=acked)
    hello, opens = peer.publisher(0, [NAME])
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 2_500)
    said = [request for request in _read(hello.send, opens.send, feed.data) if isinstance(request, Publish)]
    assert [request.count for request in said] == [1_000, 1_000, 500]
    assert [request.request for request in said] == [0, 1, 2]
    assert {request.ack for request in said} == {Ack.APPENDED if acked else Ack.NONE}
    assert (feed.messages, feed.requests) == (2_500, 3)


def test_the_megabyte_of_a_thousand_streams_is_a_few_messages_of_each() -> None:
    feed = make_feed(TailraceBinary(), stream_names(1_000), PAYLOAD, 1_000_000)
    assert (feed.messages, feed.requests) == (7_000, 1_000)


def test_answers_have_one_length() -> None:
    answers = [pack(Published(request, ((1 << request, 1_000, 3),))) for request in range(20)]
    assert TailraceBinary(acked=True).answers_bytes([NAME], 20) == len(b"".join(answers))


def test_subscribers_are_answered_with_where_they_begin() -> None:
    peer = TailraceBinary()
    (step,) = peer.subscriber(NAME, 0)
    _, subscribe = _read(step.send)
    assert subscribe == Subscribe(1, NAME.encode(), From("new", 0), wait=True)
    assert step.until == pack(Subscribed(1, 0, 0))
    assert peer.stored(NAME, 1_234).until == pack(Subscribed(1, 1_234, 0))
    _, _, replay = _read(peer.replayer(NAME, 0)[0].send, peer.replay_request(NAME))
    assert replay == Subscribe(1, NAME.encode(), From("seq", 0), wait=True)


def test_a_connection_to_many_streams_has_a_barrier_for_each_worker() -> None:
    names = stream_names(1_000)
    ends = TailraceBinary(workers=3).ends(names)
    assert sorted(shard_of(name.encode()) % 3 for name in ends) == [0, 1, 2]
    assert TailraceBinary(workers=3).ends(names[:1]) == names[:1]


@pytest.mark.system
def test_a_barrier_waits_for_an_owner_that_stands_still(tmp_path: Path) -> None:
    """A PING is answered at once, though messages published before it are not in the log."""
    described = TailraceBinary()
    owner = shard_of(NAME.encode()) % described.workers
    barrier = described.barrier(NAME)
    with running(tmp_path / "data", workers=described.workers) as node, peer_of(node, 1 - owner) as client:
        pid = worker_pid(node, owner)
        os.kill(pid, signal.SIGSTOP)
        try:
            opens = described.publisher(0, [NAME])[-1]
            client.send_raw(opens.send + described.publish_many(NAME, PAYLOAD, 10) + barrier.send)
            client.say(Ping())
            client.next_answer(Pong, 2)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert pack(client.next_answer(Failed, 3)) == barrier.until
        assert steps_succeed(node.port, [described.stored(NAME, 10)], PATIENCE_S)


def test_deliveries_are_frames() -> None:
    assert TailraceBinary().delivered_bytes(NAME, 10, 100) == 1_320
    assert TailraceBinary().replay_bytes(NAME, 10, 100) == 1_320


def test_who_takes_part_in_what() -> None:
    """Acknowledged messages are numbered and consumed, and beside a rollup none may be lost; a lease is theirs."""
    acked, plain = TailraceBinary(acked=True).kinds, TailraceBinary().kinds
    answered = {"client-wait", "client-tasks"}
    assert acked - plain == answered | {"idempotence", "consume", "consumers", "beside-rollup", "spark-live", "lease"}
    assert plain - acked == {"client-silent", "replay", "connections", "neighbour", "topics-turns"}
    assert "streams" not in TailraceBinary().kinds
