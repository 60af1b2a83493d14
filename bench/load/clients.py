"""Publishers that use each broker's own Python client, as most programs do: `wait` (a thread that waits for each
answer), `tasks` (100 tasks of asyncio that do), `silent` (nobody waits).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

import tailrace
from bench.load.base import Load, Stop
from bench.load.limits import LoadError
from bench.load.publishing import Pushed

TASKS: Final = 100
_BURST: Final = 1_000  # silent publishes in one turn of the loop


def publish_by_client(load: Load, how: str, name: str, stop: Stop) -> tuple[Pushed, float]:
    """Publish to the new stream until `stop`; also returns this program's processor seconds.

    LoadError if the client is not installed.
    """
    return asyncio.run(_publish(load, how, name, stop))


async def _publish(load: Load, how: str, name: str, stop: Stop) -> tuple[Pushed, float]:
    try:
        async with _opened(load.peer.name, how, load.target.port) as (publish, flush):
            count, publish_one = 0, partial(publish, name, load.payload)
            meter, cpu_s = load.meter(), time.process_time()
            end_s = time.perf_counter() + stop.seconds

            async def task(burst: int) -> None:
                nonlocal count
                while True:  # once at least, however slow the machine is
                    for _ in range(burst):
                        await publish_one()
                    count += burst
                    if burst > 1:
                        await asyncio.sleep(0)
                    if time.perf_counter() >= end_s:
                        return

            while how == "wait" and time.perf_counter() < end_s:
                publish_one()
                count += 1
            tasks, burst = {"wait": (0, 1), "tasks": (TASKS, 1), "silent": (1, _BURST)}[how]
            await asyncio.gather(*(task(burst) for _ in range(tasks)))
            await flush()
            return Pushed(count, count, meter.stop()), time.process_time() - cpu_s
    except ModuleNotFoundError as error:
        raise LoadError(f"the Python client is missing: {error}") from None


@asynccontextmanager
async def _opened(peer: str, how: str, port: int) -> AsyncIterator[tuple[Callable[..., Any], Callable[[], Any]]]:
    """What publishes a payload to a stream, and what waits until all is sent."""
    address = f"127.0.0.1:{port}"
    if peer.startswith("tailrace") and how == "wait":
        with tailrace.connect(address) as waiting:
            yield waiting.publish, _nothing
    elif peer.startswith("tailrace"):
        async with tailrace.connect_async(address) as client:
            ack = tailrace.Ack.NONE if how == "silent" else tailrace.Ack.APPENDED
            yield partial(client.publish, ack=ack), client.flush
    elif peer == "redis":
        redis: Any = import_module("redis" if how == "wait" else "redis.asyncio").Redis(
            port=port, max_connections=TASKS
        )
        yield lambda name, payload: redis.xadd(name, {b"d": payload}), _nothing
    elif peer == "kafka":
        producer: Any = import_module("aiokafka").AIOKafkaProducer(bootstrap_servers=address, acks=1)
        await producer.start()
        yield producer.send_and_wait, producer.flush
        await producer.stop()
    else:
        nats: Any = await import_module("nats").connect(address)
        yield nats.publish if how == "silent" else nats.jetstream().publish, nats.flush
        await nats.close()


async def _nothing() -> None:
    """Answered publishes need no flush."""
