"""The engine of TLS: both sides in memory, buffers that many connections share."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator

import pytest

from tailrace.protocol.tls import READ_SLACK_BYTES, TLSBuffers, TLSEngine, TLSFailed, harden
from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("server")


class Ends:
    """A client and a server; all connections of a side share its buffers."""

    ours, theirs = TLSBuffers.make(), TLSBuffers.make()

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> None:
        self.server = TLSEngine(server, self.ours, server_side=True)
        self.client = TLSEngine(client, self.theirs, server_hostname=host)

    def steps(self, together: bytes = b"") -> Iterator[None]:
        """The steps of a handshake. `together`: what the client sends with its last step."""
        said, client_done, server_done = b"", False, False
        while not (client_done and server_done):
            client_done = client_done or self.client.handshake(said)
            if client_done and together:
                self.client.encrypt(together)
            said = self.client.take()
            yield
            if not server_done:
                server_done = self.server.handshake(said)
                said = self.server.take()
            yield

    def open(self, together: bytes = b"") -> Ends:
        for _ in self.steps(together):
            pass
        return self

    def deliver(self, data: bytes) -> bytes:
        """What the server gets of `data` of the client."""
        self.client.encrypt(data)
        room = bytearray(len(data) + 2 * READ_SLACK_BYTES)
        return bytes(room[: self.server.decrypt(self.client.take(), memoryview(room))])


def contexts(authority: Authority, server: Pair, shown: Pair | None = None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(ours)
    ours.load_cert_chain(server.certificate, server.key)
    ours.load_verify_locations(authority.certificate)
    ours.verify_mode = ssl.CERT_OPTIONAL
    theirs = authority.client_context(shown)
    harden(theirs)
    return ours, theirs


def test_bytes_go_both_ways(authority: Authority, server: Pair) -> None:
    ends = Ends(*contexts(authority, server)).open()
    assert ends.server.peer_certificate() is None
    for size in (1, 16_384, 16_385, 300_000):
        data = os.urandom(size)
        assert ends.deliver(data) == data
    assert ends.server.version == "TLSv1.3" and ends.server.is_server


def test_handshakes_of_many_connections_in_turns(authority: Authority, server: Pair) -> None:
    """They share their buffers, also while each is in the middle of its own."""
    both = contexts(authority, server)
    many = [Ends(*both) for _ in range(20)]
    rows = [ends.steps() for ends in many]
    while rows:
        rows = [row for row in rows if next(row, rows) is None]
    for number, ends in enumerate(many):
        assert ends.deliver(b"%d" % number) == b"%d" % number


def test_bytes_right_behind_the_handshake_are_kept(authority: Authority, server: Pair) -> None:
    ends = Ends(*contexts(authority, server)).open(together=b"early")
    assert ends.server.left
    room = bytearray(READ_SLACK_BYTES)
    assert ends.server.decrypt(b"", memoryview(room)) == 5 and room[:5] == b"early"
    assert ends.deliver(b"late") == b"late"


def test_the_end_is_told(authority: Authority, server: Pair) -> None:
    ends = Ends(*contexts(authority, server)).open()
    ends.client.encrypt(b"last")
    ends.client.end()
    room = bytearray(READ_SLACK_BYTES + 100)
    assert ends.server.decrypt(ends.client.take(), memoryview(room)) == 4
    assert ends.server.ended and not ends.client.ended


def test_a_broken_record_ends_it_and_leaves_nothing_to_others(authority: Authority, server: Pair) -> None:
    both = contexts(authority, server)
    broken, fine = Ends(*both).open(), Ends(*both).open()
    broken.client.encrypt(b"x" * 100)
    data = bytearray(broken.client.take())
    data[30] ^= 1
    with pytest.raises(TLSFailed, match="bad record mac"):
        broken.server.decrypt(bytes(data) + b"and what is behind it", memoryview(bytearray(2 * READ_SLACK_BYTES)))
    assert broken.server.take()  # the alert
    assert fine.deliver(b"fine") == b"fine"


def test_garbage_is_no_handshake(authority: Authority, server: Pair) -> None:
    ends = Ends(*contexts(authority, server))
    with pytest.raises(TLSFailed):
        ends.server.handshake(b"\x16\x03\x01\x00\x05hello, and more")
    assert ends.server.take()  # the alert; the buffers are to be empty for the others


def test_a_host_of_another_name_is_refused(authority: Authority, server: Pair) -> None:
    ends = Ends(*contexts(authority, server), host="elsewhere.example")
    with pytest.raises(TLSFailed, match="the certificate is refused: Hostname mismatch"):
        ends.open()
    assert ends.client.take()


def test_the_names_of_a_certificate(authority: Authority, server: Pair) -> None:
    others = "DNS:CN=ops,URI:CN=ops,email:CN=ops@b.example"
    names = f"DNS:a.example,URI:spiffe://x/y?z=1,email:a@b.example,{others}"
    shown = authority.issue("reader", names, "/O=Ex, Inc/CN=reader")
    ends = Ends(*contexts(authority, server, shown)).open()
    found = ends.server.peer_certificate()
    assert found is not None and found.subject == r"CN=reader,O=Ex\, Inc"
    assert found.names == ("a.example", "spiffe://x/y?z=1", "a@b.example"), "and none that looks like a subject"
