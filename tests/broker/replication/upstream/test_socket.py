"""The connection of an uplink, over real sockets of the loopback."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import random
import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

import pytest

from tailrace.broker.replication.upstream import socket as wire_module
from tailrace.broker.replication.upstream.socket import (
    CHUNKS_AT_ONCE,
    LEFT_MAX_BYTES,
    LONG_MIN_BYTES,
    PAGE_BYTES,
    RECEIVE_MIN_BYTES,
    ChunkRun,
    PublishedRun,
    UpstreamClosed,
    UpstreamSocket,
    gather,
    look_up,
    numeric_address,
)
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.messages import CHUNK_HEAD, Op, pack
from tailrace.protocol.outgoing import BUFFERS_MAX
from tailrace.shard.frame import pack_frame

PATIENCE_S = 60.0


def wait_for(sock: socket.socket | UpstreamSocket, event: int) -> None:
    poll = select.poll()
    poll.register(sock, event)
    assert poll.poll(PATIENCE_S * 1_000), "nothing has come"


class Pair:
    """A wire that is connected, and the other end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.wire = UpstreamSocket((socket.AF_INET, listener.getsockname()))
            self.far, _ = listener.accept()
        wait_for(self.wire, select.POLLOUT)
        self.wire.connected()
        self.far.setblocking(False)

    def hear(self, count: int) -> bytes:
        """The next `count` bytes received by the other end."""
        heard = bytearray()
        while len(heard) < count:
            self.wire.flush()
            poll = select.poll()
            poll.register(self.far, select.POLLIN)
            poll.register(self.wire, self.wire.interest & select.POLLOUT)
            assert poll.poll(PATIENCE_S * 1_000), "nothing moves"
            with contextlib.suppress(BlockingIOError):
                heard += self.far.recv(1 << 20)
        return bytes(heard)

    def say(self, data: bytes) -> list[object]:
        """Send to the wire; the messages that are whole then."""
        self.far.sendall(data)
        wait_for(self.wire, select.POLLIN)
        return list(self.wire.receive())


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.wire.close()
    pair.far.close()


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_address_that_is_written_as_one_needs_no_look_up() -> None:
    assert numeric_address("127.0.0.1", 5050) == (socket.AF_INET, ("127.0.0.1", 5050))
    assert numeric_address("::1", 5050) == (socket.AF_INET6, ("::1", 5050, 0, 0))
    assert numeric_address("localhost", 5050) is None
    assert look_up("localhost", 5050)[1][:2] in (("127.0.0.1", 5050), ("::1", 5050))


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64 + ".example"])
def test_what_can_be_no_name_is_an_error_as_any_other(host: str) -> None:
    assert numeric_address(host, 5050) is None
    with pytest.raises(OSError, match="no name of a host"):
        look_up(host, 5050)


# --- connecting -------------------------------------------------------------------------------------------------------


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(UpstreamClosed, match="refused"):
        wire = UpstreamSocket((socket.AF_INET, address))  # may be refused at once
        wait_for(wire, select.POLLOUT)
        try:
            wire.connected()
        finally:
            wire.close()


def test_no_socket_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UpstreamClosed, match="Too many open files"):
        UpstreamSocket((socket.AF_INET, ("127.0.0.1", 5050)))


def test_an_address_that_cannot_be_reached_from_here() -> None:
    with pytest.raises(UpstreamClosed):
        wire = UpstreamSocket((socket.AF_INET, ("255.255.255.255", 5050)))
        wire.connected()


# --- out --------------------------------------------------------------------------------------------------------------


def test_what_is_queued_goes_out_in_its_order(pair: Pair) -> None:
    parts = [b"%d|" % number for number in range(3 * BUFFERS_MAX)]
    pair.wire.queue(*parts)
    pair.wire.queue(b"", bytearray(b"end"), memoryview(b""))
    whole = b"".join(parts) + b"end"
    assert pair.wire.queued_bytes == len(whole) and pair.wire.interest == select.EPOLLIN | select.EPOLLOUT
    assert pair.hear(len(whole)) == whole
    assert pair.wire.queued_bytes == 0 and pair.wire.interest == select.EPOLLIN


