"""Whether an owner reaches all that it needs of a real worker: a lost wire must be an error, and not silence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.streams.collaborators import OwnerContext, OwnerEvents
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.owner_calls import call
from tests.broker.owning import batch, make_owner
from tests.broker.world import World, world

S = b"s"
MESSAGES = 200
ATTRIBUTES_MAX = 15


def methods(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def test_the_parts_of_an_owner_stay_small(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    counts = {type(part).__name__: len(vars(part)) for part in (owner, owner.catalog, owner.roles, owner.syncs)}
    assert max(counts.values()) <= ATTRIBUTES_MAX, counts
    owner.release()


def test_an_owner_is_not_made_without_its_collaborators() -> None:
    parameters = inspect.signature(Owner).parameters
    assert parameters["events"].default is parameters["context"].default is inspect.Parameter.empty


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    policy = StreamPolicy(max_bytes=4096, spare_consumers=True)
    with world(tmp_path, streams=(policy,)) as made:
        yield made


def test_a_worker_implements_all_of_both(node: World) -> None:
    owner = node.workers[0].owner
    for implementation, protocol in (owner.events, OwnerEvents), (owner.context, OwnerContext):
        assert not [name for name in methods(protocol) if not callable(getattr(implementation, name, None))]


@pytest.mark.parametrize("how", ["retention", "command"])
def test_a_worker_spares_what_consumers_need(node: World, how: str) -> None:
    """Nobody has looked at the metrics of consumers before."""
    worker, peer = node.workers[0], node.connect()
    for _ in range(MESSAGES):
        worker.owner.append(batch(S, b"x" * 1000), worker.services.now_s)
    assert node.ask(peer, "consume s c #50")[0].startswith("ok")
    if how == "command":
        call(worker.owner, "trim", [S, ["seq", 100], True])
    else:
        worker.upkeep._retain(S, node.settings.policy("s"))
    assert worker.owner.stream(S).log.first_seq == 50
