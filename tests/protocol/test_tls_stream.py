"""TLS over a non-blocking socket: the bytes held for a peer that does not read, and for one that sends no data."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.protocol.tls import READ_SLACK_BYTES, RECORD_BYTES, TLSEngine, TLSFailed, harden
from tailrace.protocol.tls_stream import (
    BATCH_MAX_BYTES,
    ENCRYPT_BYTES,
    ENCRYPT_MAX_BYTES,
    HALF_RECORD_BYTES,
    HELD_MAX_BYTES,
    TLSStream,
    TLSWorkspace,
)
from tests.certificates import Authority


class Ends:
    def __init__(self, authority: Authority) -> None:
        pair = authority.issue("server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        harden(context)
        context.load_cert_chain(pair.certificate, pair.key)
        self.far, near = socket.socketpair()
        for sock in (self.far, near):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            sock.setblocking(False)
        self.near = near
        workspace = TLSWorkspace()
        self.server = TLSStream(near, TLSEngine(context, workspace.buffers, server_side=True), workspace)
        theirs = TLSWorkspace()
        engine = TLSEngine(authority.client_context(), theirs.buffers, server_hostname="localhost")
        self.client = TLSStream(self.far, engine, theirs)
        done = [False, False]
        while not all(done):
            for at, side in enumerate((self.client, self.server)):
                done[at] = done[at] or side.handshake()
                side.flush()

    def read(self, side: TLSStream) -> bytes:
        """The bytes available to one side, while the other sends the rest of its encrypted bytes."""
        found, room = b"", bytearray(300_000)
        other = self.client if side is self.server else self.server
        while True:
            try:
                found += bytes(room[: side.recv_into(room, len(room))])
            except BlockingIOError:
                if not other.unsent_bytes:
                    return found
                other.flush()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    found = Ends(Authority(tmp_path))
    yield found
    found.far.close()
    found.near.close()


def test_encrypting_stops_where_the_socket_is_full(ends: Ends) -> None:
    data = bytes(range(256)) * 4_096
    taken = ends.server.send(data)
    assert 0 < taken < len(data) and 0 < ends.server.unsent_bytes <= ENCRYPT_BYTES + 4_096
    with pytest.raises(BlockingIOError):
        ends.server.send(data[taken:])
    assert ends.read(ends.client) == data[:taken]
    assert ends.server.unsent_bytes == 0 and ends.server.flush()


def test_batches_grow_while_the_socket_takes_them_and_are_halved_when_it_is_full(ends: Ends) -> None:
    sizes, room, found = [], bytearray(2 * ENCRYPT_MAX_BYTES), 0
    ends.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ENCRYPT_MAX_BYTES)
    for _ in range(4):
        sizes.append(ends.server.batch_bytes)
        assert ends.server.send(bytes(sizes[-1])) == sizes[-1] and not ends.server.unsent_bytes
        while found < sum(sizes):
            found += ends.client.recv_into(room, ENCRYPT_MAX_BYTES)
    assert sizes == [ENCRYPT_BYTES, 2 * ENCRYPT_BYTES, ENCRYPT_MAX_BYTES, ENCRYPT_MAX_BYTES]
    ends.server.send(bytes(16 * ENCRYPT_MAX_BYTES))
    assert 0 < ends.server.unsent_bytes <= ENCRYPT_MAX_BYTES + 8_192 < HELD_MAX_BYTES
    assert ends.server.batch_bytes == ENCRYPT_MAX_BYTES // 2
    ends.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    for due in (ENCRYPT_MAX_BYTES // 4, ENCRYPT_BYTES, ENCRYPT_BYTES):
        ends.read(ends.client)
        ends.server.send(bytes(16 * ENCRYPT_MAX_BYTES))
        assert ends.server.batch_bytes == due and ends.server.unsent_bytes


class CountedSends:
    """A socket that takes everything, and the lengths of its sends."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def recv_into(self, _buffer: memoryview, _nbytes: int, /) -> int:
        raise BlockingIOError

    def send(self, data: bytes | memoryview, /) -> int:
        self.sizes.append(len(data))
        return len(data)


