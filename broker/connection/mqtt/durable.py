"""Durable sessions at the connection: opened with CONNECT, stored while it lasts, left when it ends.

The store (`broker.sessions.store`) is the worker that owns the log of the client's session. Subscriptions are stored
before they are acknowledged to the client; positions and acknowledgements about once a second, if they have changed,
and when the connection ends. A crash therefore costs messages that are sent twice. A session that is stepwise, one with
messages of QoS 2, is stored at the end of each turn before the client sees a change of it, so that none comes twice.

A session whose connection ends while the outcome of a QoS 2 message is not known waits for it: the message would
otherwise be acknowledged as a repeat, though it may never be logged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from tailrace.broker.connection.mqtt.in_flight import QOS_STEPWISE, InFlight, sent_again
from tailrace.broker.connection.mqtt.positions import PositionTerms, end_of, parting_seq
from tailrace.broker.connection.mqtt.resending import Resending, ResendingClient
from tailrace.broker.connection.mqtt.session_state import (
    KeptSubscription,
    Numbering,
    SessionClient,
    StateParts,
    pack_state,
    unpack_state,
    with_released,
)
from tailrace.broker.connection.mqtt.window import leap_place
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import FOR_EVER_S, HolderProcess, Will, log_of
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.packets import MQTT_5, ConnectPacket, WillMessage
from tailrace.protocol.mqtt.properties import PropertyId
from tailrace.protocol.mqtt.reasons import Reason

SAVE_S: Final = 1.0
"""From one storing of a session to the next, at least."""
TICK_S: Final = 0.002
"""Of a tick, to store sessions."""
RETRY_S: Final = 0.5
STEP_RETRY_S: Final = 0.1
LEAVES_MAX: Final = 40
"""Attempts to store a session whose connection has ended."""
STEPS_MAX: Final = 60
"""Attempts to store a session that is stepwise, while its connection waits."""
PRODUCERS_MAX: Final = 64
"""Streams of a connection whose next numbers are known; a further message to another one begins anew."""
PRODUCER_BYTES: Final = 16
UNSTORED_TEXT: Final = "the session cannot be stored: {text}"
DROPPED_TEXT: Final = "this session was removed"

_RETRIED: Final = frozenset({Code.UNAVAILABLE, Code.TIMEOUT, Code.CLOSING})
"""Why a session may be stored a moment later: the worker that owns its log is being replaced."""
_GONE: Final = frozenset({Code.STALE, Code.DISABLED})
"""Why a session cannot be stored, now or later: it is no more, or another node's."""

StoredOutcome = Callable[[Refused | None], None]
OnStored = Callable[[bool], None]
"""What is to be done once a session is stored; called with False if it is not."""


class OpenedSession(NamedTuple):
    """`turn`: 0 for a session that ends with its connection. `state`: empty of a new session."""

    turn: int
    is_present: bool
    is_exact: bool
    state: bytes


class SessionElsewhere(NamedTuple):
    """Another node is the master of the session. `address`: of one that this node copies it from, "" if unknown."""

    address: str


class Handed(NamedTuple):
    """A session whose connection ended a moment ago, or ends because another one takes its place. `state`: empty if
    that is the stored one, of some time before.
    """

    turn: int
    state: bytes
    expiry_s: int
    has_will: bool


