"""A conversation by gmqtt, in a Python that has it: see tests/system/test_mqtt_clients.py."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import sys

from gmqtt import Client

EACH = 20


async def converse(port: int, version: int, name: str) -> None:
    got: asyncio.Queue[str] = asyncio.Queue()
    subscribed = asyncio.Event()

    def on_message(_client, topic, payload, qos, _properties) -> int:
        got.put_nowait(f"{topic} {qos} {payload.decode()}")
        return 0

    client = Client(name)
    client.on_message = on_message
    client.on_subscribe = lambda *_args: subscribed.set()
    await client.connect("127.0.0.1", port, version=version)
    client.subscribe(f"{name}/#", qos=2)
    await subscribed.wait()
    for number in range(EACH):
        for qos in range(3):
            client.publish(f"{name}/{qos}", str(number), qos=qos)
    for _ in range(3 * EACH):
        print(await got.get())
    await client.disconnect()


asyncio.run(asyncio.wait_for(converse(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]), 60))
