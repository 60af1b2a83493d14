"""A tree of the product's choices mends itself, each orphan by one move and everybody else by none."""

from __future__ import annotations

import random

import pytest

from tests.broker.replication.wide_simulation import simulate
from tests.thorough import only_thorough


@pytest.mark.parametrize("depth", [2, *only_thorough(3)])
def test_only_those_that_lost_their_upstream_move(depth: int) -> None:
    seed = random.randrange(1 << 16)
    found = simulate(depth, seed)
    assert set(found.delays_s) == set(range(depth + 1)), seed
    assert found.killed == round(found.nodes * 0.1) and found.moves == found.orphaned, seed
