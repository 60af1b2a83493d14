"""A hundred thousand streams on one node: what they cost at rest, at a start and in turn."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shard.leaves import build
from tests.system.mounts import CannotMount, available_bytes, mounted
from tests.system.node import LineClient, Node
from tests.system.processes import all_workers, descriptors, mappings, resident_bytes

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS = 100_000 if build() == "compiled" else 10_000  # the interpreted leaves have no part in what is bounded here
CONNECTIONS = 4
PATIENCE_S = 300.0  # a round; beside the whole suite one takes a minute and a half
MAX_OPEN = 256
OPEN_DESCRIPTORS, OPEN_MAPPINGS = 4, 2  # of a stream that is open to its owner
SLACK = 80  # descriptors and mappings of a worker besides
IDLE_BYTES = 1_000
READY_CLEAN_S, READY_UNCLEAN_S = 3.0, 10.0


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder that can be emptied at once, where there is memory for one: removing 200,000 files from a disk takes as
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


@contextlib.contextmanager
def started(node: Node, within_s: float) -> Iterator[Node]:
    """Started, and ready in time; killed at the end if it still runs."""
    began_s = time.monotonic()
    node.start()
    took_s = time.monotonic() - began_s
    print(f"ready after {took_s:.2f} s")
    assert took_s < within_s
    try:
        yield node
    finally:
        node.kill()


def node_at(data: Path, log: Path, environment: dict[str, str] | None = None) -> Node:
    node = Node(data, "--max-open-streams", str(MAX_OPEN), environment=environment)
    node.log_path = log
    return node


def assert_bounded(now: Costs, empty: Costs) -> None:
    """The settings bound what is open, for the owner's side and the readers' each, whatever number there is."""
    assert now.descriptors < empty.descriptors + MAX_OPEN * OPEN_DESCRIPTORS + SLACK
    assert now.mappings < empty.mappings + MAX_OPEN * OPEN_MAPPINGS + SLACK


def follow(client: LineClient, stream: bytes, seqs: list[int]) -> None:
    """A reader gets each message of a stream."""
    client.messages.clear()
    client.send(b"sub %s 0" % stream)
    assert [message.seq for message in client.read_messages(len(seqs))] == seqs
    assert [message.payload for message in client.messages] == [b"reading %d" % seq for seq in seqs]
    client.ask(b"unsub %s" % stream)


def test_a_hundred_thousand_streams(roomy: Path, tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    data = roomy / "data"
    with started(node_at(data, log), READY_CLEAN_S) as node:
        empty = Costs(node)
        print(f"made {publish_round(node, 0):,.0f} streams a second")
        assert_bounded(Costs(node), empty)
        print(f"published to {publish_round(node, 1):,.0f} streams a second")
        assert_bounded(Costs(node), empty)
        assert node.metric("tailrace_streams") == STREAMS
        assert node.stop() == 0
    with started(node_at(data, log), READY_CLEAN_S) as node:
        idle = Costs(node)
        each_bytes = (idle.resident_bytes - empty.resident_bytes) / STREAMS
        print(f"{each_bytes:.0f} bytes of memory an idle stream")
        assert each_bytes < IDLE_BYTES
        assert idle.descriptors <= empty.descriptors and idle.mappings < empty.mappings + SLACK
        print(f"published to {publish_round(node, 2):,.0f} streams a second that were closed")
        assert_bounded(Costs(node), empty)
        node.kill()
    for number, environment in enumerate(({}, {"TAILRACE_BOOT_ID": "another"})):
        with started(node_at(data, log, environment), READY_UNCLEAN_S) as node, node.client() as client:
            client.ask("ack on")
            for name in names(number)[:: STREAMS // 400]:
                seqs = list(range(3))
                follow(client, name, seqs)
                assert client.ask(b"pub %s |reading 3" % name) == f"ok pub {name.decode()} 3"
                follow(client, name, [*seqs, 3])
            node.kill()
    assert "Traceback" not in log.read_text() and "ERROR" not in log.read_text()
