"""The examples run, against a real node, with the documented results."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.tidy import tree

pytestmark = pytest.mark.system

EXAMPLES = sorted((tree.ROOT / "examples").glob("*.py"))
LINES_MAX = 30


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("examples") / "data", workers=2) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def start(node: Node, name: str, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(tree.ROOT / "examples" / name), *words, f"127.0.0.1:{node.port}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("path", EXAMPLES, ids=tree.shown)
def test_they_are_short_and_named(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LINES_MAX
    documents = [(tree.ROOT / "docs" / name).read_text() for name in ("client.md", "consumers.md", "spark.md")]
    assert any(f"examples/{path.name}" in document for document in documents)


def test_hello(node: Node, client: tailrace.Client) -> None:
    """Also where others have published to that stream, as README.md does."""
    client.publish("greetings", b"from elsewhere")
    out, err = start(node, "hello.py").communicate(timeout=PATIENCE_S)
    assert err == b""
    published_1, published_2, other, first, second = out.decode().splitlines()
    assert (published_1, published_2) == ("published as seq 1", "published as seq 2")
    assert other.startswith("0 20") and other.endswith(" - from elsewhere")
    assert first.endswith(" en hello") and second.endswith(" en hello again")


def test_resume(node: Node, client: tailrace.Client, tmp_path: Path) -> None:
    """Stopped after each message; every one is there."""
    file = tmp_path / "next_seq"
    seen = []
    for number in range(3):
        client.publish("work", b"task %d" % number)
        process = start(node, "resume.py", "work", str(file))
        assert process.stdout is not None
        line = process.stdout.readline()
        while not file.exists() or int(file.read_text() or "0") <= number:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        seen.append(line)
    assert seen == [b"0 task 0\n", b"1 task 1\n", b"2 task 2\n"]


def test_pipeline(node: Node, client: tailrace.Client) -> None:
    """It continues after its earlier messages."""
    results = client.subscribe("counted", wait=True)
    for texts in (["one two", "three"], ["", "four five six"]):
        client.publish_many("text", [text.encode() for text in texts])
        process = start(node, "pipeline.py", "text", "counted")
        for text in texts:
            message = results.receive(PATIENCE_S)
            assert message is not None
            assert json.loads(message.payload) == {"seq": message.seq, "words": len(text.split())}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def test_orders(node: Node, client: tailrace.Client, tmp_path: Path) -> None:
    """Killed again and again, then two at once: each order is there once, in the order of its customer."""
    database = tmp_path / "orders.db"
    published = [{"customer": f"customer-{number % 3}", "cents": number} for number in range(60)]
    for order in published:
        client.publish("orders", json.dumps(order).encode(), key=str(order["customer"]))
    for lines in (3, 20):
        process = start(node, "orders.py", "orders", str(database))
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.kill()
        process.communicate()
    processes = [start(node, "orders.py", "orders", str(database)) for _ in range(2)]
    # What the killed ones had comes back after a moment's grace, long before `ack_wait_s`.
    wait_for(lambda: not client.consumers("orders")[0].lag_messages, "all orders are finished", 2 * PATIENCE_S)
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    with contextlib.closing(sqlite3.connect(database)) as found:
        rows = list(found.execute("SELECT customer, cents FROM orders ORDER BY rowid"))
    for customer in ("customer-0", "customer-1", "customer-2"):
        of_customer = [order["cents"] for order in published if order["customer"] == customer]
        assert [cents for name, cents in rows if name == customer] == of_customer
    assert len(rows) == len(published)


@pytest.mark.parametrize("document", ["README.md", "docs/client.md"])
def test_the_first_program_of_the_documents(node: Node, document: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = (tree.ROOT / document).read_text().partition("```python\nimport tailrace\n")[2].partition("```")[0]
    assert program.count("127.0.0.1:5050") == 1
    exec("import tailrace\n" + program.replace("127.0.0.1:5050", f"127.0.0.1:{node.port}"), {})
    assert "b'" in capsys.readouterr().out
