"""The main job: `tailrace pub` of a large real text, and `tailrace tail` of it from any place, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.system.node import PATIENCE_S, LineClient, Node, rows, running, wait_for
from tests.system.streams import TEXT_LINES, lives, name_of, real_text, run_tailrace, tailrace
from tests.thorough import only_thorough

pytestmark = [pytest.mark.system, pytest.mark.slow]

WORKERS = 2
STREAMS = 3
# If connections stay, tails of one stream are on several workers; if they move, they come together.
AFFINITIES = ("affinity = false", "affinity = true")


@pytest.fixture(scope="module", params=[*only_thorough(AFFINITIES[0]), AFFINITIES[1]])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = f"[node]\n{request.param}\n"
    with running(tmp_path_factory.mktemp("command") / "data", workers=WORKERS, config=config) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


class Tail:
    """`tailrace tail` in a process of its own, its output taken as it comes."""

    def __init__(self, node: Node, *words: str) -> None:
        self._process = subprocess.Popen(
            tailrace(node, "tail", "--wait", "--from", "0", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.output = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while data := os.read(self._process.stdout.fileno(), 1 << 20):
            self.output += data

    def worker(self, node: Node) -> int:
        """The worker that serves its subscription; -1 before there is one."""
        mine = {f"{each.laddr.ip}:{each.laddr.port}" for each in psutil.Process(self._process.pid).net_connections()}
        with node.client() as admin:
            for row in rows(admin.ask_table("conns")):
                if row["peer"] in mine and row["subscriptions"] == "1":
                    return int(row["worker"])
        return -1

    def finish(self) -> bytes:
        """All its output, after it has ended by itself and without a complaint."""
        with self._process as process:
            self._thread.join(PATIENCE_S)
            process.kill() if self._thread.is_alive() else None
            self._thread.join()
            assert process.stderr is not None
            assert (process.wait(), process.stderr.read()) == (0, b"")
        return self.output


class Feed:
    """`tailrace pub` in a process of its own, which is given its input in two halves."""

    def __init__(self, node: Node, stream: str) -> None:
        command = tailrace(node, "pub", stream)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def give(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def finish(self) -> str:
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        assert (self.process.returncode, output) == (0, b""), errors
        return errors.decode()


def next_seq(client: LineClient, stream: str) -> int:
    """0 before its first publish."""
    client.answers.clear()
    found = client.ask_table(f"stat {stream}")
    if found[-1].startswith("err unknown "):
        return 0
    stat = {row["field"]: row["value"] for row in rows(found)}
    return int(stat["next_seq"])


@pytest.mark.thorough
def test_a_large_text_through_three_publishers_and_many_tails(node: Node, request: pytest.FixtureRequest) -> None:
    """Three publish at once; tails come in before, in the middle, and after: each gets the very bytes."""
    text = real_text()
    half = text.index(b"\n", len(text) // 2) + 1
    lines_of_half = text[:half].count(b"\n")
    names = [name_of(number % WORKERS, WORKERS, f"text{number}-") for number in range(STREAMS)]
    early = [Tail(node, name, "--from", "0", "--count", str(TEXT_LINES)) for name in names]
    feeds = [Feed(node, name) for name in names]
    for feed in feeds:
        feed.give(text[:half])
    with node.client() as client:
        for name in names:
            wait_for(lambda name=name: next_seq(client, name) > lines_of_half // 2, "it goes on")  # type: ignore[misc]
        middle = [Tail(node, name, "--from", "0", "--count", str(TEXT_LINES)) for name in names]
        threads = [threading.Thread(target=feed.give, args=(text[half:],)) for feed in feeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for feed in feeds:
        assert f"{TEXT_LINES:,} acknowledged, seq 0 to {TEXT_LINES - 1:,}" in feed.finish()
    for tail in early + middle:
        assert tail.finish() == text
    check_places(node, names[0], text.split(b"\n")[:-1])
    check_every_worker(node, names, text)
    if request.node.callspec.params["node"] == AFFINITIES[0]:
        check_tails_of_every_worker(node, names[0], text)


def check_places(node: Node, name: str, lines: list[bytes]) -> None:
    """From a seq and from a time, compared with a plain client."""
    with node.client() as client:
        client.send(f"sub {name} #{TEXT_LINES - 20_000} wait", f"unsub {name}")
        client.send(f"sub {name} #{TEXT_LINES // 3} wait")
        client.read_until(lambda: len(client.messages) > 0 and client.messages[-1].seq == TEXT_LINES - 1)
        a_time_us = client.messages[len(client.messages) // 2].timestamp_us
        first = next(message.seq for message in client.messages if message.timestamp_us >= a_time_us)
        client.send("close")
    for start, seq in ((f"#{TEXT_LINES // 2}", TEXT_LINES // 2), (str(a_time_us), first)):
        done = run_tailrace(node, "tail", name, "--from", start, "--no-follow")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == b"".join(line + b"\n" for line in lines[seq:])
    done = run_tailrace(node, "tail", name, "--from", f"#{TEXT_LINES - 3}", "--count", "2", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["seq"] for each in found] == [TEXT_LINES - 3, TEXT_LINES - 2]
    assert [each["payload"].encode() for each in found] == lines[-3:-1]


def check_every_worker(node: Node, names: list[str], text: bytes) -> None:
    """Every stream, whole, on a connection of every worker."""
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(node.client_of(slot)) for slot in range(WORKERS)]
        for client in clients:
            client.send(*(f"sub {name} 0 wait" for name in names))
        for client in clients:
            client.read_messages(TEXT_LINES * STREAMS)
            for name in names:
                lines = [message.payload + b"\n" for message in client.messages if message.stream == name]
                assert b"".join(lines) == text
            client.send("close")


def check_tails_of_every_worker(node: Node, name: str, text: bytes) -> None:
    """`tailrace tail` itself on connections of different workers, which one it gets being the kernel's choice."""
    tails: list[Tail] = []
    workers: set[int] = set()
    while len(workers) < WORKERS:
        assert len(tails) < 50, "no tail came to some worker"
        tail = Tail(node, name, "--from", "0", "--count", str(TEXT_LINES + 1))
        tails.append(tail)
        wait_for(lambda tail=tail: tail.worker(node) >= 0, "it is subscribed")  # type: ignore[misc]
        workers.add(tail.worker(node))
    assert run_tailrace(node, "pub", name, given="the end, à la fin\n".encode()).returncode == 0
    for tail in tails:
        assert tail.finish() == text + "the end, à la fin\n".encode()


