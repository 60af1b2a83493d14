"""What a durable session is beyond its connection, as bytes: its subscriptions and their places, and the messages under
way in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from tailrace.broker.connection.mqtt.in_flight import InFlight
from tailrace.broker.connection.mqtt.window import SendWindow
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.sessions.record import STEPWISE_FORMAT
from tailrace.broker.sessions.record import is_stepwise as stored_stepwise
from tailrace.protocol.mqtt.publishes import PublishForm
from tailrace.shard.replacing import replaceable

FORMAT: Final = 1
BEGINNING: Final = 0
ARRAY_FIELDS: Final = 6
"""Of a packed state with FORMAT; with STEPWISE_FORMAT it has one more."""
SPARE_PARTS: Final = 64
"""Parts of a packed state that are known beyond twice those that it had last."""


@replaceable
class Numbering(NamedTuple):
    """The number of a QoS 2 message of the client in its stream: it is not logged again with the same one."""

    stream: bytes
    producer: bytes
    number: int


@replaceable
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


class StateParts:
    """The parts of a state that are mostly the same when it is packed again: with a thousand subscriptions they make
    nearly all of it. What is known of other filters and streams is forgotten once that is most of it.
    """

    __slots__ = ("_heads", "_places")

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[PublishForm, bool, bytes]] = {}
        self._places: dict[bytes, tuple[int, bytes]] = {}

    def subscriptions(self, client: SessionClient, term_before: TermBefore) -> bytes:
        """All `KeptSubscription`s. Those that are still being made are left out: their SUBACK is not sent."""
        cursors, place = client.cursors, self._place
        made = [each for each in client.subscriptions.values() if each.is_ready or each.keys]
        rows = [_array_head(len(made))]
        for each in made:
            keys = each.keys
            rows += (self._head(each), _array_head(len(keys)))
            rows += [place(name, _place(cursors.get(key)), term_before) for name, key in keys.items()]
        if len(self._heads) > 2 * len(made) + SPARE_PARTS:
            self._heads.clear()
        if len(self._places) > 2 * len(cursors) + SPARE_PARTS:
            self._places.clear()
        return b"".join(rows)

    def _head(self, subscription: KeptFilter) -> bytes:
        """A `KeptSubscription` up to its places."""
        form, known = subscription.form, self._heads.get(subscription.filter)
        if known is not None and known[0] is form and known[1] == subscription.is_wild:
            return known[2]
        options = form.qos, form.subscription_id, form.retain, bool(form.origin)
        packed: bytes = msgpack.packb([subscription.filter, *options, subscription.is_wild, []])[:-1]
        self._heads[subscription.filter] = form, subscription.is_wild, packed
        return packed

    def _place(self, name: bytes, seq: int, term_before: TermBefore) -> bytes:
        known = self._places.get(name)
        if known is not None and known[0] == seq:
            return known[1]
        packed: bytes = msgpack.packb([name, seq, term_before(name, seq)])
        self._places[name] = seq, packed
        return packed


def _array_head(count: int) -> bytes:
    return bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")


def pack_state(
    client: SessionClient,
    in_flight: InFlight,
    term_before: TermBefore,
    parts: StateParts | None = None,
    *,
    is_stepwise: bool = False,
) -> bytes:
    """`parts`: of the last time, if it is known."""
    in_flight.forget_acknowledged(client.window.holds)
    head = client.mark, client.window.export_state(), in_flight.export_state(), list(client.unreleased)
    subscriptions = (parts or StateParts()).subscriptions(client, term_before)
    return _packed(head, subscriptions, client.numbers if is_stepwise else None)


def _packed(head: Sequence[Any], subscriptions: bytes, numbers: Mapping[int, Numbering] | None) -> bytes:
    """`head`: the fields of a KeptState before its subscriptions, which are packed; `numbers`: None with FORMAT."""
    packed: bytes = msgpack.packb([FORMAT if numbers is None else STEPWISE_FORMAT, *head])
    if numbers is None:
        return _array_head(ARRAY_FIELDS) + packed[1:] + subscriptions
    packed_numbers: bytes = msgpack.packb(pack_numbers(numbers))
    return _array_head(ARRAY_FIELDS + 1) + packed[1:] + subscriptions + packed_numbers


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
    kept = unpack_state(state)
    head = kept.mark, kept.window, kept.in_flight, list(unreleased)
    return _packed(head, msgpack.packb(kept.subscriptions), numbers if stored_stepwise(state) else None)


def _place(cursor: Cursor | None) -> int:
    """The seq behind all that has begun to be sent. A stream that has just been deleted is read from its beginning."""
    if cursor is None:
        return BEGINNING
    return cursor.settled_seq if cursor.cut is None else cursor.cut[0]
