"""Sends very many junk datagrams to a real node by hand, while somebody uses it by TCP.

    python -m tests.system.udp_junk --datagrams 10000000 --seed 1

prints how long publishes by lines with their answers took before and meanwhile (median and 99th percentile), how the
processes' time was spent, and which datagrams the node counted. Ends with 1 if a worker has ended, if an answer was
longer than a request, or if the 99th percentile has more than doubled.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.system.node import LineClient, Node, running
from tests.system.topic_memory import processor_s

CONFIG: Final = """
[listen]
udp = true
"""
VERBS: Final = (b"PUB ", b"PUB? ", b"SUB ", b"UNSUB ", b"PING", b"MSG ", b"COOKIE ", b"SUB\t", b"PUB", b"", b"\xff")
KINDS: Final = 20_000
"""Different datagrams, which are sent again and again in another order."""
QUIET_S: Final = 10.0
NICE: Final = 19
REST_S: Final = 0.001
"""Between two publishes of the neighbour."""
RECEIVE_BYTES: Final = 70_000


def junk_of(chance: random.Random) -> bytes:
    length = chance.choice((0, 1, 3, 20, 60, 60, 60, 300, 1_400))
    return chance.choice(VERBS) + chance.randbytes(length) + chance.choice((b"", b"\n", b"\n\n", b" \r\n"))


def send(port: int, seed: int, count: int, answers: multiprocessing.Queue[tuple[int, int]]) -> None:
    """Puts (the bytes sent, those of the answers). It gets the processor time that others leave, as over a network."""
    os.nice(NICE)
    chance = random.Random(seed)
    kinds = [junk_of(chance) for _ in range(KINDS)]
    sent = answered = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        for number in range(count):
            data = kinds[(number * 7_919 + number // KINDS) % KINDS]
            try:
                sent += sock.send(data)
            except BlockingIOError:
                time.sleep(REST_S)
            if number % 64 == 0:
                answered += drained(sock)
        answered += drained(sock)
    answers.put((sent, answered))


def drained(sock: socket.socket) -> int:
    nbytes = 0
    while True:
        try:
            nbytes += len(sock.recv(RECEIVE_BYTES))
        except BlockingIOError:
            return nbytes


class Neighbour:
    """Somebody who publishes by lines and waits for each answer. `took_s`: each time."""

    def __init__(self, client: LineClient) -> None:
        self._client = client
        self.took_s: list[float] = []
        client.ask("ack on")

    def publish(self) -> None:
        began_s = time.perf_counter()
        assert self._client.ask("pub neighbour |hello").startswith("ok ")
        self.took_s.append(time.perf_counter() - began_s)
        self._client.answers.clear()
        time.sleep(REST_S)

    def take(self) -> tuple[float, float]:
        """The median and the 99th percentile of the times so far, in milliseconds; they begin anew."""
        times, self.took_s = sorted(self.took_s), []
        return times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3


def play(node: Node, datagrams: int, seed: int) -> bool:
    pids = sorted(node.worker_pids())
    with node.client() as client:
        neighbour = Neighbour(client)
        end_s = time.monotonic() + QUIET_S
        while time.monotonic() < end_s:
            neighbour.publish()
        before = neighbour.take()
        answers: multiprocessing.Queue[tuple[int, int]] = multiprocessing.Queue()
        sender = multiprocessing.Process(target=send, args=(node.port, seed, datagrams, answers))
        began_s, spent_s = time.monotonic(), processor_s(pids)
        sender.start()
        while answers.empty():
            neighbour.publish()
        took_s, spent_s = time.monotonic() - began_s, processor_s(pids) - spent_s
        sent, answered = answers.get()
        sender.join()
        meanwhile = neighbour.take()
    are_there = sorted(node.worker_pids()) == pids
    dropped = node.metric("tailrace_udp_dropped_total")
    print(f"{datagrams} datagrams in {took_s:.0f} s; the workers took {spent_s:.1f} s and counted {dropped:.0f} drops")
    print(f"{sent} bytes sent, {answered} answered; workers {'are all there' if are_there else 'HAVE ENDED'}")
    print("publishes by TCP: median and p99 of {:.2f} and {:.2f} ms before,".format(*before), end=" ")
    print("{:.2f} and {:.2f} ms meanwhile".format(*meanwhile))
    return are_there and answered <= sent and meanwhile[1] <= 2 * before[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datagrams", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    directory = Path(tempfile.mkdtemp())
    try:
        with running(directory / "data", workers=options.workers, config=CONFIG) as node:
            return 0 if play(node, options.datagrams, options.seed) else 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
