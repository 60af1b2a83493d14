"""The synchronous shell's engine: a session, its socket, and the threads that wait for either.

A thread that waits for something moves the bytes meanwhile (`wait_until`): one thread at a time, the others wait for
its turns to end. So an answer needs no second thread to arrive. A keeper thread looks after the connection while no
thread waits: it answers pings, reconnects, sends what lingers. It does so at intervals and without waiting for the
socket, so it blocks no other thread.

`lock` guards the session, and is held with `step`; it is released while a thread waits for the socket.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Protocol
from weakref import WeakSet

from tailrace.core.address import Address
from tailrace.core.address_selector import ConnectAttempt
from tailrace.core.connector import ConnectionPhase
from tailrace.core.forks import SEVERED, close_copies, watch
from tailrace.core.held import LINGER_S
from tailrace.core.link import BrokerLink
from tailrace.core.message import Receipt
from tailrace.core.publications import PendingPublication
from tailrace.core.session import Session
from tailrace.core.subscription_state import SubscriptionState
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.protocol.messages import Ack
from tailrace.protocol.tls_stream import TLSStream
from tailrace.sockets import SILENT, DialError, SocketAddress, is_numeric, resolve, transit
from tailrace.sync.socket_dialer import SocketDialer
from tailrace.tls import context_for

RECEIVE_BYTES = 512 << 10
KEEPER_S = 1.0
"""Between two looks of the keeper at a connection that is well."""
KEEPER_BUSY_S = 0.01
"""The same, while something is to be done."""
ALARM_BYTES = 4_096
EXIT_S = 2.0
"""The most that a process which ends without `close` waits for its messages without acknowledgement."""


_NONE = Ack.NONE
_READY = ConnectionPhase.READY


class Lingering(Protocol):
    """Something that lingers before it is sent."""

    @property
    def due_s(self) -> float: ...

    def send_due(self, now_s: float) -> None:
        """Called by the keeper, with the lock held; must not wait."""


class Finishing(Protocol):
    """Something that is `done` at some time: a publish, a call."""

    done: bool


class DriverStep:
    """The context, within the lock, of all code that touches the session or the socket.

    KeyboardInterrupt may come between any two calls of the main thread. If it, or any other foreign exception,
    interrupts a step, the step stays `torn`, and the next thread repairs that first.
    """

    __slots__ = ("_driver", "torn")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.torn = False

    def begin(self) -> None:
        if self.torn:
            self._driver.mend()
        self.torn = True

    def __enter__(self) -> None:
        if self.torn:
            self._driver.mend()
        self.torn = True

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, TailraceError):
            self.torn = False


class Driver:
    """The driver of one client. Methods are called with `lock` held and within `step`, but for `start`, `linger` and
    `join`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = threading.RLock()  # by the owner's name, so that an interrupted thread knows whether it has it
        self.step = DriverStep(self)
        self.abandoned: deque[SubscriptionState] = deque()  # whose iterators are gone; may be added to without the lock
        self.lingering: set[Lingering] = set()
        self._turned = threading.Condition(self.lock)
        self._keeper_called = threading.Condition(self.lock)
        self._keeper = threading.Thread(target=self._keep, name="tailrace-keeper", daemon=True)
        self._keeper_until_s = math.inf
        self._turning = False
        self._waiters = 0  # threads that wait for another thread's turn to end
        self._waiting_until_s = math.inf  # of the thread that waits for the socket
        self._poller: select.poll | None = None  # for `_polled_sock`, while nothing is to be sent
        self._polled_sock: socket.socket | None = None
        self._dialers: dict[ConnectAttempt, SocketDialer] = {}
        self._sock: socket.socket | None = None
        self._tls: TLSStream | None = None  # over `_sock`
        self._stream: socket.socket | TLSStream | None = None  # the one of these two that bytes go through
        self._link: BrokerLink | None = None  # the one that `_sock` is of
        self._alarm, self._alarmed = socket.socketpair()
        self._alarm.setblocking(False)
        self._alarmed.setblocking(False)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.is_severed = False  # in a forked child
        watch(self)
        _open.add(self)

    def start(self) -> None:
        self._keeper.start()

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, publication: PendingPublication) -> None:
        """Publishes it, and waits until it is done; without an acknowledgement, until it is taken. Without the lock.

        Raises OperationTimeout for want of room, ClientClosed, ConnectionLost, MessageTooLarge.
        """
        session, step = self.session, self.step
        with self.lock:
            if step.torn:
                self.mend()
            step.torn = True
            try:
                if not session.is_open:
                    self._wait_for_room(publication.streams[0], publication.timeout_s)
                session.publish(publication, monotonic())
                if self._turning:
                    self.push()
                else:
                    self._send()
                if publication.ack is not _NONE:
                    self.wait_for(publication)
            except TailraceError:
                step.torn = False
                raise
            step.torn = False

    def hold(self, stream: str, payload: bytes, metadata: bytes, timeout_s: float | None) -> Receipt | None:
        """Publishes a message without acknowledgement, together with others; None if it must go by itself.

        It is sent at once if no others were just sent, or else with those that follow within LINGER_S or until
        the buffer is full. A full buffer that cannot be sent makes this wait. Raises OperationTimeout, ClientClosed.
        """
        session, held = self.session, self.session.held
        with self.lock:
            if session.phase is not ConnectionPhase.READY or len(payload) + len(metadata) > held.message_bytes_max:
                return None
            if held.nbytes >= held.full_bytes:
                with self.step:
                    self._wait_for_room(stream, session.options.timeout_s if timeout_s is None else timeout_s)
                    session.flush_held(monotonic())
                    self.push()
            is_first = not held.nbytes
            receipt = held.add(stream, payload, metadata)
            if is_first:
                now_s = monotonic()
                held.due_s = max(now_s, held.sent_s + LINGER_S)
                if held.due_s > now_s:
                    self.linger(self)
                else:
                    self.flush()
            elif held.nbytes >= held.full_bytes and session.is_open:
                self.flush()
        return receipt

    def flush(self) -> None:
        """Sends what `hold` has held back."""
        with self.step:
            self.session.flush_held(monotonic())
            self.push()

    def _wait_for_room(self, stream: str, timeout_s: float) -> None:
        session = self.session
        if not self.wait_until(lambda: session.is_open or session.is_over, monotonic() + timeout_s):
            raise OperationTimeout(f"{stream}: too much is under way; it was not sent")

    @property
    def due_s(self) -> float:
        """When the keeper sends what `hold` has held back."""
        return self.session.held.due_s

    def send_due(self, now_s: float) -> None:
        """Called by the keeper when that is due; whether there is room or not, since it is little."""
        self.session.flush_held(now_s)
        self.push()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool], deadline_s: float = math.inf) -> bool:
        """Move bytes, or let another thread do so, until `done()`. False when it is not so in time."""
        while not done():
            if self._turning:
                self._wait_for_turn(deadline_s - monotonic())
            else:
                self._turn(deadline_s)
            if monotonic() >= deadline_s:
                return done()
        return True

    def wait_for(self, what: Finishing) -> None:
        """As `wait_until` it is done, without a deadline of its own."""
        while not what.done:
            if self._turning:
                self._wait_for_turn(math.inf)
            else:
                self._turn(math.inf)

    def push(self) -> None:
        """After a change to the session: sends what can be sent now, and wakes the waiting thread for the rest."""
        self._send()
        session = self.session
        news = (session.publications.settled or session.woken) and self._forget_news()
        if news:
            self._notify()
        if self._turning and (news or self._unsent or self.session.due_s < self._waiting_until_s):
            self._ring()

    def linger(self, what: Lingering) -> None:
        """Have the keeper call `what` when it is due."""
        self.lingering.add(what)
        if what.due_s < self._keeper_until_s:
            self._keeper_called.notify()

    def join(self) -> None:
        """Wait for the keeper to end, after `close`; without the lock."""
        if self._keeper is not threading.current_thread():
            self._keeper.join()

    def close(self, timeout_s: float) -> None:
        """Let everything be answered that was asked, as long as there is time, then end."""
        session, deadline_s = self.session, monotonic() + timeout_s
        if session.phase is not ConnectionPhase.CLOSED:
            session.flush_held(monotonic())
            session.flush_consumers(monotonic())
            self.push()
            self.wait_until(lambda: session.is_settled or session.phase is ConnectionPhase.CLOSED, deadline_s)
            session.close(monotonic(), max(0.0, deadline_s - monotonic()))
            self.push()
            self.wait_until(lambda: session.phase is ConnectionPhase.CLOSED, deadline_s)
        self.abort()

    def close_at_exit(self, deadline_s: float) -> None:
        """Closes, if the program has published anything that nobody waits for. Without the lock."""
        if self.is_severed or self.session.held.sent_s == -math.inf:
            return
        if self.lock.acquire(timeout=max(0.0, deadline_s - monotonic())):
            try:
                with self.step, contextlib.suppress(TailraceError):
                    self.close(max(0.0, deadline_s - monotonic()))
            finally:
                self.lock.release()

    def abort(self) -> None:
        """End now."""
        _open.discard(self)
        self.session.abort()
        self._keeper_called.notify()
        while self._turning:
            self._ring()
            self._wait_for_turn(math.inf)
        self._hang_up()
        self._alarm.close()
        self._alarmed.close()
        self._turned.notify_all()

    def mend(self) -> None:
        """A step was interrupted by an exception: rebuilds the session's derived state."""
        self.session.recover(monotonic())
        self.wake()

    def sever(self) -> None:
        """In a forked child: see `tailrace.core.forks`. The session is left as it is, for it may be torn."""
        if not self.is_severed:
            self.is_severed = True
            self.session.is_severed = True
            self.lock = SEVERED
            dialling = (sock for dialer in self._dialers.values() for sock in dialer.socks)
            socks = [self._alarm, self._alarmed, *dialling, *(() if self._sock is None else (self._sock,))]
            close_copies(sock.fileno() for sock in socks)

    def wake(self) -> None:
        """Let all who wait look again."""
        self._notify()
        if self._turning:
            self._ring()

    def _ring(self) -> None:
        """Ends the poll of the thread that waits for the socket."""
        with contextlib.suppress(BlockingIOError):  # it is woken already, and has not run since
            self._alarm.send(b"!")

    # --- without the lock for a while ---------------------------------------------------------------------------------

    def _wait_for_turn(self, timeout_s: float) -> None:
        """Until another thread's turn has ended."""
        self.step.torn = False
        self._waiters += 1  # after an interrupt here it is too high, which only costs a few calls
        try:
            self._turned.wait(None if timeout_s == math.inf else max(0.0, timeout_s))
        finally:
            self._regain()
            self._waiters -= 1
        self.step.begin()

    def _notify(self) -> None:
        """Let threads that wait for a turn to end look again."""
        if self._waiters:
            self._turned.notify_all()

    def _regain(self) -> None:
        """Acquires the lock again, also after an exception between releasing and acquiring it."""
        try:
            self._turned.notify(0)
        except RuntimeError:
            self.lock.acquire()

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _turn(self, until_s: float) -> None:
        """Does everything due, waits for the socket until then or `until_s`, handles its events."""
        self._turning = True
        is_whole = False
        try:
            session, now_s = self.session, monotonic()
            publications = session.publications
            due_s = session.due_s
            is_up = self._link is not None and self._link is session.link and session.phase is _READY
            if now_s >= due_s or not is_up or self._dialers or self.abandoned:
                self._advance(now_s)
                if self._forget_news() or session.phase is ConnectionPhase.CLOSED:
                    return
                due_s = min((dialer.due_s for dialer in self._dialers.values()), default=math.inf)
                due_s = min(due_s, session.due_s)
            elif session.link is not None and session.link.outgoing.nbytes:
                self._send()
            if (publications.settled or session.woken) and self._forget_news():
                return
            self._waiting_until_s = until_s if until_s < due_s else due_s
            if self._poll(self._waiting_until_s - now_s):
                self._handle(monotonic())
                publications.settled.clear()
                session.woken.clear()
            is_whole = True
        finally:
            self._turning = False  # first of all, and no call: nothing can come between
            if not is_whole:
                self._regain()
            if self._waiters:
                self._turned.notify_all()

    def _advance(self, now_s: float) -> None:
        session = self.session
        while self.abandoned:
            session.cancel(self.abandoned.popleft())
        if now_s >= session.due_s:
            session.tick(now_s)
        if self._sock is not None and (self._link is None or self._link is not session.link):
            self._hang_up()
        for attempt in [each for each in self._dialers if not session.is_dialling(each)]:
            self._dialers.pop(attempt).close()
        attempt_due = session.dial(now_s)
        if attempt_due is not None:
            self._dial(attempt_due)
        if self._dialers:
            self._dial_on(monotonic())
        self._send()

    def _poll(self, timeout_s: float) -> bool:
        """Returns whether the socket is ready."""
        poller = self._poller
        link = self._link
        is_sent = link is not None and not link.outgoing.nbytes and (self._tls is None or not self._tls.unsent_bytes)
        if not is_sent or poller is None or self._polled_sock is not self._sock or self._dialers:
            poller = self._make_poller()
        timeout_ms = None if timeout_s == math.inf else math.ceil(max(0.0, timeout_s) * 1_000)
        self.step.torn = False
        self.lock.release()  # `_turn` sees to it that it is regained
        events = poller.poll(timeout_ms)
        self.lock.acquire()
        if self.step.torn:
            self.mend()
        self.step.torn = True
        alarm = self._alarmed.fileno()
        for fd, _ in events:
            if fd == alarm:
                self._alarmed.recv(ALARM_BYTES)
                return len(events) > 1
        return bool(events)

    def _make_poller(self) -> select.poll:
        """One for the sockets as they are; it is kept while a connection is up, and all is sent."""
        poller = select.poll()
        poller.register(self._alarmed, select.POLLIN)
        for dialer in self._dialers.values():
            for sock in dialer.socks:
                poller.register(sock, dialer.events)
        if self._sock is not None:
            poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        is_kept = self._sock is not None and not (self._dialers or self._unsent)
        self._poller, self._polled_sock = (poller, self._sock) if is_kept else (None, None)
        return poller

    def _handle(self, now_s: float) -> None:
        """The socket is ready."""
        stream, link = self._stream, self._link
        if self._dialers:
            self._dial_on(now_s)
        elif stream is not None:
            try:
                count = stream.recv_into(self._buffer, RECEIVE_BYTES)
                if count:
                    self.session.receive(self._buffer[:count], now_s)
                else:
                    self.session.lost("the broker closed it", now_s)
            except BlockingIOError:
                pass
            except OSError as error:
                self._lost(error, now_s)
        if link is not None and (link.outgoing.nbytes or self._tls is not None):
            self._send()

    def _forget_news(self) -> bool:
        """Whether something has happened that a thread may wait for. Waiting threads check for themselves."""
        session = self.session
        news = bool(session.publications.settled or session.woken)
        session.publications.settled.clear()
        session.woken.clear()
        return news

    # --- the socket ---------------------------------------------------------------------------------------------------

    def _dial(self, attempt: ConnectAttempt) -> None:
        address = attempt.address
        try:
            candidates = resolve(address) if is_numeric(address.host) else self._resolve(address)
        except DialError as error:
            self.session.dial_failed(attempt, str(error), monotonic())
        else:
            options = self.session.options
            context = context_for(address, options.tls)
            self._dialers[attempt] = SocketDialer(candidates, options.silence_s, context, address.host)

    def _resolve(self, address: Address) -> list[SocketAddress]:
        """Ask the resolver, which may take its time."""
        self.step.torn = False
        self.lock.release()
        try:
            return resolve(address)
        finally:
            self._regain()
            self.step.begin()

    def _dial_on(self, now_s: float) -> None:
        """Look at all attempts, and take the first that has connected."""
        for attempt, dialer in list(self._dialers.items()):
            try:
                sock = dialer.proceed(now_s)
            except DialError as error:
                del self._dialers[attempt]
                self.session.dial_failed(attempt, str(error), now_s)
                continue
            if sock is not None and self.session.dialled(attempt, now_s, partial(transit, sock)):
                self._sock, self._tls, self._link = sock, dialer.stream, self.session.link
                self._stream = dialer.stream or sock
                dialer.socks = []
                del self._dialers[attempt]
                return  # the other attempts are of no use any more: the next turn closes them

    @property
    def _unsent(self) -> bool:
        link, tls = self._link, self._tls
        return link is not None and (link.outgoing.nbytes > 0 or (tls is not None and tls.unsent_bytes > 0))

    def _send(self) -> None:
        if self._stream is None or self._link is None or self._link is not self.session.link:
            return
        outgoing, sendmsg = self._link.outgoing, self._stream.sendmsg
        try:
            if self._tls is not None and not self._tls.flush():
                return
            outgoing.drain(sendmsg)
        except BlockingIOError:
            return
        except OSError as error:
            self._receive_last_words()
            self._lost(error, monotonic())

    def _lost(self, error: OSError, now_s: float) -> None:
        self.session.lost(error.strerror or str(error), now_s, is_silent=error.errno in SILENT)

    def _receive_last_words(self) -> None:
        """Handles the broker's last bytes, which may be an answer, or the reason why it closed."""
        link = self.session.link
        with contextlib.suppress(OSError):
            while self._stream is not None and self.session.link is link:
                count = self._stream.recv_into(self._buffer, RECEIVE_BYTES)
                if not count:
                    return
                self.session.receive(self._buffer[:count], monotonic())

    def _hang_up(self) -> None:
        self._link = self._poller = None
        if self._tls is not None:
            with contextlib.suppress(OSError):
                self._tls.end()
            self._tls = None
        if self._sock is not None:
            self._sock.close()
            self._sock = self._stream = None
        for dialer in self._dialers.values():
            dialer.close()
        self._dialers.clear()

    # --- the keeper ---------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        with self.lock:
            while self.session.phase is not ConnectionPhase.CLOSED:
                with self.step:
                    if not self._turning:
                        self._turn(-math.inf)
                    now_s = monotonic()
                    self.lingering = {each for each in self.lingering if each.due_s < math.inf}
                    for each in [each for each in self.lingering if each.due_s <= now_s]:
                        each.send_due(now_s)
                    self._keeper_until_s = now_s + self._keeper_pause_s(now_s)
                self._keeper_called.wait(max(0.0, self._keeper_until_s - now_s))
                self._keeper_until_s = -math.inf

    def _keeper_pause_s(self, now_s: float) -> float:
        """How long nothing is due."""
        busy = self._unsent or self.session.phase is not ConnectionPhase.READY
        due_s = min((each.due_s for each in self.lingering), default=math.inf)
        if not self._turning:
            due_s = min(due_s, self.session.due_s)
        return min(KEEPER_BUSY_S if busy else KEEPER_S, max(due_s - now_s, KEEPER_BUSY_S / 10))


_open: WeakSet[Driver] = WeakSet()  # that are not closed


@atexit.register
def _close_all() -> None:
    deadline_s = monotonic() + EXIT_S
    for driver in list(_open):
        driver.close_at_exit(deadline_s)
