from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.consume import consume, consume_many
from bench.load.ingest import Stop, ingest
from bench.load.limits import Deadline, LoadError
from bench.peers.base import make_feed, make_payload
from bench.peers.tailrace_binary import TailraceBinary
from bench.server import Server, fresh_site
from tailrace.shard.leaves import interpreted_wanted

pytestmark = [pytest.mark.slow, pytest.mark.system]
NAME = "b.000000"


def test_one_consumer_and_many_take_what_is_there(tmp_path: Path) -> None:
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        feed = make_feed(peer, [NAME], make_payload(100), 0, 3_000)
        ingest(peer, server.target, [NAME], feed, Stop(messages=3_000), Deadline(20))
        assert consume(peer, server.target, NAME, 3_000, Deadline(20)).wall_s > 0
        with pytest.raises(LoadError):  # its name is taken, and it is not made anew
            consume(peer, server.target, NAME, 3_000, Deadline(0.5))
        done = consume_many(peer, server.target, NAME, 1_005, 20, 10, Deadline(30))
        assert done.messages == 20_100 and done.made_s > 0
