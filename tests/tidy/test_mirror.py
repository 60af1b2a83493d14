"""Tests mirror the tree: protocol/line.py is tested by tests/protocol/test_line.py."""

from __future__ import annotations

from pathlib import Path

from tests.tidy import tree

SMALL_LINES = 30  # a module this small needs no test of its own
# module: what tests it instead. When you split or write a module, add its tests here.
ELSEWHERE: dict[str, str] = {
    "shard/topic_index.py": "tests/broker/topics/test_skipping.py",
    "shard/topic_index_build.py": "tests/broker/topics/test_skipping.py",
    "broker/connection/hello_login.py": "tests/broker/connection/test_login.py",
    "broker/connection/named.py": "tests/broker/connection/test_handles.py, tests/system/test_topic_names.py",
    "broker/delivery/frame_runs.py": "tests/broker/udp/test_door.py, tests/broker/sharing/test_nodes.py",
    "broker/connection/mqtt/wide_topics.py": "tests/broker/delivery/test_wide.py",
    "broker/delivery/wide_history.py": "tests/broker/delivery/test_wide.py",
    "broker/delivery/watches.py": "tests/broker/udp/test_door.py, tests/broker/sharing/test_nodes.py",
    "broker/delivery/cursor.py": "tests/broker/delivery/test_fanout.py",
    "broker/topics/index_builder.py": "tests/broker/topics/test_skipping.py",
    "broker/process/stream_policies.py": "tests/broker/process/test_settings.py",
    "broker/process/udp_settings.py": "tests/broker/process/test_settings.py",
    "broker/udp/delivery.py": "tests/broker/udp/test_door.py",
    "broker/udp/requests.py": "tests/broker/udp/test_door.py",
    "broker/sharing/peer_wants.py": "tests/broker/sharing/test_model.py",
    "broker/sharing/sender.py": "tests/broker/sharing/test_nodes.py",
    "broker/sharing/session.py": "tests/broker/sharing/test_model.py, tests/broker/sharing/test_nodes.py",
    "broker/sharing/shared.py": "tests/broker/sharing/test_model.py, tests/broker/sharing/test_nodes.py",
    "broker/sharing/wants.py": "tests/broker/sharing/test_model.py",
    "broker/wiring.py": "tests/broker/test_worker.py",
    "broker/worker_boot.py": "tests/broker/test_worker.py",
    "cli/agent.py": "tests/system/test_agent.py",
    "cli/cluster.py": "tests/system/test_agent.py",
    "cli/etcd.py": "tests/cluster/test_etcd.py",
    "cluster/metrics.py": "tests/deploy/test_cluster_rules.py",
    "cluster/view.py": "tests/cluster/test_decide.py",
    "client/aio/merged_consumer.py": "tests/system/test_everyday.py",
    "client/core/merged_consumer_state.py": "tests/system/test_everyday.py",
    "client/core/stream_watch.py": "tests/client/sync/test_merged_subscription.py",
    "client/sync/merged_consumer.py": "tests/system/test_everyday.py",
    "client/core/merged_state.py": "tests/client/sync/test_merged_subscription.py",
    "client/aio/replies.py": "tests/system/test_everyday.py",
    "client/sync/replies.py": "tests/system/test_everyday.py",
    "cli/conformance_checks.py": "tests/cli/test_conformance.py",
    "spark/rollup/large.py": "tests/spark/rollup/test_reading.py",
    "spark/rollup/merge.py": "tests/spark/rollup/test_job.py",
    "spark/rollup/verify.py": "tests/spark/rollup/test_reading.py",
}


def expected_test(path: Path) -> Path:
    relative = path.relative_to(tree.ROOT)
    return tree.ROOT / "tests" / relative.parent / f"test_{relative.stem.lstrip('_')}.py"


def needs_test(path: Path) -> bool:
    return path.name not in ("__init__.py", "__main__.py") and len(path.read_text().splitlines()) > SMALL_LINES


def test_every_module_has_its_test() -> None:
    without = {
        tree.shown(path): tree.shown(expected_test(path))
        for path in tree.modules()
        if needs_test(path) and not expected_test(path).exists() and tree.shown(path) not in ELSEWHERE
    }
    assert not without, "write these, or say in ELSEWHERE what tests them"


def test_exceptions_are_needed() -> None:
    for module in ELSEWHERE:
        path = tree.ROOT / module
        assert path.exists(), f"{module} is gone: take it out of ELSEWHERE"
        assert not expected_test(path).exists(), f"{module} has its test: take it out of ELSEWHERE"


def test_exceptions_name_tests_that_exist() -> None:
    for module, tests in ELSEWHERE.items():
        for name in tests.split(", "):
            assert (tree.ROOT / name).exists(), f"{module}: there is no {name}"
