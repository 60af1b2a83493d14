"""Handshakes in a worker: few in a turn, none for ever, and what stays with a connection under TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.users import User
from tailrace.broker.connection import handover, tls
from tailrace.broker.connection.deadlines import HANDSHAKE_TIMEOUT_S
from tailrace.broker.connection.line import LineClient
from tailrace.broker.connection.tls import TLSNewcomer
from tailrace.broker.connection.transport import TLSTransport
from tailrace.broker.delivery.frame_chunks import SENDFILE_MIN_BYTES
from tailrace.broker.process import drain
from tailrace.broker.process.settings import ClientCertificates
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.messages import VERSION, Chunk, Hello, Subscribe, pack
from tailrace.protocol.places import From
from tailrace.protocol.tls import RECORD_BYTES
from tailrace.protocol.tls_stream import HALF_RECORD_BYTES
from tests.broker.connection.tls_peer import TLSPeer
from tests.broker.world import Peer, World, world
from tests.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def node(authority: Authority, tmp_path: Path) -> Iterator[World]:
    pair = authority.issue("server")
    with world(
        tmp_path,
        tls_certificate=str(pair.certificate),
        tls_key=str(pair.key),
        tls_client_ca=str(authority.certificate),
        tls_client_certificates=ClientCertificates.OPTIONAL,
        tls_required=True,
    ) as found:
        yield found


class SecretPeer:
    """A client under TLS of a connection of a world."""

    def __init__(self, node: World, context: ssl.SSLContext, *, local: bool = False) -> None:
        self.node = node
        self.peer: Peer = node.connect(local=local)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.engine = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self) -> bool:
        """A step; whether it was the last."""
        try:
            self.engine.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        self.peer.send_raw(self.outgoing.read())
        self.node.settle()
        self._collect()
        return done

    def open(self) -> SecretPeer:
        while not self.shake():
            pass
        return self

    def ask(self, line: bytes) -> bytes:
        self.engine.write(line + b"\r\n")
        self.peer.send_raw(self.outgoing.read())
        self.node.settle()
        return self.read()

    def read(self) -> bytes:
        self._collect()
        try:
            return self.engine.read(1 << 16)
        except ssl.SSLWantReadError:
            return b""

    def _collect(self) -> None:
        self.peer.read()
        self.incoming.write(bytes(self.peer.received))
        self.peer.received.clear()


def test_lines_inside_tls(node: World, authority: Authority) -> None:
    client = SecretPeer(node, authority.client_context()).open()
    assert client.ask(b"ping") == b"ok pong\r\n"
    assert node.workers[0].metrics.tls_handshakes == 1
    assert node.connection_of(client.peer).encrypted


def test_plain_connections_of_other_machines_are_refused_if_tls_is_required(node: World) -> None:
    far, near = node.connect(local=False), node.connect(local=True)
    for peer in (far, near):
        peer.send("ping")
    node.settle()
    assert far.lines == ["err denied this node takes connections from other machines over TLS only"]
    assert near.lines == ["ok pong"]


def test_the_names_of_a_verified_certificate_stay_with_the_connection(node: World, authority: Authority) -> None:
    shown = authority.issue("reader", "DNS:reader.example", "/O=Ex/CN=reader")
    client = SecretPeer(node, authority.client_context(shown)).open()
    found = node.connection_of(client.peer)
    assert isinstance(found.layer, TLSTransport)
    assert found.layer.certificate == ("CN=reader,O=Ex", ("reader.example",))
    assert SecretPeer(node, authority.client_context()).open().ask(b"ping") == b"ok pong\r\n"


def test_a_certificate_logs_its_user_in(authority: Authority, tmp_path: Path) -> None:
    pair, users = authority.issue("server"), (User("web", certificates=("CN=web", "other.example")),)
    with world(
        tmp_path,
        users=users,
        tls_client_ca=str(authority.certificate),
        tls_client_certificates=ClientCertificates.OPTIONAL,
        tls_certificate=str(pair.certificate),
        tls_key=str(pair.key),
    ) as node:
        for name, user in (("web", "web"), ("stranger", "")):
            client = SecretPeer(node, authority.client_context(authority.issue(name))).open()
            identity = node.connection_of(client.peer).identity
            assert identity.user == user and (identity.proof is Proof.CERTIFICATE) is bool(user)


def test_a_turn_does_few_steps_of_handshakes(
    node: World, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait, and are not read meanwhile; nobody is forgotten."""
    monkeypatch.setattr(tls, "HANDSHAKES_TURN_S", 0.0)
    worker, context = node.workers[0], authority.client_context()
    clients = [SecretPeer(node, context) for _ in range(6)]
    for client in clients:
        with pytest.raises(ssl.SSLWantReadError):
            client.engine.do_handshake()
        client.peer.send_raw(client.outgoing.read())
    before = [len(worker.handshakes.steps)]
    for _ in range(8):
        worker.turn()
        before.append(len(worker.handshakes.steps))
    assert max(before) == 5 and all(left - right <= 1 for left, right in pairwise(before))
    for client in clients:
        client._collect()
        assert client.open().ask(b"ping") == b"ok pong\r\n"


