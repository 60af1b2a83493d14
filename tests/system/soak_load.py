"""The clients of a soak: one process for each role, with as many connections as its role needs.

A process prints its counts as a line of JSON each second. It ends when a line comes on its standard input: the ends of
the streams, as JSON. Readers read up to there first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import time
from collections import Counter
from typing import Any, Protocol, TypeVar

import tailrace
from tailrace.core.places import StartPlace
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.messages import Op
from tests.system.node import PATIENCE_S, LineClient
from tests.system.proxy import set_reset_on_close
from tests.system.soak_ledger import Continuity, Faults, Finished, payload_of

BURST_MOST = 200
LANES = 4  # bursts of a publisher that are under way at the same time, each to streams of its own
PADDING_MOST_BYTES = 250
VISITS = 8  # at the same time
VISIT_S = (0.2, 6.0)
CONSUMED_STREAMS = 5
MEMBERS = 2
MEMBER_S = (2.0, 15.0)
DROPPED_EVERY_S = 0.5
LOOK_S = 0.5


Received = TypeVar("Received", bound=tailrace.Message)


class Role:
    """`spec`: name, seed, streams, address, cut_address (whose connections are cut), rate (messages a second)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.name: str = spec["name"]
        self.streams: list[str] = spec["streams"]
        self.address: str = spec["address"]
        self.cut_address: str = spec["cut_address"]
        self.rate: float = spec["rate"]
        self.dice = random.Random(f"{spec['seed']}/{self.name}")
        self.counts: Counter[str] = Counter()
        self.faults = Faults()
        self.ending = asyncio.Event()
        self.ends: dict[str, int] = {}

    async def run(self) -> None:
        """Until `ending`, and then the rest of the work."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "faults": self.faults.texts, "fault_count": self.faults.count}

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)

    def any_address(self) -> str:
        return self.dice.choice([self.address, self.cut_address])


class Publisher(Role):
    """Publishes bursts to streams at random, each once by its number, and never more than `rate` messages a second."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self.published = dict.fromkeys(self.streams, 0)
        self._fill: int = spec.get("fill", 0)

    def report(self) -> dict[str, Any]:
        return {**super().report(), "published": self.published}

    async def run(self) -> None:
        async with tailrace.connect_async(self.address) as client:
            await asyncio.gather(*(self._publish(client, self.streams[lane::LANES]) for lane in range(LANES)))

    async def _publish(self, client: tailrace.AsyncClient, streams: list[str]) -> None:
        """Publish to these until the end. The first publishes, `fill` a stream, have one message and are not paced."""
        for _ in range(self._fill * len(streams)):
            if self.ending.is_set():
                return
            await self._burst(client, self.dice.choice(streams), 1)
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while not self.ending.is_set():
            count = await self._burst(client, self.dice.choice(streams))
            if self.rate:
                due_s = max(due_s + count * LANES / self.rate, loop.time() - 1.0)
                await self.pause(max(0.0, due_s - loop.time()))

    async def _burst(self, client: tailrace.AsyncClient, stream: str, most: int = BURST_MOST) -> int:
        first, count = self.published[stream], self.dice.randint(1, most)
        payloads = [
            payload_of(self.name, number, self.dice.randrange(PADDING_MOST_BYTES))
            for number in range(first, first + count)
        ]
        receipt = await client.publish_many(stream, payloads)
        assert receipt.count == count
        self.published[stream] += count
        self.counts["published"] += count
        return count


