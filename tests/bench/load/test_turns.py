from __future__ import annotations

from bench.load.ingest import Stop
from bench.load.limits import Deadline
from bench.load.turns import turns
from bench.peers.base import make_payload, stream_names
from bench.peers.plain import Plain
from bench.server import Server


def test_turns_go_round_whole_and_the_first_is_not_timed(plain_server: Server, plain: Plain) -> None:
    stop, payload = Stop(messages=1_010), make_payload(100)
    pushed = turns(plain, plain_server.target, stream_names(4), payload, 20, stop, Deadline(20))
    assert (pushed.messages, pushed.stored) == (1_020, 1_040)


def test_one_turn_is_the_least(plain_server: Server, plain: Plain) -> None:
    pushed = turns(plain, plain_server.target, stream_names(1), make_payload(100), 5, Stop(messages=1), Deadline(20))
    assert pushed.messages == 5