def test_any_bytes_and_a_last_line_without_its_end(node: Node) -> None:
    given = b"cr at the end\r\n\n\x00\xff\xfe|  |\ntab\t\nlast without end"
    done = run_tailrace(node, "pub", "any-bytes", "--quiet", given=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = run_tailrace(node, "tail", "any-bytes", "--from", "0", "--no-follow")
    assert (done.returncode, done.stdout, done.stderr) == (0, given + b"\n", b"")


def test_refusals_are_told_with_their_lines(node: Node) -> None:
    assert run_tailrace(node, "admin", "master", "shut").stdout.startswith(b"ok master shut ")
    assert run_tailrace(node, "admin", "unmaster", "shut").returncode == 0
    done = run_tailrace(node, "pub", "shut", "--quiet", given=b"a\nb\n")
    assert done.returncode == 1
    assert b"line 1: disabled: " in done.stderr
    done = run_tailrace(node, "admin", "stat", "there-is-no-such")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"tailrace: unknown: ")


def test_admin_prints_tables(node: Node) -> None:
    done = run_tailrace(node, "admin", "workers")
    assert done.returncode == 0
    header, *body = done.stdout.decode().splitlines()
    assert header.split()[:4] == ["ok", "worker", "pid", "state"]
    assert [int(line.split()[1]) for line in body] == node.worker_pids()


def test_a_tail_that_outlives_the_node_says_where_to_go_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    node = Node(tmp_path_factory.mktemp("ending") / "data", workers=WORKERS).start()
    try:
        assert run_tailrace(node, "pub", "ending", given=b"one\ntwo\n").returncode == 0
        command = tailrace(node, "tail", "ending", "--from", "0", "--reconnect", "0.2")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
            assert tail.stdout is not None and tail.stderr is not None
            assert tail.stdout.read(8) == b"one\ntwo\n"
            assert node.stop() == 0
            assert tail.wait(PATIENCE_S) == 4
            assert b" after seq 1" in tail.stderr.read()
    finally:
        node.kill()
