"""Connections that send one publish at a time, and wait for its answer: read together and answered together.

A turn of the loop has, for each protocol, one call of the leaf `singles_cy` for all that can be read, and one for all
answers. What a leaf does not take, such as any other request, goes the way of all (`ClientConnection.received`).
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import READ_BYTES_MIN
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.process.metrics import Traffic
from tailrace.broker.process.work import Asker
from tailrace.broker.routing.batch import Pending
from tailrace.broker.routing.router import PublishingClient
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import answers
from tailrace.protocol.binary import PlacedHandle
from tailrace.protocol.errors import Code
from tailrace.protocol.line import staged_max_bytes
from tailrace.protocol.mqtt.codec import AckRun
from tailrace.shard.leaves import load

if TYPE_CHECKING:
    from tailrace.broker.connection.singles_cy import Group, Numbered, SingleAcks

TOGETHER_MAX = 256
"""Connections read by one call: 4 MiB at most."""
STAGED_MAX_BYTES = 4 << 20
"""What is read of them in one turn, about: half of a turn, so that others are read too."""
AWAITED_LOOK = 64
"""From so many requests under way on it isn't enough to count them."""

_publish_cy = load("tailrace.protocol.publish_cy")
_pack_answers = _publish_cy.pack_answers
_REQUEST_BYTES: int = _publish_cy.REQUEST_BYTES
_stage_cy = load("tailrace.protocol.mqtt.stage_cy")
_pack_acks = _stage_cy.pack_acks
_ACK_BYTES: int = _stage_cy.ACK_BYTES
_ID_BYTES: Final = 2
_ANSWER_BYTES: Final = len(_pack_answers(bytes(_REQUEST_BYTES), 0, 0))
_leaf = load("tailrace.broker.connection.singles_cy")
_receive, _receive_lines, _receive_packets = _leaf.receive, _leaf.receive_lines, _leaf.receive_packets
_send_each, _FAILED = _leaf.send_each, _leaf.FAILED
SINGLE_ACK_MAX: int = _leaf.ACK_MAX
SINGLE_HEAD_BYTES: int = _leaf.HEAD_BYTES
SINGLES_TOGETHER_MAX: int = _leaf.TOGETHER_MAX
_IN: Final = select.EPOLLIN


class SinglePublisher(Asker, PublishingClient, Protocol):
    """The parts of a connection that are needed here."""

    blocked: bool
    closed: bool
    current: Cursor | None
    fd: int
    held_bytes: int
    in_row: bool
    life_s: float
    lingering_since_s: float
    out: bytearray
    paused: Pause
    read_bytes: int
    under_way: int

    def close(self, reason: str) -> None: ...

    def count_created(self) -> None: ...

    def creation_refusal(self, name: bytes) -> Refused: ...

    def may_create(self, name: bytes) -> bool: ...

    def note_awaited(self) -> None: ...

    def outcome_known(self) -> None: ...

    def received(self, count: int) -> None: ...

    def send_envelope(self, answer: bytes, /) -> None: ...


class BinarySinglePublisher(SinglePublisher, Protocol):
    handles: dict[int, bytes]
    placed: dict[int, PlacedHandle]

    def requests_refused(
        self, name: bytes, requests: bytes, count: int, code: Code, text: str, first_seq: int | None
    ) -> None: ...


class LineSinglePublisher(SinglePublisher, Protocol):
    answers: deque[Pending]

    @property
    def is_in_order(self) -> bool: ...

    def single_refused(self, name: bytes, code: Code, text: str) -> None: ...


class MqttSinglePublisher(SinglePublisher, Protocol):
    answers: deque[Pending]
    held_up: int
    last_publish: tuple[object, ...] | None
    packet_s: float
    unacknowledged: int
    unreleased: set[int]

    @property
    def is_in_order(self) -> bool: ...

    def acknowledge_run(self, run: AckRun, /) -> None: ...

    def single_refused(self, name: bytes, packet_id: bytes, code: Code, text: str) -> None: ...


_AnyPublisher = TypeVar("_AnyPublisher", bound=SinglePublisher)


