"""Processes that are killed under load: acknowledged messages stay, and readers see them in order."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.system.load import Load
from tests.system.node import Node, running, wait_for
from tests.system.processes import alive, all_workers, worker_pid
from tests.system.standstill import Standstill, assert_within
from tests.system.streams import names_of
from tests.thorough import THOROUGH

pytestmark = pytest.mark.system

WORKERS = 4
KILLS = 20 if THOROUGH else 8
STREAMS = [f"s{i}" for i in range(8)]
SERVES_AGAIN_S = 2.0  # what the node promises
SEED_VARIABLE = "TAILRACE_TEST_SEED"


def seed() -> int:
    """A new one each time; printed, so that a failure shows it, and taken back from the environment."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


def wait_until_served(node: Node, workers: int = WORKERS) -> None:
    """Until a stream of each slot takes a publish, from a client that connects and tries at once."""
    for slot in range(workers):
        (stream,) = names_of(slot, workers, 1, "probe")
        wait_for(partial(takes_publish, node, stream), f"slot {slot} serves")


class Outage:
    """An outage of a node in seconds, from when it is made; time in which the machine stands still does not count."""

    def __init__(self, machine: Standstill) -> None:
        self._machine = machine
        self._began_s, self._still_s = time.monotonic(), machine.seconds()

    def seconds(self) -> float:
        return time.monotonic() - self._began_s - (self._machine.seconds() - self._still_s)


def takes_publish(node: Node, stream: str) -> bool:
    try:
        with node.client() as client:
            client.ask("ack on")
            return client.ask(f"pub {stream} |probe").startswith("ok pub ")
    except OSError:
        return False


def test_the_machine_goes_down(tmp_path: Path) -> None:
    """Messages that were not synced but are whole are there for readers at once, before anybody publishes again."""
    with running(tmp_path / "data") as node:
        with node.client() as client:
            client.send("ack on", *(f"pub {stream} |{number}" for stream in STREAMS for number in range(10)))
            client.read_answers(1 + 10 * len(STREAMS))
        node.kill()
        node.restart_with({"TAILRACE_BOOT_ID": "after-the-crash"})
        for stream in STREAMS:
            with node.client() as client:
                client.send(f"sub {stream} 0 wait")
                assert [message.seq for message in client.read_messages(10)] == list(range(10))
        for start in ("#4", "#9", "new"):
            with node.client() as client:
                first = 10 if start == "new" else int(start[1:])
                assert client.ask(f"sub {STREAMS[0]} {start} wait") == f"ok sub {STREAMS[0]} {first}"


@pytest.mark.slow
def test_workers_killed_at_random(tmp_path: Path) -> None:
    dice = random.Random(seed())
    with (
        Standstill(tmp_path) as machine,
        running(tmp_path / "data", workers=WORKERS) as node,
        Load(node, STREAMS) as load,
    ):
        load.wait_for_progress()
        outages_s = []
        kills = 0
        while kills < KILLS:
            # Mostly one, now and then two at once; not all may have come back from the last time.
            for slot in dice.sample(range(WORKERS), dice.choice([1, 1, 1, 2])):
                os.kill(worker_pid(node, slot), signal.SIGKILL)
                kills += 1
            outage = Outage(machine)
            wait_until_served(node)
            outages_s.append(outage.seconds())
            time.sleep(dice.uniform(0, 0.3))
        load.wait_for_progress()
        load.finish()
        print(f"{load.acknowledged()} acknowledged; served again after {max(outages_s):.2f} s at most")
        assert_within(max(outages_s), SERVES_AGAIN_S)


@pytest.mark.thorough
def test_the_whole_process_group_killed(tmp_path: Path) -> None:
    with (
        Standstill(tmp_path) as machine,
        running(tmp_path / "data", workers=WORKERS) as node,
        Load(node, STREAMS) as load,
    ):
        load.wait_for_progress(1_000)
        pids = all_workers(node)
        node.kill()
        outage = Outage(machine)
        node.start()
        wait_until_served(node)
        outage_s = outage.seconds()
        assert not any(alive(pid) for pid in pids)
        load.wait_for_progress()
        load.finish()
        print(f"{load.acknowledged()} acknowledged; a new node served after {outage_s:.2f} s")
        assert_within(outage_s, SERVES_AGAIN_S)
