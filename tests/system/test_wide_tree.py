"""A small tree mends itself when nodes of it die at once: every message is at every living node, in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.system.wide_tree import measure, wide_tree

pytestmark = pytest.mark.system


def test_a_tree_mends_itself(tmp_path: Path) -> None:
    seed = random.randrange(1 << 16)
    with wide_tree(tmp_path, count=7, switch_s=0.5, fan_out=2) as tree:
        figures = measure(tree, random.Random(seed), count=20)
    assert figures.messages > 20 and figures.killed, seed
    assert set(figures.delays_s) == {0, 1, 2}, seed
