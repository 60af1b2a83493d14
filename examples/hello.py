"""Publish two messages, then read everything that their stream holds: python examples/hello.py [HOST:PORT]"""

import sys

import tailrace


def main(address: str) -> None:
    with tailrace.connect(address) as client:
        for text in ("hello", "hello again"):
            receipt = client.publish("greetings", text.encode(), headers={"language": "en"})
            print(f"published as seq {receipt.seq}")
        for message in client.subscribe("greetings", end=tailrace.NOW):
            print(message.seq, message.time, message.headers.get("language", "-"), message.payload.decode())


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["127.0.0.1:5050"])