class SharedRun:
    """Single publishes of several connections to one stream: one part of its batch, and who waits for its outcome."""

    __slots__ = ("_creator", "_singles", "clients", "name")

    wants_subscribers = False
    name: bytes
    clients: Sequence[SinglePublisher]
    _creator: SinglePublisher | None

    @property
    def asker(self) -> SharedRun:
        return self

    def hold_up(self) -> None:
        for client in self.clients:
            client.hold_up()

    def go_on(self) -> None:
        for client in self.clients:
            client.go_on()

    def may_create(self, name: bytes) -> bool:
        self._creator = next((client for client in self.clients if client.may_create(name)), None)
        return self._creator is not None

    def creation_refusal(self, name: bytes) -> Refused:
        return self.clients[0].creation_refusal(name)

    def count_created(self) -> None:
        if self._creator is not None:
            self._creator.count_created()


class BinaryRun(SharedRun):
    __slots__ = ("_publishers", "_requests", "wants_subscribers")

    def __init__(
        self, singles: Singles, name: bytes, clients: list[BinarySinglePublisher], requests: bytes, wants_answers: bool
    ) -> None:
        """requests: as `protocol.publish_cy.pack_answers` takes them, one for each client."""
        self._singles = singles
        self.wants_subscribers = wants_answers  # the answers have them
        self._creator = None
        self.name = name
        self.clients = self._publishers = clients
        self._requests = requests

    def published(self, _key: int, first_seq: int, subscribers: int) -> None:
        if not self.wants_subscribers:
            self._singles.outcomes_known(self.clients)
            return
        packed = _pack_answers(self._requests, first_seq, subscribers)
        self._singles.answers.add(
            self.clients, [packed] if len(packed) == _ANSWER_BYTES else _cut(packed, _ANSWER_BYTES)
        )

    def refused(self, _key: int, code: Code, text: str) -> None:
        for place, client in enumerate(self._publishers):
            client.requests_refused(self.name, self._request(place), 1, code, text, None)

    def unreplicated(self, _key: int, first_seq: int, text: str) -> None:
        for place, client in enumerate(self._publishers):
            request, seq = self._request(place), first_seq + place
            client.requests_refused(self.name, request, 1, Code.UNREPLICATED, text, seq)

    def _request(self, place: int) -> bytes:
        return self._requests[place * _REQUEST_BYTES : (place + 1) * _REQUEST_BYTES]


class LineRun(SharedRun):
    __slots__ = ("_publishers", "_wants_answers")

    def __init__(self, singles: Singles, name: bytes, clients: list[LineSinglePublisher], wants_answers: bool) -> None:
        self._singles = singles
        self._wants_answers = wants_answers
        self._creator = None
        self.name = name
        self.clients = self._publishers = clients

    def published(self, _key: int, first_seq: int, _subscribers: int) -> None:
        if not self._wants_answers:
            self._singles.outcomes_known(self.clients)
            return
        self._singles.line_answers.add(self.clients, answers.ok_pub_each(self.name, first_seq, len(self.clients)))

    def refused(self, _key: int, code: Code, text: str) -> None:
        for client in self._publishers:
            client.single_refused(self.name, code, text)

    def unreplicated(self, key: int, _first_seq: int, text: str) -> None:
        self.refused(key, Code.UNREPLICATED, text)


class MqttRun(SharedRun):
    __slots__ = ("_ids", "_publishers")

    def __init__(self, singles: Singles, name: bytes, clients: list[MqttSinglePublisher], ids: bytes) -> None:
        """ids: the packet identifiers, one for each client; empty with QoS 0."""
        self._singles = singles
        self._creator = None
        self.name = name
        self.clients = self._publishers = clients
        self._ids = ids

    def published(self, _key: int, _first_seq: int, _subscribers: int) -> None:
        if not self._ids:
            self._singles.outcomes_known(self.clients)
            return
        self._singles.acknowledged += self._publishers
        packed = _pack_acks(self._ids)
        acks = [packed] if len(packed) == _ACK_BYTES else _cut(packed, _ACK_BYTES)
        self._singles.packet_answers.add(self.clients, acks)

    def refused(self, _key: int, code: Code, text: str) -> None:
        for place, client in enumerate(self._publishers):
            client.single_refused(self.name, self._ids[place * _ID_BYTES : (place + 1) * _ID_BYTES], code, text)

    def unreplicated(self, key: int, _first_seq: int, text: str) -> None:
        self.refused(key, Code.UNREPLICATED, text)


