"""Dead letters through the command and the Python client, over a real node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tailrace
from tests.system.node import Node, running, wait_for

PAYLOADS = [b"not \x1b[31m JSON", b"\xff" * 100]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("dead") / "data", workers=2) as node:
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


def test_a_stream_without_any_and_one_that_is_unknown(node: Node, client: tailrace.Client) -> None:
    client.publish("alive", b"x")
    assert command(node, "dead", "alive") == (0, b"", b"tailrace: alive has no dead letters\n")
    code, out, err = command(node, "dead", "typo")
    assert (code, out) == (1, b"") and b"no such stream" in err
    assert command(node, "dead", "$cursor/alive")[0] == 2
