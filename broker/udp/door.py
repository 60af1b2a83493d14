"""The UDP door of a worker: one socket, whose clients are addresses. docs/udp.md describes the protocol.

Publishes go through the router as those of other doors. For each stream in which a topic of a subscription may lie
there is one cursor, whose messages go out to all their subscribers.
"""

from __future__ import annotations

import mmap
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from tailrace.broker.delivery.cursor import Cursor, Delivery
from tailrace.broker.delivery.frame_runs import FrameRuns, RawFrames
from tailrace.broker.delivery.watches import Watches
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.routing.batch import FramePublication
from tailrace.broker.routing.fixed_publisher import FixedPublisher
from tailrace.broker.routing.route import Route
from tailrace.broker.services import Services
from tailrace.broker.sharing.sender import SharingServices
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.broker.udp.addresses import NAME_BYTES, shown_name
from tailrace.broker.udp.delivery import DatagramOutbox, send_answers
from tailrace.broker.udp.requests import Asked, RequestHandler
from tailrace.broker.udp.subscriptions import RunAnswers, RunRules, StreamNumbers, UdpSubscriptions
from tailrace.protocol.errors import Code
from tailrace.shard.leaves import load
from tailrace.shard.names import base_of

SLOT_BYTES: Final = 65_536 + 192
"""For one datagram; no power of two, so that neighbours are not in the same lines of the processor's cache."""
DATAGRAMS_A_TURN: Final = 1_024
BYTES_A_TURN: Final = 4 << 20
JOINED_AT_ONCE: Final = 16
"""Messages received at one time while the kernel joins datagrams to them: each may have 64, or more."""
REQUESTS_A_TURN: Final = 8
"""Datagrams that are handled one by one: each costs as much as ten that are staged."""
REFUSED_A_TURN: Final = REQUESTS_A_TURN // 2
"""If more of them are refused, the door rests: a flood of what is refused leaves most of the processor to others."""
REST_S: Final = 0.001
IGNORED_A_TURN: Final = 128
"""Each costs a tenth of a request."""
FLOOD_A_SECOND: Final = 20_000
"""If more are ignored in a second, the door takes FLOOD_A_TURN of them in a turn and rests for FLOOD_REST_S behind it,
until a turn has less: to look at each would take the most of a core from all others."""
FLOOD_A_TURN: Final = 16
FLOOD_REST_S: Final = 0.010
SENT_A_TURN: Final = 4_096
"""Datagrams to subscribers; the others go out in the next turn."""
SHOWN_A_PAGE: Final = 1_000
"""Subscriptions of a worker, and filters that other nodes want, in one answer to `pull`."""
HANDED_AT_ONCE: Final = 128
"""Subscriptions handed to a successor in one call, which takes it some milliseconds; one call is under way."""
ANSWERS_MAX: Final = 8_192
"""That wait for the end of a turn."""

CallSuccessor = Callable[[list[Any], OnResult], None]

_packets = load("tailrace.broker.udp.packets_cy")
_BATCH: Final = int(_packets.BATCH)
_OF_SUB: Final = ord("S")