def test_no_batch_is_left_that_is_shorter_than_a_record(ends: Ends) -> None:
    """A send of a few bytes costs as much as one of many thousands."""
    ends.server._sock = counted = CountedSends()
    assert ends.server.send(bytes(ENCRYPT_BYTES + RECORD_BYTES)) == ENCRYPT_BYTES + RECORD_BYTES
    assert len(counted.sizes) == 1 and ends.server.batch_bytes == 2 * ENCRYPT_BYTES
    due = 3 * ENCRYPT_MAX_BYTES + 1
    ends.server.batch_bytes = ENCRYPT_MAX_BYTES
    assert ends.server.send(bytes(due)) == due
    assert len(counted.sizes) == 4 and max(counted.sizes) < BATCH_MAX_BYTES + 1_024 < HELD_MAX_BYTES


def test_the_memory_of_a_batch_is_as_long_as_the_batch(ends: Ends) -> None:
    rooms = [len(ends.server.batch_room(due)) for due in (1, ENCRYPT_BYTES + RECORD_BYTES, 1 << 30)]
    assert rooms == [1, ENCRYPT_BYTES + RECORD_BYTES, ENCRYPT_BYTES]
    ends.server.batch_bytes = ENCRYPT_MAX_BYTES
    assert len(ends.server.batch_room(ENCRYPT_MAX_BYTES + RECORD_BYTES)) == BATCH_MAX_BYTES
    room = ends.server.batch_room(3)
    room[:] = b"abc"
    assert ends.server.send(room) == 3 and ends.read(ends.client) == b"abc"


def test_several_buffers_in_their_order(ends: Ends) -> None:
    small: list[bytes | bytearray | memoryview] = [b"one", bytearray(b"two"), memoryview(b"three")]
    assert ends.server.sendmsg(small) == 11
    assert ends.read(ends.client) == b"onetwothree"
    taken = ends.server.sendmsg([b"head", b"x" * 30_000])
    assert ends.read(ends.client) == (b"head" + b"x" * 30_000)[:taken]


@pytest.mark.parametrize("records", [1, 4, 16])
def test_full_records_come_with_one_read_of_their_length(ends: Ends, records: int) -> None:
    """Else the rest of each waits for another turn of the loop, and reads never become longer."""
    for sock in (ends.far, ends.near):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    count = records * RECORD_BYTES
    room = bytearray(count + READ_SLACK_BYTES)
    for data in (b"a" * count, b"b" * count):
        assert ends.client.send(data) == count
        ends.client.flush()
        assert ends.server.recv_into(room, count) == count
        assert room[:count] == data


def test_a_peer_that_sends_no_data_is_given_up(ends: Ends) -> None:
    """Change cipher spec in TLS 1.3 is passed over, and brings nothing."""
    with pytest.raises(TLSFailed):
        for _ in range(10_000):
            ends.far.send(b"\x17\x03\x03\x00\x00")
            ends.read(ends.server)


def test_it_is_known_whether_a_record_is_half_there(ends: Ends) -> None:
    """Wherever the bytes are cut, within heads and across records."""
    sizes = random.Random(16)
    for _ in range(20):
        wire = b""
        boundaries = {0}
        for _ in range(6):
            ends.client._engine.encrypt(bytes(sizes.choice((1, 7, 900))))
            wire += ends.client._engine.take()
            boundaries.add(len(wire))
        at = 0
        while at < len(wire):
            size = sizes.choice((1, 2, 3, 5, 30, 1_500))
            at += ends.far.send(wire[at : at + size])
            ends.read(ends.server)
            assert ends.server.half_record_bytes == (0 if at in boundaries else HALF_RECORD_BYTES), at


def test_answers_of_tls_itself_are_bounded(ends: Ends) -> None:
    ends.server._unsent = memoryview(bytes(HELD_MAX_BYTES))
    ends.server._engine.encrypt(b"one more")
    with pytest.raises(TLSFailed, match="has not read"):
        ends.server._push()


def test_the_end_is_said_once(ends: Ends) -> None:
    ends.server.end()
    ends.server.end()
    assert ends.client.recv_into(bytearray(20_000), 20_000) == 0 and ends.client.ended
