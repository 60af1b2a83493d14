"""Shared MQTT subscriptions at a real node, by paho-mqtt: members at several workers, which are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.process import tailrace
from tests.protocol.mqtt.wire import V5, VERSIONS
from tests.system.node import Node, running, wait_for
from tests.system.test_mqtt import CONFIG, PahoClient
from tests.system.test_mqtt_sessions import durable, retry
from tests.system.test_rolling import replace_all

pytestmark = pytest.mark.system

both = pytest.mark.parametrize("version", VERSIONS)


def published(node: Node, version: int, first: int, count: int) -> list[bytes]:
    sent = [b"%d" % number for number in range(first, first + count)]
    with PahoClient(node.port, version) as writer:
        for payload in sent:
            writer.publish("jobs/x", payload)
    return sent


def in_flight(node: Node) -> int:
    """Messages of the only group of the stream that are not acknowledged, by the owner."""
    listed = tailrace("consumers", "jobs", "--json", "--server", f"127.0.0.1:{node.port}")
    (row,) = map(json.loads, listed.stdout.splitlines())
    return int(row["in_flight"])


@pytest.mark.few(1)
@both
def test_a_group_over_workers_that_are_killed_loses_nothing(tmp_path: Path, version: int) -> None:
    got: list[bytes] = []

    def has_all() -> bool:
        for member in members:
            while not member.got.empty():
                got.append(member.got.get().payload)
        return set(got) == set(sent)

    with running(tmp_path, workers=2, config=CONFIG) as node:
        members = [PahoClient(node.port, version) for _ in range(4)]
        for member in members:
            assert member.subscribe(("$share/g/jobs/+", 1)) == [1]
        sent = published(node, version, 0, 50)
        wait_for(has_all, "messages without a fault")
        assert sorted(got) == sorted(sent), "each to one"
        with PahoClient(node.port, version) as slow:
            slow.client.manual_ack_set(True)
            assert slow.subscribe(("$share/g/jobs/+", 1)) == [1]
            for number, pid in enumerate(node.worker_pids()):
                sent += published(node, version, 100 * (number + 1), 50)
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda: node.get("/readyz")[0] == 200, "the workers")
                members.append(retry(lambda: PahoClient(node.port, version)))
                assert retry(lambda: members[-1].subscribe(("$share/g/jobs/+", 1))) == [1]
        wait_for(has_all, "all messages")
        for member in members:
            member.close()


def test_a_session_of_a_group_goes_on_at_a_node_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, workers=2, config=CONFIG) as node:
        with durable(node, V5) as first:
            first.client.manual_ack_set(True)
            assert first.subscribe(("$share/g/jobs/x", 1)) == [1]
            sent = published(node, V5, 0, 20)
            assert [each.payload for each in first.messages(20)] == sent
            node.kill()
        node.start()
        sent += published(node, V5, 20, 5)
        with durable(node, V5) as again:
            assert again.present
            assert sorted(each.payload for each in again.messages(25)) == sorted(sent)


def test_a_member_connects_again_when_its_worker_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, workers=2, config=CONFIG) as node, durable(node, V5) as member:
        assert member.subscribe(("$share/g/jobs/x", 1)) == [1]
        sent = published(node, V5, 0, 5)
        assert [each.payload for each in member.messages(5)] == sent
        wait_for(lambda: not in_flight(node), "the acknowledgements at the owner")
        replace_all(node)
        sent = published(node, V5, 5, 5)
        assert [each.payload for each in member.messages(5)] == sent