def test_a_full_socket_keeps_the_rest(pair: Pair) -> None:
    pair.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    big = bytes(range(256)) * 100_000
    pair.wire.queue(b"head", big)
    pair.wire.flush()
    assert 0 < pair.wire.queued_bytes < len(big) and pair.wire.interest & select.EPOLLOUT
    assert pair.hear(4 + len(big)) == b"head" + big
    assert pair.wire.queued_bytes == 0


def test_sending_to_who_is_gone_closes(pair: Pair) -> None:
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.far.close()
    wait_for(pair.wire, select.POLLIN)
    pair.wire.queue(b"x")
    with pytest.raises(UpstreamClosed):
        pair.wire.flush()


def test_a_closed_wire_holds_nothing(pair: Pair) -> None:
    pair.wire.queue(b"x" * 100)
    pair.wire.close()
    assert pair.wire.closed and pair.wire.queued_bytes == 0 and pair.wire.fileno() < 0


# --- in ---------------------------------------------------------------------------------------------------------------


def test_messages_come_as_they_are_whole(pair: Pair) -> None:
    data = pack(m.Opened(1)) + pack(m.Ping()) + pack(m.Ended(7, 8))
    assert list(pair.wire.receive()) == [], "there is nothing yet"
    assert pair.say(data[:5]) == []
    assert pair.say(data[5:-1]) == [m.Opened(1), m.Ping()]
    assert pair.say(data[-1:]) == [m.Ended(7, 8)]
    assert pair.wire.received_bytes == len(data)


def test_answers_to_publishes_come_as_one(pair: Pair) -> None:
    one, two = m.pack_published(1, [(5, 1, 0)]), m.pack_published(2, [(6, 3, 1)])
    frame = pack_frame(b"x")
    chunk = CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frame), 1) + frame
    run, behind = pair.say(one + two + pack(m.Ping()))
    assert isinstance(run, PublishedRun) and [row[2:] for row in run.rows] == [(1, 5, 1, 0), (2, 6, 3, 1)]
    assert behind == m.Ping()
    assert pair.say(one[:9]) == []
    (run,) = pair.say(one[9:])
    assert isinstance(run, PublishedRun) and len(run.rows) == 1
    run, chunks = pair.say(two + chunk)
    assert isinstance(run, PublishedRun) and isinstance(chunks, ChunkRun)


def test_frames_larger_than_one_read(pair: Pair) -> None:
    frames = pack_frame(b"x" * (3 << 20))
    data = CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frames), 9) + frames
    got: list[object] = []
    sent = 0
    pair.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    while not got:
        with contextlib.suppress(BlockingIOError):
            sent += pair.far.send(data[sent:])
        got = [(each.id, b"".join(each.pieces)) for each in pair.wire.receive() if isinstance(each, ChunkRun)]
    assert got == [(9, frames)]


def chunk(number: int, frames: bytes) -> bytes:
    return CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frames), number) + frames


def heard(messages: Iterable[object]) -> list[object]:
    """Each chunk by itself again, with its frames copied."""
    return [
        each
        for message in messages
        for each in (
            [(message.id, bytes(piece)) for piece in message.pieces] if isinstance(message, ChunkRun) else [message]
        )
    ]


def carry(pair: Pair, data: bytes, pieces: Iterator[int], place_of: Callable[[int], int]) -> list[object]:
    """Send in pieces of these sizes, and read after each."""
    got: list[object] = []
    before, sent = pair.wire.received_bytes, 0
    while pair.wire.received_bytes - before < len(data):
        if sent == pair.wire.received_bytes - before:
            with contextlib.suppress(BlockingIOError):
                sent += pair.far.send(data[sent : sent + next(pieces)])
        wait_for(pair.wire, select.POLLIN)
        got += heard(pair.wire.receive(place_of))
    return got


