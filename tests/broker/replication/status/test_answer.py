"""The answer to ASK: the replication status of all workers of a node, put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.broker.streams.owner import Refused
from tailrace.protocol import replication as r
from tailrace.protocol.errors import Code
from tests.broker.binary import BinaryPeer
from tests.broker.world import World, world


def told(node: World, ask: r.Ask) -> r.Told:
    answer = BinaryPeer(node, node_id="node-b").ask(ask)[-1]
    assert isinstance(answer, r.Told), answer
    return answer


def test_the_ends_of_streams_come_from_all_workers(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        names = [b"s%d" % number for number in range(6)]
        for name in names:
            node.fill(name.decode(), [b"x"] * 2)
        answer = told(node, r.Ask(7, None, (*names, b"nothing")))
        assert sorted(answer.ends) == [
            r.CopyEnd(name.decode(), "master", 1, 1, 2, answer.node) for name in sorted(names)
        ]
        assert (answer.id, answer.links, answer.masters) == (7, (), 0)


def test_of_one_stream_there_are_links_and_ends(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        node.fill("s", [b"x"] * 2)
        answer = told(node, r.Ask(1, b"s"))
        assert (answer.masters, answer.ends) == (1, (r.CopyEnd("s", "master", 1, 1, 2, answer.node),))
        assert told(node, r.Ask(1)).ends == ()


def test_a_worker_that_cannot_answer_makes_it_an_error(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        calls, status = node.workers[0].calls, node.workers[0].status
        found: list[r.Told | Refused] = []
        call_slot = calls.call_slot

        def refusing(slot: int, verb: str, args: list[Any], done: Callable[[Any], None], *rest: Any) -> None:
            if slot:
                done(Refused(Code.UNAVAILABLE, "down"))
            else:
                call_slot(slot, verb, args, done, *rest)

        calls.call_slot = refusing  # type: ignore[assignment, method-assign]
        status.gather(r.Ask(1), found.append)
        (outcome,) = found
        assert isinstance(outcome, Refused) and outcome.code is Code.UNAVAILABLE
