"""Mutated inputs inside TLS: every connection is a right handshake, and then bytes that are nearly right.

    python -m tests.system.tls_fuzz PORT CA.pem 1000000

prints how many inputs were sent; with --mqtt they are of MQTT only, with --websocket of MQTT in frames, mutated too.
Whether workers ended is seen on the node: their pids in the command `workers`.
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
from tests.protocol.mqtt import wire
from tests.protocol.test_websocket import frame
from tests.protocol.test_websocket_upgrade import REQUEST

INPUTS_A_CONNECTION = 200
MQTT_INPUTS_A_CONNECTION = 20
"""Most of them: the first malformed packet ends the connection."""
OPCODES = (*[2] * 20, 0, 1, 8, 9, 9, 10)
"""Of frames: mostly a right one, and each of the others that there are."""
REPORT_S = 10.0


def mqtt_samples(version: int) -> list[bytes]:
    """Right packets; the first ones begin a session."""
    topics = b"\x23\0\1", b"\x26" + wire.text("name") + wire.text("value") + b"\x02\0\0\0\x09"
    alias, several = topics if version == wire.V5 else (b"", b"")
    will = ("fuzz/will", b"gone", 1)
    return [
        wire.connect(version, "fuzz", keep_alive_s=60, will=will, will_raw=several, user="ann", password=b"secret"),
        wire.connect(version, ""),
        wire.publish(version, "fuzz", b"x"),
        wire.publish(version, "fuzz/1", b"y", 1, 7, raw=alias),
        wire.publish(version, "fuzz/2", b"z" * 300, 2, 8, raw=several, retain=True),
        wire.subscribe(version, 9, ("fuzz/#", 2), ("+", 1), ("fuzz", 0)),
        wire.unsubscribe(version, 10, "fuzz/#", "fuzz"),
        *(wire.ack(first, 8) for first in (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)),
        wire.PINGREQ,
        wire.DISCONNECT,
    ]


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


def fuzz(port: int, context: ssl.SSLContext, count: int, seed: int, *, door: str = "others") -> int:
    """Sends `count` inputs at least; how many these were. door: mqtt, websocket, or the two others."""
    dice, right = random.Random(seed), samples()
    makers = {"mqtt": mqtt_inputs, "websocket": websocket_inputs}
    sent, said_s = 0, time.monotonic()
    while sent < count:
        parts = makers[door](dice) if door in makers else _parts(dice, right)
        with contextlib.suppress(OSError):  # most connections are ended by the broker
            sent += _one_connection(port, context, dice, parts)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{sent:,} inputs", flush=True)
    return sent


def _parts(dice: random.Random, right: list[bytes]) -> list[bytes]:
    sample = dice.choice(right)
    return [mutated(dice.choice(right) if dice.random() < 0.3 else sample, dice) for _ in range(INPUTS_A_CONNECTION)]


def mqtt_inputs(dice: random.Random) -> list[bytes]:
    """A CONNECT, mostly a right one, and packets of which half have a right length around a mutated body."""
    packets = mqtt_samples(dice.choice(wire.VERSIONS))
    connects, others = packets[:2], packets[2:]
    parts = [dice.choice(connects)]
    if dice.random() < 0.2:
        parts = [_packet_mutated(parts[0], dice)]
    while len(parts) < MQTT_INPUTS_A_CONNECTION:
        parts.append(_packet_mutated(dice.choice(others), dice))
    return parts


def websocket_inputs(dice: random.Random) -> list[bytes]:
    """A request, mostly a right one, and packets as above in frames, of which one in ten is mutated."""
    frames = [frame(packet, dice.choice(OPCODES)) for packet in mqtt_inputs(dice)]
    request = mutated(REQUEST, dice) if dice.random() < 0.1 else REQUEST
    broken = [mutated(each, dice) if dice.random() < 0.1 else each for each in frames]
    return [request, frame(wire.connect(wire.V5, "")), *broken]


def _packet_mutated(sample: bytes, dice: random.Random) -> bytes:
    if dice.random() < 0.5 or len(sample) < 3:
        return mutated(sample, dice)
    (whole,) = wire.split(sample)
    return wire.packet(sample[0], mutated(whole.body, dice))


def _one_connection(port: int, context: ssl.SSLContext, dice: random.Random, parts: list[bytes]) -> int:
    raw = socket.create_connection(("127.0.0.1", port), 30)
    with context.wrap_socket(raw, server_hostname="localhost") as sock:
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
    parser.add_argument("--mqtt", dest="door", action="store_const", const="mqtt", help="inputs of MQTT only")
    parser.add_argument("--websocket", dest="door", action="store_const", const="websocket", help="the same in frames")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(chosen.ca)
    print(f"seed {chosen.seed}")
    print(f"{fuzz(chosen.port, context, chosen.count, chosen.seed, door=chosen.door or 'others'):,} inputs sent")


if __name__ == "__main__":
    main()
