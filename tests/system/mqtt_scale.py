"""What an MQTT door has to stand in numbers: sessions that are away, retained messages, the replay of a day.

    python -m tests.system.mqtt_scale sessions 100000
    python -m tests.system.mqtt_scale retained 5000
    python -m tests.system.mqtt_scale replay 86400

`sessions` makes durable sessions with a subscription with QoS 1, which go away; it prints the memory of the workers and
the room on the disk for each, and how long some of them take to come back: from the first SYN to CONNACK, and to a
message that came meanwhile. So it does again after SIGKILL of each worker, and of the whole node.
`retained` subscribes to `#`. `replay` reads messages of 1,000 bytes, as many as a sensor sends in a day, with a receive
buffer of 64 KiB and 20 messages under way, while a neighbour reads what is published to the same stream.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import tailrace
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, V4, V5
from tests.system.mqtt_fuzz import memory_of
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.topic_memory import processor_s

CONFIG = "[limits]\nmax_address_connections = 0\nmax_address_accepts = 0\n"
AT_ONCE = 64
BACK = 1_000
"""Sessions that come back."""
STREAMS = 10
LASTING = b"\x11" + (3_600).to_bytes(4, "big")
WINDOW_BYTES, WINDOW = 64 << 10, b"\x21\0\x14"
PAYLOAD_BYTES = 1_000
LIVE_S = 0.01


def topic_of(number: int) -> str:
    return f"s{number % STREAMS}/{number}"


def client_of(number: int) -> str:
    return f"sensor-{number:06d}"


def make_sessions(port: int, numbers: Sequence[int]) -> None:
    """Each with one subscription; all of them are away afterwards."""
    for at in range(0, len(numbers), AT_ONCE):
        some = numbers[at : at + AT_ONCE]
        peers = [MqttSocket(port, V5, opened=False) for _ in some]
        for number, peer in zip(some, peers, strict=True):
            connect = wire.connect(V5, client_of(number), clean=False, raw=LASTING)
            peer.send(connect, wire.subscribe(V5, 1, (topic_of(number), 1)))
        for peer in peers:
            connack, suback = peer.answer(), peer.answer()
            assert connack is not None and suback is not None and suback.body[-1] == 1, (connack, suback)
            peer.send(wire.DISCONNECT)
        for peer in peers:
            peer.rest()
            peer.close()


def come_back(port: int, number: int) -> tuple[float, float]:
    """Seconds to CONNACK, and to the message that came meanwhile."""
    began_s = time.perf_counter()
    with MqttSocket(port, V5, client_of(number), clean=False, raw=LASTING) as peer:
        connected_s = time.perf_counter() - began_s
        assert peer.present
        message = peer.message()
        got_s = time.perf_counter() - began_s
        assert message.topic == topic_of(number)
        peer.send(wire.ack(PUBACK, message.packet_id), wire.DISCONNECT)
        peer.rest()
    return connected_s, got_s


def spread(waits_s: Sequence[float]) -> str:
    ordered = sorted(waits_s)
    found = (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
    return "median {:.2f} ms, p99 {:.2f} ms, longest {:.2f} ms".format(*(1_000 * each_s for each_s in found))


def sessions(node: Node, count: int) -> None:
    warm = count // 20
    make_sessions(node.port, range(warm))
    before, disk_before, began_s = memory_of(node), disk_bytes(node.data), time.monotonic()
    make_sessions(node.port, range(warm, count))
    took_s = time.monotonic() - began_s
    wait_for(lambda: metric(node, "tailrace_mqtt_sessions") >= count, "all sessions to be stored")
    made = count - warm
    memory, disk = (memory_of(node) - before) / made, (disk_bytes(node.data) - disk_before) / made
    print(f"{count:,} sessions, {made / took_s:,.0f} made a second")
    print(f"{memory:.0f} bytes of memory each, {disk:.0f} on the disk")
    some_come_back(node, count)
    for slot, pid in enumerate(node.worker_pids()):
        os.kill(pid, signal.SIGKILL)
        began_s = time.monotonic()
        wait_for(lambda: is_replaced(node, slot, pid), "another worker")  # noqa: B023 (called at once)
        print(f"worker {slot} was killed; the next one is ready after {time.monotonic() - began_s:.1f} s")
        some_come_back(node, count)
    node.kill()
    began_s = time.monotonic()
    node.start()
    print(f"the node was killed; the next one is ready after {time.monotonic() - began_s:.1f} s", flush=True)
    some_come_back(node, count)
    wait_for(lambda: metric(node, "tailrace_mqtt_sessions") >= count, "all sessions to be counted")
    print(f"{memory_of(node) / count:.0f} bytes of memory each, with all that the workers have")


def disk_bytes(folder: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in folder.rglob("*") if each.is_file())


def is_replaced(node: Node, slot: int, pid: int) -> bool:
    with contextlib.suppress(OSError, AssertionError):
        found = node.worker_pids()
        return len(found) > slot and found[slot] not in (0, pid) and node.get("/readyz")[0] == 200
    return False


def some_come_back(node: Node, count: int) -> None:
    back = random.sample(range(count), min(BACK, count))
    with MqttSocket(node.port, V5) as writer:
        for number in back:
            assert writer.publish(topic_of(number), b"missed") == 0
    pids = node.worker_pids()
    before_s = processor_s(pids)
    waits_s = [come_back(node.port, number) for number in back]
    each_ms = 1_000 * (processor_s(pids) - before_s) / len(back)
    print(f"{len(back):,} of them come back, each for {each_ms:.2f} ms of the workers' processors")
    print(f"CONNACK {spread([each_s for each_s, _ in waits_s])}")
    print(f"the message that they missed: {spread([each_s for _, each_s in waits_s])}")


def metric(node: Node, name: str) -> float:
    lines = node.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def retained(node: Node, count: int) -> None:
    with MqttSocket(node.port, V5) as writer:
        for start in range(0, count, 50):
            numbers = range(start, min(start + 50, count))
            packets = [wire.publish(V5, topic_of(each), b"x" * 100, 1, each % 50 + 1, retain=True) for each in numbers]
            writer.send(*packets)
            assert all(writer.answer() for _ in numbers)
    for qos in (0, 1):
        waits_s = [time_of_retained(node.port, count, qos) for _ in range(5)]
        print(f"{count:,} retained messages with QoS {qos}: {spread(waits_s)}")


def time_of_retained(port: int, count: int, qos: int) -> float:
    with MqttSocket(port, V4) as reader:
        began_s = time.perf_counter()
        reader.send(wire.subscribe(V4, 1, ("#", qos)))
        for _ in range(count):
            message = reader.message()
            if qos:
                reader.send(wire.ack(PUBACK, message.packet_id))
        return time.perf_counter() - began_s


class Live:
    """Publishes to the stream that is replayed, and reads that as a neighbour. `waits_s`: from each publish to it."""

    def __init__(self, port: int) -> None:
        self.waits_s: list[float] = []
        self.sent = 0
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with MqttSocket(self._port, V5) as peer:
            peer.subscribe(("log/#", 0))
            while not self._over.wait(LIVE_S):
                began_s = time.perf_counter()
                peer.send(wire.publish(V5, "log/live", b"live %d" % self.sent))
                self.sent += 1
                peer.message()
                self.waits_s.append(time.perf_counter() - began_s)


def replay(node: Node, count: int, quiet_s: float = 5.0) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as python:
        for at in range(0, count, 1_000):
            numbers = range(at, min(at + 1_000, count))
            python.publish_many("log", [b"%d " % each + bytes(PAYLOAD_BYTES) for each in numbers], topic="log/x")
    with Live(node.port) as alone:
        time.sleep(quiet_s)
    with MqttSocket(node.port, V5, opened=False) as small:
        small.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
        small.ask(wire.connect(V5, "small", raw=WINDOW))
        began_s = time.monotonic()
        with Live(node.port) as beside:
            small.send(wire.subscribe(V5, 1, ("$replay/0/log/#", 1)))
            take(small, count, alone.sent)
            took_s = time.monotonic() - began_s
        take(small, 0, beside.sent)
    print(f"{count:,} messages of {PAYLOAD_BYTES:,} bytes in {took_s:.1f} s; {beside.sent:,} live ones behind")
    print(f"a neighbour: {spread(alone.waits_s)} alone, {spread(beside.waits_s)} beside it")


def take(small: MqttSocket, replayed: int, live: int) -> None:
    """The next messages: those of the log, in order, and then the live ones of one `Live`."""
    for number in range(replayed + live):
        message = small.message()
        wanted = b"%d " % number if number < replayed else b"live %d" % (number - replayed)
        assert message.payload.startswith(wanted), (message.payload[:20], wanted)
        small.send(wire.ack(PUBACK, message.packet_id))


SHOWN = {"sessions": sessions, "retained": retained, "replay": replay}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SHOWN)
    parser.add_argument("count", type=int)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "data", config=CONFIG) as node:
        SHOWN[chosen.what](node, chosen.count)


if __name__ == "__main__":
    main()
