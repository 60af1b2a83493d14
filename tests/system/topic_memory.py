"""Measures by hand the cost of very many topics of a stream in memory, with one subscriber each.

    python -m tests.system.topic_memory --topics 1000,100000,1000000

prints for each number of topics the private memory of the workers for each subscription, and the processor time of the
node for a message to a topic that is chosen at random. The subscribers are some connections; each message is for one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.system.node import LineClient, Node, running

CONFIG: Final = """
[[topics]]
filter = "live/#"
stream = "live"

[[stream]]
pattern = "live"
durability = "memory"
max_bytes = "64 MiB"

[limits]
max_subscriptions = 1_000_000
max_filter_bytes = "4 GiB"
topic_cache_bytes = "1 MiB"
"""
CONNECTIONS: Final = 50
AT_ONCE: Final = 500
MESSAGES: Final = 3_000
PATIENCE_S: Final = 60.0


def topic(number: int) -> str:
    return f"live/{number // 1_000:04}/{number % 1_000:03}"


def private_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private_"))


def processor_s(pids: list[int]) -> float:
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def subscribe(clients: list[LineClient], first: int, end: int) -> None:
    """Topics from `first` to `end`, in turn on the connections."""
    for begin in range(first, end, AT_ONCE):
        client = clients[begin // AT_ONCE % len(clients)]
        lines = [f"sub {topic(number)} new" for number in range(begin, min(begin + AT_ONCE, end))]
        client.send(*lines)
        assert all(answer.startswith("ok ") for answer in client.read_answers(len(lines), PATIENCE_S))
        client.answers.clear()


def publish(node: Node, pids: list[int], clients: list[LineClient], topics: int) -> float:
    """The processor time for one message, of those that come one after the other."""
    chance, took_s = random.Random(18), 0.0
    with node.client() as publisher:
        publisher.ask("ack on")
        before_s = processor_s(pids)
        for _ in range(MESSAGES):
            number = chance.randrange(topics)
            publisher.send(f"pub {topic(number)} |{number}")
            publisher.read_answers(1, PATIENCE_S)
            publisher.answers.clear()
            reader = clients[number // AT_ONCE % len(clients)]
            (message,) = reader.read_messages(1, PATIENCE_S)
            assert message.topic == topic(number)
            reader.messages.clear()
        took_s = processor_s(pids) - before_s
    return took_s / MESSAGES


def measure(directory: Path, wanted: list[int], workers: int) -> Iterator[str]:
    with running(directory / "data", workers=workers, config=CONFIG) as node, ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for _ in range(CONNECTIONS)]
        for client in clients:
            client.send("pub live/first |0")
            assert client.ask("ping") == "ok pong"
        pids, topics = node.worker_pids(), 0
        subscribe(clients, 0, AT_ONCE)
        before = sum(map(private_bytes, pids))
        for each in wanted:
            subscribe(clients, max(topics, AT_ONCE), each)
            topics = each
            grown = sum(map(private_bytes, pids)) - before
            seconds = publish(node, pids, clients, topics)
            yield f"{topics} topics: {grown / (topics - AT_ONCE):.0f} bytes each, {seconds * 1e6:.1f} us a message"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", default="1000,100000,1000000", help="numbers of topics, rising")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        begin_s = time.monotonic()
        for line in measure(directory, [int(each) for each in options.topics.split(",")], options.workers):
            print(f"{line} ({time.monotonic() - begin_s:.0f} s)", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
