"""`max_bytes` of the node and `reserve_bytes`: publishes are refused, and nothing else, until there is room again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import NOW, Client, connect
from tests.system.mounts import CannotMount, mounted
from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, names_of, tailrace

pytestmark = pytest.mark.system

MIB = 1 << 20
WORKERS = 2
MOST = 16 * MIB
SLACK = MOST // 16
OVER = 3 * MIB
"""What a node may take beyond its bound: each worker looks once for each MiB, and the figures are rounded to pages."""
BIG = b"x" * 20_000
FLAGS = ("--trim-grace-s", "2", "--retention-interval-s", "300")
SETTING = "max_bytes in [node] allows"
SHOWN_SETTING = SETTING.replace(" ", "_")


def config(max_bytes: int, more: str = "") -> str:
    return f"[node]\nmax_bytes = {max_bytes}\n{more}"


@contextlib.contextmanager
def space_node(data: Path, text: str) -> Iterator[Node]:
    with running(data, *FLAGS, workers=WORKERS, config=text) as node:
        yield node


def publisher(node: Node) -> LineClient:
    client = node.client()
    client.ask("ack on")
    return client


def publish_until_full(client: LineClient, streams: list[str], most_bytes: int) -> tuple[dict[str, int], str]:
    """Publish to the streams by turns; gives how many messages each took, and the refusal."""
    taken = dict.fromkeys(streams, 0)
    for number in range(2 * most_bytes // len(BIG)):
        stream = streams[number % len(streams)]
        answer = client.ask(b"pub %s |%s" % (stream.encode(), BIG))
        if not answer.startswith("ok "):
            return taken, answer
        taken[stream] += 1
    raise AssertionError("the bound is not met")


def space_of(node: Node) -> dict[str, str]:
    with node.client() as client:
        return {row["field"]: row["value"] for row in rows(client.ask_table("space"))}


def wait_until_taken(client: LineClient, stream: str) -> None:
    wait_for(lambda: client.ask(f"pub {stream} |room").startswith("ok "), f"{stream} takes messages again")


def files_bytes(data: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in data.glob("shard-*/*"))


STREAMS = [*names_of(0, WORKERS, 2, "d"), *names_of(1, WORKERS, 2, "d")]


def test_the_bound_of_a_node_refuses_publishes_on_all_workers_and_nothing_else(tmp_path: Path) -> None:
    with space_node(tmp_path / "data", config(MOST)) as node:
        before = lives(node)
        with publisher(node) as client, node.client() as reader, node.client() as member:
            client.ask(f"pub {STREAMS[0]} |first")
            assert member.ask(f"consume {STREAMS[0]} group 0").startswith("ok ")
            taken, refusal = publish_until_full(client, STREAMS, MOST)
            assert refusal.startswith("err full ") and SETTING in refusal
            # On both workers, at the latest when the other one looks again; a new stream is not made.
            for stream in (*STREAMS, "new-one"):
                wait_for(lambda: client.ask(f"pub {stream} |x").startswith("err full "), f"{stream} is refused")  # noqa: B023
            assert client.ask_table("stat new-one")[0].startswith("err unknown ")
            found = space_of(node)
            assert found["state"] == "refusing" and found["max_bytes"] == str(MOST)
            assert MOST - SLACK <= int(found["used_bytes"]) <= MOST + OVER
            assert MOST - OVER <= files_bytes(node.data) <= MOST + OVER
            # Readers and consumers go on.
            reader.send(*(f"sub {stream} 0" for stream in STREAMS))
            reader.read_messages(sum(taken.values()) + 1)
            member.send(f"get {STREAMS[0]} group 0 5")
            got = member.read_messages(5)
            assert member.ask(f"ack {STREAMS[0]} group 0 4").startswith("ok ack ")
            assert [message.seq for message in got] == list(range(5))
            # So does administration: a deletion gives the space back.
            assert client.ask(f"delete {STREAMS[1]}") == f"ok delete {STREAMS[1]}"
            for stream in (STREAMS[0], STREAMS[2], STREAMS[1], "new-one"):
                wait_until_taken(client, stream)
        assert node.metric("tailrace_data_max_bytes") == MOST
        wait_for(lambda: node.metric("tailrace_data_refusing") == 0, "the metrics show it")
        assert node.metric("tailrace_data_refused_messages_total") >= 5
        assert lives(node) == before
        assert 1 <= node.log().count("publishes are refused") <= WORKERS


@pytest.mark.thorough
def test_the_command_stops_at_the_bound_and_says_it_once(tmp_path: Path) -> None:
    """Many requests are under way when one is refused: the numbers of those after it do not come next."""
    lines = (b"x" * 199 + b"\n") * (2 * MOST // 200)
    with space_node(tmp_path / "data", config(MOST)) as node:
        done = subprocess.run(tailrace(node, "pub", "s", "--json"), input=lines, capture_output=True, check=False)
        [refusal, stopped] = done.stderr.decode().splitlines()
        assert done.returncode == 1 and ": full: s: " in refusal and SETTING in refusal
        assert "the rest of the input was not read" in stopped
        report = json.loads(done.stdout)
        assert report["full_at"] == report["acknowledged"] + 1 > MOST // 400
        with connect(f"127.0.0.1:{node.port}") as client:
            assert client.streams("s")[0].next_seq == report["acknowledged"]
        one = subprocess.run(tailrace(node, "pub", "s", "one", "--no-ack"), capture_output=True, check=False)
        assert one.returncode == 1 and ": full: s: " in one.stderr.decode()


@pytest.mark.thorough
def test_a_trim_gives_room(tmp_path: Path) -> None:
    with space_node(tmp_path / "data", config(MOST)) as node, publisher(node) as client:
        stream = STREAMS[0]
        taken, _ = publish_until_full(client, [stream], MOST)
        assert client.ask(f"trim {stream} #{taken[stream] // 2}").startswith("ok trim ")
        wait_until_taken(client, stream)
        wait_until_taken(client, STREAMS[2])


@pytest.mark.thorough
def test_retention_drops_first_what_it_may_drop(tmp_path: Path) -> None:
    """Its interval is five minutes: only the shortage lets it look earlier."""
    policies = f'[[stream]]\npattern = "d*"\nmax_bytes = {2 * MIB}\n'
    most = 32 * MIB
    with space_node(tmp_path / "data", config(most, policies)) as node, publisher(node) as client:
        published = 0
        for number in range(3 * most // len(BIG)):
            stream = STREAMS[number % len(STREAMS)]
            wait_for(
                lambda: client.ask(b"pub %s |%s" % (stream.encode(), BIG)).startswith("ok "),  # noqa: B023
                "it is taken, now or when space is back",
            )
            published += 1
            assert number % 100 or files_bytes(node.data) <= most + 8 * MIB
        firsts = [int(rows_of(client, stream)["first_seq"]) for stream in STREAMS]
        assert published * len(BIG) > 2 * most and all(first > 0 for first in firsts)


def rows_of(client: LineClient, stream: str) -> dict[str, str]:
    return {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {stream}"))}


@pytest.mark.thorough
def test_kill_restart_and_reload_over_the_bound(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with space_node(data, config(2 * MOST)) as node:
        with publisher(node) as client:
            publish_until_full(client, STREAMS, 2 * MOST)
        node.kill()
        node.start()
        with publisher(node) as client:
            for stream in STREAMS:
                wait_for(lambda: client.ask(f"pub {stream} |x").startswith("err full "), f"{stream} is refused")  # noqa: B023
            before = node.worker_pids()
            os.kill(before[0], signal.SIGKILL)
            wait_for(lambda: node.worker_pids()[0] not in (0, before[0]), "another worker is there")
            node.wait_ready()
        with publisher(node) as client:
            wait_for(lambda: client.ask(f"pub {STREAMS[0]} |x").startswith("err full "), "it is refused again")
        reload_with(node, config(4 * MOST))
        with publisher(node) as client:
            for stream in STREAMS:
                wait_until_taken(client, stream)
        assert space_of(node)["max_bytes"] == str(4 * MOST)
        reload_with(node, config(MOST))
        with publisher(node) as client:
            for stream in STREAMS:
                wait_for(lambda: client.ask(f"pub {stream} |x").startswith("err full "), f"{stream} is refused")  # noqa: B023
        reload_with(node, "")
        with publisher(node) as client:
            for stream in STREAMS:
                assert client.ask(f"pub {stream} |x").startswith("ok ")
        wait_for(lambda: int(space_of(node)["used_bytes"]) > MOST, "it is measured without a bound too")
        done = subprocess.run(tailrace(node, "admin", "space"), capture_output=True, text=True, check=True)
        assert "state" in done.stdout and "ample" in done.stdout


@pytest.mark.thorough
def test_members_that_fail_everything_stay_within_the_bound_and_lose_nothing(tmp_path: Path) -> None:
    """By nack in Python and by lines, by deadlines, and after resets; the letters come when there is room again."""
    stream, count, resets = STREAMS[0], MOST // (2 * len(BIG)), 3
    with (
        space_node(tmp_path / "data", config(MOST)) as node,
        publisher(node) as lines,
        connect(f"127.0.0.1:{node.port}") as client,
    ):
        client.publish_many(stream, [BIG] * count)
        publish_until_full(lines, STREAMS[2:], MOST)
        for _ in range(resets):
            fail_all(client, stream, count)
            client.reset_consumer(stream, "billing", start=0)
        client.create_consumer(stream, "slow", start=0, ack_wait_s=1, deliveries_max=1)
        client.create_consumer(stream, "lines", start=0, deliveries_max=1)
        for consumer, to_fail in (("slow", 0), ("lines", 5)):
            lines.send(f"get {stream} {consumer} 0 5")
            for message in lines.read_messages(5)[:to_fail]:
                assert lines.ask(f"nack {stream} {consumer} {message.seq} broken").startswith("ok ")
        dead = {"billing": resets * count, "lines": 5, "slow": 5}
        wait_for(lambda: {each.name: each.dead for each in client.consumers(stream)} == dead, "all of them are dead")
        assert files_bytes(node.data) <= MOST + OVER
        wait_for(lambda: node.metric("tailrace_held_letter_streams") == 1, "the metrics show that they wait")
        assert node.log().count("dead letters wait") == 1
        reload_with(node, config(16 * MOST))
        wait_for(lambda: end_of(client, f"{stream}/$dead") == sum(dead.values()), "they are published")
        found = Counter(
            (letter.headers["dead-consumer"], letter.headers["dead-seq"])
            for letter in client.subscribe(f"{stream}/$dead", end=NOW)
        )
        seqs = range(count)
        assert found == {("billing", str(seq)): resets for seq in seqs} | {
            (name, str(seq)): 1 for name in ("lines", "slow") for seq in range(5)
        }


def fail_all(client: Client, stream: str, count: int) -> None:
    with client.consumer(stream, "billing", start=0, deliveries_max=1, retry_s=0) as consumer:
        for _ in range(count):
            message = consumer.receive(60)
            assert message is not None
            message.nack("broken")


def end_of(client: Client, stream: str) -> int:
    return sum(found.next_seq for found in client.streams(stream))


def reload_with(node: Node, text: str) -> None:
    (node.data.parent / f"{node.data.name}.toml").write_text(text)
    before = node.worker_pids()
    node.signal(signal.SIGHUP)
    wait_for(lambda: not set(before) & set(node.worker_pids()), "all workers are replaced")
    node.wait_ready()


def test_a_reserve_of_a_small_disk_stays_free(tmp_path: Path) -> None:
    reserve, ballast = 24 * MIB, 16 * MIB
    try:
        stack = contextlib.ExitStack()
        disk = stack.enter_context(mounted(tmp_path / "disk", f"size={80 * MIB}"))
    except CannotMount as reason:
        pytest.skip(str(reason))
    with stack:
        (disk / "ballast").write_bytes(bytes(ballast))
        node = Node(disk / "data", *FLAGS, "--reserve-bytes", str(reserve), workers=WORKERS)
        node.log_path = tmp_path / "node.log"
        node.start()
        stack.callback(node.kill)
        with publisher(node) as client:
            taken, refusal = publish_until_full(client, STREAMS, 80 * MIB)
            assert refusal.startswith("err full ") and "reserve_bytes in [node], " in refusal
            found = os.statvfs(disk)
            assert found.f_bavail * found.f_frsize >= reserve - OVER
            assert sum(taken.values()) * len(BIG) > 20 * MIB
            (disk / "ballast").unlink()
            for stream in STREAMS:
                wait_until_taken(client, stream)
        assert node.stop() == 0 and "Traceback" not in node.log(), node.log()


@pytest.mark.thorough
def test_a_slave_says_why_it_stops_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    first, second = STREAMS[0], STREAMS[2]
    with (
        running(tmp_path / "above", workers=1) as above,
        space_node(tmp_path / "data", config(MOST)) as node,
        publisher(above) as client,
        node.client() as below,
    ):
        for stream in (first, second):
            for _ in range(3 * MOST // 4 // len(BIG)):
                assert client.ask(b"pub %s |%s" % (stream.encode(), BIG)).startswith("ok ")
        assert below.ask(f"slave 127.0.0.1 {above.port} d* 0").startswith("ok ")

        def waiting() -> list[str]:
            copies = [rows_text(below, stream) for stream in (first, second)]
            return [text for text in copies if SHOWN_SETTING in text]

        wait_for(waiting, "a copy says what it waits for")
        assert files_bytes(node.data) <= MOST + 4 * MIB  # it takes chunks of up to 2 MiB
        held = second if SHOWN_SETTING in rows_text(below, second) else first
        other = first if held == second else second
        assert client.ask(f"delete {other}").startswith("ok ")
        end = 3 * MOST // 4 // len(BIG)
        wait_for(lambda: f"next_seq {end}\n" in rows_text(below, held), "the copy has all of its stream")


def rows_text(client: LineClient, stream: str) -> str:
    """The answer to `stat`; the blanks of a reason are shown as underlines."""
    return "\n".join(client.ask_table(f"stat {stream}"))
