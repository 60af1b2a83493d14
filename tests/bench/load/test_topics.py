from __future__ import annotations

import pytest

from bench.load.base import Stop
from bench.load.limits import LoadError
from bench.load.topics import one_of_many
from bench.peers.plain import Plain
from bench.server import PeerServer
from tests.bench.load.conftest import load_on


def test_each_message_goes_to_one(silent_server: PeerServer, silent: Plain) -> None:
    done = one_of_many(load_on(silent_server, silent), 1, Stop(messages=50), "t")
    assert done.messages == done.deliveries >= 50


def test_messages_that_go_to_others_too_are_an_error(silent_server: PeerServer, silent: Plain) -> None:
    with pytest.raises(LoadError, match="no message for it"):
        one_of_many(load_on(silent_server, silent), 3, Stop(messages=10), "t")
