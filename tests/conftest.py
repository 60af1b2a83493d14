"""What every test shares: hypothesis profiles, and what one of the two runs leaves to the other."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# Each of the thousands of processes would compile all that it loads: that takes longer than all else a node does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No deadline: the machine is shared, and a slow moment is no fault. A failing example prints how to run it again.
settings.register_profile("tailrace", deadline=None, print_blob=True)
settings.register_profile(
    "tailrace-ci",
    deadline=None,
    print_blob=True,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tailrace-ci" if os.environ.get("CI") else "tailrace")

_ROOT = Path(__file__).resolve().parent.parent
# scripts/test-both-builds runs the suite in parts, side by side: what calls a leaf with both builds; once, in four
# parts of about the same length, what no leaf has a part in, and what it has a part in only as those others try it.
PART = os.environ.get("TAILRACE_TEST_PART", "")
ONCE = {
    "servers": (
        "tests/broker/replication/",
        "tests/deploy/",
        "tests/system/test_admin.py",
        "tests/system/test_binary_moving.py",
        "tests/system/test_client_failover.py",
        "tests/system/test_client_survival.py",
        "tests/system/test_disk.py",
        "tests/system/test_exactly_once.py",
        "tests/system/test_full_volume.py",
        "tests/system/test_limits.py",
        "tests/system/test_power_loss.py",
        "tests/system/test_rolling.py",
        "tests/system/test_scale.py",
    ),
    "nodes": (
        "tests/broker/consumers/test_asked.py",
        "tests/broker/consumers/test_calls.py",
        "tests/broker/consumers/test_checkpoint.py",
        "tests/broker/consumers/test_getting.py",
        "tests/broker/consumers/test_group.py",
        "tests/broker/consumers/test_keys.py",
        "tests/broker/consumers/test_model.py",
        "tests/broker/consumers/test_ranges.py",
        "tests/broker/consumers/test_state.py",
        "tests/broker/consumers/test_waiters.py",
        "tests/shard/test_epochs.py",
        "tests/system/test_binary_heartbeat.py",
        "tests/system/test_command.py",
        "tests/system/test_consumer_books.py",
        "tests/system/test_consumer_cells.py",
        "tests/system/test_consumer_crashes.py",
        "tests/system/test_consumer_cursor.py",
        "tests/system/test_consumer_failover.py",
        "tests/system/test_consumer_faults.py",
        "tests/system/test_consumer_groups.py",
        "tests/system/test_consumer_ledger.py",
        "tests/system/test_consumer_lost.py",
        "tests/system/test_consumer_moving.py",
        "tests/system/test_consumer_restarts.py",
        "tests/system/test_consumers.py",
        "tests/system/test_fault_schedule.py",
        "tests/system/test_faults.py",
        "tests/system/test_nemesis.py",
        "tests/system/test_promotion_repeat.py",
        "tests/system/test_replication_hostile.py",
        "tests/system/test_replication_hostile_slaves.py",
        "tests/system/test_replication_walkthrough.py",
        "tests/system/test_soak.py",
        "tests/system/test_tree.py",
        "tests/system/test_tree_check.py",
        "tests/system/test_tree_failover.py",
        "tests/system/test_tree_faults.py",
        "tests/system/test_tree_ledger.py",
        "tests/system/test_tree_load.py",
        "tests/system/test_tree_net.py",
        "tests/system/test_workers.py",
    ),
    "bench": (
        "tests/bench/",
        "tests/examples/",
        "tests/scripts/",
        "tests/supervisor/",
        "tests/system/test_lifecycle.py",
        "tests/tailrace/",
        "tests/tidy/",
    ),
    "spark": ("tests/spark/",),
}
BOUND_TO_BUILD = "tests/tidy/test_build.py"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what another part has: its files are not even imported."""
    if not PART or not collection_path.name.startswith("test_"):
        return None
    return part_of(collection_path.relative_to(_ROOT).as_posix()) != PART or None


def part_of(path: str) -> str:
    """The part that has the tests of this file."""
    once = [name for name, paths in ONCE.items() if path.startswith(paths) and path != BOUND_TO_BUILD]
    return once[0] if once else "both"
