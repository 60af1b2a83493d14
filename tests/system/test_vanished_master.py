"""A master whose machine vanishes without a word: no end of a connection, no reset, packets that nobody answers.

Every client has the addresses of both nodes, and the settings that it has by default. The outage is what a program
sees: from when the network is cut, right before the other node is promoted, to the next answer or message. Time that
the test's own machine stands still is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack
from tests.system.node import rows, wait_for
from tests.system.standstill import Standstill, assert_within
from tests.system.tree_net import Net, network
from tests.system.tree_node import SLAVE_SECTION, MachineNode

pytestmark = pytest.mark.system

OUTAGE_MAX_S = 8.0
PATIENCE_S = 30.0
STREAM = "s"


class Party:
    """A thread with a client of its own. `times_s`: when it had an answer, or a message."""

    def __init__(self, name: str, run: Callable[[Party], None]) -> None:
        self.name = name
        self.times_s: list[float] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[run], name=name, daemon=True)
        self._thread.start()

    @property
    def seen(self) -> int:
        return len(self.times_s)

    def count(self) -> None:
        self.times_s.append(time.monotonic())

    def outage_s(self, since_s: float) -> float:
        return next(each for each in self.times_s if each > since_s) - since_s

    def _run(self, run: Callable[[Party], None]) -> None:
        try:
            run(self)
        except BaseException as failure:
            self.failure = failure
            raise

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive() and self.failure is None, f"{self.name}: {self.failure!r}"


class Play:
    """Publishers that publish while `going` is set, readers and consumers that take all messages until `LAST`."""

    LAST = b"last"

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.going = threading.Event()
        self.ended = threading.Event()
        runs = {
            "publisher": self.publish,
            "reader": self.read,
            "consumer": self.consume,
            "asyncio publisher": lambda party: asyncio.run(self.publish_async(party)),
            "asyncio reader": lambda party: asyncio.run(self.read_async(party)),
            "asyncio consumer": lambda party: asyncio.run(self.consume_async(party)),
        }
        self.parties = [Party(name, run) for name, run in runs.items()]

    def publish(self, party: Party) -> None:
        with tailrace.connect(self.addresses) as client:
            while not self.ended.is_set():
                if self.going.wait(0.02):
                    client.publish(STREAM, b"%d" % party.seen, ack=Ack.APPENDED)
                    party.count()
                    time.sleep(0.02)

    async def publish_async(self, party: Party) -> None:
        async with tailrace.connect_async(self.addresses) as client:
            while not self.ended.is_set():
                if self.going.is_set():
                    await client.publish(STREAM, b"%d" % party.seen, ack=Ack.APPENDED)
                    party.count()
                await asyncio.sleep(0.02)

    def read(self, party: Party) -> None:
        with tailrace.connect(self.addresses) as client:
            for message in client.subscribe(STREAM, wait=True):
                party.count()
                if message.payload == self.LAST:
                    return

    async def read_async(self, party: Party) -> None:
        async with tailrace.connect_async(self.addresses) as client:
            async for message in client.subscribe(STREAM, wait=True):
                party.count()
                if message.payload == self.LAST:
                    return

    def consume(self, party: Party) -> None:
        with tailrace.connect(self.addresses) as client, client.consumer(STREAM, "threads") as consumer:
            for message in consumer:
                with message:
                    party.count()
                if message.payload == self.LAST:
                    return

    async def consume_async(self, party: Party) -> None:
        async with tailrace.connect_async(self.addresses) as client, client.consumer(STREAM, "asyncio") as consumer:
            async for message in consumer:
                with message:
                    party.count()
                if message.payload == self.LAST:
                    return

    def wait(self, what: str, is_so: Callable[[Party], bool]) -> None:
        wait_for(lambda: all(each.failure or is_so(each) for each in self.parties), what, PATIENCE_S, 0.01)
        assert not [each for each in self.parties if each.failure]

    def rest(self, copy: MachineNode) -> None:
        """Nobody publishes, everybody has everything, and so has the copy: nothing is to be lost with the master."""
        self.going.clear()
        published = [each for each in self.parties if "publisher" in each.name]

        def still() -> bool:
            count = sum(each.seen for each in published)
            time.sleep(0.2)
            others = [each.seen for each in self.parties if each not in published]
            everywhere = {next_seq(copy), *(seen for seen in others)} == {count + 1}
            return everywhere and count == sum(each.seen for each in published)

        wait_for(still, "all has come everywhere", PATIENCE_S)


def next_seq(node: MachineNode) -> int:
    with node.client() as client:
        table = rows(client.ask_table(f"stat {STREAM}"))
    return next(int(row["value"]) for row in table if row["field"] == "next_seq")


@pytest.fixture
def net() -> Iterator[Net]:
    with network("n1", "n2") as net:
        yield net


def test_the_outage_is_short(net: Net, tmp_path: Path) -> None:
    master = MachineNode(net.machines["n1"], tmp_path / "n1").start()
    copy = MachineNode(net.machines["n2"], tmp_path / "n2", config=SLAVE_SECTION.format(address=master.address)).start()
    with contextlib.ExitStack() as stack:
        stack.callback(master.kill)
        stack.callback(copy.kill)
        with tailrace.connect(master.address) as client:
            client.publish(STREAM, b"first")
        play = Play(master.address, copy.address)
        play.going.set()
        play.wait("everybody is there", lambda party: party.seen > 20)
        play.rest(copy)
        standstill = stack.enter_context(Standstill(tmp_path))
        net.cut("n1")
        cut_s = time.monotonic()
        play.going.set()
        assert copy.ask(f"promote {STREAM}").startswith("ok")
        play.wait("everybody goes on", lambda party: party.times_s[-1] > cut_s)
        outages_s = {each.name: round(each.outage_s(cut_s), 2) for each in play.parties}
        print(outages_s)
        assert_within(max(outages_s.values()) - standstill.seconds(), OUTAGE_MAX_S)
        before_s, before_still_s = time.monotonic(), standstill.seconds()
        with tailrace.connect(master.address, copy.address) as client:
            took_s = time.monotonic() - before_s - (standstill.seconds() - before_still_s)
            assert_within(took_s, 3.0)  # the address that answers nothing costs a new client a second
            play.ended.set()
            play.parties[0].finish()
            play.parties[3].finish()
            client.publish(STREAM, play.LAST)
        for party in play.parties:
            party.finish()