class UdpDoor(FixedPublisher):
    """One per worker that has a socket for datagrams. To the router it is a client, and to fan-out a subscriber."""

    has_socket: Literal[True] = True
    out = b""  # its answers go another way

    def __init__(self, services: Services, work: WorkQueue, sock: socket.socket) -> None:
        super().__init__()
        settings = services.settings
        self._services = services
        self._sock = sock
        self._fd = sock.fileno()
        self._open = False
        self.is_handing_over = False
        self._paused: set[object] = set()
        self._held_up = 0
        most = _BATCH * int(_packets.JOINED)
        self._slots = mmap.mmap(-1, _BATCH * SLOT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._starts, self._names, self._lengths = (
            bytearray(4 * most),
            bytearray(NAME_BYTES * most),
            bytearray(4 * most),
        )
        self._datagrams = self._slots, self._starts, self._names, self._lengths
        self._at = self._received = 0  # the datagrams of the last system call that are not handled yet
        self._is_readable = False
        self._outbox = DatagramOutbox(services.metrics)
        self._answers: list[tuple[bytes, bytes]] = []
        self._run_answers = RunAnswers(_BATCH, settings.udp_lease_s)
        self._allowance = SENT_A_TURN
        self._requests_left, self._ignored_left = REQUESTS_A_TURN, IGNORED_A_TURN
        self._rest_s = self._rests_until_s = 0.0  # 0: it does not rest
        self._is_flooded = False
        self._at_once = _BATCH
        self.watches = Watches(services, work, self)
        self.subscriptions = UdpSubscriptions(
            settings.max_udp_subscriptions,
            settings.max_filter_bytes,
            settings.topic_cache_bytes,
            lambda streams, wanted: self.watches.want(streams) if wanted else self.watches.unwant(streams),
            self._count if settings.share_memory else None,
        )
        self._requests = RequestHandler(services, self.subscriptions, self.watches, self)
        self._stream = settings.udp_stream.encode()
        # For fan-out; of its traffic counts what is in the outbox:
        self.delivery: Delivery = FrameRuns(services.readers, services.fanout.fresh)
        self.ready: list[Cursor] = []
        self.current: Cursor | None = None
        self.queued = self.blocked = self.closed = False

    def _count(self, topic: bytes, streams: tuple[bytes, ...], wanted: bool) -> None:
        """A topic has its first subscription, or none any more: other nodes may have messages of it."""
        wants = self._services.fanout.wants
        for stream in streams:
            (wants.add if wanted else wants.remove)(stream, topic)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._sock.setblocking(False)
        _packets.join(self._fd)
        self._services.poller.register(self._fd, select.EPOLLIN, self._on_event)
        self._open = True

    def stop(self) -> None:
        """Read and deliver no more; datagrams wait in the socket for the successor. It stays open for the answers to
        publishes that are with their owners still.
        """
        if self._open:
            self._requests_left = self._ignored_left = self._received - self._at
            groups: dict[bytes, list[Any]] = {}
            self._take(groups)
            self.publish_groups(groups)
            self._open = False
            self._services.poller.unregister(self._fd)
            self.watches.close()
        self.closed = True

    def hand_over(self, call: CallSuccessor, start: int = 0) -> None:
        """Gives the subscriptions, with their leases, to the worker that reads the socket now. It has not all of them
        if it is replaced meanwhile.
        """
        more, rows = self.subscriptions.shown(start, HANDED_AT_ONCE)

        def done(value: Any) -> None:
            self.is_handing_over = more and not isinstance(value, Refused)
            if self.is_handing_over:
                self.hand_over(call, start + HANDED_AT_ONCE)

        self.is_handing_over = True
        call([rows, more], done)

    def adopt(self, rows: list[tuple[bytes, bytes, int]], more: bool) -> None:
        """The other end of `hand_over`."""
        for row in rows if self._open else ():
            self._requests.restore(*row)
        if not more:
            self._requests.all_restored()

    def close(self) -> None:
        """The end of the worker."""
        self.stop()
        self.send_answers()
        self._sock.close()

    def tick(self) -> None:
        """From the timer: streams that could not be watched, gauges."""
        if not self._open:
            return
        metrics = self._services.metrics
        self.watches.retry()
        metrics.udp_peers, metrics.udp_subscriptions = self.subscriptions.peers, self.subscriptions.subscriptions

    def end_leases(self) -> None:
        """From the timer, many times a second: a slice of the addresses."""
        if self._open:
            self._services.metrics.udp_expired += self.subscriptions.expire(self._before_s())

    def _before_s(self) -> int:
        """Leases are over of addresses whose last datagram came before this time."""
        return max(int(self._services.now_s) - self._services.settings.udp_lease_s, 0)

    def shown(self, start: int, count: int) -> tuple[bool, list[tuple[bytes, str]]]:
        """Topics and addresses of the subscriptions with records from number `start` on, in order."""
        more, rows = self.subscriptions.shown(start, count)
        return more, sorted((topic, shown_name(name)) for topic, name, _seen_s in rows)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _on_event(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self._unblock()
        self._is_readable = mask & (select.EPOLLIN | select.EPOLLERR) != 0

    @property
    def rest_s(self) -> float:
        """How long datagrams are to wait, since too many were refused or ignored; 0 if they are not."""
        return self._rest_s if self._rests_until_s else 0.0

    @property
    def has_input(self) -> bool:
        """Whether `read` has something to do: datagrams have come, or were left by the turn before."""
        return (self._is_readable or self._at < self._received) and self._open and not self._is_paused

    def read(self) -> None:
        """Once a turn."""
        self._is_readable = False
        traffic = self._services.metrics.udp
        datagrams_left, bytes_most = DATAGRAMS_A_TURN, traffic.bytes_in + BYTES_A_TURN
        self._requests_left = REQUESTS_A_TURN
        self._ignored_left = FLOOD_A_TURN if self._is_flooded else IGNORED_A_TURN
        senders = self._requests.senders
        senders.tick(self._services.now_s)
        refused = senders.refused
        groups: dict[bytes, list[Any]] = {}
        while datagrams_left > 0 and traffic.bytes_in < bytes_most and self._has_work_left and not self._is_paused:
            if self._at == self._received and not self._receive():
                break
            begin = self._at
            self._take(groups)
            datagrams_left -= self._at - begin
        self.publish_groups(groups)
        self._is_flooded = not self._has_work_left if self._is_flooded else senders.ignored > FLOOD_A_SECOND
        if self._is_flooded:
            self._rest(FLOOD_REST_S)
        elif senders.refused - refused > REFUSED_A_TURN:
            self._rest(REST_S)

    def _rest(self, rest_s: float) -> None:
        self._rest_s, self._rests_until_s = rest_s, time.monotonic() + rest_s  # the turn may have taken long
        self._set_mask()

    @property
    def _has_work_left(self) -> bool:
        return self._requests_left > 0 and self._ignored_left > 0

    def _receive(self) -> bool:
        """Receives what one system call gives; returns whether that is anything."""
        services, at_once = self._services, self._at_once
        messages, count, nbytes = _packets.receive(self._fd, self._datagrams, SLOT_BYTES, at_once)
        if messages <= 0:
            return False
        self._at, self._received = 0, count
        self._at_once = JOINED_AT_ONCE if count > 2 * messages else _BATCH
        services.metrics.udp.bytes_in += nbytes
        self.subscriptions.renew(self._names, count, int(services.now_s))
        return True

    def _take(self, groups: dict[bytes, list[Any]]) -> None:
        """Handles the datagrams that were received, until there are too many requests among them."""
        services, requests, count, at = self._services, self._requests, self._received, self._at
        while at < count and self._has_work_left:
            if requests.takes_runs:
                at, junk = _packets.stage(
                    self._datagrams,
                    at,
                    count,
                    requests.table,
                    self._stream,
                    services.settings.max_message_bytes,
                    groups,
                )
                if junk:
                    services.metrics.udp_dropped.add("junk", junk)
            before = at
            if at < count and requests.takes_runs and self._slots[self._start_of(at)] == _OF_SUB:
                at = self._subscribe_run(at, min(count, at + _BATCH))
            if at < count and at == before:
                self._take_request(at, groups)
                at += 1
        self._at = at

    def _take_request(self, number: int, groups: dict[bytes, list[Any]]) -> None:
        """One that no leaf can do."""
        name = bytes(self._names[number * NAME_BYTES : (number + 1) * NAME_BYTES])
        if self._requests.senders.ignores(name):
            self._ignored_left -= 1
            self._services.metrics.udp_dropped.add("ignored")
        else:
            self._requests_left -= 1
            self._requests.take(name, self._datagram(number), groups)

    def _subscribe_run(self, at: int, count: int) -> int:
        """Does the plain `SUB`s from number `at` on; returns the number of the first datagram that is left.

        The numbers of streams hold for this run only: an `UNSUB` behind it may free one.
        """
        requests = self._requests
        rules = RunRules(requests.table, self._stream, StreamNumbers(self._number_of), requests.trusts_all)
        answers = self._run_answers
        end = self.subscriptions.add_run(self._datagrams, at, count, rules, int(self._services.now_s), answers)
        if end > at:
            self.send_answers()
            self._outbox.send_run(self._fd, answers.entries, end - at, answers.texts)
        return end

    def _number_of(self, stream: bytes) -> int:
        """The number of a stream whose subscriptions can be answered at once, else -1."""
        return self.subscriptions.number_of(stream) if self.watches.is_watched(stream) else -1

    def _start_of(self, number: int) -> int:
        return int.from_bytes(self._starts[4 * number : 4 * number + 4], "little")

    def _datagram(self, number: int) -> bytes:
        length = int.from_bytes(self._lengths[4 * number : 4 * number + 4], "little")
        start = self._start_of(number)
        return self._slots[start : start + length]

    # --- publishing -------------------------------------------------------------------------------------------------

    def publish_groups(self, groups: dict[bytes, list[Any]]) -> None:
        """Publishes the staged frames, and empties `groups`."""
        for stream, (frames, count) in groups.items():
            self.publish(stream, frames, count, None)
        groups.clear()

    def publish(self, stream: bytes, frames: bytearray, count: int, asked: Asked | None) -> None:
        """Publishes frames; `asked`: a client that waits for the answer."""
        publication = AskedPublication(self, stream, count, asked)
        self._services.router.publish_frames(self, publication, [stream], frames, False)
        self._services.metrics.udp.messages_in += count

    def publish_done(self, publication: FramePublication) -> None:
        assert isinstance(publication, AskedPublication)
        refusal = publication.refusals.get(0)
        if refusal is not None:
            self._services.metrics.udp_dropped.add("refused", publication.count)
        if publication.asked is not None:
            self._requests.answer_publish(publication.asked, publication.results[0][0], refusal)

    def may_create(self, name: bytes) -> bool:
        return base_of(name) == name

    def creation_refusal(self, name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here; the broker makes it when it is needed")

    def pause_for(self, route: Route) -> None:
        """The worker of a stream has enough to do: datagrams wait in the socket, and are lost if it is full."""
        if route not in self._paused:
            self._paused.add(route)
            route.feeders.add(lambda: self._resume(route))
            self._set_mask()

    def _resume(self, route: Route) -> None:
        self._paused.discard(route)
        self._set_mask()

    def hold_up(self) -> None:
        self._held_up += 1
        self._set_mask()

    def go_on(self) -> None:
        self._held_up -= 1
        self._set_mask()

    @property
    def _is_paused(self) -> bool:
        return bool(self._paused or self._held_up or self._rests_until_s)

    def _set_mask(self) -> None:
        if self._open:
            mask = 0 if self._is_paused else select.EPOLLIN
            self._services.poller.modify(self._fd, mask | (select.EPOLLOUT if self._outbox.blocked else 0))

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, name: bytes, text: bytes) -> None:
        """Sends an answer at the end of the turn."""
        if len(self._answers) < ANSWERS_MAX:
            self._answers.append((name, text))
        else:
            self._services.metrics.udp_dropped.add("unsent")

    def send_answers(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            nbytes, unsent = send_answers(self._fd, answers)
            self._services.metrics.udp.bytes_out += nbytes
            if unsent:
                self._services.metrics.udp_dropped.add("unsent", unsent)

    # --- subscribers ------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is more to send or to handle than a turn may."""
        return self._has_unsent or self.has_input

    @property
    def _has_unsent(self) -> bool:
        return self.blocked and not self._outbox.blocked and not self.closed

    def begin_sending(self) -> None:
        """Called once a turn, before fan-out runs."""
        if 0 < self._rests_until_s <= self._services.now_s:
            self._rests_until_s = 0.0
            self._set_mask()
        self._allowance = SENT_A_TURN
        self.send_answers()
        if self._has_unsent:
            self._unblock()

    def _unblock(self) -> None:
        self._outbox.blocked = self.blocked = False
        self._set_mask()
        if self._outbox.count and not self._flush():
            return
        if self.ready:
            self._services.fanout.make_runnable(self)

    def _flush(self) -> bool:
        """Sends the datagrams that are made. False, and blocked, if some are left."""
        self._allowance -= self._outbox.send(self._fd, self._allowance)
        if not self._outbox.count:
            return True
        self.blocked = True
        if self._outbox.blocked:
            self._set_mask()
        return False

    def send_chunk(self, cursor: Cursor, chunk: RawFrames) -> int:
        """Makes and sends the datagrams of these frames. With some left the cursor is moved behind those that
        are made, and 0 is returned.
        """
        position = 0
        while self._flush():
            if position == chunk.nbytes:
                return chunk.nbytes
            before = position
            position, messages, self._outbox.count, unsendable = self.subscriptions.collect(
                chunk.frames, position, cursor.feed.name, self._before_s(), self._outbox.buffers
            )
            if position == before and not self._outbox.count:
                return chunk.nbytes  # not a frame: `delivery` lets only frames through
            cursor.seq += messages
            cursor.offset += position - before
            if unsendable:
                self._services.metrics.udp_dropped.add("unsendable", unsendable)
        return 0

    def flush_answers(self) -> bool:
        return True

    def keep(self, text: bytes) -> None:
        raise AssertionError("no datagram is ever half out")

    def chunk_ended(self) -> None:
        """Nothing waits for that."""

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        self._services.metrics.udp_dropped.add("trimmed", first_seq - cursor.seq)
        self.subscriptions.forget_place()

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        self.subscriptions.forget_place()
        self.watches.ended(cursor, code)


class ClosedDoor:
    """In the place of the door of a worker without a socket for datagrams."""

    has_socket: Literal[False] = False

    is_busy = has_input = is_handing_over = False
    rest_s = 0.0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def hand_over(self, _call: CallSuccessor) -> None: ...

    def adopt(self, _rows: list[Any], _more: bool) -> None: ...

    def tick(self) -> None: ...

    def end_leases(self) -> None: ...

    def shown(self, _start: int, _count: int) -> tuple[bool, list[tuple[bytes, str]]]:
        return False, []

    def read(self) -> None: ...


def show_page(door: UdpDoor | ClosedDoor, sharing: SharingServices, place: int) -> list[Any]:
    """For a dump: the place of the next page, or 0; topics with addresses that are subscribed; topics with nodes that
    want them.
    """
    more_kept, kept = door.shown(place, SHOWN_A_PAGE)
    more_wanted, wanted = sharing.shown(place, SHOWN_A_PAGE)
    return [place + SHOWN_A_PAGE if more_kept or more_wanted else 0, kept, wanted]


def open_door(services: Services, work: WorkQueue, sock: socket.socket | None) -> UdpDoor | ClosedDoor:
    return ClosedDoor() if sock is None else UdpDoor(services, work, sock)


class AskedPublication(FramePublication):
    """What datagrams have published to one stream."""

    __slots__ = ("asked",)

    def __init__(self, door: UdpDoor, stream: bytes, count: int, asked: Asked | None) -> None:
        super().__init__(door, 0, asked is not None, [stream], count)
        self.asked = asked
