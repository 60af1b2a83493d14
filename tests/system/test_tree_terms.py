"""A master that was away while another node was promoted learns of it, whichever of the others lives: on real nodes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.node import Node, rows, wait_for

pytestmark = pytest.mark.system

TIMING = '[timing]\nupstream_timeout_s = "2 s"\n'
NAMES = ("one", "two", "three")


def stat(node: Node, stream: str) -> dict[str, str]:
    with node.client() as client:
        return {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {stream}"))}


def tell(node: Node, *lines: str) -> None:
    with node.client() as client:
        for line in lines:
            answer = client.ask(line)
            assert answer.startswith("ok"), f"{line}: {answer}"


def slave(node: Node, upstream: Node, *streams: str) -> None:
    tell(node, *(f"slave 127.0.0.1 {upstream.port} {stream} 0" for stream in streams))


def masters(nodes: list[Node], stream: str) -> list[Node]:
    return [node for node in nodes if stat(node, stream)["role"] == "master"]


def wait_copied(node: Node, *streams: str) -> None:
    for stream in streams:
        wait_for(lambda stream=stream: stat(node, stream).get("next_seq") == "1", f"{stream} is copied")  # type: ignore[misc]


def wait_follows(node: Node, *streams: str) -> None:
    for stream in streams:
        wait_for(lambda stream=stream: stat(node, stream)["role"] == "slave", f"{stream} has given in")  # type: ignore[misc]


def publish(node: Node, *streams: str) -> None:
    tell(node, "ack on", *(f"pub {stream} |message" for stream in streams))


def publish_returned(node: Node, *streams: str) -> None:
    """Publish to a master that came back. Until it knows the new master and follows in its term it refuses."""
    with node.client() as client:
        assert client.ask("ack on").startswith("ok")
        for stream in streams:

            def is_published(stream: str = stream) -> bool:
                answer = client.ask(f"pub {stream} |message")
                refused = answer.startswith("err disabled")
                assert refused or answer.startswith("ok"), answer
                return not refused

            wait_for(is_published, f"{stream} takes messages")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node, Node]]:
    with ExitStack() as stack:
        made = [Node(tmp_path / name, workers=1, config=TIMING) for name in NAMES]
        for node in made:
            node.start(wait=False)
            stack.callback(node.kill)
        for node in made:
            node.wait_ready()
        yield made[0], made[1], made[2]
        for node in made:
            assert "Traceback" not in node.log(), node.log()


@pytest.mark.thorough
def test_a_master_that_returns_gives_in(nodes: tuple[Node, Node, Node]) -> None:
    one, two, three = nodes
    publish(one, "told", "turned", "both", "later")
    slave(two, one, "told", "turned", "both", "later")
    slave(three, two, "told", "turned", "later")
    slave(three, one, "both")
    for node in (two, three):
        wait_copied(node, "told", "turned", "both", "later")

    one.kill()
    # Its slave gets the new master by a command at once, so that nobody follows the absent one any more.
    tell(three, "promote told")
    slave(two, three, "told")
    # Or it turns by itself, and is replaced before it could pass that on.
    tell(three, "promote turned")
    wait_for(lambda: stat(two, "turned")["epoch"] == "2", "it has turned")
    two.signal(signal.SIGHUP)
    two.kill()
    two.start()
    # Or two are promoted out of each other's sight, in terms of one number.
    tell(three, "promote both")
    tell(two, "promote both")
    one.start()
    wait_follows(one, "told", "turned")
    wait_for(lambda: len(masters([one, two, three], "both")) == 1, "one of them has given in")
    assert masters([two, three], "told") == masters([two, three], "turned") == [three]
    publish_returned(one, "told", "turned", "both")
    wait_for(lambda: stat(three, "told")["next_seq"] == "2", "a publish reaches the new master")

    # And when the node between never returns.
    one.kill()
    tell(two, "promote later")
    wait_for(lambda: stat(three, "later")["epoch"] == "2", "the slave knows of the term")
    two.kill()
    tell(three, "promote later")
    one.start()
    publish_returned(one, "later")  # at once: it asks those that followed it before it takes messages
    assert stat(one, "later")["role"] == "slave" and stat(three, "later")["next_seq"] == "2"
    assert not list(one.data.rglob("later.diverged*"))

    # New streams are still its own, which the answer points out by name; after the command it names they follow as
    # well.
    command = [sys.executable, "-m", "tailrace.cli.main", "tree", f"127.0.0.1:{one.port}"]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "new streams made here are not replicated: make it follow 127.0.0.1:" in drawn, drawn
    assert f"127.0.0.1:{three.port} claims" in drawn, "the node between may come back as a master"
    tell(one, f"slave 127.0.0.1 {three.port} * 0")
    publish(one, "fresh")
    assert masters([one, three], "fresh") == [three]