class ReadyAnswers:
    """The answers to connections of one protocol that are known and not sent yet. `owing`: those who have some."""

    __slots__ = ("_owing", "_services", "clients", "packed", "traffic")

    def __init__(self, services: Services, traffic: Traffic, owing: list[ReadyAnswers]) -> None:
        self._services = services
        self._owing = owing
        self.traffic = traffic
        self.clients: list[SinglePublisher] = []
        self.packed: list[bytes] = []

    def add(self, clients: Sequence[SinglePublisher], packed: list[bytes]) -> None:
        """An answer for each of these clients."""
        self._services.answered_bytes += len(packed) * len(packed[0])
        if not self.packed:
            self._owing.append(self)
        self.clients += clients
        self.packed += packed

    def take(self) -> tuple[list[SinglePublisher], list[bytes]]:
        taken = self.clients, self.packed
        self.clients, self.packed = [], []
        return taken


class Singles:
    """One per worker. A connection is among its publishers while its last read was a single publish.

    `owing`: the answers that are to be sent.
    """

    __slots__ = (
        "_binary",
        "_buffer",
        "_line_max_bytes",
        "_lines",
        "_packets",
        "_services",
        "acknowledged",
        "answers",
        "line_answers",
        "owing",
        "packet_answers",
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self._buffer = services.receive_view[:READ_BYTES_MIN]
        settings = services.settings
        self._line_max_bytes = staged_max_bytes(settings.max_line_bytes, settings.max_message_bytes)
        self._binary: dict[int, BinarySinglePublisher] = {}  # by descriptor
        self._lines: dict[int, LineSinglePublisher] = {}
        self._packets: dict[int, MqttSinglePublisher] = {}
        self.acknowledged: list[MqttSinglePublisher] = []  # those of `packet_answers`
        self.owing: list[ReadyAnswers] = []
        self.answers = ReadyAnswers(services, services.metrics.binary, self.owing)
        self.packet_answers = ReadyAnswers(services, services.metrics.mqtt, self.owing)
        self.line_answers = ReadyAnswers(services, services.metrics.line, self.owing)

    def add(self, client: BinarySinglePublisher) -> None:
        """Its next request is likely to be a single publish. It is a plain connection."""
        self._binary[client.fd] = client

    def add_line(self, client: LineSinglePublisher) -> None:
        """The same for a connection that speaks lines, whose codec holds nothing and which needs no right."""
        self._lines[client.fd] = client

    def add_packets(self, client: MqttSinglePublisher) -> None:
        """The same for a connection that speaks MQTT, whose next packet may also be a PUBACK."""
        self._packets[client.fd] = client

    def discard(self, client: SinglePublisher) -> None:
        """It is closed, or leaves this worker. One that was never added is ignored."""
        self._binary.pop(client.fd, None)
        self._lines.pop(client.fd, None)
        self._packets.pop(client.fd, None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Read the publishers among those that have an event. Returns the events of the others."""
        if self._binary:
            events, clients = _split(events, self._binary)
            self._read_some(clients, self._read_binary)
        if self._lines:
            events, speakers = self._split_lines(events)
            if len(speakers) > TOGETHER_MAX:
                self._read_some(speakers, self._read_lines)
            elif speakers:
                self._read_lines(speakers)
        if self._packets:
            events, devices = self._split_packets(events)
            if len(devices) > TOGETHER_MAX:
                self._read_some(devices, self._read_packets)
            elif devices:
                self._read_packets(devices)
        return events

    def _read_some(self, clients: list[_AnyPublisher], read_together: Callable[[list[_AnyPublisher]], None]) -> None:
        router = self._services.router
        bytes_max = router.staged_bytes + STAGED_MAX_BYTES
        for start in range(0, len(clients), TOGETHER_MAX):
            read_together(clients[start : start + TOGETHER_MAX])
            if router.staged_bytes > bytes_max:
                break

    def _split_lines(self, events: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[LineSinglePublisher]]:
        """As `_split`. Whose next answer stands in a row, behind another one, is read as all are."""
        others: list[tuple[int, int]] = []
        clients: list[LineSinglePublisher] = []
        find = self._lines.get
        for event in events:
            client = find(event[0])
            if client is None or event[1] != _IN or client.held_bytes or client.lingering_since_s:
                others.append(event)
            elif (client.answers or client.under_way) and not client.is_in_order:
                self.discard(client)
                others.append(event)
            else:
                clients.append(client)
        return others, clients

    def _split_packets(self, events: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[MqttSinglePublisher]]:
        """The same."""
        others: list[tuple[int, int]] = []
        clients: list[MqttSinglePublisher] = []
        find = self._packets.get
        for event in events:
            client = find(event[0])
            if client is None or event[1] != _IN or client.held_bytes or client.lingering_since_s:
                others.append(event)
            elif (
                client.answers or client.unacknowledged or client.unreleased or client.held_up
            ) and not client.is_in_order:
                self.discard(client)
                others.append(event)
            else:
                clients.append(client)
        return others, clients

    def _read_binary(self, clients: list[BinarySinglePublisher]) -> None:
        services = self._services
        while clients:
            groups: tuple[dict[bytes, Group], dict[bytes, Group]] = ({}, {})
            # With users, the id of the producer has to be looked at.
            numbered: list[Numbered] | None = None if services.access.has_users else []
            options = services.settings.max_message_bytes, groups, numbered, bool(services.topic_rules.count)
            place, count, nbytes = _receive(clients, self._buffer, *options)
            services.metrics.binary.bytes_in += nbytes
            for ack, found in enumerate(groups):
                self._stage(
                    [
                        (BinaryRun(self, name, publishers, bytes(requests), ack > 0), frames)
                        for name, (frames, requests, publishers) in found.items()
                    ]
                )
            for name, frame, request, client, ack in numbered or ():
                self._stage_numbered(BinaryRun(self, name, [client], request, ack > 0), frame)
            clients = self._rest(clients, place, count) if place < len(clients) else []

    def _read_lines(self, clients: list[LineSinglePublisher]) -> None:
        services = self._services
        while clients:
            groups: tuple[dict[bytes, Group], dict[bytes, Group]] = ({}, {})
            options = self._line_max_bytes, groups, services.topic_rules.table
            place, count, nbytes = _receive_lines(clients, self._buffer, *options)
            services.metrics.line.bytes_in += nbytes
            for ack, found in enumerate(groups):
                self._stage(
                    [
                        (LineRun(self, name, publishers, ack > 0), frames)
                        for name, (frames, _requests, publishers) in found.items()
                    ]
                )
            clients = self._rest(clients, place, count) if place < len(clients) else []

    def _read_packets(self, clients: list[MqttSinglePublisher]) -> None:
        services = self._services
        now_s, table = services.now_s, services.topic_rules.table
        while clients:
            groups: tuple[dict[bytes, Group], dict[bytes, Group]] = ({}, {})
            acks: list[SingleAcks] = []
            options = READ_BYTES_MIN, services.settings.max_message_bytes, groups, acks, table
            place, count, nbytes = _receive_packets(clients, self._buffer, *options)
            services.metrics.mqtt.bytes_in += nbytes
            for client, first_id, number in acks:
                client.life_s = client.packet_s = now_s
                client.acknowledge_run(AckRun(first_id, number))
            for qos, found in enumerate(groups):
                runs: list[tuple[MqttRun, bytearray]] = []
                for name, (frames, ids, publishers) in found.items():
                    for client in publishers:
                        client.life_s = client.packet_s = now_s
                        client.unacknowledged += qos
                        client.under_way += 1
                        if client.under_way >= AWAITED_LOOK:
                            client.note_awaited()
                    runs.append((MqttRun(self, name, publishers, bytes(ids)), frames))
                services.router.publish_shared(runs)
            clients = self._rest(clients, place, count) if place < len(clients) else []

    def _rest(self, clients: list[_AnyPublisher], place: int, count: int) -> list[_AnyPublisher]:
        """Those that are to be read yet: the leaf has stopped at `place`, whose read is done with here."""
        self._read_by_itself(clients[place], count)
        # Others may have ended meanwhile, and their descriptors may be of other sockets now.
        return [client for client in clients[place + 1 :] if not (client.closed or client.lingering_since_s)]

    def _read_by_itself(self, client: SinglePublisher, count: int) -> None:
        """This read has given something else than a single publish."""
        self.discard(client)
        if count == _FAILED:
            client.close("reset")
        else:
            client.received(count)

    def _stage(self, runs: Sequence[tuple[BinaryRun | LineRun, bytearray]]) -> None:
        """Take what these connections have sent, for each stream together."""
        now_s = self._services.now_s
        for run, _frames in runs:
            for client in run.clients:
                client.life_s = now_s
                client.under_way += 1
                if client.under_way >= AWAITED_LOOK:
                    client.note_awaited()
        self._services.router.publish_shared(runs)

    def _stage_numbered(self, run: BinaryRun, frame: bytearray) -> None:
        """Take the message of one connection, which its producer has numbered."""
        (client,) = run.clients
        client.life_s = self._services.now_s
        client.under_way += 1
        if client.under_way >= AWAITED_LOOK:
            client.note_awaited()
        self._services.router.publish_numbered(run, run.name, client, frame)

    # --- answering --------------------------------------------------------------------------------------------------

    def outcomes_known(self, clients: Sequence[SinglePublisher]) -> None:
        """Their publishes are logged, and they want no answers."""
        for client in clients:
            client.under_way -= 1
            if (client.in_row or client.paused or client.lingering_since_s) and not client.closed:
                client.outcome_known()

    def answer(self) -> None:
        """Send the answers that are known, at once if nothing else is to be sent before."""
        for client in self.acknowledged:
            client.unacknowledged -= 1
        self.acknowledged.clear()
        while self.owing:
            owed = self.owing.pop()
            self._send(*owed.take(), owed.traffic)

    def _send(self, clients: list[SinglePublisher], packed: list[bytes], traffic: Traffic) -> None:
        fds: list[int] = []
        seen: set[int] = set()  # a second answer to the same client may find the first half sent
        for client in clients:
            fd = client.fd
            waits = client.closed or client.blocked or client.paused or client.lingering_since_s
            # Nothing is to go out before the answer, and nothing waits for it.
            if waits or client.out or client.in_row or client.current is not None or fd in seen:
                fds.append(-1)
            else:
                client.under_way -= 1
                fds.append(fd)
                seen.add(fd)
        nbytes, rest = _send_each(fds, packed)
        traffic.bytes_out += nbytes
        for place, sent in rest:
            client = clients[place]
            client.under_way -= fds[place] < 0
            if not client.closed:
                self._answer_later(client, packed[place], sent)

    def _answer_later(self, client: SinglePublisher, answer: bytes, sent: int) -> None:
        """The socket took `sent` bytes of it, or nothing was tried."""
        if sent == _FAILED:
            client.close("reset")
            return
        client.send_envelope(answer[max(sent, 0) :])
        client.outcome_known()


def _split(
    events: list[tuple[int, int]], publishers: dict[int, _AnyPublisher]
) -> tuple[list[tuple[int, int]], list[_AnyPublisher]]:
    """The events of all others, and the publishers that can be read."""
    others: list[tuple[int, int]] = []
    clients: list[_AnyPublisher] = []
    find = publishers.get
    for event in events:
        client = find(event[0])
        if client is not None and event[1] == _IN and not (client.held_bytes or client.lingering_since_s):
            clients.append(client)
        else:
            others.append(event)
    return others, clients


def _cut(packed: bytes, size: int) -> list[bytes]:
    return [packed[start : start + size] for start in range(0, len(packed), size)]
