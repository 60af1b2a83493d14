"""What a scrape shows while workers die, are replaced, and the node starts again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.system.node import Node, running, wait_for
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
