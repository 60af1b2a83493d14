"""A tree of nodes under load, over which every kind of fault comes at random: in the end all of them have the same.

TAILRACE_FAULTS_S=180 lets the faults go on for that many seconds; TAILRACE_TEST_SEED repeats a run's schedule, if it is
as long.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.system.fault_schedule import chosen_length_s, chosen_seed, schedule
from tests.system.tree_check import assert_equal, assert_sound, names_in, read_diverged, wait_equal
from tests.system.tree_faults import play
from tests.system.tree_ledger import faults
from tests.system.tree_load import Load
from tests.system.tree_node import THREE_LEVELS, growing

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS = [f"s{number}" for number in range(6)]
CONVERGE_S = 60.0
CONFIG = """
[timing]
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
"""


@pytest.mark.thorough
def test_faults_at_random_under_load(tmp_path: Path) -> None:
    """Nothing acknowledged is missing, nothing is there twice or out of order, and all nodes have the same frames."""
    seed, length_s = chosen_seed(), chosen_length_s()
    plan = schedule(seed, list(THREE_LEVELS), "top", length_s)
    with growing(tmp_path, THREE_LEVELS, config=CONFIG, configured=True) as tree:
        with Load(tree.addresses(), STREAMS, tmp_path / "load") as load:
            load.wait_for_progress()
            play(tree, plan)
            load.wait_for_progress()
            sent = load.finish()
        wait_equal(tree.data(), tree.top, CONVERGE_S)
        assert faults(sent, names_in(tree.nodes[tree.top].data)) == []
        fates = Counter(message.fate.value for message in sent)
        print(f"{len(plan)} faults, {len(sent)} messages: {dict(fates)}")
        set_aside = {name: list(read_diverged(data)) for name, data in tree.data().items()}
        assert not any(set_aside.values()), f"one master, one history: nothing may be set aside, but {set_aside}"
    assert_equal(tree.data(), tree.top)
    assert_sound(tree.data())
