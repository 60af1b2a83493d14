"""Publishes of every kind through connections that are cut again and again, against a model of what may be logged.

A message that was acknowledged, or whose task was cancelled while it waited, is in its stream once; one with `Ack.NONE`
at most once. Every receipt has the seq of its own message, and each client's messages are in the order of its calls.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tailrace
from tailrace import NOW, Ack, AsyncClient, Client, Receipt
from tests.system.node import PATIENCE_S, Node, running
from tests.system.proxy import Proxy
from tests.system.test_client_survival import seed

pytestmark = pytest.mark.system

STREAMS = ("left", "right")
STEPS = 25
TOGETHER_MAX = 40  # publishes in one turn
MEAN_BYTES = 6_000  # until a connection is cut, its greeting apart


@dataclass
class Ledger:
    """What one program knows of its messages, in the order of its calls."""

    name: str
    dice: random.Random
    once: dict[str, list[bytes]] = field(default_factory=lambda: {stream: [] for stream in STREAMS})
    seqs: dict[tuple[str, int], bytes] = field(default_factory=dict)
    count: int = 0

    def payload(self, stream: str, ack: Ack = Ack.APPENDED) -> bytes:
        self.count += 1
        made = b"%s %d " % (self.name.encode(), self.count) + bytes(self.dice.randrange(200))
        if ack is not Ack.NONE:
            self.once[stream].append(made)
        return made

    def received(self, receipt: Receipt, *payloads: bytes) -> None:
        assert receipt.count == len(payloads)
        for at, payload in enumerate(payloads):
            if receipt.seq >= 0:
                self.seqs[receipt.stream, receipt.seq + at] = payload


def test_any_mixture_is_logged_once_and_has_its_seqs(tmp_path: Path) -> None:
    dice = random.Random(seed())
    programs = [Ledger(name, random.Random(dice.random())) for name in ("sync", "a", "b", "c")]
    with running(tmp_path / "data", workers=2) as node, Proxy(node.port) as proxy:
        address = f"127.0.0.1:{proxy.cutting_port(random.Random(dice.random()), MEAN_BYTES)}"
        with ThreadPoolExecutor(1) as pool:
            sync = pool.submit(run_sync, address, programs[0])
            asyncio.run(run_all(address, programs[1:]))
            sync.result(PATIENCE_S)
        assert proxy.cuts > 0
        for stream in STREAMS:
            check(stream, read(node, stream), programs)


def check(stream: str, logged: list[bytes], programs: list[Ledger]) -> None:
    counted = Counter(logged)
    places = {payload: seq for seq, payload in enumerate(logged)}
    assert [payload for payload, count in counted.items() if count > 1] == []
    for ledger in programs:
        assert [payload for payload in ledger.once[stream] if payload not in counted] == []
        seqs = [places[payload] for payload in ledger.once[stream]]
        assert seqs == sorted(seqs)
        for (name, seq), payload in ledger.seqs.items():
            assert name != stream or logged[seq] == payload


def read(node: Node, stream: str) -> list[bytes]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        return [message.payload for message in client.subscribe(stream, end=NOW)]


def run_sync(address: str, ledger: Ledger) -> None:
    with tailrace.connect(address, reconnect_s=math.inf) as client:
        for _ in range(STEPS):
            step_sync(client, ledger)


def step_sync(client: Client, ledger: Ledger) -> None:
    stream, dice = ledger.dice.choice(STREAMS), ledger.dice
    if dice.random() < 0.3:
        payloads = [ledger.payload(stream) for _ in range(dice.randrange(1, 20))]
        ledger.received(client.publish_many(stream, payloads), *payloads)
    ack = dice.choice((Ack.NONE, Ack.APPENDED, Ack.APPENDED))
    payload = ledger.payload(stream, ack)
    ledger.received(client.publish(stream, payload, ack=ack), payload)


async def run_all(address: str, programs: list[Ledger]) -> None:
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for ledger in programs:
            group.create_task(run_async(address, ledger))


async def run_async(address: str, ledger: Ledger) -> None:
    bound = ledger.dice.choice((5, 1_024))
    async with tailrace.connect_async(address, reconnect_s=math.inf, max_in_flight=bound) as client:
        for _ in range(STEPS):
            await step_async(client, ledger)


async def step_async(client: AsyncClient, ledger: Ledger) -> None:
    """Some publishes in one turn, of which some are cancelled while they wait."""
    dice = ledger.dice
    tasks = [asyncio.ensure_future(publish(client, ledger)) for _ in range(dice.randrange(1, TOGETHER_MAX))]
    for _ in range(dice.randrange(4)):
        await asyncio.sleep(0)
    for task in tasks if dice.random() < 0.5 else ():
        if dice.random() < 0.2 and ledger.count:
            task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, BaseException) and not isinstance(done, asyncio.CancelledError):
            raise done


async def publish(client: AsyncClient, ledger: Ledger) -> None:
    dice = ledger.dice
    stream, ack = dice.choice(STREAMS), dice.choice((Ack.NONE, *3 * [Ack.APPENDED], Ack.SYNCED))
    if dice.random() < 0.1:
        payloads = [ledger.payload(stream) for _ in range(dice.randrange(1, 10))]
        ledger.received(await client.publish_many(stream, payloads), *payloads)
    payload = ledger.payload(stream, ack)
    key = dice.choice((None, None, "key"))
    ledger.received(await client.publish(stream, payload, ack=ack, key=key), payload)
