from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bench.load.limits import LoadError
from bench.peers.udp import PlainUdp, TailraceUdp, ask
from bench.server import PeerServer, fresh_site
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.load.serving import serving


def test_both_are_sent_the_same_and_send_as_much() -> None:
    ours, bare = TailraceUdp(), PlainUdp(5)
    assert ours.datagram("a", b"hello") == bare.datagram("a", b"hello") == b"PUB a\nhello"
    assert ours.delivered_datagram_bytes("a", 5) == bare.delivered_datagram_bytes("a", 5) == len("MSG a\nhello")


@pytest.mark.system
def test_a_node_counts_its_messages_and_delivers_as_many_bytes_as_are_expected(tmp_path: Path) -> None:
    peer = TailraceUdp(interpreted=interpreted_wanted())
    with (
        fresh_site(tmp_path, peer.name) as site,
        PeerServer(peer, site),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        sock.connect(("127.0.0.1", site.port))
        sock.settimeout(60)
        assert peer.taken(site.port) == 0
        peer.subscribe(sock, "a")
        sock.send(peer.datagram("a", b"hello"))
        assert len(sock.recv(100)) == peer.delivered_datagram_bytes("a", 5)
        assert peer.taken(site.port) == 1
        with pytest.raises(LoadError, match="SUB of /#/x was answered"):
            peer.subscribe(sock, "/#/x")


@pytest.mark.parametrize(("answer", "reason"), [(b"", "had no whole answer"), (b"err full\r\n", "the answer is b'err")])
def test_an_answer_without_a_number_is_an_error(answer: bytes, reason: str) -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(100)
        sock.sendall(answer)

    with serving(behave) as port:
        with pytest.raises(LoadError, match=reason):
            PlainUdp(5).taken(port)
        if answer:
            assert ask(port, b"count") == b"err full"
