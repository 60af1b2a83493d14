"""What an operator sets and asks: roles, retention, durability, numbers. All over a node in real processes."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, name_of, names_of

pytestmark = pytest.mark.system

WORKERS = 2
KIB, MIB = 1 << 10, 1 << 20
CONFIG = """
[timing]
trim_grace_s = 2
retention_interval_s = 0.2
async_sync_s = 3600
[[stream]]
pattern = "big*"
max_bytes = 1048576
[[stream]]
pattern = "old*"
max_age_s = 2
[[stream]]
pattern = "always*"
durability = "always"
[[stream]]
pattern = "interval*"
durability = "interval"
interval_ms = 100
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("admin") / "data", workers=WORKERS, config=CONFIG) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def client(node: Node) -> Iterator[LineClient]:
    with node.client() as client:
        yield client
        client.send("close")


def stat_of(node: Node, name: str) -> dict[str, str]:
    with node.client() as admin:
        return {row["field"]: row["value"] for row in rows(admin.ask_table(f"stat {name}"))}


def number(node: Node, name: str, field: str) -> int:
    return int(stat_of(node, name)[field])


def publish(client: LineClient, name: str, count: int, nbytes: int = 1_000) -> None:
    client.answers.clear()
    client.send(*(b"pub %s |%s" % (name.encode(), b"x" * nbytes) for _ in range(count)), "ping")
    client.read_until(lambda: bool(client.answers))
    assert client.answers == ["ok pong"]


# --- retention --------------------------------------------------------------------------------------------------------


def test_max_bytes_drops_the_oldest_and_gives_the_space_back(node: Node, client: LineClient) -> None:
    names = [name_of(slot, WORKERS, "big") for slot in range(WORKERS)]
    for name in names:
        publish(client, name, 12_000)
    for name in names:
        wait_for(lambda name=name: number(node, name, "content_bytes") <= MIB, "dropped")  # type: ignore[misc]
    for name in names:
        stat = stat_of(node, name)
        first_seq = int(stat["first_seq"])
        assert stat["next_seq"] == "12000"
        assert 12_000 - first_seq == int(stat["messages"]) > 900, "no more than needed is dropped"
        (file,) = node.data.glob(f"shard-*/{name}.content")
        assert file.stat().st_size > 11 * MIB, "offsets stay"
        wait_for(lambda file=file: hole_bytes(file) > 10 * MIB, "the space is given back")  # type: ignore[misc]
        client.messages.clear()
        client.send(f"sub {name} 0 wait")
        assert client.read_messages(12_000 - first_seq)[0].seq == first_seq
        assert client.messages[-1].seq == 11_999


def hole_bytes(file: Path) -> int:
    """How much of a file takes no room on the disk, going by its size and its blocks."""
    status = file.stat()
    return status.st_size - status.st_blocks * 512


def test_max_age_drops_what_is_old(node: Node, client: LineClient) -> None:
    names = names_of(0, WORKERS, 1, "old") + names_of(1, WORKERS, 1, "old")
    for name in names:
        publish(client, name, 2_000)
    assert [number(node, name, "messages") for name in names] == [2_000, 2_000]
    for name in names:
        wait_for(lambda name=name: number(node, name, "messages") == 0, "all are too old")  # type: ignore[misc]
        stat = stat_of(node, name)
        assert (stat["first_seq"], stat["next_seq"], stat["content_bytes"]) == ("2000", "2000", "0")
        publish(client, name, 1)
        assert number(node, name, "messages") == 1
        client.messages.clear()
        client.send(f"sub {name} #0 wait")
        assert client.read_messages(1)[0].seq == 2_000


def test_a_stream_without_a_policy_keeps_everything(node: Node, client: LineClient) -> None:
    publish(client, "kept", 3_000)
    wait_for(lambda: number(node, name_of(0, WORKERS, "big"), "content_bytes") <= MIB, "retention has been there")
    assert number(node, "kept", "messages") == 3_000


# --- durability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(WORKERS))
def test_always_is_on_the_disk_when_it_is_acknowledged(node: Node, client: LineClient, slot: int) -> None:
    name = name_of(slot, WORKERS, "always")
    assert client.ask("ack on") == "ok ack on"
    for seq in range(20):
        assert client.ask(f"pub {name} |x") == f"ok pub {name} {seq}"
        assert number(node, name, "synced_seq") == seq + 1
    client.answers.clear()
    client.send(*[f"pub {name} |x"] * 5_000)
    client.read_until(lambda: len(client.answers) == 5_000)
    assert client.answers == [f"ok pub {name} {20 + seq}" for seq in range(5_000)]
    assert number(node, name, "synced_seq") == 5_020


@pytest.mark.parametrize("slot", range(WORKERS))
def test_interval_is_on_the_disk_a_moment_later(node: Node, client: LineClient, slot: int) -> None:
    name = name_of(slot, WORKERS, "interval")
    for total in (100, 200, 300):
        publish(client, name, 100)
        wait_for(lambda total=total: number(node, name, "synced_seq") == total, "it is synced")  # type: ignore[misc]