SIZES = (LONG_MIN_BYTES, LONG_MIN_BYTES - 1, LONG_MIN_BYTES + 77, 300_000, 1 << 20, LEFT_MAX_BYTES, 40, 3_000_000)


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(12))
def test_chunks_of_all_lengths_come_whole_and_in_order(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    sent: list[object] = []
    data = bytearray()
    for _ in range(chance.randrange(4, 16)):
        if chance.random() < 0.2:
            names = tuple(b"%0100d" % place for place in range(500))
            message = chance.choice(list[m.Response]([m.Ping(), m.Opened(3), r.Names(1, names)]))
            sent.append(message)
            data += pack(message)
        for _ in range(chance.choice([1, 1, 4])):
            number, frames = chance.choice([1, 1, 1, 2]), chance.randbytes(chance.choice(SIZES))
            sent.append((number, frames))
            data += chunk(number, frames)
    pieces = iter(lambda: chance.choice([70_000, 1 << 20, len(data), 9]), None)
    assert carry(pair, bytes(data), pieces, lambda number: 1_000 * number) == sent


def test_a_long_chunk_byte_by_byte(pair: Pair) -> None:
    """Around both of its ends; the rest in one piece."""
    frames = [random.Random(number).randbytes(LONG_MIN_BYTES + number) for number in range(3)]
    data = b"".join(chunk(7, each) for each in frames) + pack(m.Ping())
    ends, middle = [1] * 80, [LONG_MIN_BYTES - 60]
    pieces = iter(ends + middle + ends + middle + ends + middle + ends * 2)
    assert carry(pair, data, pieces, lambda _number: 0) == [*((7, each) for each in frames), m.Ping()]


def test_frames_of_long_chunks_lie_as_in_the_file(pair: Pair) -> None:
    """Each chunk lies at the same offset in a page as it will in the file, and reuses the buffer of the one before,
    which is taken.
    """
    place, sizes = 123_456_789, [300_000, 299_999, 300_132] * 12
    data = b"".join(chunk(1, bytes([number]) * size) for number, size in enumerate(sizes))
    base, got, alike = address(pair.wire._buffer), bytearray(), 0

    def place_now(_number: int) -> int:
        return place + len(got)

    sent = pair.far.send(data[:100_000])
    while len(got) < sum(sizes):
        wait_for(pair.wire, select.POLLIN)
        for message in pair.wire.receive(place_now):
            assert isinstance(message, ChunkRun)
            for piece in message.pieces:
                offset = address(piece) - base
                alike += offset < PAGE_BYTES and (offset - place_now(1)) % PAGE_BYTES == 0
                got += piece
        with contextlib.suppress(BlockingIOError):
            sent += pair.far.send(data[sent:])
    assert got == b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    assert alike > len(sizes) // 2  # not those that a read without a long chunk under way began with


def test_many_long_chunks_leave_a_turn_to_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "TURN_BYTES", 2 * LONG_MIN_BYTES)
    frames = bytes(LONG_MIN_BYTES)
    assert pair.say(chunk(1, frames)[:-10]) == []
    pair.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    pair.far.sendall(bytes(10) + chunk(1, frames) * 6)
    turns = list[int]()
    while sum(turns) < 7:
        wait_for(pair.wire, select.POLLIN)
        turns.append(len(heard(pair.wire.receive())))
    assert max(turns) <= 3, "the one that was under way, and two more"


def test_what_was_whole_comes_before_the_connection_ends(pair: Pair) -> None:
    frames = bytes(LONG_MIN_BYTES)
    assert pair.say(chunk(1, frames)[:-10]) == []
    pair.far.sendall(bytes(10) + chunk(1, frames) + chunk(1, frames)[:-10])
    pair.far.shutdown(socket.SHUT_WR)
    got: list[object] = []
    with pytest.raises(UpstreamClosed, match="has closed the connection"):
        while True:
            wait_for(pair.wire, select.POLLIN)
            for message in pair.wire.receive():
                got += heard([message])
    assert got == [(1, frames)] * 2


def test_what_is_no_chunk_is_refused_behind_a_long_one(pair: Pair) -> None:
    frames = bytes(LONG_MIN_BYTES)
    assert pair.say(chunk(1, frames)[:-10]) == []
    pair.far.sendall(bytes(10) + b"\xff" * 9)
    got: list[object] = []
    with pytest.raises(UpstreamClosed, match="no binary protocol"):
        while True:
            wait_for(pair.wire, select.POLLIN)
            for message in pair.wire.receive():
                got += heard([message])
    assert got == [(1, frames)]


def address(piece: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(piece))


def test_chunks_that_follow_one_another_come_as_one() -> None:
    one, other = ([m.Chunk(number, memoryview(b"%d" % place)) for place in range(70)] for number in (1, 2))
    messages: list[m.Response] = [*one[:3], m.Ping(), *one[3:5], *other[:2], *one]
    found = list(gather(messages))
    sizes = [len(each.pieces) if isinstance(each, ChunkRun) else 0 for each in found]
    assert sizes == [3, 0, 2, 2, CHUNKS_AT_ONCE, 70 - CHUNKS_AT_ONCE]
    assert heard(found) == [(each.id, bytes(each.frames)) if isinstance(each, m.Chunk) else each for each in messages]
    assert list(gather([])) == []


