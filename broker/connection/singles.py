"""Connections that send one publish at a time, and wait for its answer: read together and answered together.

A turn of the loop has one call of the leaf `singles_cy` for all that can be read, and one for all answers. What a leaf
does not take, such as any other request, goes the way of all (`ClientConnection.received`).
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Final, Protocol

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import READ_BYTES_MIN
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.process.work import Asker
from tailrace.broker.routing.router import PublishingClient
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.leaves import load

if TYPE_CHECKING:
    from tailrace.broker.connection.singles_cy import Group

TOGETHER_MAX = 256
"""Connections read by one call: 4 MiB at most."""
STAGED_MAX_BYTES = 4 << 20
"""What is read of them in one turn, about: half of a turn, so that others are read too."""
AWAITED_LOOK = 64
"""From so many requests under way on it isn't enough to count them."""

_publish_cy = load("tailrace.protocol.publish_cy")
_pack_answers = _publish_cy.pack_answers
_REQUEST_BYTES: int = _publish_cy.REQUEST_BYTES
_ANSWER_BYTES: Final = len(_pack_answers(bytes(_REQUEST_BYTES), 0, 0))
_leaf = load("tailrace.broker.connection.singles_cy")
_receive, _send_each, _FAILED = _leaf.receive, _leaf.send_each, _leaf.FAILED
SINGLE_ACK_MAX: int = _leaf.ACK_MAX
_IN: Final = select.EPOLLIN


class SinglePublisher(Asker, PublishingClient, Protocol):
    """The parts of a binary connection that are needed here."""

    blocked: bool
    closed: bool
    current: Cursor | None
    fd: int
    handles: dict[int, bytes]
    held_bytes: int
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

    def requests_refused(
        self, name: bytes, requests: bytes, count: int, code: Code, text: str, first_seq: int | None
    ) -> None: ...

    def say(self, envelope: bytes) -> None: ...


class SharedRun:
    """Single publishes of several connections to one stream: one part of its batch, and who waits for its outcome."""

    __slots__ = ("_creator", "_requests", "_singles", "_wants_answers", "clients", "name")

    def __init__(
        self, singles: Singles, name: bytes, clients: list[SinglePublisher], requests: bytes, wants_answers: bool
    ) -> None:
        """requests: as `protocol.publish_cy.pack_answers` takes them, one for each client."""
        self._singles = singles
        self._requests = requests
        self._wants_answers = wants_answers
        self._creator: SinglePublisher | None = None
        self.name = name
        self.clients = clients

    @property
    def asker(self) -> SharedRun:
        return self

    def hold_up(self) -> None:
        for client in self.clients:
            client.hold_up()

    def go_on(self) -> None:
        for client in self.clients:
            client.go_on()

    def published(self, _key: int, first_seq: int, subscribers: int) -> None:
        answers = _pack_answers(self._requests, first_seq, subscribers) if self._wants_answers else b""
        self._singles.outcomes_known(self.clients, answers)

    def refused(self, _key: int, code: Code, text: str) -> None:
        for place, client in enumerate(self.clients):
            client.requests_refused(self.name, self._request(place), 1, code, text, None)

    def unreplicated(self, _key: int, first_seq: int, text: str) -> None:
        for place, client in enumerate(self.clients):
            request, seq = self._request(place), first_seq + place
            client.requests_refused(self.name, request, 1, Code.UNREPLICATED, text, seq)

    def _request(self, place: int) -> bytes:
        return self._requests[place * _REQUEST_BYTES : (place + 1) * _REQUEST_BYTES]

    def may_create(self, name: bytes) -> bool:
        self._creator = next((client for client in self.clients if client.may_create(name)), None)
        return self._creator is not None

    def creation_refusal(self, name: bytes) -> Refused:
        return self.clients[0].creation_refusal(name)

    def count_created(self) -> None:
        if self._creator is not None:
            self._creator.count_created()


