"""Very many streams on one node: their cost at rest, at a start and in turn.

The suite has 8,000, thirty times as many as may be open. TAILRACE_STREAMS=100000 sets another number.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.mounts import CannotMount, available_bytes, mounted
from tests.system.node import LineClient, Node, wait_for
from tests.system.processes import all_workers, descriptors, mappings, resident_bytes

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS = int(os.environ.get("TAILRACE_STREAMS", 8_000))
CONNECTIONS = 4
PATIENCE_S = 300.0  # for one round, which has taken two minutes on a machine with fourteen times too much to do
MAX_OPEN = 256
OPEN_DESCRIPTORS, OPEN_MAPPINGS = 4, 2  # of a stream that is open to its owner
SLACK = 80  # descriptors and mappings of a worker besides
IDLE_BYTES = 1_000
START_US = 40  # processor time for each stream, beyond that of an empty node; it is 4, and to open one takes over 100


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be emptied at once, if memory suffices for one: removing 200,000 files from a disk takes as
    long as all else here.
    """
    with contextlib.ExitStack() as stack:
        path = tmp_path / "roomy"
        if available_bytes() > 8 << 30:
            with contextlib.suppress(CannotMount):
                stack.enter_context(mounted(path, "size=3g,nr_inodes=400k"))
        path.mkdir(exist_ok=True)
        yield path


def names(first: int) -> list[bytes]:
    """A connection's share of the streams."""
    return [b"device-%06d" % number for number in range(first, STREAMS, CONNECTIONS)]


def publish_round(node: Node, seq: int) -> float:
    """One message to every stream, over several connections; each must get `seq`. The streams served a second."""
    faults: list[str] = []

    def publish(first: int) -> None:
        share = names(first)
        lines = b"".join(b"pub %s |reading %d\r\n" % (name, seq) for name in share)
        with node.client() as client:
            client.ask("ack on")
            sending = threading.Thread(target=client.send_raw, args=(lines,), daemon=True)
            sending.start()
            client.read_answers(len(share) + 1, PATIENCE_S)
            sending.join()
        expected = [f"ok pub {name.decode()} {seq}" for name in share]
        faults.extend(got for got, want in zip(client.answers[1:], expected, strict=True) if got != want)

    began_s = time.monotonic()
    threads = [threading.Thread(target=publish, args=(first,)) for first in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:3]
    return STREAMS / (time.monotonic() - began_s)


class Costs:
    """What the workers hold, summed or at most, now."""

    def __init__(self, node: Node) -> None:
        pids = all_workers(node)
        self.descriptors = max(descriptors(pid) for pid in pids)
        self.mappings = max(mappings(pid) for pid in pids)
        self.resident_bytes = sum(resident_bytes(pid) for pid in pids)


def processor_s(node: Node) -> float:
    """The processor time that all processes of the node have used, also those that have ended."""
    assert node.process is not None
    supervisor = psutil.Process(node.process.pid)
    return sum(sum(process.cpu_times()[:4]) for process in [supervisor, *supervisor.children(recursive=True)])


@contextlib.contextmanager
def started(node: Node) -> Iterator[float]:
    """The processor time, in seconds, that the node has used when it is ready. Killed at the end if it still runs."""
    try:
        began_s = time.monotonic()
        node.start()
        used_s = processor_s(node)
        print(f"ready after {time.monotonic() - began_s:.2f} s, {used_s:.2f} s of processor time")
        yield used_s
    finally:
        node.kill()


def node_at(data: Path, log: Path, environment: dict[str, str] | None = None) -> Node:
    node = Node(data, "--max-open-streams", str(MAX_OPEN), environment=environment)
    node.log_path = log
    return node


def assert_bounded(now: Costs, empty: Costs) -> None:
    """The settings bound the open files, for the owner's side and the readers' each, for any number of streams."""
    assert now.descriptors < empty.descriptors + MAX_OPEN * OPEN_DESCRIPTORS + SLACK
    assert now.mappings < empty.mappings + MAX_OPEN * OPEN_MAPPINGS + SLACK


def follow(client: LineClient, stream: bytes, seqs: list[int]) -> None:
    """A reader gets each message of a stream."""
    client.messages.clear()
    client.send(b"sub %s 0 wait" % stream)
    assert [message.seq for message in client.read_messages(len(seqs))] == seqs
    assert [message.payload for message in client.messages] == [b"reading %d" % seq for seq in seqs]
    client.ask(b"unsub %s" % stream)


def assert_start_bounded(used_s: float, empty_s: float) -> None:
    """A start does little for each stream: it reads what the last one left, and opens none that is not needed."""
    each_us = (used_s - empty_s) / STREAMS * 1e6
    print(f"{each_us:.0f} us of processor time for each stream")
    assert each_us < START_US


@pytest.mark.thorough
def test_very_many_streams(roomy: Path, tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    data = roomy / "data"
    with started(node := node_at(data, log)) as empty_s:
        empty = Costs(node)
        print(f"made {publish_round(node, 0):,.0f} streams a second")
        assert_bounded(Costs(node), empty)
        print(f"published to {publish_round(node, 1):,.0f} streams a second")
        assert_bounded(Costs(node), empty)
        # Workers store their figures once a second: after the last stream was made, one more may pass.
        wait_for(lambda: node.metric("tailrace_streams") == STREAMS, "every stream is counted")
        assert node.stop() == 0
    with started(node := node_at(data, log)) as used_s:
        assert_start_bounded(used_s, empty_s)
        idle = Costs(node)
        each_bytes = (idle.resident_bytes - empty.resident_bytes) / STREAMS
        print(f"{each_bytes:.0f} bytes of memory an idle stream")
        assert each_bytes < IDLE_BYTES
        assert idle.descriptors <= empty.descriptors and idle.mappings < empty.mappings + SLACK
        print(f"published to {publish_round(node, 2):,.0f} streams a second that were closed")
        assert_bounded(Costs(node), empty)
        node.kill()
    for number, environment in enumerate(({}, {"TAILRACE_BOOT_ID": "another"})):
        with started(node := node_at(data, log, environment)) as used_s, node.client() as client:
            assert_start_bounded(used_s, empty_s)
            client.ask("ack on")
            for name in names(number)[:: STREAMS // 100]:
                seqs = list(range(3))
                follow(client, name, seqs)
                assert client.ask(b"pub %s |reading 3" % name) == f"ok pub {name.decode()} 3"
                follow(client, name, [*seqs, 3])
            node.kill()
    assert "Traceback" not in log.read_text() and "ERROR" not in log.read_text()
