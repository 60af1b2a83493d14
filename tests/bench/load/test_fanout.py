from __future__ import annotations

import pytest

from bench.load.fanout import fan_out
from bench.load.ingest import Stop
from bench.load.limits import Deadline, LoadError, LoadTimeout
from bench.peers.base import make_payload
from bench.peers.plain import Plain
from bench.server import Server

NAME, PAYLOAD = "b.000000", make_payload(100)


def test_everything_reaches_everyone(silent_server: Server, silent: Plain) -> None:
    done = fan_out(silent, silent_server.target, NAME, PAYLOAD, 12, Stop(messages=3_000), Deadline(20))
    assert done.messages >= 3_000
    assert done.deliveries == done.messages * 12


class _Promising(Plain):
    """Says that each message is delivered with one byte more, or less, than it is."""

    def __init__(self, error_bytes: int) -> None:
        super().__init__(100)
        self._error_bytes = error_bytes

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return super().delivered_bytes(name, messages, payload_bytes) + self._error_bytes * messages


def test_bytes_that_never_come_end_in_a_timeout(silent_server: Server) -> None:
    with pytest.raises(LoadTimeout, match="bytes delivered"):
        fan_out(_Promising(1), silent_server.target, NAME, PAYLOAD, 3, Stop(messages=10), Deadline(0.5))


def test_bytes_too_many_are_an_error(silent_server: Server) -> None:
    with pytest.raises(LoadError, match="were due"):
        fan_out(_Promising(-1), silent_server.target, NAME, PAYLOAD, 3, Stop(messages=10), Deadline(20))
