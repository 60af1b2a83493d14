"""The connection of an uplink, over real sockets of the loopback."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
from collections.abc import Iterator

import pytest

from broker.protocol import messages as m
from broker.protocol.messages import CHUNK_HEAD, Op, pack
from broker.protocol.outgoing import BUFFERS_MAX
from broker.replication.wire import RECEIVE_MIN_BYTES, Wire, WireClosed, look_up, numeric_address
from shard.frame import pack_frame

PATIENCE_S = 5.0


def wait_for(sock: socket.socket | Wire, event: int) -> None:
    poll = select.poll()
    poll.register(sock, event)
    assert poll.poll(PATIENCE_S * 1_000), "nothing has come"


class Pair:
    """A wire that is connected, and the other end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.wire = Wire((socket.AF_INET, listener.getsockname()))
            self.far, _ = listener.accept()
        wait_for(self.wire, select.POLLOUT)
        self.wire.connected()
        self.far.setblocking(False)

    def hear(self, count: int) -> bytes:
        """What has come to the other end, so many bytes."""
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
    with pytest.raises(WireClosed, match="refused"):
        wire = Wire((socket.AF_INET, address))  # may say so at once
        wait_for(wire, select.POLLOUT)
        try:
            wire.connected()
        finally:
            wire.close()


def test_no_socket_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(WireClosed, match="Too many open files"):
        Wire((socket.AF_INET, ("127.0.0.1", 5050)))


def test_an_address_that_cannot_be_reached_from_here() -> None:
    with pytest.raises(WireClosed):
        wire = Wire((socket.AF_INET, ("255.255.255.255", 5050)))
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
    with pytest.raises(WireClosed):
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


def test_frames_larger_than_one_read(pair: Pair) -> None:
    frames = pack_frame(b"x" * (3 << 20))
    data = CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frames), 9) + frames
    got: list[object] = []
    sent = 0
    pair.wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    while not got:
        with contextlib.suppress(BlockingIOError):
            sent += pair.far.send(data[sent:])
        got = [(each.id, bytes(each.frames)) for each in pair.wire.receive() if isinstance(each, m.Chunk)]
    assert got == [(9, frames)]


def test_a_flood_of_small_messages_is_read_in_small_parts(pair: Pair) -> None:
    """So that a turn takes no longer for it; what is large is read in large parts again."""
    ping, wire = pack(m.Ping()), pair.wire
    pings, sizes, sent = ping * 50_000, list[int](), 0

    def read() -> int:
        wait_for(wire, select.POLLIN)
        before = wire.received_bytes
        assert all(isinstance(message, (m.Ping, m.Chunk)) for message in wire.receive())
        return wire.received_bytes - before

    while len(sizes) < 30:
        with contextlib.suppress(BlockingIOError):
            sent += pair.far.send(pings[sent % len(ping) :])
        sizes.append(read())
    assert sizes[0] > RECEIVE_MIN_BYTES >= sizes[-1]
    while wire.received_bytes < sent:
        read()
    frames = pack_frame(b"x" * (1 << 20))
    large = (
        pings[sent % len(ping) :][: -sent % len(ping)] + (CHUNK_HEAD.pack(Op.CHUNK, 4 + len(frames), 9) + frames) * 20
    )
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
    with pytest.raises(WireClosed, match="has closed the connection"):
        list(pair.wire.receive())


def test_a_reset_closes(pair: Pair) -> None:
    pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.far.close()
    wait_for(pair.wire, select.POLLIN)
    with pytest.raises(WireClosed, match="reset"):
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
    with pytest.raises(WireClosed, match="no binary protocol"):
        pair.say(data)


def test_what_came_before_bytes_that_no_broker_sends_is_heard(pair: Pair) -> None:
    heard = []
    pair.far.sendall(pack(m.Opened(1)) + b"\xff" * 20)
    wait_for(pair.wire, select.POLLIN)
    with pytest.raises(WireClosed):
        for message in pair.wire.receive():
            heard.append(message)
    assert heard == [m.Opened(1)]
