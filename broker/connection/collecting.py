"""COLLECT of the binary protocol: the subscriptions of all streams of a pattern, those made later included.

Each stream has a subscription of its own, whose id the broker chooses. Names are found as for the patterns of lines:
their owners are asked, and once a second each worker looks whether the node has another number of streams.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from tailrace.broker.connection.handles import HandleClient
from tailrace.broker.connection.named import StreamSelection
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.delivery.wide import WideReader, WideReading, WideSubscription
from tailrace.broker.delivery.wide_history import WideHistory, WidePlace
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.timers import now_us
from tailrace.broker.process.work import NOBODY, Asker, WorkQueue
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import is_filter
from tailrace.protocol import collecting as g
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ServerCodec
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Op, pack
from tailrace.protocol.names import is_pattern, shown
from tailrace.protocol.places import FROM_NEW, FROM_THE_END, From
from tailrace.protocol.requests import read_request

COLLECTS_MAX: Final = 16
"""Of one connection."""
RELIST_S: Final = 30.0
"""Between two searches while the number of streams stays the same: one may have gone as another one came."""
START: Final = From("time", 0)
PASSED_OVER_MAX: Final = 1_024
"""Of one COLLECT: streams whose subscription has ended, and which are not read again."""
SUBSCRIPTIONS_TEXT: Final = "this connection has {limit} subscriptions, which is its limit"


@dataclass(slots=True, eq=False)
class OpenCollection:
    """`members`: the subscription of each stream. `follows`: streams made later are read. `is_answered`: COLLECTED has
    been sent; `holds`: what the connection sent behind the COLLECT waits for that. `is_wide`: it has only those of
    streams with something to be read: see `broker.delivery.wide`; `has_history`: streams that were there when it began
    have no subscription yet."""

    wanted: g.Collect
    members: dict[bytes, int] = field(default_factory=dict)
    passed_over: dict[bytes, None] = field(default_factory=dict)
    follows: bool = True
    is_answered: bool = False
    holds: bool = False
    is_wide: bool = False
    has_history: bool = False


class PlacedMember(NamedTuple):
    cursor: Cursor
    answer: m.Subscribed


class StreamSearch(Protocol):
    """The names of the node's streams, as lines find them: see `broker.connection.patterns`."""

    @property
    def work(self) -> WorkQueue: ...

    @property
    def board(self) -> Board: ...

    @property
    def wide(self) -> WideReading: ...

    @property
    def selection(self) -> Callable[[bytes], StreamSelection]: ...

    def search(
        self,
        pattern: bytes,
        most: int,
        wanted: Callable[[bytes], bool],
        asker: Asker,
        done: Callable[[list[bytes] | Refused], None],
    ) -> None: ...


class CollectingClient(HandleClient):
    """`collections`: by the ids that the client chose; `joined`: how many ids the broker has chosen."""

    __slots__ = ("asked", "codec", "collections", "joined")

    asked: dict[int, Any]
    codec: ServerCodec
    collections: dict[int, OpenCollection]
    joined: int

    @abstractmethod
    def place(self, message: m.Subscribe, value: int) -> tuple[Cursor, m.Subscribed]: ...

    @abstractmethod
    def take_rest(self) -> None:
        """Read on behind a request that had to wait."""

    @property
    def is_reading(self) -> bool:
        return bool(self.cursors or self.collections)

    @property
    def cursor_room(self) -> int:
        """Those count that are not answered yet."""
        return max(super().cursor_room - len(self.asked), 0)

    def next_id(self) -> int:
        """For a subscription of the broker's choice."""
        while True:
            number = g.ADDED_FROM + self.joined % g.ADDED_FROM
            self.joined += 1
            if number not in self.cursors and number not in self.asked and number not in self.collections:
                return number

    @property
    def stays(self) -> bool:
        """What grew while it moves would be lost to a wide subscription."""
        return super().stays or any(each.is_wide for each in self.collections.values())

    def _end_subscriptions(self) -> None:
        super()._end_subscriptions()
        self.collections.clear()

    def export_collections(self) -> list[Any]:
        every = [(each, pack(each.wanted)[HEAD_BYTES:]) for each in self.collections.values()]
        return [self.joined, [[body, each.members, list(each.passed_over), each.follows] for each, body in every]]

    def restore_collections(self, state: Sequence[Any]) -> None:
        if not state:
            return
        self.joined, rows = state
        for body, members, passed_over, follows in rows:
            wanted = read_request(Op.COLLECT, memoryview(body), frozenset({g.FEATURE}))
            assert isinstance(wanted, g.Collect)
            self.collections[wanted.id] = OpenCollection(wanted, members, dict.fromkeys(passed_over), follows, True)


