"""The server of the metrics process: its answers and its bounds."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http import HTTPStatus

import pytest

from tailrace.supervisor import http_server
from tailrace.supervisor.http_exchange import HttpPage, text_page
from tailrace.supervisor.http_server import Pages
from tailrace.supervisor.listeners import open_metrics_listener
from tests.supervisor.http_peer import DEADLINE_S, GET, Address, ask, get, read_answer
from tests.system.node import wait_for


def serving(pages: Pages, slow_pages: Pages | None = None) -> AbstractContextManager[Address]:
    return running(http_server.HttpServer(pages, slow_pages or {}))


@contextmanager
def running(server: http_server.HttpServer) -> Iterator[Address]:
    listener = open_metrics_listener("127.0.0.1", 0)
    address: Address = listener.getsockname()[:2]
    stop_read, stop_write = socket.socketpair()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(listener, stop_read.fileno())))
    thread.start()
    try:
        yield address
    finally:
        stop_write.close()
        thread.join(DEADLINE_S)
        stop_read.close()
        assert not thread.is_alive()


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is closed for its time."""
    monkeypatch.setattr(http_server, "CONNECTION_TIMEOUT_S", 1_000.0)


def page(text: str) -> Callable[[], HttpPage]:
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


@pytest.mark.parametrize("request_", [b"GET / HT", GET], ids=["half a request", "reads nothing"])
def test_a_slow_peer_is_dropped_at_its_deadline(request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_TIMEOUT_S", 0.2)
    server = http_server.HttpServer({"/": page("x" * 8_000_000)}, {})
    with running(server) as address, slow_reader(address, request_) as slow:
        wait_for(lambda: server._hosts, "it is connected", DEADLINE_S)
        wait_for(lambda: not server._hosts, "it is dropped", DEADLINE_S)
        assert len(read_answer(slow)[1]) < 8_000_000


def slow_reader(address: Address, request: bytes) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.settimeout(DEADLINE_S)
    peer.connect(address)
    peer.sendall(request)
    return peer


@pytest.mark.parametrize(
    "request_", [b"", b"GET / HTTP/1.1\r\nHost", GET], ids=["idle", "half a request", "reads nothing"]
)
@pytest.mark.usefixtures("for_ever")
def test_connections_that_idle_or_read_nothing_delay_nobody(
    request_: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 16)
    large = page("x" * 3_000_000)
    with ExitStack() as peers, serving({"/": large, "/healthz": page("alive")}, {"/metrics": page("1")}) as address:
        for number in range(40):
            peers.enter_context(slow_reader(address, request_))
            if number % 10 == 0:
                assert get(address, "/healthz") == (200, "alive\n")
        assert get(address, "/healthz") == (200, "alive\n")
        assert get(address, "/metrics") == (200, "1\n")
    assert not caplog.records, "strangers must not fill the log, nor those that stay at the end"


@pytest.mark.usefixtures("for_ever")
def test_the_address_with_the_most_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 4)
    with serving({"/": page("index")}) as address, ExitStack() as peers:

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

    def __call__(self) -> HttpPage:
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


def test_pages_that_nobody_waits_for_any_more_are_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may hang for hours, with a scrape every few seconds."""
    monkeypatch.setattr(http_server, "CONNECTION_TIMEOUT_S", 0.05)
    gate = Gate()
    server = http_server.HttpServer({"/": page("index")}, {"/metrics": gate})
    with running(server) as address:
        for _ in range(4):
            assert ask(address, GET.replace(b"/ ", b"/metrics ")) == (b"", b"")
        assert not server._hosts
        for _ in range(2):
            gate.opened.release()
        wait_for(lambda: gate.made == 2, "the page that was being made, and the next one", DEADLINE_S)
        monkeypatch.setattr(http_server, "CONNECTION_TIMEOUT_S", DEADLINE_S)
        gate.opened.release()
        assert get(address, "/metrics") == (200, "page 3\n")


def test_an_answer_that_is_read_slowly_arrives_whole() -> None:
    with serving({"/": page("x" * 3_000_000)}) as address, slow_reader(address, GET) as peer:
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


def test_addresses_of_this_machine_alone() -> None:
    local = ("127.0.0.2", "::1", "::ffff:127.0.0.1")
    assert all(map(http_server.is_loopback, local))
    assert not any(map(http_server.is_loopback, ("10.0.0.1", "::", "fe80::1%eth0", "::ffff:10.0.0.1")))


def test_a_page_that_fails_is_an_error_and_the_next_works(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> HttpPage:
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
