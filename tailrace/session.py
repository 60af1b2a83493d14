"""A client across all its connections, without sockets, threads and clocks: what a shell tells it, and asks of it.

A shell has one connection at a time, and goes by this:

- `dial` says which address to connect to, when it is time; `dialled`, `dial_failed` and `lost` tell how that went.
- What comes is given to `receive`; what `link.outgoing` holds is sent. When `link` is another one than that of the
  shell's connection, that connection is of no use any more: close it.
- `tick` is called when `due_s` has come.
- After each of these calls `publications.settled` and `woken` say what has changed for those who wait.

The clock is any that never goes back, in seconds; each call that needs the time is given it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from broker.protocol import messages as m
from broker.protocol.errors import PeerError
from tailrace.address import Address
from tailrace.dialling import Dialling
from tailrace.errors import (
    BrokerFault,
    ClientClosed,
    ConnectionLost,
    MessageTooLarge,
    TailraceError,
    broker_error,
)
from tailrace.heartbeat import Beat
from tailrace.link import Link
from tailrace.message import Message
from tailrace.options import Options
from tailrace.publications import Publication, Publications
from tailrace.reading import Reading, State, Wish

log = logging.getLogger("tailrace")

PUBLISH_HEAD_BYTES: Final = 64
"""What an envelope with a publish to one stream has beside its frames, generously."""
HARMLESS: Final = frozenset({"closing", "slow"})
"""Codes that end a connection without saying that the next one will end like it."""
DEFAULT_LIMITS: Final = {"max_message_bytes": 8 << 20, "max_envelope_bytes": 16 << 20}
"""Until a broker tells its own, which it does before anything is published."""


class Phase(Enum):
    WAITING = 0  # for the time to dial
    DIALLING = 1
    GREETING = 2  # HELLO is on its way
    READY = 3
    CLOSING = 4  # CLOSE is on its way: the broker answers what was asked, then closes
    CLOSED = 5  # for good


class Session:
    """One a client."""

    def __init__(
        self, addresses: Sequence[Address], options: Options, random: Callable[[], float], now_s: float
    ) -> None:
        self.options = options
        self.phase = Phase.WAITING
        self.link: Link | None = None
        self.limits: dict[str, int] = dict(DEFAULT_LIMITS)
        self.welcome: m.Welcome | None = None  # the latest
        self.failure: TailraceError | None = None  # why it is CLOSED, when nobody asked for that
        self.connections = 0  # that were greeted
        self.publications = Publications(options.max_in_flight, options.max_in_flight_bytes, random)
        self.readings: dict[int, Reading] = {}
        self._unanswered: dict[int, Reading] = {}  # those of them that are to be asked for, or wait for the answer
        self.woken: list[Reading] = []  # that have news
        self._random = random
        self._dialling = Dialling(addresses, options.reconnect_s, random, now_s)
        self._phase_due_s = math.inf  # when dialling, greeting or closing has taken too long
        self._reading_numbers = 0

    # --- the connection ---------------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """When to call `tick` or `dial`; infinity for never."""
        due_s = self._phase_due_s
        if self.phase is Phase.WAITING:
            due_s = self._dialling.due_s
        elif self.phase is Phase.READY and self.link is not None:
            due_s = min(due_s, self.link.heartbeat.due_s, self.publications.resume_s)
        for reading in self._unanswered.values():
            due_s = min(due_s, reading.deadline_s)
            if reading.state is State.WANTED and self.phase is Phase.READY:
                due_s = min(due_s, reading.not_before_s)
        return min(due_s, self.publications.due_s) if self.publications else due_s

    def dial(self, now_s: float) -> Address | None:
        """The address to connect to now, or None."""
        if self.phase is not Phase.WAITING or now_s < self._dialling.due_s:
            return None
        self.phase = Phase.DIALLING
        self._phase_due_s = now_s + self.options.connect_timeout_s
        return self._dialling.address

    def dialled(self, now_s: float) -> None:
        """There is a connection."""
        if self.phase is Phase.DIALLING:
            self.phase = Phase.GREETING
            self.link = Link(self.options.token, self.options.heartbeat_s, now_s)

    def dial_failed(self, reason: str, now_s: float) -> None:
        if self.phase is Phase.DIALLING:
            self._disconnect(ConnectionLost(reason), now_s)

    def lost(self, reason: str, now_s: float) -> None:
        """The connection ended, or broke."""
        if self.link is not None:
            self._disconnect(ConnectionLost(reason), now_s)

    def receive(self, data: bytes | bytearray | memoryview, now_s: float) -> None:
        """What came on the connection."""
        link = self.link
        if link is None:
            return
        link.heartbeat.heard(now_s)
        try:
            for message in link.codec.feed(data):
                _HANDLERS[type(message)](self, link, message, now_s)
                if self.link is not link:
                    return
        except PeerError as error:
            self._disconnect(BrokerFault(f"not what a tailrace broker sends: {error}"), now_s)

    def tick(self, now_s: float) -> None:
        """Whatever time brings."""
        if now_s >= self._phase_due_s:
            self._phase_timeout(now_s)
        self.publications.expire(now_s)
        for reading in [each for each in self._unanswered.values() if each.deadline_s <= now_s]:
            reading.expire(now_s)
            self._look(reading)
        if self.phase is Phase.READY and self.link is not None:
            self._beat(self.link, now_s)
            self._ask_and_send(now_s)

    def _phase_timeout(self, now_s: float) -> None:
        if self.phase is Phase.CLOSING:
            self._close(None)
            return
        what = "no connection" if self.phase is Phase.DIALLING else "no greeting"
        self._disconnect(ConnectionLost(f"{what} within {self.options.connect_timeout_s:g} s"), now_s)

    def _beat(self, link: Link, now_s: float) -> None:
        beat = link.heartbeat.beat(now_s)
        if beat is Beat.PING:
            link.send(m.Ping())
        elif beat is Beat.DEAD:
            self._disconnect(ConnectionLost("the broker answers no more"), now_s)

    def _disconnect(self, error: TailraceError, now_s: float, *, move_on: bool = False) -> None:
        """The connection, or the attempt, is over: go on to the next, or end."""
        link, self.link = self.link, None
        phase, self.phase = self.phase, Phase.WAITING
        self._phase_due_s = math.inf
        if phase is Phase.CLOSING:
            self._close(None)
            return
        if phase is Phase.READY and link is not None:
            log.info("connection lost: %s", error)
            was_useful = link.useful and getattr(error, "code", "closing") in HARMLESS
            self._dialling.lost(error, now_s, was_useful=was_useful, move_on=move_on)
            self.publications.connection_lost(error)
            for reading in list(self.readings.values()):
                reading.connection_lost()
                self._look(reading)
            return
        failure = self._dialling.failed(error, now_s)
        if failure is not None:
            self._close(failure)

    def _close(self, failure: TailraceError | None) -> None:
        self.phase = Phase.CLOSED
        self._phase_due_s = math.inf
        self.link = None
        self.failure = failure
        if failure is None:
            self.publications.fail_all(lambda fate: ClientClosed(f"the client was closed; {fate}"))
        else:
            self.publications.fail_all(lambda fate: ConnectionLost(f"{failure}; {fate}"))
        for reading in list(self.readings.values()):
            if failure is None:
                reading.cancel()
            else:
                reading.fail(ConnectionLost(str(failure)))
            self._look(reading)

    # --- what a program wants -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a publish would be taken now, or must wait for the answers to others."""
        waiting_bytes = 0 if self.link is None else self.link.outgoing.nbytes
        return self.publications.is_open and waiting_bytes < self.options.max_in_flight_bytes

    @property
    def is_over(self) -> bool:
        """Whether it is closed for good."""
        return self.phase is Phase.CLOSED

    def publish(self, publication: Publication, now_s: float) -> None:
        """Take it, and send it as soon as may be. Raises ClientClosed, ConnectionLost, MessageTooLarge."""
        self._check_alive()
        self.check_envelope(len(publication.frames))
        self.publications.add(publication, now_s)
        if self.phase is Phase.READY:
            self._send_publications(now_s)

    def check_envelope(self, frame_bytes: int) -> None:
        """Raises MessageTooLarge for more frames than one request may have."""
        if frame_bytes > self._envelope_room:
            text = f"{frame_bytes:,} bytes of messages in one request; the broker takes {self._envelope_room:,}"
            raise MessageTooLarge(f"{text}: publish them in several, as a batcher does")

    def subscribe(self, wish: Wish, now_s: float) -> Reading:
        """Subscribe, as soon as may be. Raises ClientClosed, ConnectionLost."""
        self._check_alive()
        self._reading_numbers += 1
        reading = Reading(self._reading_numbers, wish, self._random, now_s)
        self.readings[reading.id] = self._unanswered[reading.id] = reading
        if self.phase is Phase.READY:
            self._ask(now_s)
        return reading

    def take_messages(self, reading: Reading) -> list[Message]:
        """What `reading.pop` gives or raises; the broker is told that there is room again."""
        try:
            return reading.pop()
        finally:
            self._grant(reading)

    def cancel(self, reading: Reading) -> None:
        """End a subscription; its iteration ends too."""
        if self.readings.pop(reading.id, None) is None:
            return
        was_asked = reading.state in (State.ASKED, State.LIVE)
        reading.cancel()
        self._look(reading)
        if was_asked and self.phase is Phase.READY and self.link is not None:
            self.link.send(m.Unsubscribe(reading.id))

    def close(self, now_s: float, timeout_s: float) -> None:
        """Let the broker answer what was asked, for at most so long, and end. Without a connection, end at once."""
        if self.phase is Phase.READY and self.link is not None:
            self.phase = Phase.CLOSING
            self._phase_due_s = now_s + timeout_s
            self.link.send(m.Close())
        elif self.phase is not Phase.CLOSED:
            self._close(None)

    def abort(self) -> None:
        """End now, whatever is in flight."""
        if self.phase is not Phase.CLOSED:
            self._close(None)

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise ConnectionLost(f"this client has given up: {self.failure}; make another one")
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            raise ClientClosed("this client is closed; make another one")

    @property
    def _envelope_room(self) -> int:
        return self.limits["max_envelope_bytes"] - PUBLISH_HEAD_BYTES

    # --- sending ------------------------------------------------------------------------------------------------------

    def _ask_and_send(self, now_s: float) -> None:
        self._ask(now_s)
        self._send_publications(now_s)

    def _ask(self, now_s: float) -> None:
        for reading in self._unanswered.values():
            if reading.state is State.WANTED and now_s >= reading.not_before_s and self.link is not None:
                self.link.send(reading.request())

    def _send_publications(self, now_s: float) -> None:
        link = self.link
        if link is not None:
            for publication in self.publications.take_sendable(now_s):
                link.publish(publication)
                self.publications.sent(publication)

    def _send_held(self, now_s: float) -> None:
        """Send what an answer to something else has set free."""
        if self.publications.has_queue and self.phase is Phase.READY:
            self._send_publications(now_s)

    def _grant(self, reading: Reading) -> None:
        nbytes = reading.take_grant()
        if nbytes and self.link is not None:
            self.link.send(m.Credit(reading.id, nbytes))

    def _look(self, reading: Reading) -> None:
        """See to what has happened to a subscription."""
        if reading.has_news or reading.ready:
            self.woken.append(reading)
        if reading.state in (State.WANTED, State.ASKED):
            self._unanswered[reading.id] = reading
        else:
            self._unanswered.pop(reading.id, None)
        if reading.state is State.OVER:
            self.readings.pop(reading.id, None)

    def _drop(self, reading: Reading) -> None:
        """Tell the broker about a subscription that failed at this end."""
        if reading.state is State.OVER and self.link is not None:
            self.link.send(m.Unsubscribe(reading.id))

    # --- what the broker says -----------------------------------------------------------------------------------------

    def _hear_welcome(self, link: Link, message: m.Welcome, now_s: float) -> None:
        if self.phase is not Phase.GREETING or message.version != m.VERSION:
            text = f"WELCOME to version {message.version} in phase {self.phase.name}"
            self._disconnect(BrokerFault(text), now_s)
            return
        link.welcome = self.welcome = message
        self.limits = {**self.limits, **message.limits}
        self.connections += 1
        self.phase = Phase.READY
        self._phase_due_s = math.inf
        self._dialling.greeted(now_s)
        self.publications.refuse_larger(self._envelope_room, self._too_large)
        self._ask_and_send(now_s)

    def _too_large(self, publication: Publication) -> TailraceError:
        text = f"{len(publication.frames):,} bytes; the broker that is connected now takes {self._envelope_room:,}"
        return MessageTooLarge(text, publication.streams[0])

    def _hear_published(self, link: Link, message: m.Published, now_s: float) -> None:
        if self.publications.published(message.request, message.results):
            link.useful = True
        self._send_held(now_s)

    def _hear_chunk(self, link: Link, message: m.Chunk, _now_s: float) -> None:
        reading = self.readings.get(message.id)
        if reading is not None:
            link.useful = True
            reading.chunk(message)
            self._drop(reading)
            self._grant(reading)
            self._look(reading)

    def _hear_subscribed(self, _link: Link, message: m.Subscribed, _now_s: float) -> None:
        reading = self.readings.get(message.id)
        if reading is not None:
            reading.subscribed(message)
            self._drop(reading)
            self._look(reading)

    def _hear_ended(self, _link: Link, message: m.Ended, now_s: float) -> None:
        reading = self.readings.get(message.id)
        if reading is not None:
            reading.ended(message, now_s, self.options.reconnect_s)
            self._look(reading)

    def _hear_failed(self, link: Link, message: m.Failed, now_s: float) -> None:
        if message.fatal or self.phase is Phase.GREETING:
            error = broker_error(message.code, message.text)
            self._disconnect(error, now_s, move_on=message.code == "closing")
        elif message.op == m.Op.PUBLISH:
            self._publish_failed(link, message, now_s)
        elif message.op == m.Op.SUBSCRIBE:
            self._subscribe_failed(message, now_s)
        elif message.op == m.Op.OPEN:
            link.handle_refused(message)
        elif message.op != m.Op.UNSUBSCRIBE:  # one that has ended meanwhile is nobody's concern
            log.warning("the broker complains: %s: %s", message.code, message.text)

    def _publish_failed(self, link: Link, message: m.Failed, now_s: float) -> None:
        publications = self.publications
        told = link.refusal_of(publications.streams_of(message.id)) or message
        publications.failed(message.id, told.code, told.text, message.results, now_s)
        self._send_held(now_s)

    def _subscribe_failed(self, message: m.Failed, now_s: float) -> None:
        reading = self.readings.get(message.id)
        if reading is None:
            return
        if message.code == "trimmed":
            reading.trimmed()
        else:
            reading.refused(message.code, message.text, now_s, self.options.reconnect_s)
            self._look(reading)

    def _hear_ping(self, link: Link, _message: m.Ping, _now_s: float) -> None:
        link.send(m.Pong())

    def _hear_nothing_new(self, _link: Link, _message: object, _now_s: float) -> None:
        """PONG, OPENED: that they came is all that they say."""


_HANDLERS: Final[dict[type, Callable[[Session, Link, Any, float], None]]] = {
    m.Welcome: Session._hear_welcome,
    m.Opened: Session._hear_nothing_new,
    m.Published: Session._hear_published,
    m.Subscribed: Session._hear_subscribed,
    m.Chunk: Session._hear_chunk,
    m.Ended: Session._hear_ended,
    m.Failed: Session._hear_failed,
    m.Ping: Session._hear_ping,
    m.Pong: Session._hear_nothing_new,
}