class Singles:
    """One per worker. A connection is among `publishers` while its last read was a single publish."""

    __slots__ = ("_answered", "_answers", "_buffer", "_publishers", "_services")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._buffer = services.receive_view[:READ_BYTES_MIN]
        self._publishers: dict[int, SinglePublisher] = {}  # by descriptor
        self._answered: list[SinglePublisher] = []
        self._answers: list[bytes] = []

    @property
    def owes(self) -> bool:
        """Whether there are answers to send."""
        return bool(self._answers)

    def add(self, client: SinglePublisher) -> None:
        """Its next request is likely to be a single publish. It is a plain connection, and its peer is not a node."""
        self._publishers[client.fd] = client

    def discard(self, client: SinglePublisher) -> None:
        """It is closed, or leaves this worker. One that was never added is ignored."""
        self._publishers.pop(client.fd, None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Read the publishers among those that have an event. Returns the events of the others."""
        find = self._publishers.get
        if not self._publishers:
            return events
        others: list[tuple[int, int]] = []
        clients: list[SinglePublisher] = []
        for event in events:
            client = find(event[0])
            if client is not None and event[1] == _IN and not (client.held_bytes or client.lingering_since_s):
                clients.append(client)
            else:
                others.append(event)
        router = self._services.router
        bytes_max = router.staged_bytes + STAGED_MAX_BYTES
        for start in range(0, len(clients), TOGETHER_MAX):
            self._read_together(clients[start : start + TOGETHER_MAX])
            if router.staged_bytes > bytes_max:
                break
        return others

    def _read_together(self, clients: list[SinglePublisher]) -> None:
        services = self._services
        while clients:
            groups: tuple[dict[bytes, Group], dict[bytes, Group]] = ({}, {})
            known = [client.fd for client in clients], [client.read_bytes for client in clients]
            handles = [client.handles for client in clients]
            place, count, nbytes = _receive(*known, handles, self._buffer, services.settings.max_message_bytes, groups)
            services.metrics.binary.bytes_in += nbytes
            for ack, found in enumerate(groups):
                for name, (frames, requests, places) in found.items():
                    publishers = [clients[each] for each in places]
                    self._stage(SharedRun(self, name, publishers, bytes(requests), ack > 0), frames)
            if place == len(clients):
                return
            self._read_by_itself(clients[place], count)
            # Others may have ended meanwhile, and their descriptors may be of other sockets now.
            clients = [client for client in clients[place + 1 :] if not (client.closed or client.lingering_since_s)]

    def _read_by_itself(self, client: SinglePublisher, count: int) -> None:
        """This read has given something else than a single publish."""
        self.discard(client)
        if count == _FAILED:
            client.close("reset")
        else:
            client.received(count)

    def _stage(self, run: SharedRun, frames: bytearray) -> None:
        """Take what several connections have sent for one stream."""
        now_s = self._services.now_s
        for client in run.clients:
            client.life_s = now_s
            client.under_way += 1
            if client.under_way >= AWAITED_LOOK:
                client.note_awaited()
        self._services.router.publish_shared(run, run.name, run.clients, frames)

    # --- answering --------------------------------------------------------------------------------------------------

    def outcomes_known(self, clients: list[SinglePublisher], answers: bytes) -> None:
        """Their requests are logged; `answers` has one for each of them, or is empty if they want none."""
        if answers:
            self._services.answered_bytes += len(answers)
            self._answered += clients
            self._answers.append(answers)
            return
        for client in clients:
            client.under_way -= 1
            if not client.closed:
                client.outcome_known()

    def answer(self) -> None:
        """Send the answers of this turn, at once if nothing else is to be sent before."""
        clients, self._answered = self._answered, []
        answers, self._answers = b"".join(self._answers), []
        fds: list[int] = []
        seen: set[int] = set()  # a second answer to the same client may find the first half sent
        for client in clients:
            client.under_way -= 1
            if client.fd in seen or not _is_quiet(client):
                fds.append(-1)
            else:
                fds.append(client.fd)
                seen.add(client.fd)
        nbytes, rest = _send_each(fds, answers, _ANSWER_BYTES)
        self._services.metrics.binary.bytes_out += nbytes
        for place, sent in rest:
            if not clients[place].closed:
                self._answer_later(clients[place], answers[place * _ANSWER_BYTES : (place + 1) * _ANSWER_BYTES], sent)

    def _answer_later(self, client: SinglePublisher, answer: bytes, sent: int) -> None:
        """The socket took `sent` bytes of it, or nothing was tried."""
        if sent == _FAILED:
            client.close("reset")
            return
        client.say(answer[max(sent, 0) :])
        client.outcome_known()


def _is_quiet(client: SinglePublisher) -> bool:
    """Whether an answer can be sent at once: nothing is to go out before it, and nothing waits for it."""
    waits = client.closed or client.blocked or client.paused or client.lingering_since_s
    return not (waits or client.out or client.current is not None)