class Collections:
    """One per worker."""

    def __init__(self, services: Services, subscribing: Subscriptions, names: StreamSearch) -> None:
        self._services = services
        self._subscribing = subscribing
        self._names = names
        self._wide = names.wide
        self._clients: dict[CollectingClient, None] = {}
        self._due: deque[bytes] = deque()  # patterns to be searched again; the first is being searched
        self._version = -1
        self._relist_s = 0.0

    # --- the requests -----------------------------------------------------------------------------------------------

    def begin(self, client: CollectingClient, message: g.Collect) -> None:
        """Requests behind it wait, so that `new` begins at this place."""
        refused = self._refusal(client, message)
        if refused is not None:
            client.refuse_request(Op.COLLECT, message.id, refused.code, refused.text)
            return
        collection = client.collections[message.id] = OpenCollection(message, follows=message.end is None)
        if message.at_once:
            self._begin_wide(client, collection)
        else:
            room = client.cursor_room
            is_new, found = partial(self.is_new, client, collection), partial(self._found, client, collection, room)
            self._names.search(message.pattern, room + 1, is_new, client, found)
        if not collection.is_answered:
            collection.holds = client.codec.waits = True
            client.hold_up()

    def _refusal(self, client: CollectingClient, message: g.Collect) -> Refused | None:
        pattern, number = message.pattern, message.id
        if number in client.collections or number in client.cursors or number in client.asked:
            return Refused(Code.USAGE, f"subscription {number} is in use; choose another id")
        if len(client.collections) >= COLLECTS_MAX:
            text = f"this connection has subscriptions of {COLLECTS_MAX} patterns, which is its limit"
            return Refused(Code.SUBSCRIPTIONS, text)
        has_topics = bool(message.topics) or not is_pattern(pattern)
        if not is_pattern(pattern) and not is_filter(pattern):
            return Refused(Code.USAGE, f"{shown(pattern)} is one name, no pattern or filter: SUBSCRIBE to it")
        if message.topics and is_filter(pattern):
            return Refused(Code.USAGE, f"{shown(pattern)} is a filter itself: leave out `topics`, or give a pattern")
        if has_topics and m.TOPICS_FEATURE not in client.codec.features:
            return Refused(Code.UNSUPPORTED, "this is for topics: ask for the feature topics in HELLO")
        if message.at_once and message.start.kind == "last":
            return Refused(Code.FROM, "COLLECT: with `at_once` it cannot begin at the last messages of each stream")
        if message.end is not None and message.end[0] == "time" and message.end[1] > now_us():
            return Refused(Code.FROM, "the time at which this subscription is to end has not come yet")
        return None

    def _found(
        self, client: CollectingClient, collection: OpenCollection, room: int, names: list[bytes] | Refused
    ) -> None:
        wanted = collection.wanted
        if isinstance(names, list) and len(names) > room > 0 and wanted.start.kind != "last":
            self._begin_wide(client, collection)
            return
        if isinstance(names, list) and len(names) > room:
            limit = self._services.settings.max_subscriptions
            text = f"{shown(wanted.pattern)} has too many streams: this connection may have {limit} subscriptions"
            names = Refused(Code.SUBSCRIPTIONS, text)
        if isinstance(names, Refused):
            if client.collections.pop(wanted.id, None) is collection:
                client.refuse_request(Op.COLLECT, wanted.id, names.code, names.text)
            self._read_on(client, collection)
            return
        self._join(client, collection, names, partial(self._answer, client, collection))

    def _begin_wide(self, client: CollectingClient, collection: OpenCollection) -> None:
        """There are more streams than it may have cursors: they get some in turn, and then those with new messages."""
        wanted = collection.wanted
        collection.follows, collection.is_wide = False, True
        reader, history = _WideCollection(self, client, collection), self._history(wanted)
        collection.has_history = history is not None

        def begun(wide: WideSubscription | Refused) -> None:
            if isinstance(wide, Refused):
                if client.collections.pop(collection.wanted.id, None) is collection:
                    client.refuse_request(Op.COLLECT, collection.wanted.id, wide.code, wide.text)
                self._read_on(client, collection)
                return
            self._answer(client, collection, ())
            self._wide.start(wide)

        self._wide.begin(reader, begun, history, follows=wanted.end is None)

    def _history(self, wanted: g.Collect) -> WideHistory | None:
        """With new messages only those of its streams that have a position begin in the past."""
        place = WidePlace(wanted.start, wanted.skip)
        if wanted.start != FROM_NEW:
            return WideHistory(self._names.selection(wanted.pattern).prefix, place)
        return WideHistory(b"", place, wanted.positions, is_listed=True) if wanted.positions else None

    def _answer(self, client: CollectingClient, collection: OpenCollection, members: Sequence[PlacedMember]) -> None:
        """All streams that were found at first have a subscription, or an error."""
        if client.collections.get(collection.wanted.id) is collection:
            if not collection.has_history:
                collection.wanted = replace(collection.wanted, positions=g.NO_POSITIONS)
            collection.is_answered = True
            time_us = now_us() if collection.wanted.at_once else 0
            client.send_envelope(pack(g.Collected(collection.wanted.id, len(members), time_us)))
            self._start(client, collection, members)
            self._clients[client] = None
            self._version = -1  # a stream may have been made since the search
            self._end_if_done(client, collection)
        self._read_on(client, collection)

    def _read_on(self, client: CollectingClient, collection: OpenCollection) -> None:
        collection.is_answered = True
        if collection.holds:
            collection.holds = False
            self._names.work.later(collection.wanted.pattern, (client,), partial(self._take_rest, client))
            client.go_on()

    def _take_rest(self, client: CollectingClient) -> None:
        if client.closed or client.lingering_since_s:
            client.codec.take_rest()
        else:
            client.take_rest()

    def end(self, client: CollectingClient, number: int, code: str = "", text: str = "") -> None:
        """Ends the subscriptions of all its streams."""
        collection = client.collections.pop(number)
        for member in list(collection.members.values()):
            cursor = client.cursors.pop(member)
            self._services.fanout.end(cursor)
            client.send_envelope(pack(m.Ended(member, cursor.seq if cursor.cut is None else cursor.cut[0])))
        client.send_envelope(pack(m.Ended(number, 0, code, text)))

    def adopt(self, client: CollectingClient) -> None:
        """The connection comes from another worker."""
        if client.collections:
            self._clients[client] = None
            self._version = -1

    def member_ended(self, client: CollectingClient, number: int, stream: bytes, code: Code | None) -> None:
        """The subscription of one stream is over. A stream that is made again after its deletion is another one."""
        for collection in client.collections.values():
            if collection.members.get(stream) == number:
                del collection.members[stream]
                if code is not Code.DELETED:
                    collection.passed_over[stream] = None
                if len(collection.passed_over) > PASSED_OVER_MAX:
                    del collection.passed_over[next(iter(collection.passed_over))]
                self._end_if_done(client, collection)
                return

    def _end_if_done(self, client: CollectingClient, collection: OpenCollection) -> None:
        wanted = collection.wanted
        if (
            wanted.end is not None
            and collection.is_answered
            and not (collection.members or collection.has_history)
            and wanted.id in client.collections
        ):
            del client.collections[wanted.id]
            client.send_envelope(pack(m.Ended(wanted.id, 0)))

    # --- streams made later -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About once a second: look whether there are more streams."""
        self._clients = dict.fromkeys(client for client in self._clients if client.collections and not client.closed)
        if not self._clients or self._due:
            return
        version, now_s = self._names.board.names_version(), self._services.now_s
        if version != self._version or now_s >= self._relist_s:
            self._version, self._relist_s = version, now_s + RELIST_S
            self._due.extend({collection.wanted.pattern for _client, collection in self._following()})
            if self._due:
                self._search_again()

    def _following(self) -> list[tuple[CollectingClient, OpenCollection]]:
        """Those that read streams made later."""
        every = [(client, collection) for client in self._clients for collection in client.collections.values()]
        return [(client, collection) for client, collection in every if collection.is_answered and collection.follows]

    def _search_again(self) -> None:
        pattern = self._due[0]
        open_collections = [each for each in self._following() if each[1].wanted.pattern == pattern]

        def is_new_to_one(name: bytes) -> bool:
            return any(self.is_new(client, collection, name) for client, collection in open_collections)

        def found(names: list[bytes] | Refused) -> None:
            self._due.popleft()
            for client, collection in open_collections:
                if isinstance(names, list) and client.collections.get(collection.wanted.id) is collection:
                    self._add(client, collection, [name for name in names if self.is_new(client, collection, name)])
            if self._due:
                self._search_again()

        most = self._services.settings.max_subscriptions
        self._names.search(pattern, most, is_new_to_one, NOBODY, found)

    def _add(self, client: CollectingClient, collection: OpenCollection, names: list[bytes]) -> None:
        if len(names) > client.cursor_room:
            self._widen(client, collection)
        elif names:
            self._join(client, collection, names, partial(self._start, client, collection))

    def _widen(self, client: CollectingClient, collection: OpenCollection) -> None:
        """Its streams have become more than it may have cursors: it goes on with some in turn, and those that grow."""
        collection.follows, collection.is_wide = False, True
        cursors = [client.cursors[number] for number in collection.members.values()]
        prefix = self._names.selection(collection.wanted.pattern).prefix
        history = WideHistory(prefix, WidePlace(START), known=collection.members)

        def begun(wide: WideSubscription | Refused) -> None:
            if not isinstance(wide, Refused):
                self._wide.start(wide)
            else:
                collection.follows, collection.is_wide = True, False
                self._version = -1  # it is tried again

        self._wide.begin(_WideCollection(self, client, collection), begun, history, cursors)

    # --- both -------------------------------------------------------------------------------------------------------

    def _topics(self, client: CollectingClient, collection: OpenCollection, name: bytes) -> bytes | None:
        """The filter for what may be read of a stream; None if that is nothing."""
        selection = self._names.selection(collection.wanted.pattern)
        if collection.wanted.topics:
            return client.readable_topics(name, collection.wanted.topics) or None
        return selection.topics(client, name)

    def is_new(self, client: CollectingClient, collection: OpenCollection, name: bytes) -> bool:
        if name in collection.members or name in collection.passed_over:
            return False
        selects = self._names.selection(collection.wanted.pattern).selects
        return selects(name) and self._topics(client, collection, name) is not None

    def drop(self, client: CollectingClient, collection: OpenCollection, cursor: Cursor) -> None:
        """The stream has nothing to be read now."""
        collection.members.pop(cursor.feed.name, None)
        client.cursors.pop(cursor.key, None)
        seq = cursor.settled_seq
        self._services.fanout.end(cursor)
        client.send_envelope(pack(m.Ended(cursor.key, seq)))

    def history_ended(self, client: CollectingClient, collection: OpenCollection) -> None:
        """A wide subscription has read the streams that were there when it began, or reads them now."""
        collection.has_history = False
        collection.wanted = replace(collection.wanted, positions=g.NO_POSITIONS)
        self._end_if_done(client, collection)

    def join_at(
        self,
        client: CollectingClient,
        collection: OpenCollection,
        name: bytes,
        place: WidePlace,
        placed: Callable[[Cursor | None], None],
    ) -> None:
        """Read a stream of a wide subscription from there on."""

        def joined(members: Sequence[PlacedMember]) -> None:
            placed(members[0].cursor if members else None)
            self._start(client, collection, members)

        self._join(client, collection, [name], joined, place)

    def _join(
        self,
        client: CollectingClient,
        collection: OpenCollection,
        names: Sequence[bytes],
        done: Callable[[Sequence[PlacedMember]], None],
        place: WidePlace | None = None,
    ) -> None:
        """Places a cursor on each stream, at `place` if it is given, and calls `done` with those."""
        members: list[PlacedMember] = []
        missing = len(names)
        wanted = collection.wanted
        ask_end = wanted.end is not None or (wanted.start.kind in FROM_THE_END and not collection.is_answered)

        def placed(each: m.Subscribe, value: int | Refused) -> None:
            nonlocal missing
            missing -= 1
            try:
                members.extend(self._placed(client, collection, each, value, has_room=place is not None))
            except Refused as refused:
                self._pass_over(client, collection, each.stream, refused)
            if not missing:
                done(members)

        if not names:
            done(members)
        for each in [self._subscription(client, collection, name, place) for name in names]:
            self._subscribing.find(client, each, partial(placed, each), ask_end=ask_end)

    def _subscription(
        self, client: CollectingClient, collection: OpenCollection, name: bytes, place: WidePlace | None
    ) -> m.Subscribe:
        wanted, position = collection.wanted, collection.wanted.positions.get(name)
        start, skip = (START, 0) if collection.is_answered else (wanted.start, wanted.skip)
        if place is not None:
            start, skip, _is_growth = place
        if position is not None and (place is None or not place.is_growth):
            start, skip = From("seq", position), 0
        topics = self._topics(client, collection, name) or b""
        return m.Subscribe(0, name, start, skip, wanted.end, wanted.credit, True, topics)

    def _placed(
        self,
        client: CollectingClient,
        collection: OpenCollection,
        wanted: m.Subscribe,
        value: int | Refused,
        *,
        has_room: bool,
    ) -> list[PlacedMember]:
        """`has_room`: room is kept for it. Raises Refused."""
        if isinstance(value, Refused):
            raise value
        is_open = client.collections.get(collection.wanted.id) is collection and not (
            client.closed or client.lingering_since_s
        )
        if not is_open or wanted.stream in collection.members:
            return []  # closed, unsubscribed or found twice meanwhile
        if not has_room and not client.cursor_room:
            limit = self._services.settings.max_subscriptions
            raise Refused(Code.SUBSCRIPTIONS, SUBSCRIPTIONS_TEXT.format(limit=limit))
        member = replace(wanted, id=client.next_id())
        cursor, answer = client.place(member, value)
        collection.members[wanted.stream] = member.id
        return [PlacedMember(cursor, answer)]

    def _pass_over(self, client: CollectingClient, collection: OpenCollection, name: bytes, refused: Refused) -> None:
        if client.collections.get(collection.wanted.id) is collection:
            collection.passed_over[name] = None
            text = f"{name.decode()}: {refused.text}; it is not read"
            client.refuse_request(Op.COLLECT, collection.wanted.id, refused.code, text)

    def _start(self, client: CollectingClient, collection: OpenCollection, members: Sequence[PlacedMember]) -> None:
        for cursor, answer in members:
            if client.cursors.get(answer.id) is cursor:  # else it was ended meanwhile
                places = answer.next_seq, answer.first_seq, answer.end_seq
                client.send_envelope(pack(g.Added(collection.wanted.id, answer.id, cursor.feed.name.decode(), *places)))
                self._subscribing.start(client, cursor)


class _WideCollection(WideReader):
    """A COLLECT of very many streams: see `broker.delivery.wide`."""

    def __init__(self, collections: Collections, client: CollectingClient, collection: OpenCollection) -> None:
        super().__init__(client, collection.wanted.at_once)
        self._collections = collections
        self._client = client
        self._collection = collection

    @property
    def is_open(self) -> bool:
        return self._client.collections.get(self._collection.wanted.id) is self._collection

    def is_wanted(self, name: bytes) -> bool:
        return self._collections.is_new(self._client, self._collection, name)

    def place(self, name: bytes, place: WidePlace, placed: Callable[[Cursor | None], None]) -> None:
        self._collections.join_at(self._client, self._collection, name, place, placed)

    def drop(self, cursor: Cursor) -> None:
        self._collections.drop(self._client, self._collection, cursor)

    def fail(self, code: Code, text: str) -> None:
        self._collections.end(self._client, self._collection.wanted.id, code, text)

    def history_ended(self) -> None:
        self._collections.history_ended(self._client, self._collection)
