"""The Python of the documents runs as it is printed, against a real node; only addresses are this node's."""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
from collections.abc import Iterator
from inspect import isawaitable
from itertools import islice
from threading import Event, Thread
from typing import Any

import pytest

import tailrace
from tailrace import NOW, Client
from tests.system.node import PATIENCE_S, Node, running
from tests.tidy import tree

pytestmark = pytest.mark.system

ADDRESS = "127.0.0.1:5050"
DOCUMENTS = ("README.md", "docs/client.md", "docs/consumers.md")
BLOCKS = {
    (document, number): block
    for document in DOCUMENTS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (tree.ROOT / document).read_text(), re.DOTALL))
}
TLS, REQUEST, REPLY = "tls_context(", "client.request(", "message.reply("
PUBLISH_EVERY_S = 0.05
LETTERS = 5  # of which a block purges and publishes again the first four


class Enough(BaseException):
    """Ends a block that would go on for ever, after as many messages as it shows."""


class Shown:
    """What a block prints and handles. Raises Enough at the last."""

    def __init__(self, most: int) -> None:
        self.values: list[Any] = []
        self.most = most

    def __call__(self, *values: Any) -> None:
        self.values.append(values)
        if len(self.values) == self.most:
            raise Enough


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With a publisher, whose messages the blocks that wait for new ones see."""
    with running(tmp_path_factory.mktemp("documents") / "data", workers=2) as node:
        ends = Event()

        def publish() -> None:
            with tailrace.connect(f"127.0.0.1:{node.port}") as client:
                client.publish_to(["orders", "questions"], b"begin")
                while not ends.wait(PUBLISH_EVERY_S):
                    client.publish("orders", b"new")

        publisher = Thread(target=publish)
        publisher.start()
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            client.wait_for_stream("orders", PATIENCE_S)
            with client.consumer("orders", "once", deliveries_max=1) as failing:
                for _ in range(LETTERS):
                    message = failing.receive(PATIENCE_S)
                    assert message is not None
                    message.nack("it is to become a dead letter")
            letters = client.subscribe("orders/$dead", wait=True)
            assert all(letters.receive(PATIENCE_S) for _ in range(LETTERS))
        yield node
        ends.set()
        publisher.join()


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def run(node: Node, block: str, **names: Any) -> Shown:
    """Executes a block; returns its output. Blocks without an end are ended when they have shown each thing once."""
    shown = Shown(max(block.count("print(") + block.count("handle("), 1))
    names = {"tailrace": tailrace, "print": shown, **names}
    names.setdefault("handle", shown)
    text = block.replace(ADDRESS, f"127.0.0.1:{node.port}")
    code = compile(text, "document", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if "await" in block or "async " in block:

        async def handle(payload: bytes) -> None:
            shown(payload)

        async def play() -> None:
            result = eval(code, {**names, "handle": handle})
            if isawaitable(result):
                await result

        _until_enough(lambda: asyncio.run(play()))
    else:
        _until_enough(lambda: exec(code, names))
    return shown


def _until_enough(play: Any) -> None:
    try:
        play()
    except Enough:
        pass


@pytest.mark.parametrize(
    "which", [key for key, block in BLOCKS.items() if not any(word in block for word in (TLS, REQUEST, REPLY, "once("))]
)
def test_blocks(node: Node, client: Client, which: tuple[str, int]) -> None:
    names = {
        "client": client,
        "orders": [b"1", b"2"],
        "subscription": client.subscribe("orders", end=NOW),
        "undo_from": lambda _seq: None,
    }
    shown = run(node, BLOCKS[which], **names)
    assert shown.values, "the block has shown nothing"


def test_a_request_and_its_reply(node: Node, client: Client) -> None:
    [request], [reply] = ([block for block in BLOCKS.values() if word in block] for word in (REQUEST, REPLY))

    class Requests:
        """The consumer of the block, without messages that are not requests and without going on for ever."""

        def consumer(self, stream: str, name: str) -> Any:
            return Limited(other.consumer(stream, name, start=tailrace.NEW), 1)

    with tailrace.connect(f"127.0.0.1:{node.port}") as other:
        other.create_consumer("questions", "clock", tailrace.NEW)
        answering = Thread(target=lambda: run(node, reply, client=Requests()))
        answering.start()
        patient = request.replace("timeout_s=5", f"timeout_s={PATIENCE_S}")
        assert run(node, patient, client=client).values == [(b"late",)]
        answering.join()


class Limited:
    """A consumer that ends after some messages."""

    def __init__(self, consumer: tailrace.Consumer, most: int) -> None:
        self._consumer = consumer
        self._most = most

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    def __iter__(self) -> Iterator[tailrace.ConsumedMessage]:
        return islice(iter(self._consumer), self._most)


def test_an_effect_that_happens_once(node: Node, client: Client) -> None:
    [block] = [block for block in BLOCKS.values() if "once(" in block]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (payload BLOB)")
    with Limited(client.consumer("orders", "database"), 2) as consumer:
        run(node, block, consumer=consumer, database=database)
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (2,)
    database.close()


def test_the_block_on_tls_names_what_there_is() -> None:
    [block] = [block for block in BLOCKS.values() if TLS in block]
    assert set(re.findall(r"tailrace\.(\w+)", block)) <= {*tailrace.__all__, "example"}