class Auditor(Role):
    """Reads every stream from its first message to its last, on one connection that is never cut."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._readings = {stream: Continuity(stream, self.faults, from_start=True) for stream in self.streams}

    def report(self) -> dict[str, Any]:
        return {**super().report(), "read": {name: each.next_numbers for name, each in self._readings.items()}}

    async def run(self) -> None:
        async with tailrace.connect_async(self.address) as client:
            await asyncio.gather(*(self._read(client, each) for each in self._readings.values()))

    async def _read(self, client: tailrace.AsyncClient, reading: Continuity) -> None:
        async with client.subscribe(reading.stream, wait=True) as subscription:
            while not self.ending.is_set() or reading.next_seq < self.ends[reading.stream]:
                for message in await received(subscription, LOOK_S):
                    reading.take(message.seq, message.payload)
                    self.counts["delivered"] += 1


class Visitors(Role):
    """Subscribers that come, read a while somewhere in a stream and go, on both protocols, some on bad connections."""

    async def run(self) -> None:
        await asyncio.gather(*(self._come_and_go() for _ in range(VISITS)))

    async def _come_and_go(self) -> None:
        while not self.ending.is_set():
            visit = self.dice.choice([self._visit_binary, self._visit_lines])
            await visit(self.dice.choice(self.streams), self.dice.uniform(*VISIT_S))
            self.counts["visits"] += 1

    async def _visit_binary(self, stream: str, lasts_s: float) -> None:
        reading = Continuity(stream, self.faults)
        from_start = self.dice.random() < 0.5
        async with tailrace.connect_async(self.any_address()) as client:
            start: StartPlace = tailrace.START if from_start else tailrace.NEW
            subscription = client.subscribe(stream, start, on_trimmed="skip", wait=True)
            end_s = asyncio.get_running_loop().time() + lasts_s
            while (left_s := end_s - asyncio.get_running_loop().time()) > 0 and not self.ending.is_set():
                for message in await received(subscription, left_s):
                    self._take(reading, message.seq, message.payload, from_start)

    async def _visit_lines(self, stream: str, lasts_s: float) -> None:
        reading, address = Continuity(stream, self.faults), self.any_address()
        try:
            await asyncio.to_thread(self._read_lines, reading, address, lasts_s)
        except OSError:  # cut, or the broker has closed
            self.counts["cut"] += 1

    def _read_lines(self, reading: Continuity, address: str, lasts_s: float) -> None:
        host, _colon, port = address.rpartition(":")
        end_s = time.monotonic() + lasts_s
        with LineClient(int(port), host) as client:
            client.send(f"sub {reading.stream} new wait")
            while time.monotonic() < end_s and not self.ending.is_set():
                with contextlib.suppress(AssertionError):  # nothing has come
                    client.read_until(lambda: bool(client.messages), LOOK_S)
                for message in client.messages:
                    self._take(reading, message.seq, message.payload, False)
                client.messages.clear()
            if self.dice.random() < 0.5:  # in the middle of requests under way
                set_reset_on_close(client.sock)

    def _take(self, reading: Continuity, seq: int, payload: bytes, may_skip: bool) -> None:
        """`may_skip`: retention may have dropped what the visitor has not read yet."""
        if may_skip and reading.next_seq < seq:
            reading.begin_again()
        reading.take(seq, payload)
        self.counts["delivered"] += 1


class Consumers(Role):
    """Members of durable consumers that come and go, some on bad connections. In the end everything is finished."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._finished = {stream: Finished() for stream in self.streams[:CONSUMED_STREAMS]}

    async def run(self) -> None:
        await asyncio.gather(*(self._work(stream) for stream in self._finished for _ in range(MEMBERS)))

    async def _work(self, stream: str) -> None:
        """Member after member, until all messages of the stream are finished."""
        while not self.ending.is_set() or self._finished[stream].low < self.ends[stream]:
            address = self.address if self.ending.is_set() else self.any_address()
            async with tailrace.connect_async(address) as client:
                await self._be_member(client, stream, self.dice.uniform(*MEMBER_S))

    async def _be_member(self, client: tailrace.AsyncClient, stream: str, lasts_s: float) -> None:
        finished, done = self._finished[stream], list[int]()
        end_s = asyncio.get_running_loop().time() + lasts_s
        try:
            async with client.consumer(stream, "soak", deliveries_max=0) as consumer:
                while (left_s := end_s - asyncio.get_running_loop().time()) > 0:
                    was_ending = self.ending.is_set()
                    for message in await received(consumer, min(left_s, LOOK_S)):
                        self._check_given(stream, message, finished)
                        message.ack()
                        done.append(message.seq)
                    if was_ending:
                        break
            for seq in done:  # now the broker has answered for all of them
                finished.add(seq)
            self.counts["finished"] += len(done)
        except tailrace.StaleAck:  # of some; those were given to another member, which finishes them
            self.counts["stale"] += 1

    def _check_given(self, stream: str, message: tailrace.ConsumedMessage, finished: Finished) -> None:
        if message.seq in finished:
            self.faults.add(f"{stream}: message {message.seq} is given again, which was finished")
        if message.deliveries > 1:
            self.counts["redelivered"] += 1


class Droppers(Role):
    """Connections that are dropped in the middle of a line, of an envelope or of the data sent to them."""

    async def run(self) -> None:
        while not self.ending.is_set():
            await asyncio.to_thread(self._drop)
            self.counts["dropped"] += 1
            await self.pause(self.dice.uniform(0, 2 * DROPPED_EVERY_S))

    def _drop(self) -> None:
        host, _colon, port = self.address.rpartition(":")
        stream = self.dice.choice(self.streams).encode()
        envelope = pack_envelope(Op.PUBLISH, b"x" * 1000)
        sent = self.dice.choice(
            [b"pub %s |half of a mess" % stream, envelope[:300], b"sub %s 0 wait\r\n" % stream, b""]
        )
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), PATIENCE_S) as sock:
            sock.sendall(sent)
            if sent.startswith(b"sub"):
                sock.recv(100)
            if self.dice.random() < 0.5:
                set_reset_on_close(sock)


class Receiver(Protocol[Received]):
    """What a subscription and a consumer have in common."""

    async def receive_batch(self, timeout_s: float = ...) -> list[Received]: ...


async def received(receiver: Receiver[Received], timeout_s: float) -> list[Received]:
    """The messages that have come; [] if none comes in time."""
    try:
        return await receiver.receive_batch(timeout_s)
    except tailrace.OperationTimeout:
        return []


ROLES: dict[str, type[Role]] = {
    "publisher": Publisher,
    "auditor": Auditor,
    "visitors": Visitors,
    "consumers": Consumers,
    "droppers": Droppers,
}


async def report_each_second(role: Role) -> None:
    while True:
        print(json.dumps(role.report()), flush=True)
        await asyncio.sleep(1.0)


async def wait_for_ends(role: Role) -> None:
    """A line with the ends of the streams. End of input without one: the parent process is gone."""
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        os._exit(1)
    role.ends = json.loads(line)
    role.ending.set()


async def play(role: Role) -> None:
    reporting = asyncio.create_task(report_each_second(role))
    waiting = asyncio.create_task(wait_for_ends(role))
    try:
        await role.run()
    except tailrace.TailraceError as error:
        role.faults.add(f"{role.name}: {error!r}")
        await waiting
    reporting.cancel()
    print(json.dumps(role.report()), flush=True)


def main() -> None:
    """Runs one role, given by the JSON object in the argument."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("spec", type=json.loads)
    spec = parser.parse_args().spec
    asyncio.run(play(ROLES[spec["role"]](spec)))


if __name__ == "__main__":
    main()
