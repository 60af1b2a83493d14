"""What every test shares: hypothesis profiles, and what one of the two runs leaves to the other."""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tailrace.shard.leaves import interpreted_wanted
from tests.thorough import THOROUGH, examples, ordinary

# Each of the thousands of processes would compile all that it loads: that takes longer than all else a node does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A job in the background of a script ignores Control-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all tests are collected: the objects made meanwhile stay

# No deadline: the machine is shared, and a slow moment is not a fault. A failing example prints how to run it again.
settings.register_profile("tailrace", deadline=None, print_blob=True, max_examples=examples(100))
settings.register_profile(
    "tailrace-ci",
    deadline=None,
    print_blob=True,
    max_examples=examples(100),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tailrace-ci" if os.environ.get("CI") else "tailrace")

_ROOT = Path(__file__).resolve().parent.parent
# scripts/test-both-builds runs the suite in parts, side by side. With both builds: the leaves, storage and protocols
# ("storage"), the broker's parts that call a leaf ("both"), and nodes in real processes ("real"), of the last two in an
# ordinary run a share (INTERPRETED). Connections ("connection") are tried with both in a thorough run, else with
# compiled leaves. Once, in ten parts of about the same length: what no leaf has a part in, such as the other messages
# and what consumers are given, and system tests of what happens between processes. What
# tests/system/test_{binary_subscribe,doors,metrics,subscribe,tls}.py and the part "doors" ask of a leaf,
# tests/broker/{delivery,last,topics,udp} try, too.
PART = os.environ.get("TAILRACE_TEST_PART", "")
WAITING_PARTS: Final = frozenset({"client", "java", "spark"})
"""Their tests wait for up to 300 s for a compiler of Go, or for one Java after the other."""
ONCE = {
    "servers": (
        "tests/deploy/",
        "tests/system/test_admin.py",
        "tests/system/test_binary_faults.py",
        "tests/system/test_binary_moving.py",
        "tests/system/test_client_failover.py",
        "tests/system/test_clock.py",
        "tests/system/test_disk.py",
        "tests/system/test_exactly_once.py",
        "tests/system/test_failed_sync.py",
        "tests/system/test_full_volume.py",
        "tests/system/test_garbage.py",
        "tests/system/test_limits.py",
        "tests/system/test_power_loss.py",
        "tests/system/test_rolling.py",
        "tests/system/test_scale.py",
    ),
    "nodes": (
        "tests/broker/consumers/",
        "tests/shard/test_epochs.py",
        "tests/shard/test_kill.py",
        "tests/shard/test_set_aside.py",
        "tests/system/test_binary_heartbeat.py",
        "tests/system/test_command.py",
        "tests/system/test_disk_space.py",
        "tests/system/test_fault_schedule.py",
        "tests/system/test_faults.py",
        "tests/tidy/",
    ),
    "consumers": (
        "tests/client/",
        "tests/system/test_consumer",
    ),
    "trees": (
        "tests/broker/replication/",
        "tests/system/test_client_survival.py",
        "tests/system/test_nemesis.py",
        "tests/system/test_nursery.py",
        "tests/system/test_promotion",
        "tests/system/test_replication_",
        "tests/system/test_soak.py",
        "tests/system/test_tree",
        "tests/system/test_vanished_master.py",
        "tests/system/test_workers.py",
    ),
    "bench": (
        "tests/bench/",
        "tests/examples/",
    ),
    "lives": (
        "tests/system/test_agent.py",
        "tests/system/test_binary_subscribe.py",
        "tests/system/test_command_logins.py",
        "tests/system/test_dead_letters.py",
        "tests/system/test_delete.py",
        "tests/system/test_documents.py",
        "tests/system/test_doors.py",
        "tests/system/test_everyday.py",
        "tests/system/test_first_operator.py",
        "tests/system/test_forks.py",
        "tests/system/test_collecting.py",
        "tests/system/test_lease.py",
        "tests/system/test_lifecycle.py",
        "tests/system/test_listing.py",
        "tests/system/test_metrics.py",
        "tests/system/test_node_logins.py",
        "tests/system/test_redelivery.py",
        "tests/system/test_revoked_users.py",
        "tests/system/test_standstill.py",
        "tests/system/test_strangers.py",
        "tests/system/test_subscribe.py",
        "tests/system/test_tls.py",
    ),
    "doors": (
        "tests/system/test_client_mixture.py",
        "tests/system/test_filtered_consumers.py",
        "tests/system/test_last_values.py",
        "tests/system/test_memory_streams.py",
        "tests/system/test_missed_deletion.py",
        "tests/system/test_mqtt_clients.py",
        "tests/system/test_mqtt_doors.py",
        "tests/system/test_mqtt_kills.py",
        "tests/system/test_mqtt_promotion.py",
        "tests/system/test_mqtt_sessions.py",
        "tests/system/test_mqtt_shared.py",
        "tests/system/test_partly_published.py",
        "tests/system/test_reading.py",
        "tests/system/test_retained.py",
        "tests/system/test_shut_volume.py",
        "tests/system/test_topic_names.py",
        "tests/system/test_udp_nodes.py",
        "tests/system/test_walkthrough.py",
        "tests/system/test_websocket.py",
    ),
    "client": (
        "tests/broker/connection/test_accept.py",
        "tests/broker/connection/test_handover_anywhere.py",
        "tests/broker/connection/test_heartbeat.py",
        "tests/broker/process/test_drain.py",
        "tests/broker/process/test_work.py",
        "tests/cli/",
        "tests/cluster/",
        "tests/protocol/test_address.py",
        "tests/protocol/test_consuming",
        "tests/protocol/test_envelope.py",
        "tests/protocol/test_fields.py",
        "tests/protocol/test_grammar.py",
        "tests/protocol/test_replication",
        "tests/protocol/test_responses.py",
        "tests/protocol/test_sibling.py",
        "tests/protocol/test_telnet.py",
        "tests/scripts/",
        "tests/supervisor/",
    ),
    # These start their own Java; the others share one.
    "java": (
        "tests/spark/rollup/test_kill.py",
        "tests/spark/rollup/test_local.py",
        "tests/spark/rollup/test_sessions.py",
        "tests/spark/rollup/test_trimmed_meanwhile.py",
        "tests/spark/test_session.py",
    ),
    "spark": ("tests/spark/",),
}
# Folders that are tried with both builds, and their parts; the others are in "both".
TWICE = {
    "tests/broker/connection/": "connection",
    "tests/protocol/": "storage",
    "tests/shard/": "storage",
    "tests/system/": "real",
}
# Of folders that are otherwise tried once.
BOTH = (
    "tests/broker/consumers/coordinator/test_cursor_log.py",
    "tests/broker/consumers/edge/test_line.py",
    "tests/tidy/test_build.py",
)
# With compiled leaves only: these call no leaf, or as the tests of storage and routing do. Files of the leaves try both
# bodies in one run.
COMPILED = (
    "tests/broker/connection/test_login.py",
    "tests/broker/connection/test_tls.py",
    "tests/broker/connection/test_transport.py",
    "tests/broker/process/test_metric_cells.py",
    "tests/broker/process/test_settings.py",
    "tests/broker/sessions/",
    "tests/broker/sharing/",
    "tests/protocol/test_binary_document.py",
    "tests/protocol/test_errors.py",
    "tests/protocol/test_features.py",
    "tests/protocol/test_foreign.py",
    "tests/protocol/test_messages.py",
    "tests/protocol/test_names.py",
    "tests/protocol/test_sniff.py",
    "tests/shard/test_cython_shim.py",
    "tests/shard/test_directory.py",
    "tests/shard/test_index.py",
    "tests/shard/test_leaves.py",
    "tests/shard/test_lock.py",
    "tests/shard/test_names.py",
    "tests/shard/test_producer_memory.py",
    "tests/shard/test_producers.py",
    "tests/shard/test_torn.py",
)
LEAF_TESTS = "_cy.py"
INTERPRETED = {
    "both": ("broker/last/", "broker/streams/", "broker/topics/", "broker/udp/"),
    "real": tuple(
        f"system/test_{name}.py"
        for name in ("binary", "lines", "mqtt_filters", "mqtt_messages", "topics", "udp", "wide")
    ),
}
"""Tests of these parts that an ordinary run has with interpreted leaves: they call most of them, and use each door."""


class Watchdog:
    """Dumps every thread's stack when a test, or the end of the run, hangs for HANGS_S, and for REARMED_S more at most.

    In CI it ends the run, too: otherwise nobody would see which part hangs, nor what the others have found.
    pytest's own starts a thread for each test and waits for its end: on a busy machine longer than most tests take.
    """

    HANGS_S: Final = 600.0 if PART in WAITING_PARTS else 200.0
    REARMED_S: Final = 20.0
    ENDS: Final = bool(os.environ.get("CI"))

    def __init__(self, output: int) -> None:
        self._output = output
        self._armed_s = -math.inf

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        now_s = time.monotonic()
        if now_s - self._armed_s > self.REARMED_S:
            self._arm(now_s)

    def pytest_exception_interact(self) -> None:
        """After a failure pytest calls it off."""
        self._armed_s = -math.inf

    def pytest_unconfigure(self) -> None:
        """It stays armed: a thread that does not end would keep the process."""
        self._arm(time.monotonic())

    def _arm(self, now_s: float) -> None:
        faulthandler.dump_traceback_later(self.HANGS_S + self.REARMED_S, file=self._output, exit=self.ENDS)
        self._armed_s = now_s


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watchdog(os.dup(2)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An ordinary run leaves out tests marked `thorough`, and most cases of those marked `few`."""
    if THOROUGH:
        return
    wanted = ordinary(items)
    left_out = {*items} - {*wanted}
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = wanted


def pytest_collection_finish() -> None:
    """Collected tests live until the end: the garbage collector need not look at them again."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what another part has: its files, and the conftest.py of its folders, are not even imported."""
    if not PART:
        return None
    if collection_path.is_dir():
        return all(map(_is_of_another_part, collection_path.rglob("test_*.py"))) or None
    return (collection_path.name.startswith("test_") and _is_of_another_part(collection_path)) or None


def _is_of_another_part(file: Path) -> bool:
    path = file.relative_to(_ROOT).as_posix()
    if interpreted_wanted() and (path.startswith(COMPILED) or path.endswith(LEAF_TESTS)):
        return True
    if interpreted_wanted() and not THOROUGH and not path.removeprefix("tests/").startswith(INTERPRETED.get(PART, "")):
        return True
    return part_of(path) != PART


def part_of(path: str) -> str:
    """The part that has the tests of this file."""
    once = [name for name, paths in ONCE.items() if path.startswith(paths) and path not in BOTH]
    if once:
        return once[0]
    return next((part for folder, part in TWICE.items() if path.startswith(folder)), "both")
