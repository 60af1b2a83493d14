"""Answers LIST: gathers a page of streams from the owners of all of them, or shows the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from tailrace.broker.access.rules import Right
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import NAMES_MAX, STREAMS_MAX, List, Listed, StreamRow, WorkerRow
from tailrace.protocol.messages import pack
from tailrace.protocol.opcodes import Op

LISTS_MAX: Final = 16
"""Of one connection that are not answered yet."""
NOT_ADMIN_TEXT = "listing the workers needs the right to administer"
TOO_MANY_TEXT = f"this connection waits for {LISTS_MAX} lists, which is its limit"


class ListingClient(Protocol):
    """A connection that asks for lists. `listing`: how many of them are not answered yet."""

    listing: int
    is_free: bool

    def may(self, right: Right, stream: bytes = b"") -> bool: ...

    def say(self, envelope: bytes) -> None: ...

    def refuse_request(self, op: int, number: int, code: Code, text: str) -> None: ...

    def note_awaited(self) -> None: ...


class Listings:
    """One per worker."""

    def __init__(self, calls: WorkerCalls, board: Board) -> None:
        self._calls = calls
        self._board = board

    def list(self, client: ListingClient, message: List) -> None:
        """Answers a LIST of a connection."""
        if message.what == "workers" and not client.may(Right.ADMIN):
            client.refuse_request(Op.LIST, message.id, Code.DENIED, NOT_ADMIN_TEXT)
        elif client.listing >= LISTS_MAX:
            client.refuse_request(Op.LIST, message.id, Code.OVERLOADED, TOO_MANY_TEXT)
        else:
            client.listing += 1
            self._gather(client, message, partial(_answer, client, message))
            client.note_awaited()

    def _gather(self, client: ListingClient, message: List, done: Callable[[Listed | Refused], None]) -> None:
        """Calls `done` once. If a worker is down the outcome is an error, not a list that lacks something."""
        total = sum(slot.streams for slot in self._board)
        if message.what in ("workers", "total"):
            workers = self._workers() if message.what == "workers" else ()
            done(Listed(message.id, workers=workers, total=total))
            return
        parts: deque[Sequence[Any]] = deque()
        failed: deque[Refused] = deque()
        missing = self._board.slots
        verb, most = ("list_names", NAMES_MAX) if message.what == "names" else ("list_streams", STREAMS_MAX)

        def take(value: Any) -> None:
            nonlocal missing
            missing -= 1
            if isinstance(value, Refused):
                failed.append(value)
            else:
                parts.append(value)
            if not missing:
                done(failed[0] if failed else _page(message, parts, most, total, client))

        for slot in range(self._board.slots):
            self._calls.call_slot(slot, verb, [message.prefix, message.after], take)

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
                for slot in self._board
            ]
        )


def _page(message: List, parts: Sequence[Sequence[Any]], most: int, total: int, client: ListingClient) -> Listed:
    """The first `most` of all parts, as far as the client may read them."""
    names = message.what == "names"
    rows = sorted((row for part in parts for row in part), key=_name_of)
    shown = [row for row in rows[:most] if client.is_free or client.may(Right.SUBSCRIBE, _name_of(row))]
    following = _name_of(rows[most - 1]).decode() if len(rows) >= most else ""
    if names:
        return Listed(message.id, names=tuple([row.decode() for row in shown]), next=following, total=total)
    return Listed(message.id, streams=tuple([StreamRow(*row) for row in shown]), next=following, total=total)


def _name_of(row: Any) -> bytes:
    return row if isinstance(row, bytes) else row[0].encode()


def _answer(client: ListingClient, message: List, outcome: Listed | Refused) -> None:
    client.listing -= 1
    if isinstance(outcome, Refused):
        client.refuse_request(Op.LIST, message.id, outcome.code, outcome.text)
    else:
        client.say(pack(outcome))
