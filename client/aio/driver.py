"""The asyncio shell's engine: a session, its transport and its timer, in one event loop.

Everything happens in the loop's thread. Callers that touch the session call `advance` afterwards: it sends, dials, sets
the timer, and wakes waiters.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from tailrace.core.address import Address
from tailrace.core.address_selector import STAGGER_S, ConnectAttempt
from tailrace.core.connector import ConnectionPhase
from tailrace.core.forks import SEVERED, close_copies, watch
from tailrace.core.link import BrokerLink
from tailrace.core.message import Receipt
from tailrace.core.publications import PendingPublication
from tailrace.core.session import Session
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.protocol.messages import Ack
from tailrace.sockets import SILENT, is_numeric, tls_reason, transit, tune, why
from tailrace.tls import context_for

RECEIVE_BYTES = 256 << 10

JoinedOutcome: TypeAlias = asyncio.Future[Receipt | TailraceError]
"""What becomes of a message that was published together with others."""
_READY = ConnectionPhase.READY

WRITELINES_NEVER_PAUSES: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""A fault of asyncio (CVE-2024-12254): its transports buffer without a bound whatever `writelines` is given."""


class QueuedMessage(NamedTuple):
    """A message that the session has no room for yet, to be published together with others."""

    stream: str
    payload: bytes
    metadata: bytes
    ack: Ack
    outcome: JoinedOutcome
    deadline_s: float


