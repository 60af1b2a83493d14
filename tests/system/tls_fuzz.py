"""Mutated inputs inside TLS: every connection is a right handshake, and then bytes that are nearly right.

    python -m tests.system.tls_fuzz PORT CA.pem 1000000

prints how many inputs were sent. Whether workers ended is seen on the node: their pids in the command `workers`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import ssl
import time

from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack, pack, pack_publish
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame

INPUTS_A_CONNECTION = 200
REPORT_S = 10.0


def samples() -> list[bytes]:
    """Right inputs of both protocols."""
    hello = pack(m.Hello(m.VERSION, (), "fuzz/1"))
    frame = pack_frame(b"payload" * 5)
    publish = pack(m.Open(1, b"fuzz")) + pack_publish(1, Ack.APPENDED, [1], frame) + frame
    subscribe = pack(m.Subscribe(1, b"fuzz", From("seq", 0), 0, None, 1_000, True)) + pack(m.Credit(1, 5_000))
    binary = [hello, hello + publish, hello + subscribe, hello + publish + subscribe + pack(m.Unsubscribe(1))]
    lines = [
        b"pub fuzz |x\r\n",
        b"sub fuzz 0 wait\r\n",
        b"ack on\r\npub fuzz |y\r\n",
        b"unsub fuzz\r\nhelp\r\n",
        b"ping\r\n",
    ]
    return [*binary, *lines]


def mutated(sample: bytes, dice: random.Random) -> bytes:
    data = bytearray(sample)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        place = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[place] ^= 1 << dice.randrange(8)
            case 1:
                data[place:place] = dice.randbytes(dice.randrange(1, 9))
            case 2 if len(data) > 1:
                del data[place : place + dice.randrange(1, 9)]
            case _:
                data[place : place + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        if not data:
            return b"\n"
    return bytes(data)


def fuzz(port: int, context: ssl.SSLContext, count: int, seed: int) -> int:
    """Sends `count` inputs at least; how many these were."""
    dice, right = random.Random(seed), samples()
    sent, said_s = 0, time.monotonic()
    while sent < count:
        with contextlib.suppress(OSError):  # most connections are ended by the broker
            sent += _one_connection(port, context, dice, right)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{sent:,} inputs", flush=True)
    return sent


def _one_connection(port: int, context: ssl.SSLContext, dice: random.Random, right: list[bytes]) -> int:
    raw = socket.create_connection(("127.0.0.1", port), 30)
    with context.wrap_socket(raw, server_hostname="localhost") as sock:
        sample = dice.choice(right)
        parts = [
            mutated(dice.choice(right) if dice.random() < 0.3 else sample, dice) for _ in range(INPUTS_A_CONNECTION)
        ]
        if dice.random() < 0.1:
            for part in parts[:20]:
                sock.sendall(part)
        else:
            sock.sendall(b"".join(parts))
        sock.settimeout(0.0)
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
            sock.recv(1 << 16)
        return len(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("ca", help="the CA of the node's certificate, PEM")
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(chosen.ca)
    print(f"seed {chosen.seed}")
    print(f"{fuzz(chosen.port, context, chosen.count, chosen.seed):,} inputs sent")


if __name__ == "__main__":
    main()
