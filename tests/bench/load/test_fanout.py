from __future__ import annotations

import pytest

from bench.load.base import Stop
from bench.load.fanout import fan_out
from bench.load.limits import LoadError, LoadTimeout
from bench.peers.plain import Plain
from bench.server import PeerServer
from tests.bench.load.conftest import StuckAt, load_on

NAME = "b.000000"


def test_everything_reaches_everyone(silent_server: PeerServer, silent: Plain) -> None:
    done = fan_out(load_on(silent_server, silent), NAME, 12, Stop(messages=3_000))
    assert done.messages >= 3_000
    assert done.deliveries == done.messages * 12


class _Promising(Plain):
    """Claims that each message is delivered with one byte more, or less, than it is."""

    def __init__(self, error_bytes: int) -> None:
        super().__init__(100)
        self._error_bytes = error_bytes

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return super().delivered_bytes(name, messages, payload_bytes) + self._error_bytes * messages


def test_bytes_that_never_come_end_in_a_timeout(silent_server: PeerServer) -> None:
    with pytest.raises(LoadTimeout, match="bytes delivered"):
        fan_out(load_on(silent_server, _Promising(1), StuckAt("bytes delivered")), NAME, 3, Stop(messages=10))


def test_bytes_too_many_are_an_error(silent_server: PeerServer) -> None:
    with pytest.raises(LoadError, match="were due"):
        fan_out(load_on(silent_server, _Promising(-1)), NAME, 3, Stop(messages=10))
