from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.limits import Deadline, LoadError, LoadTimeout
from bench.load.replay import Replayed, replay
from bench.peers.plain import BareSendfile
from bench.server import Server, fresh_site


class _Promising(BareSendfile):
    """Says that other than what its file holds comes."""

    def __init__(self, file_bytes: int, promised_bytes: int) -> None:
        super().__init__(file_bytes)
        self._promised_bytes = promised_bytes

    def replay_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return self._promised_bytes


def _replay(tmp_path: Path, peer: BareSendfile, readers: int, timeout_s: float) -> Replayed:
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        return replay(peer, server.target, "b.000000", 10, 100, readers, Deadline(timeout_s))


@pytest.mark.parametrize("readers", [1, 3])
def test_every_reader_gets_every_byte(tmp_path: Path, readers: int) -> None:
    size = 5_000_001
    done = _replay(tmp_path, BareSendfile(size), readers, 20)
    assert (done.wire_bytes, done.messages) == (size * readers, 10 * readers)


def test_a_byte_too_many_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="999 were due"):
        _replay(tmp_path, _Promising(1_000, 999), 1, 20)


def test_bytes_that_never_come_are_an_error(tmp_path: Path) -> None:
    with pytest.raises((LoadTimeout, LoadError)):
        _replay(tmp_path, _Promising(1_000, 1_001), 1, 0.5)