class DurableClient(SessionClient, ResendingClient, Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    client_id: bytes
    closed: bool
    session: DurableSession | None
    undecided: set[int]
    will: WillMessage | None

    @property
    def user(self) -> str: ...

    def resume_subscriptions(
        self, kept: Sequence[KeptSubscription], done: Callable[[list[Cursor], list[Refused]], None]
    ) -> None: ...

    def start_cursors(self, cursors: Sequence[Cursor]) -> None:
        """All that was under way is sent again."""

    def note_step(self) -> None:
        """Its session is to be stored at the end of this turn, or of the next."""

    def end_with(self, code: Code, text: str) -> None: ...

    def end_for(self, reason: Reason, code: Code, text: str) -> None: ...


class DurableSession:
    """What a connection has of a durable session. `stored`: the state as it was stored last; `is_resuming`: the
    subscriptions are not read yet, and the session is as it was stored; `was_exact`: that is all its client knows.

    is_stepwise: it has messages of QoS 2. `steps` are taken once it is stored; `storing` are those of the storing under
    way. `producers`: by stream, the id and the next number for the client's messages of QoS 2.
    """

    __slots__ = (
        "_parts",
        "_terms",
        "expiry_s",
        "in_flight",
        "is_resuming",
        "is_stepwise",
        "producers",
        "steps",
        "stored",
        "stored_s",
        "storing",
        "turn",
        "was_exact",
    )

    def __init__(self, turn: int, expiry_s: int, state: bytes = b"", *, was_exact: bool = True) -> None:
        self.turn = turn
        self.expiry_s = expiry_s
        self.in_flight = InFlight()
        self.is_resuming = bool(state)
        self.stored = state
        self.stored_s = 0.0
        self.was_exact = was_exact
        self.is_stepwise = False
        self.steps: list[OnStored] = []
        self.storing: list[OnStored] = []
        self.producers: dict[bytes, tuple[bytes, int]] = {}
        self._terms = PositionTerms()
        self._parts: StateParts | None = None

    @property
    def unstored(self) -> int:
        return len(self.steps) + len(self.storing)

    def next_number(self, stream: bytes) -> Numbering:
        """For a QoS 2 message of the client."""
        self.is_stepwise = True
        producer, number = self.producers.pop(stream, (b"", 0))
        if len(self.producers) >= PRODUCERS_MAX:
            del self.producers[next(iter(self.producers))]
        producer = producer or secrets.token_bytes(PRODUCER_BYTES)
        self.producers[stream] = producer, number + 1
        return Numbering(stream, producer, number)

    def last_state(self, client: SessionClient, readers: StreamReaders) -> bytes:
        """As the connection ends, for a `Handed`."""
        if self.is_resuming:
            return self.stored if self.was_exact else b""
        return self.state(client, readers)

    def state(self, client: SessionClient, readers: StreamReaders) -> bytes:
        if self.is_resuming:
            return self.stored
        before = partial(self._terms.before, readers)
        if self.is_stepwise:
            self._parts = self._parts or StateParts()
        return pack_state(client, self.in_flight, before, self._parts, is_stepwise=self.is_stepwise)


def has_delayed_will(client: DurableClient) -> bool:
    """Whether its will is published by the owner of its session, after a delay."""
    session, will = client.session, client.will
    return bool(session and session.expiry_s and will and will.properties.get(PropertyId.WILL_DELAY))


def step_of(client: DurableClient) -> DurableSession | None:
    """Its session, if that is to be stored before the client sees a change of it."""
    session = client.session
    return session if session is not None and session.is_stepwise else None


class DurableSessions:
    """Those of one worker's connections."""

    def __init__(self, services: Services, holder: HolderProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._holder = holder
        self._clock = clock
        self._clients: dict[DurableClient, None] = {}
        self._changed: dict[DurableClient, None] = {}
        self._leaving: dict[bytes, Handed] = {}
        self._deciding: dict[bytes, tuple[DurableClient, Handed]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    # --- CONNECT ----------------------------------------------------------------------------------------------------

    def granted_s(self, version: int, packet: ConnectPacket) -> int:
        """The Session Expiry Interval that the client gets. MQTT 3.1.1 asks for one that never ends, or for none."""
        asked_s = packet.properties.get(PropertyId.SESSION_EXPIRY, 0)
        if version != MQTT_5:
            asked_s = 0 if packet.clean else FOR_EVER_S
        return self.limited_s(asked_s)

    def limited_s(self, asked_s: int) -> int:
        settings = self._services.settings
        return min(asked_s, settings.max_session_expiry_s) if settings.max_sessions else 0

    def open(
        self,
        client: DurableClient,
        packet: ConnectPacket,
        will: Will | None,
        handed: Handed | None,
        done: Callable[[OpenedSession | SessionElsewhere | Refused], None],
    ) -> None:
        """`done` gets the session of this client identifier, which is this connection's from now on."""
        expiry_s = self.granted_s(client.version, packet)
        if not self._services.settings.max_sessions or not (packet.client_id or expiry_s):
            done(OpenedSession(0, False, False, b""))  # nobody else can have the identifier
            return
        taken = None if handed is None else [handed.turn, handed.state]
        args = [client.client_id, packet.clean, expiry_s, client.user, self._holder, will, taken]

        def answered(value: Any) -> None:
            if isinstance(value, Refused):
                done(value)
            else:
                done(SessionElsewhere(*value) if len(value) == 1 else OpenedSession(*value))

        self._services.router.call(log_of(client.client_id), "session_open", args, answered)

    def begin(self, client: DurableClient, opened: OpenedSession, expiry_s: int, done: Callable[[], None]) -> None:
        """CONNACK is sent: go on with the session; then `done` is called."""
        if opened.turn:
            client.session = DurableSession(opened.turn, expiry_s, opened.state, was_exact=opened.is_exact)
            self._clients[client] = None
        if opened.state:
            self._resume(client, opened, done)
        else:
            done()

    def _resume(self, client: DurableClient, opened: OpenedSession, done: Callable[[], None]) -> None:
        try:
            kept = unpack_state(opened.state)
        except ValueError as error:
            client.end_with(Code.UNAVAILABLE, str(error))
            done()
            return
        size = client.window.size
        client.mark = kept.mark
        if opened.is_exact:  # else the client may have released some, and use their identifiers for other messages
            client.unreleased = set(kept.unreleased)
            client.numbers = dict(kept.numbers)
        in_flight = InFlight() if client.session is None else client.session.in_flight
        in_flight.restore_state(kept.in_flight)
        if client.session is not None:
            qos = [*(each.qos for each in kept.subscriptions), *(run.qos for run in in_flight.runs)]
            client.session.is_stepwise = bool(client.unreleased) or QOS_STEPWISE in qos
        client.window.restore_state(kept.window)
        client.window.drop_others({run.id_at(place) for run in in_flight.runs for place in range(len(run.seqs))})
        client.window.resume(size, 0 if opened.is_exact else leap_place(opened.turn))
        streams = dict.fromkeys(name for each in kept.subscriptions for name, _, _ in each.places)
        streams.update(dict.fromkeys(run.stream for run in in_flight.runs))

        def copied(refused: Refused | None) -> None:
            if refused is not None or client.closed:
                if not client.closed:
                    client.end_with(Code.UNAVAILABLE, f"the session cannot go on: {refused.text if refused else ''}")
                done()
            else:
                self._join(client, in_flight, kept.subscriptions, done)

        self._await_copies(streams, copied)

    def _await_copies(self, streams: Iterable[bytes], done: Callable[[Refused | None], None]) -> None:
        """`done` is called once these streams can be read here, if copies of some are made only for readers."""
        names = list(streams) if self._services.router.owner.roles.rules.has_on_demand else []
        outcomes: list[Refused | None] = []

        def answered(value: Any) -> None:
            outcomes.append(value if isinstance(value, Refused) else None)
            if len(outcomes) > len(names):
                done(next((each for each in outcomes if each is not None), None))

        for name in names:
            self._services.router.call(name, "copied", [name], answered)
        answered(None)

    def _join(
        self,
        client: DurableClient,
        in_flight: InFlight,
        kept: Sequence[KeptSubscription],
        done: Callable[[], None],
    ) -> None:
        """Go on with the subscriptions and the messages under way."""
        subscriptions, partings = self._positioned(kept)

        def joined(cursors: list[Cursor], failed: list[Refused]) -> None:
            refused = next((each for each in failed if each.code is not Code.DENIED), None)
            if refused is None:
                self._await_sent(in_flight, partings, partial(held, cursors))
            else:
                held(cursors, refused)

        def held(cursors: list[Cursor], refused: Refused | None) -> None:
            if refused is not None and not client.closed:
                client.end_with(Code.UNAVAILABLE, f"the session cannot go on: {refused.text}")
            elif not (client.closed or client.lingering_since_s):
                if client.session is not None:
                    client.session.is_resuming = False
                start = partial(client.start_cursors, cursors)
                sending = Resending(self._services.readers, client, list(in_flight.runs), partings, start)
                client.sendings.append(sending)
                sending.go_on()
            done()

        client.resume_subscriptions(subscriptions, joined)

    def _await_sent(
        self, in_flight: InFlight, partings: Mapping[bytes, int], done: Callable[[Refused | None], None]
    ) -> None:
        """Messages of QoS 2 that are sent again may not be held by other nodes yet."""
        ends = {
            stream: min(end_seq, end_of(self._services.readers, stream))
            for stream, end_seq in sent_again(in_flight.runs, partings).items()
        }
        outcomes: list[Refused | None] = []

        def answered(refused: Refused | None) -> None:
            outcomes.append(refused)
            if len(outcomes) > len(ends):
                done(next((each for each in outcomes if each is not None), None))

        for stream, end_seq in ends.items():
            self.await_held(stream, end_seq, answered)
        answered(None)

    def await_held(self, stream: bytes, end_seq: int, done: Callable[[Refused | None], None]) -> None:
        """`done` is called once the messages before this one are held by as many nodes as are configured, or with the
        reason why they are not.
        """
        replicas = self._services.settings.mqtt_replicas

        def answered(value: Any) -> None:
            done(value if isinstance(value, Refused) else None)

        if replicas and end_seq:
            self._services.router.call(stream, "held", [stream, end_seq, replicas], answered)
        else:
            done(None)

    def _positioned(
        self, subscriptions: Sequence[KeptSubscription]
    ) -> tuple[list[KeptSubscription], Mapping[bytes, int]]:
        """The subscriptions at places that the streams have; and of streams that have other messages than the session
        was sent, the first of these.
        """
        found: list[KeptSubscription] = []
        partings: dict[bytes, int] = {}
        for each in subscriptions:
            places = []
            for name, seq, term in each.places:
                parting = parting_seq(self._services.readers, name, seq, term)
                if parting < seq:
                    partings[name] = min(parting, partings.get(name, parting))
                places.append((name, min(seq, parting), term))
            found.append(each._replace(places=places))
        return found, partings

    # --- while the connection lasts ---------------------------------------------------------------------------------

    def note(self, client: DurableClient) -> None:
        """The positions of a session have changed."""
        self._changed[client] = None

    def adopt(self, client: DurableClient) -> None:
        """The connection has come from another worker, with its session."""
        if client.session is not None:
            self._clients[client] = None
            self.note(client)

    def state_of(self, client: DurableClient) -> bytes:
        """Its session as it is now; empty if it has none."""
        session = client.session
        return b"" if session is None else session.state(client, self._services.readers)

    def save(self, client: DurableClient, done: StoredOutcome, state: bytes = b"") -> None:
        """Store the session now, on other nodes too if so configured; `done` gets the reason if that failed. `state`:
        as it is now, if that is known.
        """
        self._save(client, done, state, "session_step" if self._services.settings.mqtt_replicas else "session_save")

    def _save(self, client: DurableClient, done: StoredOutcome, state: bytes, verb: str) -> None:
        session = client.session
        if session is None or session.is_resuming:
            done(None)
            return
        state = state or session.state(client, self._services.readers)
        session.stored, session.stored_s = state, self._clock()
        self._changed.pop(client, None)

        def answered(value: Any) -> None:
            refused = value if isinstance(value, Refused) else None
            if refused is not None:
                session.stored = b""
                self._not_stored(client, refused)
            done(refused)

        args = [client.client_id, session.turn, self._holder, state]
        self._services.router.call(log_of(client.client_id), verb, args, answered)

    def _not_stored(self, client: DurableClient, refused: Refused) -> None:
        if client.session is None or client.closed:
            return
        if refused.code is Code.STALE:
            client.session = None
            client.end_for(Reason.ADMINISTRATIVE_ACTION, Code.CLOSING, DROPPED_TEXT)
        elif refused.code is Code.DISABLED:
            client.session = None
            client.end_for(Reason.USE_ANOTHER_SERVER, Code.CLOSING, refused.text)
        elif refused.code is Code.OVERLOADED:
            client.end_for(Reason.QUOTA_EXCEEDED, refused.code, refused.text)
        else:
            self.note(client)

    def step(self, client: DurableClient, done: OnStored) -> None:
        """Do this once the session is stored as it is at the end of the turn; at once if it is not stepwise."""
        session = step_of(client)
        if session is None:
            done(True)
        else:
            session.steps.append(done)
            client.note_step()

    def store_steps(self, client: DurableClient) -> None:
        """The turn ends."""
        session = client.session
        if session is None or session.storing or not session.steps:
            return
        session.storing, session.steps = session.steps, []
        self.save(client, partial(self._stepped, client, session, 1))

    def _stepped(self, client: DurableClient, session: DurableSession, attempt: int, refused: Refused | None) -> None:
        is_here = client.session is session and not client.closed
        if refused is not None and is_here and refused.code in _RETRIED and attempt < STEPS_MAX:
            again = partial(self._store_again, client, session, attempt + 1)
            self._services.delays.at(self._services.now_s + STEP_RETRY_S, again)
            return
        if refused is not None and is_here:
            client.end_with(Code.UNAVAILABLE, UNSTORED_TEXT.format(text=refused.text))
        storing, session.storing = session.storing, []
        for done in storing:
            done(refused is None)
        if session.steps:
            client.note_step()

    def _store_again(self, client: DurableClient, session: DurableSession, attempt: int) -> None:
        done = partial(self._stepped, client, session, attempt)
        if client.session is session and not client.closed:
            self.save(client, done)
        else:
            done(Refused(Code.UNAVAILABLE, DROPPED_TEXT))

    def tick(self) -> None:
        """Several times a second: store the sessions that have changed, those stored longest ago first."""
        now_s = self._clock()
        for client in list(self._changed):
            session = client.session
            if session is None or client.closed or session.is_resuming:
                self._changed.pop(client, None)
            elif session.stored_s <= now_s - SAVE_S:
                self._save(client, _ignore, b"", "session_save")
                if self._clock() > now_s + TICK_S:
                    break
        self._services.metrics.connected_sessions = len(self._clients)

    # --- the end ----------------------------------------------------------------------------------------------------

    def hand_over(self, client: DurableClient) -> Handed | None:
        """Give the session up to another connection of its client, on any worker."""
        has_will = has_delayed_will(client)
        session, client.session = client.session, None
        if session is None:
            return None
        steps, session.steps = session.steps, []
        for done in steps:
            done(False)
        self._forget(client)
        if has_will:
            client.will = None
        return Handed(session.turn, session.last_state(client, self._services.readers), session.expiry_s, has_will)

    def take(self, client_id: bytes) -> Handed | None:
        """The session of a connection that has ended, if it is not certain that it is stored."""
        return self._leaving.pop(client_id, None)

    def is_deciding(self, client_id: bytes) -> bool:
        """Whether the outcomes of messages of a connection that has ended are awaited."""
        return client_id in self._deciding

    def leave(self, client: DurableClient) -> None:
        """The connection ends."""
        handed = self.hand_over(client)
        if handed is None:
            return
        if client.undecided and handed.state:
            self._deciding[client.client_id] = client, handed
        else:
            self.give_back(client.client_id, handed)

    def decided(self, client: DurableClient) -> None:
        """The outcomes of all QoS 2 messages of this connection are known; those that were refused are not among its
        unreleased ones any more.
        """
        waiting, handed = self._deciding.get(client.client_id, (None, None))
        if waiting is client and handed is not None:
            del self._deciding[client.client_id]
            state = with_released(handed.state, client.unreleased, client.numbers)
            self.give_back(client.client_id, handed._replace(state=state))

    def give_back(self, client_id: bytes, fields: Sequence[Any], attempt: int = 1) -> None:
        """Store a session whose connection has ended: a `Handed`."""
        handed = fields if isinstance(fields, Handed) else Handed(*fields)
        self._leaving[client_id] = handed
        turn, state, expiry_s, has_will = handed

        def answered(value: Any) -> None:
            if self._leaving.get(client_id) is not handed:
                return
            if isinstance(value, Refused) and value.code not in _GONE and attempt < LEAVES_MAX:
                again = partial(self._again, client_id, handed, attempt + 1)
                self._services.delays.at(self._services.now_s + RETRY_S, again)
            else:
                del self._leaving[client_id]

        args = [client_id, turn, expiry_s, has_will, state]
        self._services.router.call(log_of(client_id), "session_leave", args, answered)

    def _again(self, client_id: bytes, handed: Handed, attempt: int) -> None:
        if self._leaving.get(client_id) is handed:
            self.give_back(client_id, handed, attempt)

    def release(self, client: DurableClient) -> None:
        """The connection has ended, or left this worker."""
        self._forget(client)

    def _forget(self, client: DurableClient) -> None:
        self._clients.pop(client, None)
        self._changed.pop(client, None)


def _ignore(_refused: Refused | None) -> None:
    """`_not_stored` has seen to it."""
