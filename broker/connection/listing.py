"""Answers LIST: gathers a page of streams from the owners of all of them, or shows the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

from tailrace.broker.access.rules import Right
from tailrace.broker.delivery.wide import WideReading
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.work import Asker
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import NAMES_MAX, STREAMS_MAX, EndRow, FilesRow, List, Listed, StreamRow, WorkerRow
from tailrace.protocol.messages import pack
from tailrace.protocol.opcodes import Op

ENDS_A_STEP: Final = 50
"""Streams whose ends a worker looks up in one step: about 2 ms, if all of them are closed."""
VERSION_BYTES: Final = 6
"""Of the version that who may not see all streams gets: equal ones are the same, others say nothing."""
LISTS_MAX: Final = 16
"""Of one connection that are not answered yet."""
LOOKS_AT_ONCE: Final = 3
AGAIN_S: Final = 0.05
"""Between further looks for the same LIST of what has grown: what grows may be nothing that its connection may see. And
between two looks whether it is to wait any longer."""
NOT_ADMIN_TEXT = "listing the workers needs the right to administer"
GONE_TEXT = "the connection has ended"
TOO_MANY_TEXT = f"this connection waits for {LISTS_MAX} lists, which is its limit"


class ListingClient(Asker, Protocol):
    """A connection that asks for lists. `listing`: how many of them are not answered yet."""

    listing: int
    is_free: bool
    closed: bool

    @property
    def ending(self) -> bool: ...

    def may(self, right: Right, stream: bytes = b"") -> bool: ...

    def may_all(self, right: Right, prefix: bytes) -> bool: ...

    def send_envelope(self, envelope: bytes) -> None: ...

    def refuse_request(self, op: int, number: int, code: Code, text: str) -> None: ...

    def note_awaited(self) -> None: ...


class Listings:
    """One per worker."""

    def __init__(self, services: Services, calls: WorkerCalls, board: Board, wide: WideReading) -> None:
        self.services = services
        self.wide = wide
        self.calls = calls
        self.board = board

    def list(self, client: ListingClient, message: List) -> None:
        """Answers a LIST of a connection."""
        if message.what == "workers" and not client.may(Right.ADMIN):
            client.refuse_request(Op.LIST, message.id, Code.DENIED, NOT_ADMIN_TEXT)
        elif client.listing >= LISTS_MAX:
            client.refuse_request(Op.LIST, message.id, Code.OVERLOADED, TOO_MANY_TEXT)
        else:
            client.listing += 1
            done = partial(_answer, client, message)
            if message.what == "grown" and message.wait_ms:
                HeldList(self, client, message, done).begin()
            else:
                self.gather(client, message, done)
            client.note_awaited()

    def gather(self, client: ListingClient, message: List, done: Callable[[Listed | Refused], None]) -> None:
        """Calls `done` once. If a worker is down the outcome is an error, not a list that lacks something."""
        if message.what in ("workers", "total"):
            workers = self._workers() if message.what == "workers" else ()
            done(replace(self.head(client, message), workers=workers))
        elif message.what == "ends":
            self._ends(client, message, done)
        else:
            NamePage(self, client, message, partial(self._named, client, message, done)).ask()

    def head(self, client: ListingClient, message: List) -> Listed:
        """An answer without streams. Who may not see all of them does not learn how many there are, or are made."""
        total, version = self.board.total_streams(), self.board.names_version()
        if client.may_all(Right.SUBSCRIBE, b""):
            return Listed(message.id, total=total, version=version)
        shown = blake2b(b"%d" % version, key=self.services.access.secret, digest_size=VERSION_BYTES).digest()
        return Listed(message.id, version=int.from_bytes(shown, "little"))

    def _named(
        self, client: ListingClient, message: List, done: Callable[[Listed | Refused], None], page: Listed | Refused
    ) -> None:
        if isinstance(page, Refused) or message.what != "streams":
            done(page)
        else:
            self._describe(client, [name.encode() for name in page.names], replace(page, names=()), done)

    def _describe(
        self, client: ListingClient, names: Sequence[bytes], page: Listed, done: Callable[[Listed | Refused], None]
    ) -> None:
        """Each stream is a call of its own, for its owner to open it when there is time."""

        def described(rows: Sequence[Any] | Refused) -> None:
            if isinstance(rows, Refused):
                done(rows)
            else:
                done(replace(page, streams=tuple(sorted([StreamRow(*row) for row in rows if row], key=_name_of))))

        gathered = GatheredCalls(len(names), described)
        for name in names:
            self.calls.router.call(name, "list_stream", [name], gathered.take, client)

    def _ends(self, client: ListingClient, message: List, done: Callable[[Listed | Refused], None]) -> None:
        by_slot: dict[int, list[bytes]] = {}
        for name in message.names:
            if client.is_free or client.may(Right.SUBSCRIBE, name):
                by_slot.setdefault(self.calls.router.slot_of(name), []).append(name)
        steps = [
            (slot, names[first : first + ENDS_A_STEP])
            for slot, names in by_slot.items()
            for first in range(0, len(names), ENDS_A_STEP)
        ]

        def answered(parts: Sequence[Sequence[Any]] | Refused) -> None:
            if isinstance(parts, Refused):
                done(parts)
                return
            rows = sorted(row for part in parts for row in part)
            names = tuple([row[0].decode() for row in rows])
            files = tuple([FilesRow(f"{row[1]:016x}", row[2]) for row in rows])
            done(Listed(message.id, names, ends=tuple([EndRow._make(row[3:]) for row in rows]), files=files))

        gathered = GatheredCalls(len(steps), answered)
        for slot, names in steps:
            self.calls.call_slot(slot, "list_ends", [names[0], names], gathered.take, client)

    def _workers(self) -> tuple[WorkerRow, ...]:
        return tuple(
            [
                WorkerRow(
                    slot.index,
                    slot.pid,
                    slot.state_name,
                    max(int(slot.beat_age_s() * 1_000_000), 0),
                    slot.connections,
                    slot.subscriptions,
                    slot.streams,
                    slot.restarts,
                )
                for slot in self.board
            ]
        )


class NamePage:
    """Gathers the names of one answer: those that the client may see, from as many pages of all names as that takes.

    So no name that is hidden from it, nor the number of those, is in the answer. The pages end with the node's streams.
    """

    def __init__(
        self, listings: Listings, client: ListingClient, message: List, done: Callable[[Listed | Refused], None]
    ) -> None:
        self._listings = listings
        self._client = client
        self._message = message
        self._done = done
        self._sees_all = client.may_all(Right.SUBSCRIBE, b"")
        self._most = STREAMS_MAX if message.what == "streams" else NAMES_MAX
        self._asked_most = self._most if self._sees_all else NAMES_MAX
        self._after = message.after
        self._names: list[bytes] = []
        self._page: Listed | None = None  # the head of the answer, from the first page

    def ask(self) -> None:
        listings, message = self._listings, self._message
        verb, args = "list_names", [message.prefix, self._after, self._asked_most]
        if message.what == "grown":
            verb, args = "list_grown", [*args, message.mark]
        gathered = GatheredCalls(listings.board.slots, self._take)
        for slot in range(listings.board.slots):
            listings.calls.call_slot(slot, verb, args, gathered.take, self._client)

    def _take(self, parts: Sequence[Any] | Refused) -> None:
        if isinstance(parts, Refused):
            self._done(parts)
        elif self._client.closed:
            self._done(Refused(Code.CLOSING, GONE_TEXT))
        elif self._message.what == "grown":
            marks, names = zip(*parts, strict=True)
            is_known = None not in names
            self._add(min(marks), names if is_known else [], is_known=is_known)
        else:
            self._add("", parts)

    def _add(self, mark: str, parts: Iterable[Sequence[bytes]], *, is_known: bool = False) -> None:
        names = sorted(name for part in parts for name in part)[: self._asked_most]
        may = self._client.may
        self._names += names if self._sees_all else [name for name in names if may(Right.SUBSCRIBE, name)]
        if self._page is None:
            self._page = replace(self._listings.head(self._client, self._message), mark=mark)
        page = self._page = replace(self._page, known=is_known)
        is_last = len(names) < self._asked_most
        if not is_last and len(self._names) < self._most:
            self._after = names[-1]
            self.ask()
            return
        shown = tuple([name.decode() for name in self._names[: self._most]])
        has_more = len(self._names) > self._most or not is_last
        self._done(replace(page, names=shown, next=shown[-1] if has_more else ""))


class GatheredCalls:
    """Collects the outcomes of `count` calls, and gives `done` their values, or the first that was refused."""

    __slots__ = ("_done", "_missing", "_refused", "_values")

    def __init__(self, count: int, done: Callable[[Sequence[Any] | Refused], None]) -> None:
        self._missing = count
        self._done = done
        self._values: list[Any] = []
        self._refused: Refused | None = None
        if not count:
            done([])

    def take(self, value: Any) -> None:
        self._missing -= 1
        if isinstance(value, Refused):
            self._refused = self._refused or value
        else:
            self._values.append(value)
        if not self._missing:
            self._done(self._refused or self._values)


class HeldList:
    """A LIST of grown streams, whose answer waits for one, for `wait_ms` at most."""

    def __init__(
        self, listings: Listings, client: ListingClient, message: List, done: Callable[[Listed | Refused], None]
    ) -> None:
        self._listings = listings
        self._client = client
        self._message = message
        self._done: Callable[[Listed | Refused], None] | None = done  # until it is answered
        self._latest: Listed | None = None  # the answer, unless something grows
        self._until_s = listings.services.now_s + message.wait_ms / 1e3
        self._looks = 0
        self._has_grown = self._is_over = False

    def begin(self) -> None:
        self._check()
        self._await()

    def _check(self) -> None:
        """Now and then: the time may be over, or the connection is to move or to end as soon as it is answered."""
        services = self._listings.services
        if services.now_s >= self._until_s or self._client.ending or self._client.closed:
            self._end()
        elif self._done is not None:
            services.delays.at(services.now_s + AGAIN_S, self._check)

    def _await(self) -> None:
        self._listings.wide.await_growth(self._message.prefix, self._look, self._grew)

    def _look(self) -> None:
        self._looks, self._latest = self._looks + 1, None
        self._listings.gather(self._client, self._message, self._found)

    def _found(self, outcome: Listed | Refused) -> None:
        is_quiet = isinstance(outcome, Listed) and outcome.known and not (outcome.names or outcome.next)
        if isinstance(outcome, Listed) and is_quiet and not (self._is_over or self._client.closed):
            self._latest = outcome
            if self._has_grown:
                self._grew()
        else:
            self._finish(outcome)

    def _grew(self) -> None:
        """Look again, behind a look that is under way."""
        self._has_grown = self._latest is None
        services = self._listings.services
        if self._latest is not None and self._looks < LOOKS_AT_ONCE:
            self._await()
        elif self._latest is not None:
            services.delays.at(services.now_s + AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        if self._done is not None:
            self._await()

    def _end(self) -> None:
        self._is_over = True
        if self._latest is not None:
            self._finish(self._latest)

    def _finish(self, outcome: Listed | Refused) -> None:
        done, self._done = self._done, None
        self._listings.wide.await_no_more(self._grew)
        if done is not None:
            done(outcome)


def _name_of(row: StreamRow) -> bytes:
    return row.name.encode()


def _answer(client: ListingClient, message: List, outcome: Listed | Refused) -> None:
    client.listing -= 1
    if isinstance(outcome, Refused):
        client.refuse_request(Op.LIST, message.id, outcome.code, outcome.text)
    else:
        client.send_envelope(pack(outcome))
