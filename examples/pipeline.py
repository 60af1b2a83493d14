"""Read one stream, publish what becomes of it to another: python examples/pipeline.py FROM TO [HOST:PORT]"""

import asyncio
import json
import sys

import tailrace


async def main(source: str, target: str, address: str = "127.0.0.1:5050") -> None:
    async with tailrace.connect_async(address) as client:
        next_seq, end = 0, (await client.subscribe(target, tailrace.NEW, wait=True)).start_seq
        async for message in client.subscribe(target, tailrace.Seq(max(0, end - 1)), tailrace.Seq(end), wait=True):
            next_seq = json.loads(message.payload)["seq"] + 1  # after the messages published before
        async with client.batcher(target) as batch:
            async for message in client.subscribe(source, tailrace.Seq(next_seq), wait=True):
                words = len(message.payload.split())
                await batch.add(json.dumps({"seq": message.seq, "words": words}).encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
