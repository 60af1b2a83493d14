"""Measures by hand very many topics of UDP with one subscriber each, at a real node with one worker.

    python -m tests.system.udp_topics --topics 1000,100000,1000000

prints for each number of topics the private memory of the worker for each of them, how many SUBs it answered in a
second, its processor time for a SUB with its answer, and that for a publish to a topic that is chosen at random with
the delivery. The addresses are some sockets. SUBs go out by UDP_SEGMENT, and answers come in by UDP_GRO, so that the
generator is not the bottleneck; every byte of them is compared.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tests.system.node import Node, running, wait_for
from tests.system.topic_memory import private_bytes, processor_s

CONFIG: Final = """
[listen]
udp = true
"""
SOCKETS: Final = 100
AT_ONCE: Final = 256
"""Datagrams before their answers are read: a socket has room for them."""
MESSAGES: Final = 100_000
BODY: Final = bytes(100)
PATIENCE_S: Final = 60.0
RENEW_S: Final = 30.0
RECEIVE_BYTES: Final = 4 << 20
BURST: Final = 64
"""SUBs with one system call."""
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104


def topic(number: int) -> bytes:
    return b"live/%04d/%03d" % (number // 1_000, number % 1_000)


class Sockets:
    """The subscribers: topic N is that of socket N // AT_ONCE modulo their number."""

    def __init__(self, stack: ExitStack, port: int) -> None:
        self._renew_at_s = 0.0
        self._socks: list[socket.socket] = []
        for _ in range(SOCKETS):
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.connect(("127.0.0.1", port))
            sock.settimeout(PATIENCE_S)
            self._socks.append(sock)

    def __getitem__(self, number: int) -> socket.socket:
        return self._socks[number // AT_ONCE % SOCKETS]

    def subscribe(self, first: int, end: int) -> None:
        """The sockets in turn, each with AT_ONCE topics; the next one's are under way while an answer is read."""
        waiting: tuple[socket.socket, range] | None = None
        while first < end or waiting is not None:
            numbers = range(first, min(first - first % AT_ONCE + AT_ONCE, end))
            if numbers:
                send_subscriptions(self[first], numbers)
            if waiting is not None:
                take_answers(*waiting)
            waiting = (self[first], numbers) if numbers else None
            first = numbers.stop
            if waiting is None or time.monotonic() >= self._renew_at_s:
                if waiting is not None:
                    take_answers(*waiting)
                    waiting = None
                self._renew()

    def publish(self, publisher: socket.socket, topics: int) -> None:
        """Messages to topics at random. None is lost, as no more are under way than a socket has room for."""
        chance = random.Random(21)
        for _ in range(0, MESSAGES, AT_ONCE):
            numbers = [chance.randrange(topics) for _ in range(AT_ONCE)]
            for number in numbers:
                publisher.send(b"PUB %s\n%s" % (topic(number), BODY))
            for number in numbers:
                got = self[number].recv(2_048)
                assert got.startswith(b"MSG live/"), got
            self._renew()

    def _renew(self) -> None:
        """Keeps the leases, without a share in the figures."""
        if time.monotonic() < self._renew_at_s:
            return
        self._renew_at_s = time.monotonic() + RENEW_S
        for sock in self._socks:
            sock.send(b"PING\n")
        for sock in self._socks:
            while (got := sock.recv(2_048)) != b"PONG\n":
                raise AssertionError(got)


def send_subscriptions(sock: socket.socket, numbers: range) -> None:
    """All of them have the same length."""
    sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(b"SUB %s\n" % topic(0)))
    for at in range(numbers.start, numbers.stop, BURST):
        sock.send(b"".join(b"SUB %s\n" % topic(number) for number in range(at, min(at + BURST, numbers.stop))))
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)


def take_answers(sock: socket.socket, numbers: range) -> None:
    """They come in the order of the SUBs."""
    expected = b"".join(b"OK SUB %s 120\n" % topic(number) for number in numbers)
    got = b""
    while len(got) < len(expected):
        got += sock.recv(65_536)
    assert got == expected
    sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 0)


def has_gauge(node: Node, topics: int) -> bool:
    return node.metric("tailrace_udp_subscriptions") == topics


def measure(directory: Path, wanted: list[int]) -> Iterator[str]:
    with running(directory / "data", workers=1, config=CONFIG) as node, ExitStack() as stack:
        socks, pids, topics = Sockets(stack, node.port), node.worker_pids(), 0
        publisher = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        publisher.connect(("127.0.0.1", node.port))
        before_bytes = sum(map(private_bytes, pids))
        for each in wanted:
            before_s, began_s = processor_s(pids), time.monotonic()
            socks.subscribe(topics, each)
            rate = (each - topics) / (time.monotonic() - began_s)
            subscribe_us = (processor_s(pids) - before_s) / (each - topics) * 1e6
            topics = each
            wait_for(partial(has_gauge, node, topics), "the gauge is right")
            grown = sum(map(private_bytes, pids)) - before_bytes
            before_s = processor_s(pids)
            socks.publish(publisher, topics)
            message_us = (processor_s(pids) - before_s) / MESSAGES * 1e6
            yield (
                f"{topics} topics: {grown / topics:.0f} bytes each, {rate:.0f} SUBs/s, {subscribe_us:.2f} us each,"
                f" {message_us:.2f} us a message"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", default="1000,100000,1000000", help="numbers of topics, rising")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        begin_s = time.monotonic()
        for line in measure(directory, [int(each) for each in options.topics.split(",")]):
            print(f"{line} ({time.monotonic() - begin_s:.0f} s)", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