def test_a_handshake_that_is_not_done_in_time_is_ended(
    node: World, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    client = SecretPeer(node, authority.client_context())
    client.shake()
    newcomer = node.connection_of(client.peer)
    assert isinstance(newcomer, TLSNewcomer)
    services = node.workers[0].services
    services.deadlines.tick(services.now_s + HANDSHAKE_TIMEOUT_S - 1.0)
    closed = [newcomer.closed]
    services.deadlines.tick(services.now_s + HANDSHAKE_TIMEOUT_S + 1.0)
    assert [*closed, newcomer.closed] == [False, True] and not services.deadlines.handshake.peers
    assert "it is not done after 10 s" in caplog.text


def test_failures_are_counted_and_logged_once_a_second(node: World, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        peer = node.connect()
        peer.send_raw(b"\x16\x03\x01\x00\x05hello" + bytes(100))
        node.settle()
        peer.read()
        assert peer.received[:1] == b"\x15"  # an alert
    assert node.workers[0].metrics.tls_failures == 5 and caplog.text.count("TLS handshake with") == 1


def test_it_is_not_handed_over_and_ends_with_its_worker(node: World, authority: Authority) -> None:
    client = SecretPeer(node, authority.client_context()).open()
    assert client.ask(b"ack on\r\npub a |x").count(b"ok") == 2
    found = node.connection_of(client.peer)
    assert isinstance(found, LineClient) and not handover.possible(found)
    drain._end_when_answered(found, read_on=True)
    node.settle()
    assert client.read().startswith(b"err closing this worker is being replaced")


def test_half_a_record_is_an_unfinished_request(node: World, authority: Authority) -> None:
    """It counts for `max_partial_bytes`, and must be finished in time."""
    client, services = SecretPeer(node, authority.client_context()).open(), node.workers[0].services
    assert client.ask(b"ping") == b"ok pong\r\n"
    found = node.client_of(client.peer)
    client.engine.write(b"ping\r\n")
    record = client.outgoing.read()
    client.peer.send_raw(record[:-1])
    node.settle()
    held = [services.partial_bytes]
    assert found in services.deadlines.request.peers
    client.peer.send_raw(record[-1:])
    node.settle()
    held.append(services.partial_bytes)
    assert client.read() == b"ok pong\r\n" and held == [HALF_RECORD_BYTES, 0]
    assert found not in services.deadlines.request.peers
    client.ask(b"pub a |x")
    client.engine.write(b"pub a |half a line")
    client.engine.write(b" and its end\r\n")
    client.peer.send_raw(client.outgoing.read()[:-9])
    node.settle()
    assert services.partial_bytes == HALF_RECORD_BYTES + found.pending_bytes > HALF_RECORD_BYTES


def test_half_records_give_way_when_there_are_too_many(authority: Authority, tmp_path: Path) -> None:
    pair, most = authority.issue("server"), 4
    with world(
        tmp_path,
        tls_certificate=str(pair.certificate),
        tls_key=str(pair.key),
        max_partial_bytes=most * HALF_RECORD_BYTES,
    ) as node:
        clients = [SecretPeer(node, authority.client_context()).open() for _ in range(most + 1)]
        for client in clients:
            assert client.ask(b"ping") == b"ok pong\r\n"
            client.engine.write(b"ping\r\n")
            client.peer.send_raw(client.outgoing.read()[:9])
            node.settle()
        said = [client.read() for client in clients]
        assert said[0].startswith(b"err overloaded too many unfinished requests") and said[-1] == b""
        assert node.workers[0].services.partial_bytes <= most * HALF_RECORD_BYTES


def test_what_was_encrypted_and_not_sent_is_counted(node: World, authority: Authority) -> None:
    """And the connection waits for room."""
    client = SecretPeer(node, authority.client_context())
    found = node.connection_of(client.peer)
    assert isinstance(found.sock, socket.socket)
    found.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    client.open()
    for _ in range(10):
        client.ask(b"pub big |" + b"x" * 30_000)
    client.peer.deaf = True
    client.ask(b"sub big 0")
    client.peer.send_raw(client.outgoing.read())
    node.settle()
    held = node.connection_of(client.peer)
    assert held.blocked and 0 < held.unsent_bytes < 100_000 and node.workers[0].services.unsent_bytes <= 100_000
    client.peer.deaf = False
    said = b""
    while said.count(b"|") < 10:
        node.settle()
        said += client.read()
    assert not held.blocked


def test_unfinished_handshakes_and_first_records_give_way_too(authority: Authority, tmp_path: Path) -> None:
    """OpenSSL holds a message of the handshake until its end, which the peer may never send."""
    pair, part_bytes = authority.issue("server"), 16_000
    with world(
        tmp_path,
        tls_certificate=str(pair.certificate),
        tls_key=str(pair.key),
        max_partial_bytes=4 * HALF_RECORD_BYTES,
    ) as node:
        services = node.workers[0].services
        client = SecretPeer(node, authority.client_context()).open()
        client.engine.write(b"ping\r\n")
        record = client.outgoing.read()
        client.peer.send_raw(record[:-1])
        node.settle()
        assert services.partial_bytes == HALF_RECORD_BYTES
        hello = b"\x01\x01\xff\x00" + bytes(part_bytes - 4)
        silent = [node.connect(local=False) for _ in range(4)]
        for peer in silent:
            peer.send_raw(b"\x16\x03\x01" + part_bytes.to_bytes(2) + hello)
            node.settle()
        assert silent[0].ended and not silent[-1].ended
        assert services.partial_bytes <= 4 * HALF_RECORD_BYTES
        for peer in silent:
            peer.close()
        client.peer.send_raw(record[-1:])
        node.settle()
        assert client.read() == b"ok pong\r\n" and services.partial_bytes == 0


def test_a_chunk_from_the_file_goes_out_in_full_records_with_its_head(node: World, authority: Authority) -> None:
    """A record for a head of 13 bytes, or a send of the last few bytes, costs as much as one of thousands."""
    for _ in range(4):
        node.fill("big", [b"x" * 9_000] * 10)
    peer = TLSPeer.of(node, authority.client_context())
    peer.send_raw(pack(Hello(VERSION, (), "test")))
    node.settle()
    sealed = node.binary_client_of(peer).layer
    assert isinstance(sealed, TLSTransport)
    sizes, encrypt = list[int](), sealed._encrypt
    sealed._encrypt = lambda data: (sizes.append(len(data)), encrypt(data))[1]  # type: ignore[func-returns-value]
    peer.received.clear()
    peer.send_raw(pack(Subscribe(7, b"big", From("seq", 0))))
    node.settle()
    answers = [each for each in ClientCodec().feed(bytes(peer.received)) if isinstance(each, Chunk)]
    frames = b"".join(bytes(each.frames) for each in answers)
    assert frames.count(b"x" * 9_000) == 40 and len(frames) > SENDFILE_MIN_BYTES
    assert all(size % RECORD_BYTES == 0 for size in sizes[1:-1]) and min(sizes[1:]) > RECORD_BYTES
