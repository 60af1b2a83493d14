"""Measures by hand what the last values of very many topics cost, and how soon they are there after a start.

    python -m tests.system.last_values --topics 500000

prints the private memory of the workers for them, and for a start after a stop and one after SIGKILL of the whole node
the time until it is ready, until `last` of one topic is answered, and until that of all.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.system.node import Node
from tests.system.topic_memory import private_bytes, processor_s

CONFIG: Final = """
[[stream]]
pattern = "s"
last_values = true

[limits]
max_last_values = 1_000_000
max_last_value_bytes = "1 GiB"
"""
AT_ONCE: Final = 1_000
PATIENCE_S: Final = 100.0


def topic(number: int) -> str:
    return f"s/building-{number // 1_000:04}/sensor-{number % 1_000:03}"


def publish(node: Node, topics: int, rounds: int) -> None:
    """In any order: one topic behind the other would be looked up in memory that is in the processor's caches."""
    order = list(range(topics)) * rounds
    random.Random(18).shuffle(order)
    with node.client() as client:
        client.ask("ack on")
        for begin in range(0, len(order), AT_ONCE):
            numbers = order[begin : begin + AT_ONCE]
            client.send(*(f"pub {topic(number)} |{number:060}" for number in numbers))
            client.read_answers(len(numbers), PATIENCE_S)
            client.answers.clear()


def ask_last(node: Node, wanted: str, begin_s: float) -> float:
    """How long after `begin_s` the last value of a topic was there."""
    while True:
        with node.client() as client:
            client.send(f"last {wanted}")
            client.read_answers(1, PATIENCE_S)
            if client.answers == [f"ok last {wanted} 1"]:
                return time.monotonic() - begin_s
        assert time.monotonic() < begin_s + PATIENCE_S, client.answers


def count_all(node: Node) -> int:
    """How many last values there are, by pages."""
    found, after = 0, ""
    with node.client() as client:
        while True:
            client.send(f"last s/#{after}")
            client.read_answers(1, PATIENCE_S)
            words = client.answers.pop().split()
            assert words[:2] == ["ok", "last"], words
            found += len(client.messages)
            client.messages.clear()
            if "after" not in words:
                return found
            after = " " + " ".join(words[words.index("after") :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2, help="how often a message is published to each")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    node = Node(directory / "data", workers=2, config=CONFIG).start()
    try:
        with node.client() as client:
            client.send("ack on", "pub s/first |x")
            client.read_answers(2, PATIENCE_S)
        before = sum(map(private_bytes, node.worker_pids()))
        publish(node, options.topics, options.rounds)
        ask_last(node, topic(options.topics - 1), time.monotonic())
        grown = sum(map(private_bytes, node.worker_pids())) - before
        print(f"{options.topics:,} topics: {grown / 1e6:.0f} MB of private memory", flush=True)
        for what, end in (("a stop", node.stop), ("SIGKILL", node.kill)):
            end()
            begin_s = time.monotonic()
            node.start()
            ready_s = time.monotonic() - begin_s
            one_s = ask_last(node, topic(1), begin_s)
            used_s = processor_s(node.worker_pids())
            count = count_all(node)
            all_s = time.monotonic() - begin_s
            memory = sum(map(private_bytes, node.worker_pids())) / 1e6
            print(
                f"after {what}: ready in {ready_s:.1f} s, one value at {one_s:.1f} s, {used_s:.1f} s of processor",
                flush=True,
            )
            print(f"    all {count:,} listed at {all_s:.1f} s; the workers have {memory:.0f} MB", flush=True)
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
