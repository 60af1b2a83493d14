"""How replication stands: the workers' links put together, and the report of each worker on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.identity import Identity, Proof
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.status import links
from tailrace.broker.replication.upstream.fetchers import ReplicaFetcher
from tailrace.protocol import replication as r
from tailrace.protocol.replication import LINKS_MAX, NodeLink
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.connection.doors import VERIFIER
from tests.broker.world import World, world


def row(node: str, state: str = "up", streams: int = 1, *lag: int, direction: r.Direction = "down") -> list[object]:
    return list(NodeLink(direction, node, f"{node}:5050", state, streams, *(lag or (0, 0, 0))))


def links_of(node: World, name: bytes | None) -> list[Any]:
    worker = node.workers[0]
    return links.of_worker(worker.owner, worker.uplinks, worker.followers.nodes, worker.services, name)


def test_the_links_of_all_workers_are_one_to_a_node() -> None:
    parts = [
        [[row("b", "up", 2, 5, 50, 900), row("b", direction="up")], 1, 2, 0, 2],
        [[row("b", "down: refused", 1, 1, 10, 2_000), row("c")], 3, 0, 1, 1],
    ]
    found, counts = links.together(parts)
    assert counts == [4, 2, 1, 3]
    assert found == [
        NodeLink("down", "b", "b:5050", "down: refused", 3, 6, 60, 2_000),
        NodeLink("up", "b", "b:5050", "up", 1, 0, 0, 0),
        NodeLink("down", "c", "c:5050", "up", 1, 0, 0, 0),
    ]


def test_links_are_bounded() -> None:
    found, _counts = links.together([[[row(f"n{number}") for number in range(LINKS_MAX + 1)], 0, 0, 0, 0]])
    assert len(found) == LINKS_MAX


def test_a_node_that_cannot_be_reached_is_a_link_too(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        assert node.ask(node.connect(), "slave 127.0.0.1 1 s 0")[0].startswith("ok slave")
        (links_found, *counts) = links_of(node, None)
        ((direction, _node, address, state, streams, *_lag),) = links_found
        assert (direction, address, streams, counts) == ("up", "127.0.0.1:1", 1, [0, 1, 0, 0])
        assert state != "up"
        assert links_of(node, b"s")[0] == links_found
        assert links_of(node, b"other") == [[], 0, 0, 0, 0]


def test_the_brokers_own_streams_are_not_counted(tmp_path: Path) -> None:
    """They go with the others, as an operator knows, and are looked at by name."""
    with world(tmp_path) as node:
        node.ask(node.connect(), "slave 127.0.0.1 1 s 0")
        for name in (b"$cursor/s", b"s/$dead", b"$cursor/other"):
            node.workers[0].owner.create(name)
        ((_direction, _node, _address, _state, streams, *_lag),), *counts = links_of(node, None)
        assert (streams, counts) == (2, [1, 2, 0, 0])
        assert links_of(node, b"$cursor/s")[1:] == [0, 1, 0, 0]


def test_what_is_claimed_elsewhere_and_what_has_turned_is_told(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer, owner = node.connect(), node.workers[0].owner
        node.ask(peer, "slave 127.0.0.1 1 s 0")
        stream_roles.promote(owner, [b"s"])
        node.fill("t", [b"a"])
        stream_roles.claimed(owner, [b"t", [[1, 0, ""], [2, 1, "n2"]], "127.0.0.1", 2])
        node.settle()
        rows, *counts = links_of(node, None)
        assert counts == [1, 1, 0, 1], "a stream that is made now would not follow where t does"
        assert next((address, state.partition(":")[0], streams) for _, _, address, state, streams, *_ in rows) == (
            "127.0.0.1:1", "claims 1", 0,
        )  # fmt: skip
        assert links_of(node, b"s")[0][0][3].startswith("claims 1")
        node.ask(peer, "slave 127.0.0.1 2 * 0")
        assert links_of(node, b"t")[4] == 0


@pytest.mark.parametrize("right", [Right.NODE, Right.ADMIN])
def test_upward_links_show_somebody_only_streams_that_he_has_a_right_to(tmp_path: Path, right: Right) -> None:
    part = User("part", scram=VERIFIER)
    with world(tmp_path, users=(part,), rules=(AccessRule(True, ("part",), frozenset({right}), ("a*",)),)) as node:
        worker, owner = node.workers[0], node.workers[0].owner
        asker = Identity("part", proof=Proof.SCRAM, credential=part.credentials(Proof.SCRAM)[0]).export_state()
        for name, port in ((b"a1", 1), (b"b1", 1), (b"b2", 2)):
            stream_roles.slave(owner, [name, "127.0.0.1", port, "seq", 0])
        for name in (b"a3", b"b3", b"b4"):
            stream_roles.slave(owner, [name, "127.0.0.1", 4 if name == b"b4" else 3, "seq", 0])
            stream_roles.promote(owner, [name])
        node.settle()

        def seen(*asker: Any) -> dict[str, tuple[int, str]]:
            """The number of streams that come from each node, and the state of a link that only claims some."""
            rows, *_counts = links.of_worker(owner, worker.uplinks, (), worker.services, None, asker)
            return {row[2]: (row[4], row[3].split(":")[0] if "claims" in row[3] else "") for row in rows}

        assert seen() == {
            "127.0.0.1:1": (2, ""),
            "127.0.0.1:2": (1, ""),
            "127.0.0.1:3": (0, "claims 2"),
            "127.0.0.1:4": (0, "claims 1"),
        }
        assert seen(*asker) == {"127.0.0.1:1": (1, ""), "127.0.0.1:3": (0, "claims 1")}


def test_streams_that_do_not_follow_show_in_the_state_of_their_link() -> None:
    copies = [ReplicaFetcher(b"a"), ReplicaFetcher(b"b"), ReplicaFetcher(b"c")]
    assert links.state_up(copies) == links.state_up([]) == "up"
    copies[1].why = "cycle: A -> B -> A"
    assert links.state_up(copies) == "b: cycle: A -> B -> A"
    copies[2].why = "closing"
    assert links.state_up(copies) == "2 streams wait, the first is b: cycle: A -> B -> A"


def test_lag_is_looked_up_of_so_many_streams_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LAGS_MEASURED_MAX", 1)
    with world(tmp_path) as node:
        peer = BinaryPeer(node, node_id="node-b")
        for number in range(3):
            node.fill(f"s{number}", [b"x"] * 4)
            peer.ask(r.Follow(number, b"s%d" % number, 0, 1, "", None, FROM_START))
            peer.ask(r.Held(((number, "node-b", 1, 1),)))
        ((link,), *_counts) = links_of(node, None)
        assert (NodeLink(*link).lag_messages, NodeLink(*link).lag_bytes) == (9, 3 * 33)
        node.workers[0].owner.trim(node.workers[0].owner.stream(b"s0"), 3)
        ((link,), *_counts) = links_of(node, b"s0")
        assert NodeLink(*link).lag_bytes == 33, "no more than there is"
