"""Kills of clients, workers and the node, while one MQTT client publishes and another one reads.

    python -m tests.system.mqtt_kills 1000 --seed 7
    python -m tests.system.mqtt_kills 1000 --faults client
    python -m tests.system.mqtt_kills 100 --faults promote

Both have durable sessions, and repeat messages without an acknowledgement as the standard has it. No acknowledged
message may be missing, and no QoS 2 message may come twice. The first copies of a topic and a QoS come in order
([MQTT-4.6.0-6]), but for messages that were refused since their owner was killed, and were sent again. A run with the
same --seed does the same, but for the times at which processes end.

With `--faults promote` a second node copies all, and acknowledgements wait for it: then the node that has the clients
is killed for good, the other one is promoted, and the killed one comes back as the copy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, VERSIONS
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import PATIENCE_S, Node, running, wait_for

FAULTS = {
    "client": ("client",),
    "all": ("client", "client", "worker", "worker", "node"),
    "promote": ("client", "client", "worker", "copy", "promote", "promote"),
}
REPLICATED = "[mqtt]\nreplicas = 1\n"
TOPICS = ("k/a", "k/b", "other")
WINDOW = 20
CHECK_EVERY = 10
"""Kills from one look at all messages to the next."""
PUMPS, PUMPS_REPLICATED = 8, 60
"""Rounds from one kill to the next, at most; a node that is promoted waits for its copy first."""
PUMP_S = 0.01
SHOWN = 8
"""Messages out of order that a report has."""
REPORT_S = 10.0


class KillsOutcome(NamedTuple):
    """`lost`: acknowledged and never delivered; `doubled`: with QoS 2, delivered more than once."""

    kills: Counter[str]
    messages: int
    lost: list[bytes]
    doubled: list[bytes]
    disordered: list[str]


class Site:
    """`node` has the clients; `copy` follows it, if there is one."""

    def __init__(self, node: Node, copy: Node | None = None) -> None:
        self.node = node
        self.copy = copy
        if copy is not None:
            self._follow(copy)

    def promote(self) -> None:
        """The node is lost, and the copy takes its place."""
        assert self.copy is not None
        lost, self.node = self.node, self.copy
        lost.kill()
        tell(self.node, "promote * force")
        lost.start()
        self._follow(lost)
        self.copy = lost

    def _follow(self, copy: Node) -> None:
        tell(copy, f"slave 127.0.0.1 {self.node.port} * 0")


def tell(node: Node, line: str) -> None:
    """Until the node does it: while it sets the end of a stream aside it does not."""

    def answer() -> str:
        with node.client() as client:
            found = client.ask(line)
        return "" if found.startswith("err unavailable") else found

    found = wait_for(answer, line)
    assert found.startswith("ok"), found


class KilledClient:
    """A client with a durable session, whose connection is cut or ends by itself."""

    def __init__(self, site: Site, version: int, client_id: str) -> None:
        self.site = site
        self.version = version
        self.client_id = client_id
        self.peer: MqttSocket | None = None

    def connect(self) -> None:
        """Until the node takes it."""
        raw = b"\x11\0\0\x0e\x10" if self.version == V5 else b""
        end_s = time.monotonic() + PATIENCE_S
        while self.peer is None:
            try:
                self.peer = MqttSocket(self.site.node.port, self.version, self.client_id, clean=False, raw=raw)
            except (OSError, AssertionError):
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.05)
        self.peer.sock.settimeout(PUMP_S)
        self.begin(self.peer.present)

    def begin(self, present: bool) -> None:
        """The connection is there."""

    def cut(self) -> None:
        if self.peer is not None:
            self.peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            self.peer.close()
            self.peer = None

    def pump(self) -> None:
        """Take all that is here, and connect again if the connection has ended."""
        peer = self.peer
        if peer is None:
            self.connect()
            return
        with contextlib.suppress(TimeoutError):
            peer._read()
        with contextlib.suppress(OSError):
            self.take(peer)
        if peer.ended:
            self.cut()

    def take(self, peer: MqttSocket) -> None:
        raise NotImplementedError


class KilledPublisher(KilledClient):
    """`sent`: all, by topic; `under_way`: payload, topic and QoS by identifier; `released`: those with PUBREC;
    `refused`: those that were sent again as new messages.
    """

    def __init__(self, site: Site, version: int, dice: random.Random) -> None:
        super().__init__(site, version, "publisher")
        self.sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.qos: dict[bytes, int] = {}
        self.under_way: dict[int, tuple[str, bytes, int]] = {}
        self.released: dict[int, None] = {}
        self.refused: set[bytes] = set()
        self._dice = dice
        self._next_id = 0

    def publish(self) -> None:
        """The next message, if the window has room."""
        if len(self.under_way) >= WINDOW or self.peer is None:
            return
        topic, qos, payload = self._dice.choice(TOPICS), self._dice.choice((1, 2)), b"%d" % len(self.qos)
        self.qos[payload] = qos
        self.sent[topic].append(payload)
        self._send(self._new_id(), topic, payload, qos)

    def _new_id(self) -> int:
        while not self._next_id or self._next_id in self.under_way:
            self._next_id = (self._next_id + 1) % 0x10000
        return self._next_id

    def _send(self, packet_id: int, topic: str, payload: bytes, qos: int, *, dup: bool = False) -> None:
        self.under_way[packet_id] = topic, payload, qos
        if self.peer is not None:
            with contextlib.suppress(OSError):
                self.peer.send(wire.publish(self.version, topic, payload, qos, packet_id, dup=dup))

    def begin(self, present: bool) -> None:
        for packet_id, message in list(self.under_way.items()):
            if packet_id in self.released and self.peer is not None:
                with contextlib.suppress(OSError):
                    self.peer.send(wire.ack(PUBREL, packet_id))
            else:
                self._send(packet_id, *message, dup=True)

    def take(self, peer: MqttSocket) -> None:
        while peer._answers:
            answer = peer._answers.popleft()
            packet_id = int.from_bytes(answer.body[:2], "big")
            if answer.kind not in (4, 5, 7) or packet_id not in self.under_way:
                continue
            if answer.kind == 5 and wire.reason(answer) < 0x80:
                self.released[packet_id] = None
                peer.send(wire.ack(PUBREL, packet_id))
                continue
            message = self.under_way.pop(packet_id)
            self.released.pop(packet_id, None)
            if wire.reason(answer) >= 0x80 and answer.kind != 7:  # refused, because its owner is gone: again
                self.refused.add(message[1])
                self._send(self._new_id(), *message)


class KilledReader(KilledClient):
    """`got`: payloads by topic, as often as they were delivered."""

    def __init__(self, site: Site, version: int) -> None:
        super().__init__(site, version, "reader")
        self.got: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.repeats: list[bytes] = []  # messages that counted as a repeat of one that was not released
        self._pending: set[int] = set()  # QoS 2 messages that the broker has not released
        self._subscribed = False

    def begin(self, present: bool) -> None:
        assert self.peer is not None
        assert present or not self._subscribed, "the session is gone"
        if not self._subscribed:
            self.peer.sock.settimeout(PATIENCE_S)
            assert self.peer.subscribe(("k/+", 2), ("other", 2)) == [2, 2]
            self.peer.sock.settimeout(PUMP_S)
            self._subscribed = True

    def take(self, peer: MqttSocket) -> None:
        while peer._messages or peer._answers:
            if peer._answers:  # PUBREL: behind a message with its identifier, which may still be in the queue
                self._take_messages(peer)
                packet_id = int.from_bytes(peer._answers.popleft().body[:2], "big")
                self._pending.discard(packet_id)
                peer.send(wire.ack(PUBCOMP, packet_id))
            self._take_messages(peer)

    def _take_messages(self, peer: MqttSocket) -> None:
        while peer._messages:
            message = peer._messages.popleft()
            if message.qos == 1 or message.packet_id not in self._pending:
                self.got[message.topic].append(message.payload)
            else:
                self.repeats.append(message.payload)
            if message.qos == 2:
                self._pending.add(message.packet_id)
            peer.send(wire.ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))


def kill(site: Site, what: str, clients: list[KilledClient], dice: random.Random) -> None:
    if what == "client":
        dice.choice(clients).cut()
    elif what == "worker":
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(site.node.worker_pids()), signal.SIGKILL)
        wait_for(lambda: site.node.get("/readyz")[0] == 200, "the workers")
    elif what == "promote":
        site.promote()
    else:
        node = site.copy if what == "copy" else site.node
        assert node is not None
        node.kill()
        node.start()


def drain(publisher: KilledPublisher, reader: KilledReader) -> None:
    """Pump both until all is acknowledged and delivered. Raises AssertionError if it does not come."""
    end_s, has_cut = time.monotonic() + PATIENCE_S, False
    while publisher.under_way or _missing(publisher, reader):
        missing = _missing(publisher, reader)
        left = f"not acknowledged {publisher.under_way}, not delivered {missing}"
        left += f", of which taken for repeats {[each for each in missing if each in reader.repeats]}"
        assert time.monotonic() < end_s, left
        if missing and not has_cut and time.monotonic() > end_s - PATIENCE_S / 2:
            print(f"nothing comes: the reader connects again; {left}", flush=True)
            has_cut = True
            reader.cut()
        publisher.pump()
        reader.pump()


def kills(site: Site, version: int, count: int, faults: tuple[str, ...], dice: random.Random) -> KillsOutcome:
    """Do this number of kills. Raises AssertionError if messages do not come."""
    reader, publisher = KilledReader(site, version), KilledPublisher(site, version, dice)
    clients: list[KilledClient] = [reader, publisher]
    done: Counter[str] = Counter()
    said_s = time.monotonic()
    reader.connect()
    while done.total() < count:
        for _ in range(dice.randrange(1, PUMPS if site.copy is None else PUMPS_REPLICATED)):
            for _ in range(dice.randrange(8)):
                publisher.publish()
            for client in clients:
                client.pump()
        what = dice.choice(faults)
        kill(site, what, clients, dice)
        done[what] += 1
        if done.total() % CHECK_EVERY == 0:
            drain(publisher, reader)
        if time.monotonic() - said_s > REPORT_S:
            said_s = time.monotonic()
            print(f"{done.total()} kills, {len(publisher.qos)} messages", flush=True)
    drain(publisher, reader)
    for client in clients:
        client.cut()
    return _outcome(done, publisher, reader)


def _missing(publisher: KilledPublisher, reader: KilledReader) -> list[bytes]:
    return [payload for topic in TOPICS for payload in set(publisher.sent[topic]).difference(reader.got[topic])]


def _outcome(done: Counter[str], publisher: KilledPublisher, reader: KilledReader) -> KillsOutcome:
    times = Counter(payload for got in reader.got.values() for payload in got)
    lost = [payload for sent in publisher.sent.values() for payload in sent if not times[payload]]
    doubled = [payload for payload, number in times.items() if number > 1 and publisher.qos[payload] == 2]
    disordered = [text for topic in TOPICS for qos in (1, 2) if (text := _disorder(publisher, reader, topic, qos))]
    return KillsOutcome(done, len(publisher.qos), lost, doubled, disordered)


def _disorder(publisher: KilledPublisher, reader: KilledReader, topic: str, qos: int) -> str:
    """Messages that came in another order than they were sent; empty if none did."""

    def counted(payloads: Iterable[bytes]) -> list[bytes]:
        return [each for each in payloads if publisher.qos[each] == qos and each not in publisher.refused]

    came, sent = counted(dict.fromkeys(reader.got[topic])), counted(publisher.sent[topic])
    first = next((place for place, pair in enumerate(zip(came, sent, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        return ""
    return f"{topic} with QoS {qos}: sent {sent[first : first + SHOWN]}, came {came[first : first + SHOWN]}"


def report(found: KillsOutcome) -> str:
    counts = ", ".join(f"{number} of the {what}" for what, number in sorted(found.kills.items()))
    text = f"{found.kills.total()} kills ({counts}), {found.messages} messages: {len(found.lost)} lost, "
    return text + f"{len(found.doubled)} with QoS 2 doubled; not in order: {found.disordered or 'none'}"


@contextlib.contextmanager
def site_of(folder: Path, faults: str) -> Iterator[Site]:
    """One node, or two if one of them is to be promoted."""
    with contextlib.ExitStack() as stack:
        if "promote" not in FAULTS[faults]:
            yield Site(stack.enter_context(running(folder / "data", workers=2)))
            return
        nodes = [stack.enter_context(running(folder / name, workers=2, config=REPLICATED)) for name in ("a", "b")]
        yield Site(*nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--faults", choices=FAULTS, default="all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen: Any = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    failed = False
    for version in VERSIONS:
        dice = random.Random(10 * chosen.seed + version)
        with tempfile.TemporaryDirectory() as folder, site_of(Path(folder), chosen.faults) as site:
            found = kills(site, version, chosen.count // len(VERSIONS), FAULTS[chosen.faults], dice)
        print(f"MQTT level {version}: {report(found)}", flush=True)
        failed = failed or bool(found.lost or found.doubled)
    sys.exit(failed)


if __name__ == "__main__":
    main()
