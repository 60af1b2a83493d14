"""What a scrape shows while workers die, are replaced, and the node starts again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import tailrace
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.processes import all_workers, metrics_pid, worker_pid

MESSAGES = 300
APPENDED = "tailrace_appended_messages_total"
RECEIVED = "tailrace_received_messages_total"


def publish(node: Node, total: int) -> None:
    """Publish to streams of both workers, and wait until a scrape shows `total` messages in all."""
    with node.client() as client:
        client.send(*(f"pub s{number % 8} |x" for number in range(MESSAGES)), "ping")
        client.read_until(lambda: client.answers[-1:] == ["ok pong"])
    wait_for(lambda: node.metric(APPENDED) == node.metric(RECEIVED) == total, f"{total} messages are counted")


@pytest.mark.thorough
def test_counters_outlive_workers_and_start_anew_with_the_node(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    with running(tmp_path / "data", environment={"RUNTIME_DIRECTORY": str(runtime)}) as node:
        publish(node, MESSAGES)
        with node.client_of(0), node.client_of(1):
            wait_for(lambda: node.metric("tailrace_connections") == 2, "both connections show")
            pid = worker_pid(node, 0)
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: node.metric("tailrace_connections") == 1, "those of the dead worker are gone")
            assert node.metric(APPENDED) == MESSAGES
            wait_for(lambda: worker_pid(node, 0) != pid, "it has been replaced")
            node.wait_ready()
        publish(node, 2 * MESSAGES)

        before = all_workers(node)
        node.signal(signal.SIGHUP)
        shown = [node.metric(APPENDED)]

        def replaced() -> bool:
            shown.append(node.metric(APPENDED))
            return not before & all_workers(node) and len(all_workers(node)) == 2

        wait_for(replaced, "both workers are replaced")
        assert set(shown) == {2 * MESSAGES}
        node.wait_ready()
        publish(node, 3 * MESSAGES)

        pid = metrics_pid(node)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: metrics_pid(node) != pid and node.get("/healthz")[0] == 200, "metrics are served again")
        assert node.metric(APPENDED) == 3 * MESSAGES
        assert [path.name for path in runtime.iterdir()] == ["admin.sock"], "no metrics are kept in files"
        assert node.stop() == 0
        node.start()
        assert node.metric(APPENDED) == 0
        publish(node, MESSAGES)


def samples(node: Node, prefix: str) -> dict[str, float]:
    """The samples of the families that begin so, by all that stands before their values."""
    lines = [line.rsplit(" ", 1) for line in node.get("/metrics")[1].splitlines() if line.startswith(prefix)]
    return {before: float(number) for before, number in lines}


def test_chosen_streams_and_their_consumers(tmp_path: Path) -> None:
    """Streams of both workers; a worker is killed, the node is reloaded with other patterns, and starts again."""
    config = '[metrics]\nstreams = ["orders.*", "payments"]\n'
    with running(tmp_path / "data", config=config) as node:
        address = f"127.0.0.1:{node.port}"
        names = [f"orders.{number}" for number in range(8)]
        with tailrace.connect(address) as client, client.subscribe("orders.1", wait=True):
            for name in (*names, "other"):
                client.publish_many(name, [b"0", b"1", b"2"])
            client.create_consumer("orders.1", "billing")
            expected = {f'tailrace_stream_messages_total{{stream="{name}"}}': 3.0 for name in names}

            def all_shown() -> bool:
                return samples(node, "tailrace_stream_messages_total{") == expected

            wait_for(all_shown, "all chosen streams are shown, and no other")
            lag = 'tailrace_stream_consumer_lag_messages{consumer="billing",stream="orders.1"}'
            wait_for(lambda: samples(node, lag) == {lag: 3.0}, "the lag of the consumer")
            subscribers = 'tailrace_stream_subscribers{stream="orders.1"}'
            wait_for(lambda: samples(node, subscribers) == {subscribers: 1.0}, "the subscriber is shown")
            with client.consumer("orders.1", "billing") as member:
                for _ in range(2):
                    message = member.receive(PATIENCE_S)
                    assert message is not None
                    message.ack()
                member.flush()
                wait_for(lambda: samples(node, lag) == {lag: 1.0}, "the lag has fallen")
        os.kill(worker_pid(node, 0), signal.SIGKILL)
        node.wait_ready()
        wait_for(all_shown, "the same is shown by the next worker")
        file = tmp_path / "data.toml"
        file.write_text(config.replace("orders.*", "orders.1"))
        node.signal(signal.SIGHUP)
        expected = {f'tailrace_stream_messages_total{{stream="{names[1]}"}}': 3.0}
        wait_for(all_shown, "only the stream of the new pattern is shown")
        assert samples(node, "tailrace_unmeasured{") == {
            'tailrace_unmeasured{what="consumers"}': 0.0,
            'tailrace_unmeasured{what="streams"}': 0.0,
        }
