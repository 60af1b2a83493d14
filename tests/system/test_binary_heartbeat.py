"""The lazy heartbeat on a real node, with a short interval: who is pinged, who is dropped, and what remains of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.system.binary_peer import BinaryPeer, peer
from tests.system.node import Node, running, wait_for

pytestmark = pytest.mark.system

HEARTBEAT_S = 1.0  # the figures of workers are a second old
CONFIG = f"""
[timing]
heartbeat_s = {HEARTBEAT_S}
heartbeats_max = 3
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("heartbeat") / "data", config=CONFIG) as node:
        yield node


def closed(node: Node, reason: str) -> float:
    sample = f'tailrace_closed_connections_total{{reason="{reason}"'
    lines = node.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(sample))


@pytest.mark.thorough
def test_who_is_silent_is_pinged_and_dropped_with_its_subscriptions(node: Node) -> None:
    """Three pings, an interval apart, and an interval more, unless it is the test that has paused; one that answers and
    one that speaks lines live on.
    """
    with peer(node) as silent, peer(node) as answering, node.client() as line:
        silent.mute = True
        for client in (silent, answering):
            client.subscribe(1, "quiet")
            client.subscribe(2, "quieter")
        assert line.ask("ping") == "ok pong"
        heard_s: list[float] = []
        looked_s: list[float] = []

        def heard() -> int:
            looked_s.append(time.monotonic())
            answering.read_once(0.01)
            if silent.read_once(0.01) >= 0:
                heard_s.append(time.monotonic())
            return len(heard_s)

        wait_for(lambda: heard() < 4 and node.metric("tailrace_subscriptions") == 4, "both have their subscriptions")
        wait_for(lambda: heard() and silent.ended, "the silent one is dropped")
        assert silent.pings == 3
        if max(later - sooner for sooner, later in pairwise(looked_s)) < 0.2 * HEARTBEAT_S:
            assert len(heard_s) == 4
            assert all(later - sooner > 0.8 * HEARTBEAT_S for sooner, later in pairwise(heard_s))
        wait_for(lambda: node.metric("tailrace_subscriptions") == 2, "its subscriptions are gone")
        wait_for(lambda: closed(node, "silent") == 1, "it was dropped for its silence")
        answering.read_until(lambda: answering.pings >= 3)
        answering.publish("quiet", [b"here"])
        assert answering.read_messages(1, 1)[0].payload == b"here"
        assert line.ask("ping") == "ok pong"
    assert closed(node, "silent") == 1


@pytest.mark.parametrize("direction", ["in", "out"])
def test_who_is_busy_is_never_pinged(node: Node, direction: str) -> None:
    """Whether it only publishes, or only gets messages; unless it is the test that has paused."""
    with peer(node) as publisher, peer(node) as subscriber:
        subscriber.subscribe(1, f"busy-{direction}")
        busy: BinaryPeer = publisher if direction == "in" else subscriber
        ends_s = time.monotonic() + 3 * HEARTBEAT_S
        last_s, longest_s, count = time.monotonic(), 0.0, 0
        while last_s < ends_s:
            publisher.publish(f"busy-{direction}", [b"x"])
            count += 1
            subscriber.read_messages(1, count)
            now_s = time.monotonic()
            last_s, longest_s = now_s, max(longest_s, now_s - last_s)
            time.sleep(HEARTBEAT_S / 20)
        assert busy.pings == 0 or longest_s > 0.9 * HEARTBEAT_S