def test_async_is_left_to_the_kernel(node: Node, client: LineClient) -> None:
    publish(client, "async", 100)
    publish(client, "interval-witness", 1)
    wait_for(lambda: number(node, "interval-witness", "synced_seq") == 1, "another stream is synced")
    assert number(node, "async", "synced_seq") == 0


# --- roles ------------------------------------------------------------------------------------------------------------


def test_roles_and_epochs_outlive_the_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    names = [name_of(slot, WORKERS, "role") for slot in range(WORKERS)]
    with running(data, workers=WORKERS) as node, node.client() as client:
        for name in names:
            client.send(f"pub {name} |first")
            assert client.ask(f"unmaster {name}") == f"ok unmaster {name} 1"
            client.answers.clear()
    with running(data, workers=1) as node, node.client() as client:  # another number of workers: shards are what counts
        for name in names:
            assert stat_of(node, name)["role"] == "disabled"
            assert client.ask(f"pub {name} |no").startswith(f"err disabled {name}: ")
            client.send(f"sub {name} 0 wait", f"unsub {name}", f"sub {name} 0 wait", f"master {name}", f"master {name}")
            client.read_until(lambda: len(client.answers) == 6)
            assert client.answers[-2:] == [f"ok master {name} 2"] * 2, "the second finds it one already"
            client.read_until(lambda name=name: bool(client.messages))  # type: ignore[misc]
            assert client.messages.pop().payload == b"first"
            client.answers.clear()
    with running(data, workers=WORKERS) as node, node.client() as client:
        assert client.ask("ack on") == "ok ack on"
        for name in names:
            assert client.ask(f"pub {name} |second") == f"ok pub {name} 1"
            stat = stat_of(node, name)
            assert (stat["role"], stat["epoch"], stat["messages"]) == ("master", "2", "2")


def test_shutdown_stops_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", workers=WORKERS).start()
    with node.client() as client:
        client.send("ack on", *[f"pub last{number} |x" for number in range(10)], f"shutdown {socket.gethostname()}")
        client.read_to_end()
        assert client.answers[:12] == ["ok ack on", *[f"ok pub last{number} 0" for number in range(10)], "ok shutdown"]
        assert [answer[:11] for answer in client.answers[12:]] in ([], ["err closing"])
    wait_for(node.exited, "the node has ended")
    assert node.stop() == 0


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_metrics_agree_with_what_was_done(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node:
        names = names_of(0, WORKERS, 2, "m") + names_of(1, WORKERS, 2, "m")
        with node.client() as publisher, node.client() as reader:
            reader.send(*(f"sub {name} 0 wait" for name in names))
            reader.read_until(lambda: len(reader.answers) == 4)
            for name in names:
                publisher.send(*[f"pub {name} |{'x' * 100}"] * 500)
            publisher.send("nonsense", "pub $no |x", "pub $no |x", "ping")
            publisher.read_until(lambda: publisher.answers[-1:] == ["ok pong"])
            reader.read_messages(2_000)
            expected = {
                "tailrace_received_messages_total": 2_000.0,
                "tailrace_appended_messages_total": 2_000.0,
                "tailrace_appended_bytes_total": 2_000 * 132.0,
                "tailrace_sent_messages_total": 2_000.0,
                "tailrace_subscriptions": 4.0,
                "tailrace_streams": 4.0,
                "tailrace_parked_cursors": 4.0,
                "tailrace_lag_bytes": 0.0,
                "tailrace_partial_request_bytes": 0.0,
                "tailrace_producer_bytes": 0.0,
                "tailrace_waiting_steps": 0.0,
                "tailrace_damaged_streams": 0.0,
                "tailrace_worker_restarts_total": 0.0,
                'tailrace_refused_commands_total{code="command"}': 1.0,
                'tailrace_refused_commands_total{code="reserved"}': 2.0,
            }
            wait_for(lambda: not differences(node, expected), f"{differences(node, expected)}", patience_s=5)
            text = b"".join(b"msg %s %d %d 100 |" % (m.stream.encode(), m.seq, m.timestamp_us) for m in reader.messages)
            answers = b"".join(answer.encode() + b"\r\n" for answer in reader.answers + publisher.answers)
            sent_bytes = len(text) + 2_000 * len(b"x" * 100 + b"\r\n") + len(answers)
            assert not differences(node, {"tailrace_sent_bytes_total": float(sent_bytes)})
            assert node.metric("tailrace_append_seconds_count") >= 4
            reader.send("close")
        wait_for(lambda: node.metric("tailrace_connections") == 0, "the connections are gone")


def differences(node: Node, expected: dict[str, float]) -> dict[str, float]:
    """Those metrics that are not as expected, with their values."""
    samples = node.get("/metrics")[1].splitlines()
    found = dict.fromkeys(expected, 0.0)
    for line in samples:
        sample, _, value = line.rpartition(" ")
        name = sample if sample in found else sample.partition("{")[0]
        if name in found:
            found[name] += float(value)
    return {name: value for name, value in found.items() if value != expected[name]}


def test_promtool_finds_no_fault_with_a_scrape(node: Node) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian's prometheus)")
    status, text = node.get("/metrics")
    assert status == 200
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout + done.stderr