class AsyncDriver:
    """The driver of one client."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._transport: asyncio.Transport | None = None
        self._link: BrokerLink | None = None  # the one that `_transport` is of
        self._dial_tasks: dict[ConnectAttempt, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._queue: deque[PendingPublication | QueuedMessage] = deque()  # that the session has no room for yet
        self._waiting: set[asyncio.Future[None]] = set()  # who waits for anything else
        self._is_paused = False  # the transport holds enough already
        self._is_turn_scheduled = False  # `_end_turn` will be called
        self.is_severed = False  # in a forked child
        watch(self)

    def now_s(self) -> float:
        return self.loop.time()

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def wait_until(self, done: Callable[[], bool], deadline_s: float = math.inf) -> bool:
        """Wait until `done()`, which is asked whenever something has happened. False when it is not so in time."""
        while not done():
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            future = self.loop.create_future()
            self._waiting.add(future)
            try:
                await asyncio.wait((future,), timeout=None if left_s == math.inf else left_s)
            finally:
                self._waiting.discard(future)
        return True

    @property
    def has_room(self) -> bool:
        """Whether there is room for a publish now."""
        return self.session.is_open and not self._queue

    async def publish(self, publication: PendingPublication) -> None:
        """Have it taken in its turn, and wait until it is done; without an acknowledgement, until it is taken.

        Who is cancelled here leaves it under way. Raises ClientClosed, ConnectionLost, MessageTooLarge.
        """
        session, now_s = self.session, self.loop.time()
        if (not self._queue and session.is_open) or session.is_over:
            session.publish(publication, now_s)
        else:
            publication.deadline_s = now_s + publication.timeout_s
            self._queue.append(publication)
        self._send_in_turn()
        while not (publication.done or (publication.ack is Ack.NONE and publication.number)):
            publication.waiter = future = self.loop.create_future()
            await future

    def hold(self, stream: str, payload: bytes, metadata: bytes) -> Receipt | None:
        """Publishes a message without acknowledgement, together with others of the loop's turn; None if it must go by
        itself, such as when there is no room."""
        session, held = self.session, self.session.held
        if session.phase is not _READY or len(payload) + len(metadata) > held.message_bytes_max:
            return None
        if not held.nbytes and not self.has_room:
            return None
        receipt = held.add(stream, payload, metadata)
        if not self._is_turn_scheduled or held.nbytes >= held.full_bytes:
            self._schedule_held()
        return receipt

    def join(self, stream: str, payload: bytes, metadata: bytes, ack: Ack) -> JoinedOutcome | None:
        """Publishes a message together with others of the loop's turn; None if it must go by itself, such as the first
        of them. Its outcome comes later; a task that is cancelled leaves it under way.
        """
        session, held = self.session, self.session.held
        if session.phase is not _READY or len(payload) + len(metadata) > held.message_bytes_max:
            return None
        if not (held.nbytes or session.publications.in_flight or self._queue):
            return None
        outcome: JoinedOutcome = self.loop.create_future()
        if self._queue or not session.is_open:
            until_s = self.loop.time() + session.options.timeout_s
            self._queue.append(QueuedMessage(stream, payload, metadata, ack, outcome, until_s))
            self._send_in_turn()
            return outcome
        held.add(stream, payload, metadata, ack, outcome)
        if not self._is_turn_scheduled or held.nbytes >= held.full_bytes:
            self._schedule_held()
        return outcome

    def _schedule_held(self) -> None:
        """Sends the held messages at the end of the loop's turn, or at once if the buffer is full."""
        if not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self.loop.call_soon(self._end_turn)
        if self.session.held.is_full:
            self.session.flush_held(self.loop.time())
            self._write()

    # --- the step -----------------------------------------------------------------------------------------------------

    def _send_in_turn(self) -> None:
        """Have what was published sent: at once if nothing else is under way, or else at the end of the loop's turn,
        together with all that comes until then.
        """
        if self._is_turn_scheduled:
            return
        if len(self.session.publications.in_flight) == 1:
            self._write()
            if self._timer is not None and self._timer_s <= self.session.due_s:
                return
        self._is_turn_scheduled = True
        self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_turn_scheduled = False
        if not self.is_severed:
            if self.session.held.nbytes:
                self.session.flush_held(self.loop.time())
            self.advance()

    def advance(self) -> None:
        """Does everything due, and wakes waiters."""
        session, now_s = self.session, self.loop.time()
        if now_s >= session.due_s:
            session.tick(now_s)
        if self._transport is not None and self._link is not session.link:
            self._hang_up()
        if self._queue:
            self._take_queue(now_s)
        if self._dial_tasks or session.link is None:
            self._go_on_dialling(now_s)
        self._write()
        self._wake()
        self._set_timer(min(session.due_s, self._queue[0].deadline_s) if self._queue else session.due_s)

    def _go_on_dialling(self, now_s: float) -> None:
        session = self.session
        for attempt in [each for each in self._dial_tasks if not session.is_dialling(each)]:
            self._dial_tasks.pop(attempt).cancel()
        while (due := session.dial(now_s)) is not None:
            self._dial_tasks[due] = self.loop.create_task(self._dial(due))

    def _take_queue(self, now_s: float) -> None:
        """Gives the session publishes that fit, and fails expired ones."""
        queue, session = self._queue, self.session
        while queue and (session.is_open or session.is_over or queue[0].deadline_s <= now_s):
            queued = queue.popleft()
            if queued.deadline_s <= now_s:
                _expire(queued)
            elif isinstance(queued, QueuedMessage):
                session.held.add(queued.stream, queued.payload, queued.metadata, queued.ack, queued.outcome)
                if session.held.is_full:
                    session.flush_held(now_s)
            else:
                self._publish_queued(queued, now_s)
        if session.held.nbytes:
            session.flush_held(now_s)

    def _publish_queued(self, publication: PendingPublication, now_s: float) -> None:
        try:
            self.session.publish(publication, now_s)
        except TailraceError as error:
            publication.fail(error)
        _resolve(publication.waiter)

    def _wake(self) -> None:
        session = self.session
        for publication in session.publications.settled:
            waiter = publication.waiter
            if publication.waiters is not None:
                for each, outcome in zip(publication.waiters, publication.outcomes(), strict=True):
                    if not each.done():
                        each.set_result(outcome)
            elif waiter is not None and not waiter.done():
                waiter.set_result(None)
        session.publications.settled.clear()
        for woken in session.woken:
            if isinstance(woken.waiter, asyncio.Event):
                woken.waiter.set()
        session.woken.clear()
        for future in self._waiting:
            _resolve(future)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None and self._timer_s <= due_s < math.inf:
            return  # it will find nothing due, and be set again: cheaper than setting it at each publish
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = None if due_s == math.inf else self.loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.advance()

    # --- the transport ------------------------------------------------------------------------------------------------

    async def _dial(self, attempt: ConnectAttempt) -> None:
        """Connect, and be taken if no other attempt was. It is cancelled when it is of no use any more."""
        session, address = self.session, attempt.address
        options: dict[str, Any] = {"ssl": context_for(address, session.options.tls)}
        if not is_numeric(address.host) and isinstance(self.loop, asyncio.BaseEventLoop):  # other loops do not know it
            options["happy_eyeballs_delay"] = STAGGER_S
        try:
            transport, _receiver = await self.loop.create_connection(
                lambda: _Receiver(self),
                address.host,
                address.port,
                **options,
            )
        except (OSError, UnicodeError) as error:
            self._dial_tasks.pop(attempt, None)
            session.dial_failed(attempt, _reason(error, address), self.now_s())
        else:
            self._dial_tasks.pop(attempt, None)
            self._connected(attempt, transport)
        self.advance()

    def _connected(self, attempt: ConnectAttempt, transport: asyncio.Transport) -> None:
        session, sock = self.session, transport.get_extra_info("socket")
        if not session.dialled(attempt, self.now_s(), lambda: transit(sock, transport.get_write_buffer_size())):
            transport.abort()
            return
        tune(sock, session.options.silence_s)
        self._hang_up()
        self._transport, self._link = transport, session.link
        self._is_paused = False

    def _write(self) -> None:
        if self._transport is None or self._is_paused:
            return
        outgoing = self.session.link.outgoing if self.session.link is not None else None
        while outgoing is not None and outgoing.nbytes and not self._is_paused:
            head = outgoing.head()
            outgoing.sent(sum(map(len, head)))
            self._transport.writelines(head)
            if WRITELINES_NEVER_PAUSES:
                self._transport.set_write_buffer_limits()  # looks at the buffer, and pauses if it is too full

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = self._link = None

    def received(self, transport: asyncio.BaseTransport | None, count: int) -> None:
        if transport is self._transport and self._transport is not None:
            self.session.receive(self.buffer[:count], self.now_s())
            self.advance()

    def lost(self, transport: asyncio.BaseTransport | None, error: Exception | None) -> None:
        if transport is self._transport and self._transport is not None:
            self._transport = self._link = None
            reason = (isinstance(error, OSError) and error.strerror) or str(error or "the broker closed it")
            is_silent = isinstance(error, OSError) and error.errno in SILENT
            self.session.lost(reason, self.now_s(), is_silent=is_silent)
            self.advance()

    def pause(self, transport: asyncio.BaseTransport | None, paused: bool) -> None:
        if transport is self._transport:
            self._is_paused = paused
            if not paused:
                self.advance()

    def sever(self) -> None:
        """In a forked child: see `tailrace.core.forks`. The parent's loop shares its selector with this one, so the
        transport is not closed: that would remove the parent's socket from it.
        """
        if not self.is_severed:
            self.is_severed = True
            self.session.is_severed = True
            self.session = self.loop = SEVERED
            sock = None if self._transport is None else self._transport.get_extra_info("socket")
            close_copies(() if sock is None else (sock.fileno(),))
            self._transport = self._link = self._timer = None

    # --- ending -------------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float) -> None:
        """Let everything be answered that was asked, as long as there is time, then end."""
        if self.is_severed:
            return
        session, deadline_s = self.session, self.now_s() + timeout_s
        try:
            if not session.is_over:
                session.flush_held(self.now_s())
                session.flush_consumers(self.now_s())
                self.advance()
                await self.wait_until(lambda: session.is_settled or session.is_over, deadline_s)
                session.close(self.now_s(), max(0.0, deadline_s - self.now_s()))
                self.advance()
                await self.wait_until(lambda: session.is_over, deadline_s)
        finally:
            self.abort()

    def abort(self) -> None:
        """End now."""
        self.session.abort()
        self.session.flush_held(self.now_s())  # and so fails those that wait
        self._take_queue(self.now_s())
        for task in self._dial_tasks.values():
            task.cancel()
        self._dial_tasks.clear()
        self._hang_up()
        self._wake()
        self._set_timer(math.inf)


class _Receiver(asyncio.BufferedProtocol):
    """Passes one transport's events to the engine."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._driver.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._driver.received(self._transport, nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.lost(self._transport, exc)

    def pause_writing(self) -> None:
        self._driver.pause(self._transport, True)

    def resume_writing(self) -> None:
        self._driver.pause(self._transport, False)


def _expire(queued: PendingPublication | QueuedMessage) -> None:
    """There was no room for it in time."""
    if isinstance(queued, QueuedMessage):
        if not queued.outcome.done():
            queued.outcome.set_result(OperationTimeout(f"{queued.stream}: too much is under way; it was not sent"))
    else:
        queued.fail(OperationTimeout(f"{queued.streams[0]}: too much is under way; it was not sent"))
        _resolve(queued.waiter)


def _resolve(future: object) -> None:
    if isinstance(future, asyncio.Future) and not future.done():
        future.set_result(None)


def _reason(error: Exception, address: Address) -> str:
    if isinstance(error, socket.gaierror):
        return f"cannot find the host {address.host!r}: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    return why(error.errno) if isinstance(error, OSError) and error.errno else str(error)
