"""Subscriptions of connections that speak lines to all streams of a pattern, those made later included.

The owners of all streams are asked for the names that begin like the pattern, a page at a time, each page as a step
of the worker's expensive work. Once a second each worker with such connections looks whether the node has another
number of streams, and if so, or after RELIST_S, searches the names of each pattern again
(`broker.connection.search_turns`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.named import StreamSelection
from tailrace.broker.connection.search_turns import SearchTurns
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.delivery.wide import WideReader, WideReading, WideSubscription
from tailrace.broker.delivery.wide_history import WideHistory, WidePlace
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.work import NOBODY, Asker, WorkQueue
from tailrace.broker.routing.batch import Pending
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import answers
from tailrace.protocol import commands as c
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import NAMES_MAX
from tailrace.protocol.names import is_pattern, may_share
from tailrace.protocol.places import FROM_NEW, FROM_THE_END, From
from tailrace.protocol.topics import word_of_name

if TYPE_CHECKING:
    from tailrace.broker.connection.line import LineClient

PATTERNS_MAX: Final = 16
"""Of one connection."""
PAGES_AT_ONCE: Final = 100
"""Of names, in one search for what was made later. Those that have more pages take turns: one page each PAUSE_S."""
PAUSE_S: Final = 0.02
SELECTIONS_KEPT: Final = 1_024
"""Patterns that are read and need not be parsed again."""
RELIST_S: Final = 30.0
"""Between two searches while the number of streams stays the same: one may have gone as another one came."""
START: Final = From("time", 0)
GONE_TEXT: Final = "the connection has ended"
MANY: Final = "many"
"""In the place of the number of streams, where there are more than a connection may have subscriptions."""


def _nothing() -> None:
    """Somebody waits for the search."""


class NameSearch:
    """Finds up to `most` names of a pattern that are `wanted`. Calls `done` once, with them or a Refused.

    It looks at all names that begin like the pattern, however many: a bound would show who asks how many are hidden.
    """

    def __init__(
        self,
        find: PatternSubscriptions,
        pattern: bytes,
        most: int,
        wanted: Callable[[bytes], bool],
        asker: Asker,
        done: Callable[[list[bytes] | Refused], None],
        pauses: Callable[[], None] = _nothing,
    ) -> None:
        """pauses: is called when a search that nobody waits for begins to pause."""
        self._find = find
        self._pattern, self._prefix = pattern, find.selection(pattern).prefix
        self._most = most
        self._wanted = wanted
        self._asker = asker
        self._done = done
        self._pauses = pauses
        self._pages = self._missing = 0
        self._after = b""
        self._page: list[bytes] = []
        self._refused: Refused | None = None
        self._names: list[bytes] = []

    def turn_page(self) -> None:
        self._find.work.do(self._pattern, (self._asker,), self._ask)

    def _ask(self) -> None:
        slots = self._find.board.slots
        self._missing, self._page = slots, []
        for slot in range(slots):
            self._find.calls.call_slot(slot, "list_names", [self._prefix, self._after, NAMES_MAX], self._take)

    def _take(self, value: Any) -> None:
        self._missing -= 1
        if isinstance(value, Refused):
            self._refused = value
        else:
            self._page += value
        if not self._missing:
            self._add_page()

    def _add_page(self) -> None:
        page = sorted(self._page)[:NAMES_MAX]
        self._pages += 1
        self._names += filter(self._wanted, page)
        if self._refused is not None:
            self._done(self._refused)
        elif len(page) < NAMES_MAX or len(self._names) >= self._most:
            self._done(self._names[: self._most])
        elif isinstance(self._asker, ClientConnection) and self._asker.closed:
            self._done(Refused(Code.CLOSING, GONE_TEXT))
        else:
            self._after = page[-1]
            if self._asker is NOBODY and self._pages >= PAGES_AT_ONCE:
                self._find.pause(self)
                if self._pages == PAGES_AT_ONCE:
                    self._pauses()
            else:
                self.turn_page()


class PatternSubscriptions:
    """One per worker."""

    def __init__(
        self,
        services: Services,
        subscribing: Subscriptions,
        work: WorkQueue,
        calls: WorkerCalls,
        board: Board,
        own: tuple[int, int],
    ) -> None:
        self.work = work
        self.calls = calls
        self.board = board
        self.wide = WideReading(calls.call_slot, board.slots, *own, services.settings.max_subscriptions)
        self._services = services
        self._subscribing = subscribing
        self._clients: dict[LineClient, None] = {}
        self._searches = SearchTurns(self._search_again)  # of patterns
        self._paused: deque[NameSearch] = deque()
        self._version = -1
        self._relist_s = 0.0
        self.selection = lru_cache(SELECTIONS_KEPT)(partial(StreamSelection, services.topic_rules))

    def search(
        self,
        pattern: bytes,
        most: int,
        wanted: Callable[[bytes], bool],
        asker: Asker,
        done: Callable[[list[bytes] | Refused], None],
    ) -> None:
        """As `NameSearch`."""
        NameSearch(self, pattern, most, wanted, asker, done).turn_page()

    def pause(self, search: NameSearch) -> None:
        """Let it go on after the others that pause."""
        self._paused.append(search)
        if len(self._paused) == 1:
            self._services.delays.at(self._services.now_s + PAUSE_S, self._turn_page)

    def _turn_page(self) -> None:
        search = self._paused.popleft()
        if self._paused:
            self._services.delays.at(self._services.now_s + PAUSE_S, self._turn_page)
        search.turn_page()

    # --- the commands -----------------------------------------------------------------------------------------------

    def subscribe(self, client: LineClient, command: c.Subscribe, pending: Pending) -> None:
        """Requests behind it wait, so that `new` begins at this place."""
        pattern, room = command.stream, client.cursor_room
        if pattern in client.patterns:
            text = f"this connection is subscribed to {word_of_name(pattern).decode()} already"
            self._refuse(pending, Refused(Code.SUBSCRIBED, text))
            return
        if len(client.patterns) >= PATTERNS_MAX:
            text = f"this connection has subscriptions of {PATTERNS_MAX} patterns, which is its limit"
            self._refuse(pending, Refused(Code.SUBSCRIPTIONS, text))
            return
        if refused := self._sharing(pattern, client.wide):
            self._refuse(pending, refused)
            return
        client.hold_up()
        pending.after = client.go_on
        found = partial(self._found, client, command, pending, room)
        NameSearch(self, pattern, room + 1, partial(self.is_new, client, pattern), client, found).turn_page()

    def unsubscribe(self, client: LineClient, pattern: bytes) -> bytes:
        """Ends all subscriptions of streams of the pattern that are of no other one; the answer."""
        del client.patterns[pattern]
        client.wide.pop(pattern, None)
        for cursor in self._cursors(client, pattern):
            if not any(self._selects(each, cursor.key, cursor.feed.name) for each in client.patterns):
                self._services.fanout.end(client.cursors.pop(cursor.key))
        return answers.ok_unsub(pattern)

    def reads(self, client: LineClient, name: bytes) -> bool:
        """Whether this names a stream of a wide pattern, in which there may be no cursor now."""
        of_wide = (
            each for each in client.wide if self._selects(each, name, name) and name not in client.patterns[each]
        )
        return any(of_wide) and not self._services.topic_rules.place(name).topic

    def _selects(self, pattern: bytes, key: bytes, name: bytes) -> bool:
        """Whether the cursor of a pattern in this stream has this key."""
        selection = self.selection(pattern)
        return selection.key(name) == key and selection.selects(name)

    def _sharing(self, pattern: bytes, others: Iterable[bytes]) -> Refused | None:
        """Two patterns that may share streams would have one cursor in them, of which a wide one must know all."""
        for other in others if is_pattern(pattern) else ():
            if other != pattern and is_pattern(other) and may_share(pattern, other):
                text = f"{pattern.decode()} and {other.decode()} may have streams in common, and more of them"
                text += " than this connection may have subscriptions: use a connection for each"
                return Refused(Code.SUBSCRIBED, text)
        return None

    def _cursors(self, client: LineClient, pattern: bytes) -> list[Cursor]:
        """Those of the streams of a pattern."""
        return [cursor for key, cursor in client.cursors.items() if self._selects(pattern, key, cursor.feed.name)]

    def adopt(self, client: LineClient) -> None:
        """The connection comes from another worker."""
        if client.patterns:
            self._clients[client] = None
            self._version = -1

    def _found(
        self, client: LineClient, command: c.Subscribe, pending: Pending, room: int, names: list[bytes] | Refused
    ) -> None:
        if isinstance(names, list) and len(names) > room > 0 and command.start.kind != "last":
            self._begin_wide(client, command, pending)
            return
        if isinstance(names, list) and len(names) > room:
            limit, shown_pattern = self._services.settings.max_subscriptions, command.stream.decode()
            text = f"{shown_pattern} has too many streams: this connection may have {limit} subscriptions"
            names = Refused(Code.SUBSCRIPTIONS, text)
        if isinstance(names, Refused):
            self._refuse(pending, names)
            return

        def joined(cursors: Sequence[Cursor], failed: Sequence[tuple[bytes, Refused]]) -> None:
            pending.after = partial(told, cursors, failed)
            pending.settle(answers.ok("sub", word_of_name(command.stream), len(cursors)))

        def told(cursors: Sequence[Cursor], failed: Sequence[tuple[bytes, Refused]]) -> None:
            self._start(client, cursors, failed)
            client.go_on()

        client.patterns[command.stream] = {}
        self._clients[client] = None
        self._join(client, command, names, joined)

    def _begin_wide(self, client: LineClient, command: c.Subscribe, pending: Pending) -> None:
        """There are more streams than it may have cursors: they get some in turn, and then those with new messages."""
        pattern, history = command.stream, None
        if refused := self._sharing(pattern, client.patterns):
            self._refuse(pending, refused)
            return
        if command.start != FROM_NEW:
            history = WideHistory(self.selection(pattern).prefix, WidePlace(command.start, command.skip))
        reader = client.wide[pattern] = _WideLines(self, client, pattern)
        client.patterns[pattern] = {}

        def begun(wide: WideSubscription | Refused) -> None:
            if isinstance(wide, Refused):
                reader.end()
                self._refuse(pending, wide)
                return
            pending.after = partial(told, wide)
            pending.settle(answers.ok("sub", word_of_name(pattern), MANY))

        def told(wide: WideSubscription) -> None:
            self.wide.start(wide)
            client.go_on()

        self.wide.begin(reader, begun, history)

    def _refuse(self, pending: Pending, refused: Refused) -> None:
        self._services.metrics.refused.add(refused.code)
        pending.settle(answers.err(refused.code, refused.text))

    # --- streams made later -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About once a second: look whether there are more streams."""
        self.wide.measure(self._services.metrics)
        self._clients = dict.fromkeys(client for client in self._clients if client.patterns and not client.closed)
        if not self._clients or not self._searches.is_idle:
            return
        version, now_s = self.board.names_version(), self._services.now_s
        if version != self._version or now_s >= self._relist_s or self._searches.take_passed_over():
            self._version, self._relist_s = version, now_s + RELIST_S
            self._searches.begin(
                {pattern for client in self._clients for pattern in client.patterns if pattern not in client.wide}
            )

    def _search_again(self, pattern: bytes, pauses: Callable[[], None], ended: Callable[[], None]) -> None:
        following = (client for client in self._clients if pattern in client.patterns and pattern not in client.wide)
        clients = [client for client in following if not client.closed]

        def is_new_to_one(name: bytes) -> bool:
            return any(self.is_new(client, pattern, name) for client in clients)

        def found(names: list[bytes] | Refused) -> None:
            for client in clients:
                is_open = pattern in client.patterns and pattern not in client.wide and not client.closed
                if isinstance(names, list) and is_open:
                    self._add(client, pattern, [name for name in names if self.is_new(client, pattern, name)])
            ended()

        most = self._services.settings.max_subscriptions
        NameSearch(self, pattern, most, is_new_to_one, NOBODY, found, pauses).turn_page()

    def _add(self, client: LineClient, pattern: bytes, names: list[bytes]) -> None:
        if len(names) > client.cursor_room:
            self._widen(client, pattern)
            return
        start = c.Subscribe(pattern, START)
        self._join(client, start, names, lambda cursors, failed: self._start(client, cursors, failed))

    def _widen(self, client: LineClient, pattern: bytes) -> None:
        """Its streams have become more than it may have cursors: it goes on with some in turn, and those that grow."""
        reader = _WideLines(self, client, pattern)
        if refused := self._sharing(pattern, client.patterns):
            reader.fail(Code.SUBSCRIPTIONS, refused.text)
            return
        client.wide[pattern] = reader
        cursors = self._cursors(client, pattern)
        known = [cursor.feed.name for cursor in cursors]
        history = WideHistory(self.selection(pattern).prefix, WidePlace(START), known=known)

        def begun(wide: WideSubscription | Refused) -> None:
            if not isinstance(wide, Refused):
                self.wide.start(wide)
            elif client.wide.get(pattern) is reader:
                del client.wide[pattern]
                self._version = -1  # it is tried again

        self.wide.begin(reader, begun, history, cursors)

    # --- both -------------------------------------------------------------------------------------------------------

    def is_new(self, client: LineClient, pattern: bytes, name: bytes) -> bool:
        passed_over, selection = client.patterns.get(pattern, {}), self.selection(pattern)
        is_there = selection.key(name) in client.cursors or name in passed_over
        return not is_there and selection.selects(name) and selection.topics(client, name) is not None

    def _join(
        self,
        client: LineClient,
        command: c.Subscribe,
        names: Sequence[bytes],
        done: Callable[[Sequence[Cursor], Sequence[tuple[bytes, Refused]]], None],
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """Places a cursor on each stream if it still `is_open`; calls `done` with those and what could not be read."""
        cursors: list[Cursor] = []
        failed: list[tuple[bytes, Refused]] = []
        selection = self.selection(command.stream)
        readable = [(name, selection.topics(client, name)) for name in names]
        wanted = [
            c.Subscribe(name, command.start, command.skip, True, topics, selection.key(name))
            for name, topics in readable
            if topics is not None
        ]
        missing = len(wanted)
        ask_end = command.start.kind in FROM_THE_END

        def placed(each: c.Subscribe, value: int | Refused) -> None:
            nonlocal missing
            missing -= 1
            try:
                cursors.extend(self._placed(client, each, value) if is_open() else ())
            except Refused as refused:
                failed.append((each.stream, refused))
            if not missing:
                done(cursors, failed)

        if not wanted:
            done(cursors, failed)
        for each in wanted:
            self._subscribing.find(client, each, partial(placed, each), ask_end=ask_end)

    def join_at(
        self,
        client: LineClient,
        pattern: bytes,
        name: bytes,
        place: WidePlace,
        placed: Callable[[Cursor | None], None],
    ) -> None:
        """Read a stream of a wide subscription from there on."""

        subscription = client.wide[pattern]

        def joined(cursors: Sequence[Cursor], failed: Sequence[tuple[bytes, Refused]]) -> None:
            placed(cursors[0] if cursors else None)
            for cursor in cursors if place.is_growth else ():
                cursor.seq = min(cursor.seq, place.start.value)  # messages that were trimmed meanwhile are reported
            self._start(client, cursors, failed)

        def is_open() -> bool:
            return client.wide.get(pattern) is subscription

        names = [name] if self.is_new(client, pattern, name) else []  # it may have been given up
        self._join(client, c.Subscribe(pattern, place.start, place.skip), names, joined, is_open)

    def drop(self, client: LineClient, cursor: Cursor) -> None:
        client.cursors.pop(cursor.key, None)
        self._services.fanout.end(cursor)

    def _placed(self, client: LineClient, wanted: c.Subscribe, value: int | Refused) -> list[Cursor]:
        """Raises Refused."""
        if isinstance(value, Refused):
            raise value
        if client.closed or client.lingering_since_s or wanted.key in client.cursors:
            return []
        cursor = client.cursors[wanted.key] = self._subscribing.place(client, wanted, wanted.key, value)
        return [cursor]

    def _start(self, client: LineClient, cursors: Sequence[Cursor], failed: Sequence[tuple[bytes, Refused]]) -> None:
        for cursor in cursors:
            self._subscribing.start(client, cursor)
        for name, refused in failed:
            client.pass_over(name)
            client.refuse(refused.code, f"{name.decode()}: {refused.text}; it is not subscribed")


class _WideLines(WideReader):
    """A pattern or filter over very many streams: see `broker.delivery.wide`."""

    def __init__(self, patterns: PatternSubscriptions, client: LineClient, pattern: bytes) -> None:
        super().__init__(client)
        self._patterns = patterns
        self._client = client
        self._pattern = pattern

    @property
    def is_open(self) -> bool:
        return self._client.wide.get(self._pattern) is self

    def is_wanted(self, name: bytes) -> bool:
        return self._patterns.is_new(self._client, self._pattern, name)

    def place(self, name: bytes, place: WidePlace, placed: Callable[[Cursor | None], None]) -> None:
        self._patterns.join_at(self._client, self._pattern, name, place, placed)

    def drop(self, cursor: Cursor) -> None:
        self._patterns.drop(self._client, cursor)

    def end(self) -> None:
        self._client.patterns.pop(self._pattern, None)
        self._client.wide.pop(self._pattern, None)

    def fail(self, code: Code, text: str) -> None:
        self._patterns.unsubscribe(self._client, self._pattern)
        self._client.refuse(code, f"{word_of_name(self._pattern).decode()}: {text}; the subscription has ended")

    def history_ended(self) -> None:
        """Its client is not told: it sees the messages."""
