"""Mutated packets of MQTT, before and behind CONNECT, of both versions.

    python -m tests.system.mqtt_fuzz codec 10000000
    python -m tests.system.mqtt_fuzz node 1000000

`codec` gives them to the codec in this process, in pieces, with runs and without: each input is packets, or packets and
one error. `node` sends them to a node of its own by TCP, TLS and WebSocket in turn; a neighbour publishes to itself
meanwhile. It prints whether a worker ended, how much memory the workers have before, meanwhile and after, and how long
the neighbour waited with and without the others; with --minutes it ends after this time at the latest. A run with the
same --seed and --senders sends the same. Senders without a --rest want all processors, which the neighbour feels.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import NamedTuple

from tailrace.protocol.mqtt.codec import MqttCodec, StagingLimits, never_staged
from tailrace.protocol.mqtt.reasons import PacketError
from tests.certificates import Authority
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5, VERSIONS
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import PATIENCE_S, Node, running
from tests.system.soak_memory import own_bytes
from tests.system.streams import lives
from tests.system.tls_fuzz import MQTT_INPUTS_A_CONNECTION, mqtt_inputs

TRANSPORTS = ("plain", "tls", "websocket")
REPORT_S = 10.0
PACKET_BYTES_MAX = 1 << 16
LIMITS = StagingLimits(4_096, 100, b"")
PROBE_S = 0.01
QUIET_S = 5.0
WARM_PART = 10
"""A tenth of the inputs come before the first look at the memory."""
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)


_spawned = multiprocessing.get_context("spawn")


class FuzzOutcome(NamedTuple):
    """How a node stood it. `waits_s`: of the neighbour, without others and beside them; `memory`: of the workers."""

    inputs: int
    ended: bool
    memory: tuple[int, int]
    waits_s: tuple[list[float], list[float]]


def codec_inputs(count: int, dice: random.Random) -> int:
    """Give `count` inputs at least to codecs; how many these were. Raises AssertionError."""
    done, said_s = 0, time.monotonic()
    while done < count:
        parts = mqtt_inputs(dice)
        codec = MqttCodec(PACKET_BYTES_MAX)
        if dice.random() < 0.5:
            codec.version = dice.choice(VERSIONS)  # as if CONNECT had come
        limits = _staged if dice.random() < 0.5 else never_staged
        data = b"".join(parts)
        size = dice.choice((len(data), len(data), 7, 100))
        for at in range(0, len(data), size):
            packets = list(codec.feed(data[at : at + size], limits))
            assert not any(isinstance(each, PacketError) for each in packets[:-1]), "an error is the last"
            if codec.ended:
                assert not codec.pending_bytes
                break
        assert codec.pending_bytes <= len(data)
        done += len(parts)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{done:,} inputs", flush=True)
    return done


def _staged() -> StagingLimits:
    return LIMITS


# --- a node -----------------------------------------------------------------------------------------------------------


def websocket_frame(data: bytes) -> bytes:
    """A binary frame of a client, with the key 0."""
    size = len(data)
    head = bytes((0x82, 0x80 | size)) if size < 126 else b"\x82\xfe" + size.to_bytes(2, "big")
    return (head if size < 1 << 16 else b"\x82\xff" + size.to_bytes(8, "big")) + bytes(4) + data


@contextlib.contextmanager
def connected(port: int, transport: str, context: ssl.SSLContext) -> Iterator[socket.socket]:
    raw = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with contextlib.closing(raw):
        if transport == "tls":
            raw = context.wrap_socket(raw, server_hostname="localhost")
        elif transport == "websocket":
            raw.sendall(UPGRADE)
            head = b""
            while b"\r\n\r\n" not in head and (data := raw.recv(4_096)):
                head += data
        with contextlib.closing(raw):
            yield raw


def node_inputs(
    port: int, ca: Path, count: int, dice: random.Random, sent: Synchronized[int], end_s: float, rest_s: float
) -> None:
    """Send `count` inputs at least, by each transport in turn, and none after `end_s`; `sent` gets their number.

    rest_s: after each connection, for the others on this machine.
    """
    context = ssl.create_default_context(cafile=ca)
    turn = 0
    while sent.value < count and time.monotonic() < end_s:
        turn += 1
        transport, parts = TRANSPORTS[turn % len(TRANSPORTS)], mqtt_inputs(dice)
        made = list(map(websocket_frame, parts)) if transport == "websocket" else parts
        is_slow = dice.random() < 0.1
        with contextlib.suppress(OSError), connected(port, transport, context) as sock:
            for part in made if is_slow else [b"".join(made)]:
                sock.sendall(part)
            if dice.random() < 0.5:
                sock.settimeout(0.05)
                sock.recv(1 << 16)
        sent.value += len(parts)
        time.sleep(rest_s)


class Senders:
    """Processes that send inputs, so that the neighbour in this one does not wait for them."""

    def __init__(self, port: int, ca: Path, count: int, seeds: Sequence[str], end_s: float, rest_s: float) -> None:
        self._sent = [_spawned.Value("q", 0) for _ in seeds]
        share = -(-count // len(seeds))
        self._processes = [
            _spawned.Process(target=node_inputs, args=(port, ca, share, random.Random(seed), sent, end_s, rest_s))
            for seed, sent in zip(seeds, self._sent, strict=True)
        ]
        for process in self._processes:
            process.start()

    @property
    def sent(self) -> int:
        return sum(each.value for each in self._sent)

    def wait(self, seen: Callable[[int], None]) -> int:
        """Until all is sent; how many inputs these were. `seen` gets their number at times."""
        for process in self._processes:
            while process.exitcode is None:
                process.join(REPORT_S)
                if process.exitcode is None:
                    seen(self.sent)
            assert not process.exitcode, "a sender failed"
        return self.sent


class Neighbour:
    """A client that publishes to itself. `waits_s`: from a publish to its message."""

    def __init__(self, port: int) -> None:
        self.waits_s: list[float] = []
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with MqttSocket(self._port, V5, "the neighbour") as peer:
            peer.subscribe(("neighbour", 0))
            while not self._over.is_set():
                began_s = time.monotonic()
                peer.send(wire.publish(V5, "neighbour", b"x"))
                peer.message()
                self.waits_s.append(time.monotonic() - began_s)
                time.sleep(PROBE_S)


def p99(waits_s: list[float]) -> float:
    return sorted(waits_s)[len(waits_s) * 99 // 100] if waits_s else 0.0


def memory_of(node: Node) -> int:
    return sum(map(own_bytes, node.worker_pids()))


def fuzz_node(
    node: Node,
    ca: Path,
    count: int,
    seed: int,
    quiet_s: float,
    life_s: float = 3_600.0,
    senders: int = 1,
    rest_s: float = 0.0,
) -> FuzzOutcome:
    """life_s: after this time it ends, though less is sent."""
    before, end_s = lives(node), time.monotonic() + life_s

    def send(part: str, some: int, seen: Callable[[int], None]) -> int:
        seeds = [f"{seed} {part} {number}" for number in range(senders)]
        return Senders(node.port, ca, some, seeds, end_s, rest_s).wait(seen)

    with Neighbour(node.port) as alone:
        time.sleep(quiet_s)
    first = send("warm", max(count // WARM_PART, 1), lambda _sent: None)
    warm = memory_of(node)
    with Neighbour(node.port) as beside:
        looked = 0

        def seen(number: int) -> None:
            nonlocal looked
            waits_s, looked = beside.waits_s[looked:], len(beside.waits_s)
            state = f"memory {memory_of(node) >> 10:,} KiB, a worker ended: {lives(node) != before}"
            print(f"{first + number:,} inputs, {state}, p99 {1_000 * p99(waits_s):.1f} ms", flush=True)

        sent = first + send("main", count - first, seen)
    return FuzzOutcome(sent, lives(node) != before, (warm, memory_of(node)), (alone.waits_s, beside.waits_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("codec", "node"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=60.0, help="of `node`")
    parser.add_argument("--senders", type=int, default=4, help="processes of `node`")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds of each behind a connection of 20 packets")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    if chosen.what == "codec":
        print(f"{codec_inputs(chosen.count, random.Random(chosen.seed)):,} inputs, each packets or an error")
        return
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder) / "ca")
        config = authority.issue("server", "DNS:localhost").toml()
        with running(Path(folder) / "data", config=config) as node:
            life_s = 60 * chosen.minutes
            found = fuzz_node(
                node, authority.certificate, chosen.count, chosen.seed, QUIET_S, life_s, chosen.senders, chosen.rest
            )
    alone, beside = (f"{1_000 * p99(waits_s):.1f} ms of {len(waits_s)}" for waits_s in found.waits_s)
    print(f"{found.inputs:,} inputs in connections of {MQTT_INPUTS_A_CONNECTION}; a worker ended: {found.ended}")
    print(f"memory of the workers {found.memory[0] >> 20} MiB, then {found.memory[1] >> 20} MiB")
    print(f"the neighbour's p99 {alone} alone, {beside} beside the inputs")
    sys.exit(found.ended)


if __name__ == "__main__":
    main()
