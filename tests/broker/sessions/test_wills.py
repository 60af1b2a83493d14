"""Wills of sessions whose connections are gone: only those that their users may still publish."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import UserLimits
from tailrace.broker.topics.rules import TopicRule
from tests.broker.connection.doors import ANN
from tests.broker.connection.mqtt.test_durable import LASTING
from tests.broker.connection.mqtt.test_lost_rights import ALL, BOB, DELAYED, as_user, denying, reload
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt.wire import V5


def pass_a_delay(node: World) -> None:
    for worker in node.workers:
        worker.sessions._clock_us = lambda: 1 << 60
        for _ in range(20):  # a log a tick is read
            worker.sessions.tick()
    node.settle()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"users": (BOB,)},
        {"rules": denying(Right.PUBLISH, "wills")},
        {"rules": denying(Right.PUBLISH, "wills/*"), "users": (ANN, BOB)},
        {"rules": denying(Right.CREATE, "wills")},
    ],
)
def test_the_delayed_will_of_a_session(
    tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is published if it would be at the end of its connection. Else the log of events has its user."""
    caplog.set_level(logging.INFO, "tailrace.broker.process.event_log")
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,)) as node:
        first = as_user(node, "ann", will=("wills", b"gone", 1), will_raw=DELAYED)
        first.peer.close()
        node.settle()
        reload(node, **changes)
        pass_a_delay(node)
        is_published = not changes or "wills/*" in str(changes)
        assert (b"wills" in node.workers[0].owner.catalog.names) == is_published
        refused = node.workers[0].metrics.refused.counts
        assert refused.get("denied", 0) == (0 if is_published else 1)
        lines = [line for line in caplog.messages if line.startswith("event=refused user=ann code=denied ")]
        assert len(lines) == refused.get("denied", 0)


@pytest.mark.parametrize("stream", ["s", "t"])
def test_the_delayed_will_of_a_topic(tmp_path: Path, stream: str) -> None:
    """A right to the name of the topic is enough, and is needed."""
    rules = (AccessRule(True, ("*",), frozenset(Right), ("s/*",)), AccessRule(True, ("bob",), frozenset(Right), ("*",)))
    with world(tmp_path, users=(ANN, BOB), rules=(ALL,), topics=(TopicRule("#", "{1}"),)) as node:
        first = as_user(node, "ann", will=(f"{stream}/gone", b"gone", 1), will_raw=DELAYED)
        first.peer.close()
        node.settle()
        reload(node, rules=rules)
        pass_a_delay(node)
        assert (stream.encode() in node.workers[0].owner.catalog.names) == (stream == "s")


def test_wills_make_no_more_streams_than_their_users_may(tmp_path: Path) -> None:
    """Those without a user, together, as many as one address."""
    with world(tmp_path, max_address_streams=2) as node:
        for n in range(4):
            raw: dict[str, Any] = {"raw": LASTING, "will_raw": DELAYED}
            MqttPeer(node, V5, f"c{n}", clean=False, will=(f"will{n}", b"gone", 1), **raw).peer.close()
        node.settle()
        pass_a_delay(node)
        names = [name for name in node.workers[0].owner.catalog.names if name.startswith(b"will")]
        assert len(names) == 2
        assert node.workers[0].metrics.refused.counts == {"streams": 2}


def test_wills_of_a_user_count_against_its_own_streams(tmp_path: Path) -> None:
    bounded = replace(ANN, limits=UserLimits(max_streams=2))
    with world(tmp_path, users=(bounded, BOB), rules=(ALL,), max_address_streams=1) as node:
        for name in ("ann", "bob"):
            for n in range(4):
                as_user(node, name, f"{name}{n}", will=(f"will-{name}{n}", b"gone", 1), will_raw=DELAYED).peer.close()
        node.settle()
        pass_a_delay(node)
        names = b" ".join(node.workers[0].owner.catalog.names)
        assert (names.count(b"will-ann"), names.count(b"will-bob")) == (2, 4)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_will_of_nobody_on_a_node_that_has_users_now(tmp_path: Path, allowed: bool) -> None:
    with world(tmp_path) as node:
        raw: dict[str, Any] = {"raw": LASTING, "will_raw": DELAYED}
        MqttPeer(node, V5, clean=False, will=("wills", b"gone", 1), **raw).peer.close()
        node.settle()
        rules = (AccessRule(True, ("anonymous",), frozenset(Right), ("*",)),)
        reload(node, users=(ANN,), rules=rules, allow_anonymous=allowed)
        pass_a_delay(node)
        assert (b"wills" in node.workers[0].owner.catalog.names) == allowed
