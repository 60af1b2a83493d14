"""For any chunks, however they arrive, every byte of every frame is counted; and nothing else passes."""

from __future__ import annotations

import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.load.limits import Deadline, LoadError, PeerClosed
from bench.load.receiving import ChunkCounter, Copied, Drained, make_counter
from bench.peers.base import make_payload
from bench.peers.plain import BareSendfile, Plain
from bench.peers.tailrace_binary import TailraceBinary
from tailrace.protocol.messages import Failed, Ping, Subscribed, pack
from tests.bench.load.frames import chunk
from tests.thorough import examples

PAYLOAD = make_payload(100)
FRAME_BYTES = 132
Pair = tuple[socket.socket, socket.socket]


def _count(counter: ChunkCounter, due_bytes: int) -> int:
    got, deadline = 0, Deadline(5)
    while got < due_bytes:
        deadline.check(f"{got} of {due_bytes}")
        got += counter.take()
    return got


def _chunks(sizes: list[int]) -> bytes:
    return b"".join(chunk(PAYLOAD, sum(sizes[:place]), size) for place, size in enumerate(sizes))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(30))
@given(st.lists(st.integers(1, 60), min_size=1, max_size=10), st.lists(st.integers(1, 3_000), max_size=20))
def test_frames_are_counted_however_they_are_cut(pair: Pair, sizes: list[int], cuts: list[int]) -> None:
    ours, theirs = pair
    data, counter, got = memoryview(_chunks(sizes)), ChunkCounter(ours, FRAME_BYTES), 0
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        theirs.sendall(piece)
        got += counter.take()
    assert got + _count(counter, sum(sizes) * FRAME_BYTES - got) == sum(sizes) * FRAME_BYTES
    assert counter.take() == 0


def test_byte_by_byte(pair: Pair) -> None:
    ours, theirs = pair
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    counter, data, got = ChunkCounter(ours, FRAME_BYTES), pack(Subscribed(1, 0, 0)) + _chunks([1, 2]), 0
    for place in range(len(data)):
        theirs.send(data[place : place + 1])
        got += counter.take()
    assert got + _count(counter, 3 * FRAME_BYTES - got) == 3 * FRAME_BYTES


def test_answers_and_pings_are_skipped(pair: Pair) -> None:
    ours, theirs = pair
    said = [pack(Subscribed(1, 0, 0, 10)), chunk(PAYLOAD, 0, 4), pack(Ping()), pack(Ping()), chunk(PAYLOAD, 4, 1)]
    theirs.sendall(b"".join(said))
    assert _count(ChunkCounter(ours, FRAME_BYTES), 5 * FRAME_BYTES) == 5 * FRAME_BYTES


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (chunk(PAYLOAD, 1, 3), "should end with seq 2 .* ends with seq 3"),
        (chunk(PAYLOAD, 0, 3) + chunk(PAYLOAD, 2, 3), "should end with seq 5 .* ends with seq 4"),
        (chunk(PAYLOAD[:-1], 0, 1), "a chunk of 131 bytes"),
        (chunk(PAYLOAD, 0, 1, subscription=2), "for 2:"),
        (pack(Failed("slow", "too slow", op=7)), "too slow.* \\(opcode 12\\)"),
        (b"\x0c\xff\xff\xff\xff", "an envelope of 4294967295 bytes"),
    ],
    ids=["missing", "twice", "length", "subscription", "error", "envelope"],
)
def test_a_wrong_delivery_is_an_error(pair: Pair, said: bytes, complaint: str) -> None:
    ours, theirs = pair
    theirs.sendall(said)
    with pytest.raises(LoadError, match=complaint):
        _count(ChunkCounter(ours, FRAME_BYTES), 100 * FRAME_BYTES)


def test_the_end_of_the_connection_is_told(pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(chunk(PAYLOAD, 0, 2)[:-1])
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerClosed):
        _count(ChunkCounter(ours, FRAME_BYTES), 2 * FRAME_BYTES)


def test_the_protocol_decides_who_counts(pair: Pair) -> None:
    ours, theirs = pair
    assert isinstance(make_counter(TailraceBinary(), 100, ours), ChunkCounter)
    drained = make_counter(Plain(100), 100, ours)
    assert isinstance(drained, Drained)
    theirs.sendall(b"xyz")
    deadline = Deadline(5)
    while not drained.take():
        deadline.check("draining")


def test_who_reads_what_is_only_counted_has_it_in_memory(pair: Pair) -> None:
    ours, theirs = pair
    copied = make_counter(BareSendfile(3, copied=True), 100, ours)
    assert isinstance(copied, Copied)
    theirs.sendall(b"xyz")
    deadline, got = Deadline(5), 0
    while got < 3:
        got += copied.take()
        deadline.check("reading")
    assert copied._memory.startswith(b"xyz") and copied.take() == 0
