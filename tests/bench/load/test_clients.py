"""Publishers that use the brokers' own clients."""

from __future__ import annotations

import os
import sys

import pytest

from bench.load.base import Load, ServerProcess, Stop
from bench.load.clients import publish_by_client
from bench.load.limits import Deadline, LoadError
from bench.peers.base import Contestant
from bench.peers.redis import Redis
from bench.peers.tailrace_binary import TailraceBinary
from tests.client.model_server import running_model


@pytest.mark.parametrize("how", ["wait", "tasks", "silent"])
def test_all_that_is_counted_is_stored(how: str) -> None:
    with running_model() as server:
        load = load_on(TailraceBinary(acked=how != "silent"), server.port)
        pushed, cpu_s = publish_by_client(load, how, "s", Stop(seconds=0.02))
        assert server.payloads(b"s") == pushed.stored * [b"payload"]
    assert pushed.messages > 0
    assert cpu_s > 0


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(LoadError, match="redis"):
        publish_by_client(load_on(Redis(), 1), "wait", "s", Stop(seconds=0.02))


def load_on(peer: Contestant, port: int) -> Load:
    return Load(peer, ServerProcess(port, os.getpid()), b"payload", Deadline(60.0))
