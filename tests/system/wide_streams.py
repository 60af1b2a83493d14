"""Measures by hand what subscriptions of all of very many streams cost, and how soon their first message comes.

    python -m tests.system.wide_streams --streams 100000 --subscribers 20

makes that many streams, and prints for each door the time until a subscription of all of them is answered, the private
memory of the workers for one, the time from a publish, to a stream chosen at random or a new one, to its message, and
how long it takes to read all streams from their beginning.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import tailrace
from tailrace.protocol.collecting import FEATURE, Collect, Collected
from tailrace.protocol.messages import TOPICS_FEATURE, VERSION, Hello
from tailrace.protocol.places import FROM_NEW, From
from tests.protocol.mqtt.wire import V5
from tests.system.binary_peer import BinaryPeer
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import LineClient, Node, running
from tests.system.topic_memory import private_bytes, processor_s

HELLO: Final = Hello(VERSION, (FEATURE, TOPICS_FEATURE), "test/1")
AT_ONCE: Final = 500
MESSAGES: Final = 100
PATIENCE_S: Final = 100.0

Read = Callable[[], None]
"""Waits for the next message."""


def stream(number: int) -> str:
    return f"device-{number:06}"


def make(node: Node, streams: int) -> None:
    with node.client() as client:
        client.ask("ack on")
        for begin in range(0, streams, AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, streams))
            client.send(*(f"pub {stream(number)} |first" for number in numbers))
            client.read_answers(len(numbers), PATIENCE_S)
            client.answers.clear()


def lines(node: Node, stack: ExitStack, past: bool = False) -> Read:
    client = stack.enter_context(node.client())
    assert client.ask("sub # 0" if past else "sub # new").startswith("ok sub #")

    waiting = [0]

    def read() -> None:
        if not waiting[0]:
            client.read_messages(1, PATIENCE_S)
            waiting[0] = len(client.messages)
            client.messages.clear()
        waiting[0] -= 1

    return read


def binary(node: Node, stack: ExitStack, past: bool = False) -> Read:
    peer, waiting = BinaryPeer(node.port, hello=HELLO), [0]
    stack.callback(peer.close)
    peer.ask(Collect(1, b"#", From("time", 0) if past else FROM_NEW), Collected)

    def read() -> None:
        if not waiting[0]:
            peer.read_until(lambda: any(peer.messages.values()))
            waiting[0] = sum(map(len, peer.messages.values()))
            peer.messages.clear()
            peer.answers.clear()
        waiting[0] -= 1

    return read


def mqtt(node: Node, stack: ExitStack, past: bool = False) -> Read:
    peer = MqttSocket(node.port, V5)
    stack.callback(peer.sock.close)
    assert peer.subscribe(("$replay/0/#" if past else "#", 0)) == [0]

    def read() -> None:
        peer.message()

    return read


def python(node: Node, stack: ExitStack, past: bool = False) -> Read:
    client = stack.enter_context(tailrace.connect(f"127.0.0.1:{node.port}"))
    subscription = client.subscribe("*", tailrace.START if past else tailrace.NEW)

    def read() -> None:
        subscription.receive(PATIENCE_S)

    return read


def first_ms(publisher: LineClient, read: Read, name: str) -> float:
    begin_s = time.monotonic()
    publisher.send(f"pub {name} |x")
    read()
    return (time.monotonic() - begin_s) * 1e3


def measure(node: Node, streams: int, subscribers: int) -> Iterator[str]:
    chance, pids = random.Random(18), node.worker_pids()
    for number, door in enumerate((lines, binary, mqtt, python)):
        with ExitStack() as stack, node.client() as publisher:
            read = door(node, stack)
            before, begin_s = sum(map(private_bytes, pids)), time.monotonic()
            for _ in range(subscribers):
                door(node, stack)
            answer_ms = (time.monotonic() - begin_s) / subscribers * 1e3
            nbytes = (sum(map(private_bytes, pids)) - before) / subscribers
            yield f"{door.__name__}: answered in {answer_ms:.1f} ms, {nbytes / 1e3:.0f} KB a subscriber"
        with ExitStack() as stack, node.client() as publisher:
            publisher.ask("ping")  # a connection without a first byte is closed, and to subscribe may take as long
            read = door(node, stack)
            names = [stream(chance.randrange(streams)) for _ in range(MESSAGES)]
            made = [stream(streams + number * MESSAGES + each) for each in range(MESSAGES)]
            for what, wanted in (("a stream", names), ("a new stream", made)):
                found = sorted(first_ms(publisher, read, name) for name in wanted)
                middle_ms = statistics.median(found)
                yield f"{door.__name__}: to {what}: median {middle_ms:.1f} ms, at most {found[-1]:.1f} ms"


def read_all(node: Node, streams: int) -> Iterator[str]:
    """Each has one message."""
    for door in (lines, binary, mqtt, python):
        begin_s, used_s = time.monotonic(), processor_s(node.worker_pids())
        with ExitStack() as stack:
            read = door(node, stack, True)
            for _ in range(streams):
                read()
        took_s, used_s = time.monotonic() - begin_s, processor_s(node.worker_pids()) - used_s
        yield f"{door.__name__}: all read from the past in {took_s:.1f} s, {used_s:.1f} s of the node's processor time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--subscribers", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        with running(directory / "data", workers=options.workers) as node:
            begin_s = time.monotonic()
            make(node, options.streams)
            print(f"{options.streams} streams made in {time.monotonic() - begin_s:.0f} s", flush=True)
            for line in read_all(node, options.streams):
                print(line, flush=True)
            for line in measure(node, options.streams, options.subscribers):
                print(line, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