def test_a_long_chunk_is_given_before_the_next_is_asked_for() -> None:
    memory, asked = bytearray(LONG_MIN_BYTES), 0

    def long() -> Iterator[m.Response]:
        nonlocal asked
        yield m.Chunk(1, memoryview(b"small"))
        for asked in range(1, 4):
            memory[:] = bytes([asked]) * LONG_MIN_BYTES
            yield m.Chunk(1, memoryview(memory))

    found = list[tuple[int, list[bytes]]]()
    for each in gather(long()):
        assert isinstance(each, ChunkRun)
        found.append((asked, [bytes(piece[:5]) for piece in each.pieces]))
    assert found == [(1, [b"small", b"\1" * 5]), (2, [b"\2" * 5]), (3, [b"\3" * 5])]


def test_what_came_before_something_wrong_is_given_first() -> None:
    def broken() -> Iterator[m.Response]:
        yield m.Chunk(1, memoryview(b"a"))
        raise PeerError(Code.PROTOCOL, "wrong", fatal=True)

    found = gather(broken())
    assert next(found) == ChunkRun(1, [memoryview(b"a")])
    with pytest.raises(PeerError, match="wrong"):
        next(found)


def test_a_flood_of_small_messages_is_read_in_small_parts(pair: Pair) -> None:
    """So that a turn takes no longer for it; large messages are read in large parts again."""
    ping, wire = pack(m.Ping()), pair.wire
    pings, sizes, sent = memoryview(ping * 50_000), list[int](), 0

    def read() -> int:
        wait_for(wire, select.POLLIN)
        before = wire.received_bytes
        assert all(isinstance(message, (m.Ping, ChunkRun)) for message in wire.receive())
        return wire.received_bytes - before

    while len(sizes) < 30:
        if sent - wire.received_bytes < len(pings) // 2:
            sent += pair.far.send(pings[sent % len(ping) :])
        sizes.append(read())
    assert sizes[0] > RECEIVE_MIN_BYTES >= sizes[-1]
    while wire.received_bytes < sent:
        read()
    frames = pack_frame(b"x" * (1 << 20))
    rest_of_ping = bytes(pings[sent % len(ping) :][: -sent % len(ping)])
    large = memoryview(rest_of_ping + (CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frames), 9) + frames) * 12)
    while large:
        with contextlib.suppress(BlockingIOError):
            large = large[pair.far.send(large) :]
        sizes.append(read())
    assert max(sizes[-10:]) > 4 * RECEIVE_MIN_BYTES


def test_the_end_closes_behind_what_came_before_it(pair: Pair) -> None:
    pair.far.sendall(pack(m.Opened(1)))
    pair.far.shutdown(socket.SHUT_WR)
    wait_for(pair.wire, select.POLLIN)
    assert list(pair.wire.receive()) == [m.Opened(1)]
    with pytest.raises(UpstreamClosed, match="has closed the connection"):
        list(pair.wire.receive())


def test_a_reset_closes(pair: Pair) -> None:
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.far.close()
    wait_for(pair.wire, select.POLLIN)
    with pytest.raises(UpstreamClosed, match="reset"):
        list(pair.wire.receive())


@pytest.mark.parametrize(
    "data",
    [
        b"ok hello this is no broker of ours\r\n",
        b"\xff" * 20,
        pack(m.Opened(1))[:-1] + b"\xc1",
        bytes([Op.PING]) + (1).to_bytes(4, "little") + b"x",
    ],
)
def test_bytes_that_no_broker_sends_close(pair: Pair, data: bytes) -> None:
    with pytest.raises(UpstreamClosed, match="no binary protocol"):
        pair.say(data)


def test_what_came_before_bytes_that_no_broker_sends_is_heard(pair: Pair) -> None:
    heard = []
    pair.far.sendall(pack(m.Opened(1)) + b"\xff" * 20)
    wait_for(pair.wire, select.POLLIN)
    with pytest.raises(UpstreamClosed):
        for message in pair.wire.receive():
            heard.append(message)
    assert heard == [m.Opened(1)]
