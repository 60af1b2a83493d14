"""Objects no longer needed are freed at once, not by a search for cycles: a worker makes few objects that stay, so such
a search comes hours later.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace.broker.process.timers import Timers
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.protocol.places import From
from tests.broker.binary import BinaryPeer
from tests.broker.consumers.owning import Member
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def consume(node: World, slot: int) -> None:
    """A member of a durable consumer that comes and goes."""
    peer, stream = Member(node, slot), node.name(0).encode()
    peer.ask(c.Consume(1, "create", stream, b"n", From("seq", 0)))
    (got,) = peer.ask(c.Get(2, stream, b"n", b"m", max_messages=1))
    assert isinstance(got, c.Got)
    peer.peer.close()
    node.settle()


def consume_lines(node: World, slot: int) -> None:
    peer, name = node.connect(slot), node.name(0)
    node.ask(peer, f"consume {name} n new", f"get {name} n 0")
    peer.close()
    node.settle()


def subscribe(node: World, slot: int) -> None:
    peer = BinaryPeer(node, slot)
    peer.subscribe(1, node.name(0))
    peer.peer.close()
    node.settle()


def subscribe_lines(node: World, slot: int) -> None:
    peer = node.connect(slot)
    node.ask(peer, f"sub {node.name(0)} 0 wait")
    peer.close()
    node.settle()


def publish(node: World, slot: int) -> None:
    peer = BinaryPeer(node, slot)
    peer.open(node.name(0), node.name(1))
    peer.publish((1, 2), b"x", ack=Ack.APPENDED)
    node.settle()
    peer.peer.close()
    node.settle()


def publish_lines(node: World, slot: int) -> None:
    peer = node.connect(slot)
    node.ask(peer, "ack on", *(f"pub {node.name(each)} |x" for each in (0, 1)))
    peer.close()
    node.settle()


def subscribe_unread(node: World, slot: int) -> None:
    """A reader that leaves amid a chunk, with another stream to come."""
    peer = BinaryPeer(node, slot, small=True)
    peer.peer.deaf = True
    for number in (0, 1):
        peer.say(m.Subscribe(number + 1, node.name(number).encode(), From("seq", 0)))
    node.settle()
    peer.peer.close()
    node.settle()


def subscribe_lines_unread(node: World, slot: int) -> None:
    peer = node.connect(slot, small=True)
    peer.deaf = True
    peer.send(*(f"sub {node.name(number)} 0" for number in (0, 1)))
    node.settle()
    peer.close()
    node.settle()


def administer(node: World, slot: int) -> None:
    peer, name = node.connect(slot), node.name(0)
    for command in (
        f"master {name}",
        f"stat {name}",
        "streams",
        "conns",
        "workers",
        f"promote {name}",
        f"trim {name} 0",
    ):
        node.ask(peer, command)
    peer.close()
    node.settle()


def speak_to_the_port(node: World, slot: int) -> None:
    """Peers that are not clients: HTTP, and a binary connection that begins wrongly."""
    for words in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"no such command\r\n", b"\0\0\0\7garbage"):
        peer = node.connect(slot)
        peer.send_raw(words)
        node.settle()
        peer.close()
        node.settle()


@pytest.mark.few(6)
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(
    "work",
    [
        consume,
        consume_lines,
        subscribe,
        subscribe_lines,
        publish,
        publish_lines,
        subscribe_unread,
        subscribe_lines_unread,
        administer,
        speak_to_the_port,
    ],
)
def test_what_a_connection_needed_is_freed_with_it(node: World, work: Callable[[World, int], None], slot: int) -> None:
    for number in (0, 1):
        node.fill(node.name(number), [b"x" * 1_000] * 100)
    work(node, slot)  # objects that are made only once exist now
    assert in_cycles(lambda: work(node, slot)) == {}


def in_cycles(work: Callable[[], None]) -> Counter[str]:
    """The broker's objects that `work` has left to the search for cycles, by the names of their types."""
    gc.collect()
    gc.disable()
    try:
        work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("tailrace."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_cycle_would_be_found() -> None:
    def work() -> None:
        timers = Timers(lambda: 0.0)
        timers.every(1.0, partial(timers.run_due, 0.0))

    assert in_cycles(work) == {"Timers": 1, "Periodic": 1}
