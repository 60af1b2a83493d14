from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.base import Load, Stop
from bench.load.limits import Deadline, LoadError, LoadTimeout
from bench.load.publishing import ingest
from bench.load.reading import Replayed, consume, consume_many, replay
from bench.peers.base import make_feed, make_payload
from bench.peers.plain import BareSendfile
from bench.peers.tailrace_binary import TailraceBinary
from bench.server import PeerServer, fresh_site
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.load.conftest import PATIENCE_S, StuckAt, load_on


class _Promising(BareSendfile):
    """Promises another number of bytes than its file holds."""

    def __init__(self, file_bytes: int, promised_bytes: int) -> None:
        super().__init__(file_bytes)
        self._promised_bytes = promised_bytes

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return self._promised_bytes


def _replay(tmp_path: Path, peer: BareSendfile, readers: int, deadline: Deadline | None = None) -> Replayed:
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        load = Load(peer, server.target, bytes(100), deadline or Deadline(PATIENCE_S))
        return replay(load, "b.000000", 10, readers)


@pytest.mark.parametrize("readers", [1, 3])
def test_every_reader_gets_every_byte(tmp_path: Path, readers: int) -> None:
    size = 5_000_001
    done = _replay(tmp_path, BareSendfile(size), readers)
    assert (done.wire_bytes, done.messages) == (size * readers, 10 * readers)


def test_a_byte_too_many_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="999 were due"):
        _replay(tmp_path, _Promising(1_000, 999), 1)


def test_bytes_that_never_come_are_an_error(tmp_path: Path) -> None:
    with pytest.raises((LoadTimeout, LoadError)):
        _replay(tmp_path, _Promising(1_000, 1_001), 1, StuckAt("readers wait"))


NAME = "b.000000"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
def test_one_consumer_and_many_take_what_is_there(tmp_path: Path) -> None:
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        feed = make_feed(peer, [NAME], make_payload(100), 0, 3_000)

        ingest(load_on(server, peer), [NAME], feed, Stop(messages=3_000))
        assert consume(load_on(server, peer), NAME, 3_000).wall_s > 0
        with pytest.raises(LoadError):  # its name is taken, and it is not made anew
            consume(load_on(server, peer, StuckAt("connections wait")), NAME, 3_000)
        done = consume_many(load_on(server, peer), NAME, 1_005, 20, 10)
        assert done.messages == 20_100 and done.made_s > 0
