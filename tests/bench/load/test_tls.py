"""The generator's TLS sockets, against one of the standard library."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load import tls
from bench.load.limits import LoadError, PeerClosed
from bench.load.receiving import make_counter
from bench.peers.secure import TailraceTLSUndecrypted
from tests.certificates import Authority

PATIENCE_S = 60.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[socket.socket, ssl.SSLSocket]]:
    """The generator's end, which does not block, and the server's."""
    made = Authority(tmp_path).issue("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.certificate, made.key)
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.settimeout(PATIENCE_S)
    found: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: found.append(server.wrap_socket(theirs, server_side=True)))
    thread.start()
    near = tls.secured(ours, tls.client_context())
    thread.join(PATIENCE_S)
    near.setblocking(False)
    with near, found[0] as far:
        yield near, far


def test_many_records_are_thrown_away_at_once(pair: tuple[socket.socket, ssl.SSLSocket]) -> None:
    near, far = pair
    assert far.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)
    with pytest.raises(BlockingIOError):
        near.recv(1)
    for letter in (b"a", b"b", b"c"):
        far.sendall(letter * 10_000)
    room = bytearray(100_000)
    assert near.recv_into(room, 25_000, socket.MSG_TRUNC) == 25_000
    assert near.recv_into(room, 25_000, socket.MSG_TRUNC) == 5_000
    far.sendall(b"d" * 10_000)
    assert near.recv(1) == b"d" * 10_000, "nothing stays where epoll does not see it"
    with pytest.raises(BlockingIOError):
        near.recv_into(room, 10)


def test_a_replay_is_counted_without_decrypting_it(pair: tuple[socket.socket, ssl.SSLSocket]) -> None:
    near, far = pair
    due_bytes = 3 * tls.RECORD_BYTES - 7
    counter = make_counter(TailraceTLSUndecrypted(), 100, near, due_bytes)
    assert counter.take() == 0
    far.sendall(bytes(2 * tls.RECORD_BYTES))
    assert counter.take() == 2 * tls.RECORD_BYTES
    far.sendall(bytes(2 * tls.RECORD_BYTES))
    assert counter.take() == due_bytes - 2 * tls.RECORD_BYTES, "not beyond the bytes that are due"
    far.close()
    with pytest.raises(PeerClosed):
        counter.take()
        counter.take()


def test_a_send_that_does_not_fit_goes_on(pair: tuple[socket.socket, ssl.SSLSocket]) -> None:
    near, far = pair
    data = bytes(range(256)) * 20_000
    with pytest.raises(BlockingIOError):
        near.send(data)
    found = bytearray()
    sent = 0
    while not sent:
        found += far.recv(1 << 20)
        try:
            sent = near.send(data)
        except BlockingIOError:
            pass
    while len(found) < len(data):
        found += far.recv(1 << 20)
    assert sent == len(data) and found == data


def test_a_socket_without_tls_is_not_changed() -> None:
    with socket.socket() as sock:
        assert tls.secured(sock, None) is sock


def test_the_cipher_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_SPEED_S", 1)
    assert 1e6 < tls.cipher_bytes_per_s() < 1e12
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LoadError, match="openssl speed"):
        tls.cipher_bytes_per_s()
