"""The generator against processes that do the least: it counts right, and comes to an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load.fanout import fan_out
from bench.load.ingest import Stop, ingest
from bench.load.latency import latency
from bench.load.limits import Deadline
from bench.load.replay import replay
from bench.load.turns import turns
from bench.peers.base import make_feed, make_payload
from bench.peers.plain import BareSendfile, Plain
from bench.server import Server, fresh_site

NAME = "b.000000"
PAYLOAD = make_payload(100)
TIMEOUT_S = 20.0


@pytest.fixture(params=[False, True], ids=["silent", "acks"])
def acked(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def server(tmp_path: Path, acked: bool) -> Iterator[Server]:
    peer = Plain(100, acked=acked)
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        yield server


def test_ingest_sends_what_was_asked_for(server: Server, acked: bool) -> None:
    peer = Plain(100, acked=acked)
    feed = make_feed(peer, [NAME], PAYLOAD, 100_000)
    pushed = ingest(peer, server.target, [NAME], feed, Stop(messages=5_000), Deadline(TIMEOUT_S))
    assert pushed.messages == -(-5_000 // feed.messages) * feed.messages
    assert pushed.spent.wall_s > 0


def test_ingest_with_a_window(server: Server, acked: bool) -> None:
    peer = Plain(100, acked=acked)
    peer.window_messages = 100 if acked else 0
    feed = make_feed(peer, [NAME], PAYLOAD, 0, 25)
    warm = make_feed(peer, [NAME], PAYLOAD, 0)
    pushed = ingest(peer, server.target, [NAME], feed, Stop(messages=2_000), Deadline(TIMEOUT_S), warm)
    assert (pushed.messages, pushed.stored) == (2_000, 2_001)


def test_turns_go_round_whole(server: Server, acked: bool) -> None:
    peer = Plain(100, acked=acked)
    pushed = turns(peer, server.target, [NAME], PAYLOAD, 20, Stop(messages=1_010), Deadline(TIMEOUT_S))
    assert pushed.messages == 1_020


@pytest.mark.parametrize("acked", [False], indirect=True)
def test_fan_out_delivers_everything_to_everyone(server: Server) -> None:
    done = fan_out(Plain(100), server.target, NAME, PAYLOAD, 12, Stop(messages=3_000), Deadline(TIMEOUT_S))
    assert done.messages >= 3_000
    assert done.deliveries == done.messages * 12


@pytest.mark.parametrize("acked", [False], indirect=True)
def test_latency_times_every_message(server: Server) -> None:
    timed = latency(Plain(100), server.target, NAME, PAYLOAD, 2_000, 400, Deadline(TIMEOUT_S))
    assert len(timed.latencies_ns) == 400
    assert all(0 < latency_ns < TIMEOUT_S * 1e9 for latency_ns in timed.latencies_ns)
    assert timed.spent.wall_s == pytest.approx(0.2, abs=0.15)


def test_latency_refuses_a_payload_without_room_for_the_stamp(tmp_path: Path) -> None:
    with (
        fresh_site(tmp_path, "plain") as site,
        Server(Plain(10), site) as server,
        pytest.raises(ValueError, match="no room for a stamp"),
    ):
        latency(Plain(10), server.target, NAME, make_payload(10), 1_000, 1, Deadline(TIMEOUT_S))


@pytest.mark.parametrize("readers", [1, 3])
def test_bare_sendfile_sends_the_whole_file_to_each(tmp_path: Path, readers: int) -> None:
    size = 3_000_001
    peer = BareSendfile(size)
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        done = replay(peer, server.target, NAME, 10, 100, readers, Deadline(TIMEOUT_S))
    assert done.wire_bytes == size * readers
    assert done.messages == 10 * readers
