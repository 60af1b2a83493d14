"""A sibling link: envelopes in order however little the socket takes, and descriptors beside them."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from tailrace.broker.routing.link import LOST_FD, LinkClosed, WorkerLink
from tailrace.protocol.envelope import pack_envelope

BODY_MAX_BYTES = 64 << 20


@pytest.fixture
def links() -> Iterator[tuple[WorkerLink, WorkerLink]]:
    left, right = socket.socketpair()
    links = WorkerLink(left, 1, 1, BODY_MAX_BYTES), WorkerLink(right, 0, 1, BODY_MAX_BYTES)
    yield links
    for link in links:
        if not link.closed:
            link.close()


def receive(link: WorkerLink) -> list[tuple[int, bytes]]:
    return [(opcode, bytes(body)) for opcode, body in link.receive()]


def carry(sender: WorkerLink, receiver: WorkerLink) -> list[tuple[int, bytes]]:
    """Everything that is queued, over as many reads and writes as it takes."""
    got: list[tuple[int, bytes]] = []
    while sender.wants_write:
        sender.flush()
        while found := receive(receiver):
            got += found
        got += receive(receiver)
    return got + receive(receiver)


def test_envelopes_come_in_order_whatever_their_size(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    bodies = [b"", b"x", b"y" * 100_000, b"z" * (20 << 20), b"", b"end"]
    for opcode, body in enumerate(bodies):
        left.queue(pack_envelope(opcode, body))
    assert left.queued_bytes == sum(len(body) + 5 for body in bodies)
    got: list[tuple[int, bytes]] = []
    for _ in range(100_000):
        left.flush()
        got += receive(right)
        if len(got) == len(bodies):
            break
    assert got == list(enumerate(bodies))
    assert left.queued_bytes == 0 and not left.wants_write


def test_one_body_may_be_queued_in_pieces(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    pieces = [bytes([65 + number % 26]) * (number % 300) for number in range(500)]
    whole = b"".join(pieces)
    left.queue(pack_envelope(3, whole)[:5], *pieces)
    assert carry(left, right) == [(3, whole)]


def test_nothing_to_read_is_no_end(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    assert receive(right) == []
    left.queue(pack_envelope(1, b"abc")[:6])
    left.flush()
    assert receive(right) == []


def test_descriptors_travel_with_their_envelopes(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    pipes = [os.pipe() for _ in range(40)]
    for number, (reader, _writer) in enumerate(pipes):
        left.queue(pack_envelope(7, b"before"))
        left.queue(pack_envelope(9, b"%d" % number), fd=reader)
    expected = iter(pipes)
    taken = 0
    while left.wants_write or taken < len(pipes):
        left.flush()
        for opcode, body in right.receive():
            if opcode == 9:
                fd = right.take_fd()
                writer = next(expected)[1]
                os.write(writer, bytes(body))
                assert os.read(fd, 100) == bytes(body)
                os.close(fd)
                os.close(writer)
                taken += 1
    assert taken == 40, "each with its own, the senders' are closed"


def test_closing_closes_descriptors_that_were_not_sent_or_not_taken(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = os.pipe()
    left.queue(pack_envelope(9, b"x"), fd=reader)
    left.flush()
    assert receive(right) == [(9, b"x")]
    left.queue(pack_envelope(9, b"y"), fd=writer)
    left.close()
    right.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert left.queued_bytes == 0 and not left.wants_write


def test_the_end_of_the_other_worker_shows_after_what_it_has_sent(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    left.queue(pack_envelope(1, b"last words"))
    left.flush()
    left.close()
    got = []
    with pytest.raises(LinkClosed):
        while True:
            got += receive(right)
    assert got == [(1, b"last words")]
    right.queue(pack_envelope(1, b"too late"))
    with pytest.raises(LinkClosed):
        right.flush()


def test_a_queue_can_be_dropped_and_what_came_is_still_read(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    left.queue(pack_envelope(1, b"still there"))
    left.flush()
    reader, writer = os.pipe()
    right.queue(pack_envelope(9, b"x"), fd=reader)
    right.drop_queue()
    assert not right.wants_write and right.queued_bytes == 0
    with pytest.raises(OSError):
        os.fstat(reader)
    assert receive(right) == [(1, b"still there")]
    os.close(writer)


class CrowdedSocket:
    """A socket on which the kernel refuses descriptors for a while, too many being on their way."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.refusals = 3

    def sendmsg(self, buffers: list[memoryview], ancillary: list[object] | None = None) -> int:
        if ancillary and self.refusals:
            self.refusals -= 1
            raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")
        return self._sock.sendmsg(buffers, ancillary or [])  # type: ignore[arg-type]

    def close(self) -> None:
        self._sock.close()


def test_descriptors_wait_while_too_many_are_on_their_way(links: tuple[WorkerLink, WorkerLink]) -> None:
    left, right = links
    left.sock = CrowdedSocket(left.sock)  # type: ignore[assignment]
    reader, writer = os.pipe()
    left.queue(pack_envelope(9, b"x"), fd=reader)
    assert carry(left, right) == [(9, b"x")]
    os.close(right.take_fd())
    os.close(writer)


def test_a_descriptor_that_cannot_be_taken_is_lost_alone(links: tuple[WorkerLink, WorkerLink]) -> None:
    """Those that come after it stay with their envelopes."""
    left, right = links
    ends = [os.pipe() for _ in range(2)]
    for place, (reader, writer) in enumerate(ends):
        os.write(writer, b"%d" % place)
        left.queue(pack_envelope(9, b"%d" % place), fd=reader)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    left.flush()
    free = os.dup(0)  # the lowest number that is free: no more than that may be open
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert receive(right) == [(9, b"0")]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert right.take_fd() == LOST_FD
    assert receive(right) == [(9, b"1")]
    fd = right.take_fd()
    assert os.read(fd, 10) == b"1"
    for each in (fd, *(writer for _reader, writer in ends)):
        os.close(each)
