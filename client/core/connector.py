"""A client's connection, one after the other, without sockets and clocks: dialling, greeting, heartbeat, loss, the end.

The session (`tailrace.core.session`) handles the messages; it implements the hooks at the end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from tailrace.core import forks
from tailrace.core.address import Address
from tailrace.core.address_selector import AddressSelector, ConnectAttempt
from tailrace.core.heartbeat import NOT_KNOWN, Heartbeat, Transit
from tailrace.core.link import BrokerLink
from tailrace.core.options import ClientOptions
from tailrace.errors import BrokerFault, ClientClosed, ConnectionLost, TailraceError
from tailrace.protocol import messages as m
from tailrace.protocol.binary import PublishedRow
from tailrace.protocol.errors import PeerError
from tailrace.protocol.strangers import STRANGER_BYTES, stranger

log = logging.getLogger("tailrace")

HARMLESS: Final = frozenset({"closing", "slow"})
"""Codes that end a connection without saying that the next one will end like it."""
INTERRUPTED: Final = "closed after an exception interrupted this client"
DEFAULT_LIMITS: Final = {"max_message_bytes": 8 << 20, "max_envelope_bytes": 16 << 20}
"""Until a broker tells its own, which it does before anything is published."""


class ConnectionPhase(Enum):
    WAITING = 0  # for the time to dial
    DIALLING = 1
    GREETING = 2  # HELLO is on its way
    READY = 3
    CLOSING = 4  # CLOSE is sent: the broker answers pending requests, then closes
    CLOSED = 5  # for good


class Connector:
    """The connection of one client; `link` is None while disconnected."""

    def __init__(
        self, addresses: Sequence[Address], options: ClientOptions, random: Callable[[], float], now_s: float
    ) -> None:
        self.options = options
        self.phase = ConnectionPhase.WAITING
        self.link: BrokerLink | None = None
        self.limits: dict[str, int] = dict(DEFAULT_LIMITS)
        self.welcome: m.Welcome | None = None  # the latest
        self.address: Address | None = None  # of the latest connection
        self.failure: TailraceError | None = None  # why it is CLOSED, when nobody asked for that
        self.connections = 0  # that were greeted
        self.is_severed = False  # in a forked child: it is the parent's
        self._selector = AddressSelector(addresses, options.reconnect_s, random, now_s, options.connect_timeout_s)
        self._attempt: ConnectAttempt | None = None  # that has connected, and is not greeted yet
        self._phase_due_s = math.inf  # when greeting or closing has taken too long

    @property
    def due_s(self) -> float:
        """When to call `tick` or `dial`; infinity for never."""
        if self.phase is ConnectionPhase.WAITING:
            return self._selector.due_s
        if self.phase is ConnectionPhase.DIALLING:
            return min(self._selector.due_s, self._selector.attempts_due_s)
        if self.phase is ConnectionPhase.READY and self.link is not None:
            return self.link.heartbeat.due_s
        return self._phase_due_s

    @property
    def is_over(self) -> bool:
        """Whether it is closed for good."""
        return self.phase is ConnectionPhase.CLOSED

    def dial(self, now_s: float) -> ConnectAttempt | None:
        """The attempt to begin now, or None. Others may be under way."""
        if self.phase not in (ConnectionPhase.WAITING, ConnectionPhase.DIALLING):
            return None
        attempt = self._selector.begin(now_s)
        if attempt is not None:
            self.phase = ConnectionPhase.DIALLING
        return attempt

    def is_dialling(self, attempt: ConnectAttempt) -> bool:
        """Whether a connection to this address is still wanted."""
        return self.phase is ConnectionPhase.DIALLING and attempt.number in self._selector.under_way

    def dialled(
        self, attempt: ConnectAttempt, now_s: float, transit: Callable[[], Transit] = lambda: NOT_KNOWN
    ) -> bool:
        """Takes a new connection; returns False if it is no longer wanted. `transit`: its bytes in transit."""
        if not self.is_dialling(attempt):
            return False
        self._selector.connected(attempt)
        self._attempt = attempt
        self.phase = ConnectionPhase.GREETING
        self.address = attempt.address
        self._phase_due_s = attempt.until_s
        options = self.options
        heartbeat = Heartbeat(options.heartbeat_s, options.silence_s, now_s)
        self.link = BrokerLink(options, heartbeat, transit=transit)
        return True

    def dial_failed(self, attempt: ConnectAttempt, reason: str, now_s: float) -> None:
        if self.is_dialling(attempt):
            self._attempt_failed(attempt, ConnectionLost(reason), now_s)

    def lost(self, reason: str, now_s: float, *, is_silent: bool = False) -> None:
        """The connection ended, or broke. `is_silent`: since nothing comes from there any more."""
        if self.phase is ConnectionPhase.GREETING:
            reason = f"{reason} before a greeting; is this the port of a tailrace broker?"
        if self.link is not None:
            self._disconnect(ConnectionLost(reason), now_s, move_on=is_silent)

    def receive(self, data: bytes | bytearray | memoryview, now_s: float) -> None:
        """Handles bytes received on the connection."""
        link = self.link
        if link is None:
            return
        link.heartbeat.received(now_s)
        try:
            rows = link.codec.feed_published(data)
            if rows:
                self._on_published_rows(link, rows, now_s)
                data = memoryview(data)[len(rows) * m.PUBLISHED_ONE.size :]
                if self.link is not link or not data:
                    return
            for message in link.codec.feed(data):
                self._on_message(link, message, now_s)
                if self.link is not link:
                    return
            self._received(now_s)
        except PeerError as error:
            is_new = self.phase is ConnectionPhase.GREETING
            text = stranger(bytes(data[:STRANGER_BYTES])) if is_new else f"the peer is not a tailrace broker: {error}"
            self._disconnect(BrokerFault(text), now_s)

    def tick(self, now_s: float) -> None:
        """Handles everything that is due."""
        if self.phase is ConnectionPhase.READY and self.link is not None:
            if not self.link.beat(now_s):
                self._disconnect(ConnectionLost("the broker no longer answers"), now_s, move_on=True)
        elif self.phase is ConnectionPhase.DIALLING:
            self._expire_attempts(now_s)
        elif now_s >= self._phase_due_s:
            self._phase_timeout(now_s)

    def close(self, now_s: float, timeout_s: float) -> None:
        """Lets the broker answer pending requests, for at most `timeout_s`, and closes. Without a connection, closes
        at once."""
        if self.phase is ConnectionPhase.READY and self.link is not None:
            self.phase = ConnectionPhase.CLOSING
            self._phase_due_s = now_s + timeout_s
            self.link.send(m.Close())
        else:
            self.abort()

    def abort(self) -> None:
        """Closes now, with requests in flight."""
        if self.phase is not ConnectionPhase.CLOSED:
            self._close(None)

    def recover(self, now_s: float) -> None:
        """An exception from elsewhere, such as KeyboardInterrupt, has interrupted a step: the connection is unusable,
        and the next one starts from state that cannot be half changed.
        """
        if self.phase is ConnectionPhase.CLOSED:
            self._closed(self.failure)
        elif self.phase is ConnectionPhase.CLOSING:
            self._close(None)
        else:
            self.link = self._attempt = None
            self.phase = ConnectionPhase.WAITING
            self._phase_due_s = math.inf
            self._selector.lost(ConnectionLost(INTERRUPTED), now_s, was_useful=True, move_on=False)

    def check_alive(self) -> None:
        """Raises ConnectionLost, ClientClosed when nothing more can be done."""
        if self.is_severed:
            raise ClientClosed(forks.TEXT)
        if self.failure is not None:
            raise ConnectionLost(f"this client has given up: {self.failure}; make another one")
        if self.phase in (ConnectionPhase.CLOSING, ConnectionPhase.CLOSED):
            raise ClientClosed("this client is closed; make another one")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _greeted(self, link: BrokerLink, welcome: m.Welcome, now_s: float) -> None:
        if self.phase is not ConnectionPhase.GREETING or welcome.version != m.VERSION:
            text = f"WELCOME to version {welcome.version} in phase {self.phase.name}"
            self._disconnect(BrokerFault(text), now_s)
            return
        try:
            link.login.check(welcome.login)
        except BrokerFault as fault:
            self._disconnect(fault, now_s)
            return
        link.greeted(welcome)
        self.welcome = welcome
        self.limits = {**self.limits, **welcome.limits}
        self.connections += 1
        self.phase = ConnectionPhase.READY
        self._attempt = None
        self._selector.greeted(now_s)
        self._connected(now_s)

    def _challenged(self, link: BrokerLink, message: m.Challenge, now_s: float) -> None:
        try:
            link.send(link.login.answer(message.data))
        except BrokerFault as fault:
            self._disconnect(fault, now_s)

    def _phase_timeout(self, now_s: float) -> None:
        if self.phase is ConnectionPhase.CLOSING:
            self._close(None)
            return
        self._disconnect(ConnectionLost(f"no greeting within {self.options.connect_timeout_s:g} s"), now_s)

    def _expire_attempts(self, now_s: float) -> None:
        for attempt in [each for each in self._selector.under_way.values() if each.until_s <= now_s]:
            text = f"no connection within {self.options.connect_timeout_s:g} s"
            self.dial_failed(attempt, text, now_s)

    def _attempt_failed(self, attempt: ConnectAttempt, error: TailraceError, now_s: float) -> None:
        """Go on with other attempts, or end."""
        failure = self._selector.failed(attempt, error, now_s)
        if failure is not None:
            self._close(failure)
        elif not self._selector.under_way:
            self.phase = ConnectionPhase.WAITING

    def _disconnect(self, error: TailraceError, now_s: float, *, move_on: bool = False) -> None:
        """The connection is over: go on to the next, or end."""
        link, self.link = self.link, None
        attempt, self._attempt = self._attempt, None
        phase, self.phase = self.phase, ConnectionPhase.WAITING
        self._phase_due_s = math.inf
        if phase is ConnectionPhase.CLOSING:
            self._close(None)
        elif phase is ConnectionPhase.READY and link is not None:
            log.info("connection lost: %s", error)
            was_useful = link.useful and getattr(error, "code", "closing") in HARMLESS
            self._selector.lost(error, now_s, was_useful=was_useful, move_on=move_on)
            self._disconnected(error, now_s)
        elif attempt is not None:
            self._attempt_failed(attempt, error, now_s)

    def _close(self, failure: TailraceError | None) -> None:
        self.phase = ConnectionPhase.CLOSED
        self._phase_due_s = math.inf
        self.link = None
        self.failure = failure
        self._closed(failure)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _on_message(self, link: BrokerLink, message: Any, now_s: float) -> None:
        """A message came."""
        raise NotImplementedError

    def _received(self, now_s: float) -> None:
        """The messages that came together were handled."""
        raise NotImplementedError

    def _on_published_rows(self, link: BrokerLink, rows: list[PublishedRow], now_s: float) -> None:
        """Answers to publishes came, with one result each."""
        raise NotImplementedError

    def _connected(self, now_s: float) -> None:
        """A broker has greeted."""
        raise NotImplementedError

    def _disconnected(self, error: TailraceError, now_s: float) -> None:
        """A connection that was greeted is gone; another one is sought."""
        raise NotImplementedError

    def _closed(self, failure: TailraceError | None) -> None:
        """Closes, on request or because of `failure`."""
        raise NotImplementedError
