"""What a durable session is beyond its connection, as bytes: its subscriptions and their places, and the messages under
way in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from tailrace.broker.connection.mqtt.in_flight import InFlight
from tailrace.broker.connection.mqtt.window import SendWindow
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.sessions.record import STEPWISE_FORMAT
from tailrace.broker.sessions.record import is_stepwise as stored_stepwise
from tailrace.protocol.mqtt.publishes import PublishForm

FORMAT: Final = 1
BEGINNING: Final = 0


class Numbering(NamedTuple):
    """The number of a QoS 2 message of the client in its stream: it is not logged again with the same one."""

    stream: bytes
    producer: bytes
    number: int


class KeptSubscription(NamedTuple):
    """One filter. `places`: of each stream the seq of the next message, and the term of the one before that, 0 if it is
    not known.
    """

    filter: bytes
    qos: int
    subscription_id: int
    retain: int
    no_local: bool
    is_wild: bool
    places: list[tuple[bytes, int, int]]


class KeptState(NamedTuple):
    """`mark`: see `MqttClient`; `unreleased`: QoS 2 messages of the client that it has not released; `numbers`: see
    `Numbering`, of those that may not be logged.
    """

    mark: bytes
    window: list[Any]
    in_flight: list[Any]
    unreleased: list[int]
    subscriptions: list[KeptSubscription]
    numbers: dict[int, Numbering]


class KeptFilter(Protocol):
    """The side of a subscription that is used here: see `TopicSubscription`."""

    filter: bytes
    form: PublishForm
    is_wild: bool
    is_ready: bool
    keys: dict[bytes, int]


TermBefore = Callable[[bytes, int], int]
"""The term of the message before this one of a stream, 0 if it is not known."""


class SessionClient(Protocol):
    """The side of a client that is used here: see `MqttClient`."""

    cursors: dict[Any, Cursor]
    mark: bytes
    numbers: dict[int, Numbering]
    unreleased: set[int]
    window: SendWindow

    @property
    def subscriptions(self) -> Mapping[bytes, KeptFilter]: ...


def pack_state(
    client: SessionClient, in_flight: InFlight, term_before: TermBefore, *, is_stepwise: bool = False
) -> bytes:
    """Subscriptions that are still being made are left out: their SUBACK is not sent."""
    in_flight.forget_acknowledged(client.window.holds)
    made = [_kept(client, each, term_before) for each in client.subscriptions.values() if each.is_ready or each.keys]
    state = KeptState(
        client.mark,
        client.window.export_state(),
        in_flight.export_state(),
        list(client.unreleased),
        made,
        client.numbers,
    )
    return _packed(STEPWISE_FORMAT if is_stepwise else FORMAT, state)


def _packed(number: int, state: KeptState) -> bytes:
    fields = [*state[:5], pack_numbers(state.numbers)] if number == STEPWISE_FORMAT else state[:5]
    packed: bytes = msgpack.packb([number, *fields])
    return packed


def pack_numbers(numbers: Mapping[int, Numbering]) -> list[Any]:
    return [[packet_id, *numbering] for packet_id, numbering in numbers.items()]


def unpack_numbers(rows: list[Any]) -> dict[int, Numbering]:
    return {packet_id: Numbering(*fields) for packet_id, *fields in rows}


def unpack_state(data: bytes) -> KeptState:
    """Raises ValueError if a later release has written it."""
    number, *fields = msgpack.unpackb(data)
    if number not in (FORMAT, STEPWISE_FORMAT):
        raise ValueError(f"the state of a session has the format {number}, not {FORMAT} or {STEPWISE_FORMAT}")
    mark, window, in_flight, unreleased, subscriptions, *numbers = fields
    made = [_subscription(*each) for each in subscriptions]
    return KeptState(mark, window, in_flight, unreleased, made, unpack_numbers(*numbers) if numbers else {})


def _subscription(*fields: Any) -> KeptSubscription:
    made = KeptSubscription(*fields)
    return made._replace(places=[(name, seq, *(term or (0,))) for name, seq, *term in made.places])


def with_released(state: bytes, unreleased: set[int], numbers: dict[int, Numbering]) -> bytes:
    """The same state with these as the messages of the client that it has not released."""
    kept = unpack_state(state)._replace(unreleased=list(unreleased), numbers=numbers)
    return _packed(STEPWISE_FORMAT if stored_stepwise(state) else FORMAT, kept)


def _kept(client: SessionClient, subscription: KeptFilter, term_before: TermBefore) -> KeptSubscription:
    form = subscription.form
    seqs = [(name, _place(client.cursors.get(key))) for name, key in subscription.keys.items()]
    places = [(name, seq, term_before(name, seq)) for name, seq in seqs]
    options = form.qos, form.subscription_id, form.retain, bool(form.origin)
    return KeptSubscription(subscription.filter, *options, subscription.is_wild, places)


def _place(cursor: Cursor | None) -> int:
    """The seq behind all that has begun to be sent. A stream that has just been deleted is read from its beginning."""
    if cursor is None:
        return BEGINNING
    return cursor.settled_seq if cursor.cut is None else cursor.cut[0]
