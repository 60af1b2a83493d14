from __future__ import annotations

import signal
import socket
from itertools import islice
from pathlib import Path

import pytest

from bench.load.limits import Deadline, LoadError
from bench.load.noise import (
    Noise,
    SharedNumber,
    claim,
    come_and_go,
    fill_streams,
    flooding,
    follow,
    make_streams,
    replaying,
)
from bench.peers.plain import BareSendfile
from bench.server import PeerServer, fresh_site
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tests.bench.load.conftest import PATIENCE_S, load_on
from tests.protocol.plain_codec import PlainCodec

FILE_BYTES = 3_000_000


def test_it_goes_on_and_on(tmp_path: Path) -> None:
    peer = BareSendfile(FILE_BYTES)
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        load = load_on(server, peer)
        with replaying(load, "b.000000", 10) as noise:
            assert noise.nbytes > 0
            while noise.nbytes < 5 * FILE_BYTES:
                load.deadline.check("waiting for noise")
            assert noise.per_s() > 0
        with pytest.raises(LoadError, match="has ended"):
            _ = noise.nbytes


def test_bytes_from_before_it_is_measured_are_not_in_its_rate() -> None:
    def body(sent: SharedNumber) -> None:
        sent.value = 1_000_000
        signal.pause()

    with Noise(Deadline(PATIENCE_S), body) as noise:
        assert noise.nbytes == 1_000_000
        assert noise.per_s() == 0


def test_a_server_that_is_gone_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    peer = BareSendfile(FILE_BYTES)
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        load = load_on(server, peer)
        with replaying(load, "b.000000", 10) as noise:
            server.stop()
            with pytest.raises(LoadError, match="has ended"):
                while noise.nbytes:
                    load.deadline.check("waiting for its end")
    assert "bench.load.limits." in capfd.readouterr().err


def test_every_line_of_the_makers_is_for_another_stream() -> None:
    lines = b"".join(islice(make_streams(0), 3)).split(b"\r\n")[:-1]
    assert len(set(lines)) == len(lines) == 3 * 256 and all(line.startswith(b"pub made") for line in lines)


def test_the_streams_that_there_are_come_again() -> None:
    assert fill_streams(2) == b"pub there0 |x\r\npub there1 |x\r\n"
    lines = next(come_and_go(2)).split(b"\r\n")
    assert lines[:6] == [b"sub there0 0", b"unsub there0", b"sub there1 0", b"unsub there1", *lines[:2]]


def test_nodes_say_what_nodes_say() -> None:
    codec = PlainCodec(1 << 20, 1 << 20)
    codec.features = frozenset({r.FEATURE})
    hello, first, second = islice(claim(0), 3)
    assert [type(message) for message in codec.feed(hello, len(hello))] == [m.Hello]
    claims = [message for message in codec.feed(first + second, len(first + second)) if isinstance(message, r.Claim)]
    assert [message.history[-1].epoch for message in claims] == list(range(2, 2 + 512))
    _hello, follows, unsubscribes = islice(follow(2), 3)
    both = follows + unsubscribes
    kinds = [type(message) for message in codec.feed(both, len(both))]
    assert kinds == [r.Follow, m.Unsubscribe] * 2


def test_a_flood_sends_until_it_is_left_and_reads_what_it_is_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with flooding(server.getsockname()[1], make_streams, 0, Deadline(PATIENCE_S)) as flood:
            sock, _ = server.accept()
            with sock:
                sock.sendall(b"x" * 100)
                assert sock.recv(3) == b"pub" and flood.nbytes
        assert not flood._process.is_alive()


def test_a_flood_that_has_ended_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        flood = flooding(server.getsockname()[1], make_streams, 0, Deadline(PATIENCE_S))
        with flood:
            server.accept()[0].close()
            flood._process.join(PATIENCE_S)
            with pytest.raises(LoadError, match="ended"):
                _ = flood.nbytes
