"""What every test shares: hypothesis profiles, and what one of the two runs leaves to the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shard.leaves import interpreted_wanted

# No deadline: the machine is shared, and a slow moment is no fault. A failing example prints how to run it again.
settings.register_profile("tailrace", deadline=None, print_blob=True)
settings.register_profile(
    "tailrace-ci",
    deadline=None,
    max_examples=40,
    print_blob=True,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tailrace-ci" if os.environ.get("CI") else "tailrace")

_ROOT = Path(__file__).resolve().parent.parent
# Where both builds are tested side by side (scripts/test-both-builds), what depends on neither is shared out: what a
# leaf does is tried by the tests of the leaves and of all that calls them, and by real nodes in the others.
_BOTH_BUILDS = "TAILRACE_TEST_BOTH_BUILDS" in os.environ
COMPILED_ONLY = (
    "tests/bench/",
    "tests/broker/replication/",
    "tests/deploy/",
    "tests/supervisor/",
    "tests/system/test_binary_moving.py",
    "tests/system/test_client_failover.py",
    "tests/system/test_client_survival.py",
    "tests/system/test_disk.py",
    "tests/system/test_exactly_once.py",
    "tests/system/test_replication_hostile.py",
    "tests/system/test_rolling.py",
    "tests/system/test_scale.py",
    "tests/system/test_tree_failover.py",
)
INTERPRETED_ONLY = (
    "tests/examples/",
    "tests/scripts/",
    "tests/spark/",
    "tests/system/test_admin.py",
    "tests/system/test_binary_heartbeat.py",
    "tests/system/test_fault_schedule.py",
    "tests/system/test_lifecycle.py",
    "tests/system/test_limits.py",
    "tests/system/test_replication_hostile_slaves.py",
    "tests/system/test_replication_walkthrough.py",
    "tests/system/test_tree_check.py",
    "tests/system/test_tree_faults.py",
    "tests/system/test_tree_ledger.py",
    "tests/system/test_tree_load.py",
    "tests/system/test_tree_net.py",
    "tests/tailrace/command/",
    "tests/tidy/",
)
BOUND_TO_BUILD = "tests/tidy/test_build.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one run shows of the load generator and the repository itself, the other need not show again."""
    if not _BOTH_BUILDS:
        return
    skip = pytest.mark.skip(reason="nothing here depends on which build is loaded; the other run has it")
    left_out = COMPILED_ONLY if interpreted_wanted() else INTERPRETED_ONLY
    for item in items:
        where = item.path.relative_to(_ROOT).as_posix()
        if where.startswith(left_out) and where != BOUND_TO_BUILD:
            item.add_marker(skip)
