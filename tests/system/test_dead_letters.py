"""Dead letters through the command and the Python client, over a real node."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import tailrace
from tailrace.shard.names import shard_of
from tests.system.node import LineClient, Node, running, wait_for
from tests.system.processes import worker_pid

WORKERS = 2
KILLS = 3
PAYLOADS = [b"not \x1b[31m JSON", b"\xff" * 100]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("dead") / "data", workers=WORKERS) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def command(node: Node, *words: str) -> tuple[int, bytes, bytes]:
    """Exit code, output, errors."""
    environment = {**os.environ, "TAILRACE_SERVER": f"127.0.0.1:{node.port}"}
    words = (sys.executable, "-m", "tailrace.cli.main", *words)
    done = subprocess.run(words, capture_output=True, env=environment, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def bury(client: tailrace.Client, stream: str, payloads: list[bytes]) -> None:
    """Let a consumer give these up."""
    client.publish_many(stream, payloads, key="k", headers={"shop": "7"})
    with client.consumer(stream, "billing", deliveries_max=1) as consumer:
        for _ in payloads:
            message = consumer.receive(60)
            assert message is not None
            message.nack("cannot be parsed")
        consumer.flush()
        wait_for(lambda: client.consumers(stream)[0].dead == len(payloads), "all are dead letters")
    wait_for(lambda: len(letters(client, stream)) == len(payloads), "all are in the log")


def letters(client: tailrace.Client, stream: str) -> list[tailrace.Message]:
    return list(client.subscribe(f"{stream}/$dead", end=tailrace.NOW, wait=True))


@pytest.mark.thorough
def test_the_command_lists_them_and_shows_one(node: Node, client: tailrace.Client) -> None:
    bury(client, "orders", PAYLOADS)
    code, out, err = command(node, "dead", "orders")
    assert (code, err) == (0, b"")
    first, second = [line.split("\t") for line in out.decode().splitlines()]
    assert [first[0], *first[2:]] == ["0", "billing", "1", "0", "cannot be parsed", "not .[31m JSON"]
    assert [second[0], *second[2:]] == ["1", "billing", "1", "1", "cannot be parsed", "\ufffd" * 40 + "…"]
    assert command(node, "dead", "orders", "--seq", "1") == (0, PAYLOADS[1], b"")
    code, out, _ = command(node, "dead", "orders", "--json", "--count", "1")
    shown = json.loads(out)
    assert (code, shown["seq"], shown["headers"]["shop"], shown["headers"]["dead-seq"]) == (0, 0, "7", "0")


@pytest.mark.thorough
def test_a_stream_without_any_and_one_that_is_unknown(node: Node, client: tailrace.Client) -> None:
    client.publish("alive", b"x")
    assert command(node, "dead", "alive") == (0, b"", b"tailrace: alive has no dead letters\n")
    code, out, err = command(node, "dead", "typo")
    assert (code, out) == (1, b"") and b"no such stream" in err
    assert command(node, "dead", "$cursor/alive")[0] == 2


def messages(client: tailrace.Client, stream: str) -> list[tailrace.Message]:
    return list(client.subscribe(stream, end=tailrace.NOW))


def test_redrive_and_purge_of_one_of_a_range_and_of_all(node: Node, client: tailrace.Client) -> None:
    bury(client, "again", [b"%d" % number for number in range(8)])
    assert client.redrive("again", 3) == 1
    assert client.redrive("again", range(4, 6)) == 2
    back = messages(client, "again")[8:]
    assert [(each.payload, each.key, each.headers) for each in back] == [
        (payload, "k", {"key": "k", "shop": "7"}) for payload in (b"3", b"4", b"5")
    ]
    assert client.purge("again", 7) == 1
    assert [letter.seq for letter in client.dead_letters("again")] == [0, 1, 2, 6]
    assert [letter.seq for letter in client.dead_letters("again", 2)] == [2, 6]
    code, out, err = command(node, "dead", "again", "--redrive", "--all")
    assert (code, out, err) == (0, b"4 dead letters published to again again\n", b"")
    assert [each.payload for each in messages(client, "again")[11:]] == [b"0", b"1", b"2", b"6"]
    assert not list(client.dead_letters("again")) and client.redrive("again") == 0
    with LineClient(node.port) as peer:
        stat = dict(row.split(" ", 1) for row in peer.ask_table("stat again/$dead")[1:-1])
    assert stat["first_seq"] == stat["next_seq"] == "8", "what is removed at the beginning is dropped"


def test_redrive_and_purge_in_asyncio(node: Node, client: tailrace.Client) -> None:
    async def work() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as other:
            assert [letter.payload async for letter in other.dead_letters("tasks")] == [b"0", b"1", b"2"]
            assert await other.redrive("tasks", 1) == 1
            assert await other.purge("tasks") == 2
            assert [letter async for letter in other.dead_letters("tasks")] == []
            with pytest.raises(tailrace.UnknownStream):
                await other.redrive("typo")

    bury(client, "tasks", [b"0", b"1", b"2"])
    asyncio.run(asyncio.wait_for(work(), 60))
    assert [each.payload for each in messages(client, "tasks")[3:]] == [b"1"]


def test_each_is_redriven_once_while_the_owner_is_killed(node: Node, client: tailrace.Client) -> None:
    payloads = [b"%d" % number for number in range(600)]
    bury(client, "killed", payloads)
    slot, done = shard_of(b"killed") % WORKERS, threading.Event()

    def kill() -> None:
        for _ in range(KILLS):
            done.wait(random.uniform(0.0, 0.1))
            os.kill(worker_pid(node, slot), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert client.redrive("killed", timeout_s=60) == len(payloads)
    finally:
        done.set()
        killer.join()
    assert sorted(int(each.payload) for each in messages(client, "killed")[len(payloads) :]) == list(range(600))
    assert not list(client.dead_letters("killed"))
