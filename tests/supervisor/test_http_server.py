"""The server of the metrics process: its answers and its bounds."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.supervisor import http_server
from tailrace.supervisor.http import bind
from tailrace.supervisor.http_exchange import Page, text_page
from tailrace.supervisor.http_server import Pages
from tests.supervisor.http_peer import DEADLINE_S, GET, Address, ask, get, read_answer


class Clock:
    """Moves only on command."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def serving(
    pages: Pages, slow_pages: Pages | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Address]:
    listener = bind(Settings(metrics_port=0))
    address: Address = listener.getsockname()[:2]
    server = http_server.Server(listener, pages, slow_pages or {}, clock=clock)
    stop_read, stop_write = socket.socketpair()
    thread = threading.Thread(target=server.serve, args=((stop_read.fileno(),),))
    thread.start()
    try:
        yield address
    finally:
        stop_write.close()
        thread.join(DEADLINE_S)
        stop_read.close()
        server.close()
        assert not thread.is_alive()


def page(text: str) -> Callable[[], Page]:
    return lambda: text_page(HTTPStatus.OK, text)


def test_get_head_and_what_is_not_there() -> None:
    with serving({"/": page("index"), "/x": page("x" * 1_000_000)}) as address:
        assert get(address, "/?query=1") == (200, "index\n")
        assert len(get(address, "/x")[1]) == 1_000_001
        head, body = ask(address, b"HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"Content-Length: 1000001" in head
        assert body == b""
        assert get(address, "/nothing") == (404, "no such page; there are / /x\n")
        assert ask(address, b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")[0].startswith(b"HTTP/1.1 405 ")
        assert ask(address, b"nonsense\r\n\r\n")[0].startswith(b"HTTP/1.1 400 ")


def test_a_request_in_single_bytes() -> None:
    with serving({"/": page("index")}) as address, socket.create_connection(address, timeout=DEADLINE_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GET:
            peer.sendall(bytes([byte]))
        assert read_answer(peer)[1] == b"index\n"


def test_a_peer_that_sends_a_body_still_gets_its_answer() -> None:
    """Closing on unread bytes would reset the connection and take the answer with it."""
    with serving({"/": page("index")}) as address:
        head, body = ask(
            address, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000
        )
    assert head.startswith(b"HTTP/1.1 405 ")
    assert body == b"only GET and HEAD are served\n"


def test_a_head_without_an_end_is_refused() -> None:
    with serving({"/": page("index")}) as address:
        head, _ = ask(address, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_000)
    assert head.startswith(b"HTTP/1.1 431 ")


def test_a_slow_peer_is_dropped_at_its_deadline_and_not_before() -> None:
    clock = Clock()
    with serving({"/": page("index")}, clock=clock) as address, socket.create_connection(address, DEADLINE_S) as slow:
        slow.sendall(b"GET / HT")
        clock.now_s += http_server.CONNECTION_TIMEOUT_S / 2
        assert get(address, "/")[0] == 200  # time enough for a turn of the loop
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        clock.now_s += http_server.CONNECTION_TIMEOUT_S
        slow.settimeout(DEADLINE_S)
        assert slow.recv(1) == b""


@pytest.mark.parametrize(
    "request_", [b"", b"GET / HTTP/1.1\r\nHost", GET], ids=["idle", "half a request", "reads nothing"]
)
def test_connections_that_idle_or_read_nothing_delay_nobody(request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still: none of them is dropped for its time."""
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 16)
    large = page("x" * 3_000_000)
    with (
        serving({"/": large, "/healthz": page("alive")}, {"/metrics": page("1")}, clock=Clock()) as address,
        ExitStack() as peers,
    ):
        for number in range(40):
            peer = peers.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.connect(address)
            peer.sendall(request_)
            if number % 10 == 0:
                assert get(address, "/healthz") == (200, "alive\n")
        assert get(address, "/healthz") == (200, "alive\n")
        assert get(address, "/metrics") == (200, "1\n")


def test_the_address_with_the_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 4)
    with serving({"/": page("index")}, clock=Clock()) as address, ExitStack() as peers:

        def connect(source: str) -> socket.socket:
            peer = peers.enter_context(socket.create_connection(address, DEADLINE_S, source_address=(source, 0)))
            peer.sendall(b"GET / HTTP/1.1\r\n")
            return peer

        quiet = connect("127.0.0.2")
        greedy = [connect("127.0.0.1") for _ in range(6)]
        for each in greedy[:3]:
            assert each.recv(1) == b"", "the oldest of them is closed for each that is one too many"
        for each in (quiet, *greedy[3:]):
            each.sendall(b"Host: localhost\r\n\r\n")
            assert read_answer(each)[1] == b"index\n"


class Gate:
    """A page that is made when it is let through, and counts how often."""

    def __init__(self) -> None:
        self.made = 0
        self.begun = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)

    def __call__(self) -> Page:
        self.made += 1
        made = self.made
        self.begun.release()
        assert self.opened.acquire(timeout=DEADLINE_S)
        return text_page(HTTPStatus.OK, f"page {made}")


def test_a_page_that_waits_for_the_disk_delays_no_other() -> None:
    gate = Gate()
    with serving({"/healthz": page("alive")}, {"/metrics": gate}) as address, ExitStack() as peers:

        def begin(request: bytes) -> socket.socket:
            peer = peers.enter_context(socket.create_connection(address, DEADLINE_S))
            peer.sendall(request.replace(b"/ ", b"/metrics "))
            assert get(address, "/healthz") == (200, "alive\n")
            return peer

        first = begin(GET)
        assert gate.begun.acquire(timeout=DEADLINE_S)
        gone = begin(GET)
        gone.close()
        later = [begin(GET), begin(GET), begin(GET.replace(b"GET", b"HEAD"))]
        later[1].shutdown(socket.SHUT_WR)  # as `nc -N` does; it still reads
        assert get(address, "/healthz") == (200, "alive\n")
        gate.opened.release()
        gate.opened.release()
        assert read_answer(first)[1] == b"page 1\n"
        assert [read_answer(each)[1] for each in later] == [b"page 2\n", b"page 2\n", b""]
        assert gate.made == 2, "those that asked meanwhile have one page, which began after they had asked"


def test_peers_that_leave_while_their_page_is_made_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may hang for hours, with a scrape every few seconds."""
    gate, clock = Gate(), Clock()
    asked: list[http_server.SlowPage] = []

    class Watched(http_server.SlowPage):
        def ask(self, connection: http_server.Connection) -> None:
            asked.append(self)
            super().ask(connection)

    monkeypatch.setattr(http_server, "SlowPage", Watched)
    with serving({"/": page("index")}, {"/metrics": gate}, clock=clock) as address:
        for _ in range(3):
            with socket.create_connection(address, DEADLINE_S) as peer:
                peer.sendall(GET.replace(b"/ ", b"/metrics "))
                assert get(address, "/")[0] == 200
                clock.now_s += http_server.CONNECTION_TIMEOUT_S
                assert peer.recv(1) == b""
        assert len(asked) == 3 and not asked[0]._next and not asked[0]._asked
        gate.opened.release()
        assert get(address, "/")[0] == 200


def test_an_answer_that_is_read_slowly_arrives_whole() -> None:
    with serving({"/": page("x" * 3_000_000)}) as address, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.settimeout(DEADLINE_S)
        peer.connect(address)
        peer.sendall(GET)
        peer.shutdown(socket.SHUT_WR)
        assert len(read_answer(peer)[1]) == 3_000_001


def test_garbage_and_half_requests_do_no_harm() -> None:
    with serving({"/": page("index")}) as address:
        for garbage in (
            b"\0" * 100,
            b"\x16\x03\x01\x02",
            b"GET / HTTP/1.1\r\nHost: x",
            b"\r\n\r\n\r\n",
            b"GET /" + b"a" * 30_000,
        ):
            with socket.create_connection(address, DEADLINE_S) as peer:
                peer.sendall(garbage)
                peer.shutdown(socket.SHUT_WR)
                head, _body = read_answer(peer)
                assert head == b"" or head.split()[1] in (b"400", b"431")
        assert get(address, "/") == (200, "index\n")


def test_no_descriptor_left_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(http_server, "SWEEP_INTERVAL_S", 0.01)
    refused: list[int] = []
    real_accept = socket.socket.accept

    def accept(listener: socket.socket) -> tuple[socket.socket, Address]:
        if len(refused) < 2:
            refused.append(errno.EMFILE if not refused else errno.ECONNABORTED)
            raise OSError(refused[-1], os.strerror(refused[-1]))
        return real_accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with serving({"/": page("index")}) as address:
        assert get(address, "/") == (200, "index\n")
    assert caplog.text.count("cannot accept a connection for metrics: Too many open files") == 1


def test_addresses_of_this_machine_alone() -> None:
    local = ("127.0.0.2", "::1", "::ffff:127.0.0.1")
    assert all(map(http_server.is_loopback, local))
    assert not any(map(http_server.is_loopback, ("10.0.0.1", "::", "fe80::1%eth0", "::ffff:10.0.0.1")))


def test_a_page_that_fails_is_an_error_and_the_next_works(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Page:
        raise RuntimeError("Read beyond file size detected, file is corrupted.")

    with serving({"/": page("index"), "/readyz": broken}, {"/metrics": broken}) as address:
        for path in ("/metrics", "/readyz"):
            assert get(address, path) == (500, f"{path}: Read beyond file size detected, file is corrupted.\n")
        assert get(address, "/") == (200, "index\n")
    assert "cannot make /metrics" in caplog.text


def test_a_peer_that_resets_does_no_harm() -> None:
    with serving({"/": page("x" * 5_000_000)}) as address:
        for _ in range(5):
            peer = socket.create_connection(address, DEADLINE_S)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.sendall(GET)
            peer.recv(10)
            peer.close()
        assert get(address, "/")[0] == 200
