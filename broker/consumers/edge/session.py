"""One connection's requests to durable consumers, in either protocol. The stream's owner decides about them.

The owner of a stream chooses the messages that a get is given; the frames come from the stream's files, which every
worker reads. On a slave they may not be there yet, or others in their place: such a get is held, and looked at again
each turn. So is one whose connection has not read its earlier answers.

A connection remembers its members but for those that have left: when it ends, it notifies their owners that they are
away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.base import OUT_HIGH_BYTES
from tailrace.broker.consumers.edge import fetch
from tailrace.broker.delivery.subscribe import storage_refusals
from tailrace.broker.streams.refused import Refused
from tailrace.protocol import consuming as c
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StreamCut, StreamMissing, Trimmed

if TYPE_CHECKING:
    from tailrace.broker.connection.client import ClientConnection

GETS_MAX: Final = 256
"""Gets of one connection that have no answer yet."""
MEMBERS_MAX: Final = 1_024
"""Members that one connection speaks for."""
COPY_WAIT_MIN_S: Final = 2.0
"""How long messages that were given out are waited for here at least, however short the get's own wait is."""
HELD_LOOK_S: Final = 0.01
"""How long a loop that holds gets sleeps at most: nothing tells it that a sibling has appended to a copy."""

_NO_SUCH = (Code.CONSUMER, Code.UNKNOWN)
MemberKey = tuple[bytes, bytes, bytes]
"""stream, consumer, member"""


class LastRequest(NamedTuple):
    """When a member last asked for something, and the session that it sent."""

    at_s: float
    session: int


class FetchedGet(NamedTuple):
    """The answer to a get. `frames`: those of each run."""

    runs: list[c.DeliveredRun]
    frames: list[bytes]
    stale: list[c.MessageRange]
    trimmed: int


GetCallback = Callable[[FetchedGet | Refused], None]


class PendingGet:
    """A get that has no answer yet. `given`: what the owner has answered, when it has."""

    __slots__ = ("answer", "given", "until_s", "wanted", "woken")

    def __init__(self, wanted: c.Get, until_s: float, answer: GetCallback) -> None:
        self.wanted = wanted
        self.until_s = until_s
        self.answer = answer
        self.given: dict[str, Any] | None = None
        self.woken = False


class ConsumerSession:
    """One per connection that has asked for any of this."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self._members: dict[MemberKey, LastRequest] = {}
        self._gets: dict[PendingGet, None] = {}
        self._asked = 0  # anything else that has no answer yet

    @property
    def awaited(self) -> int:
        """Answers that are not known yet."""
        return len(self._gets) + self._asked

    # --- requests ---------------------------------------------------------------------------------------------------

    def consume(self, wanted: c.Consume, answer: Callable[[Any], None]) -> None:
        """`answer` gets the owner's value, or Refused."""
        if wanted.do == "list" and self.is_full:
            answer(Refused(Code.OVERLOADED, "this connection does not read its answers; read them, ask again"))
            return
        if wanted.do == "create" and (refusal := self._creation_refusal()):
            answer(Refused(Code.OVERLOADED, refusal))
            return
        ended = self._ended_by(wanted)
        self._asked += 1
        self.client.note_awaited()

        def done(value: Any) -> None:
            self._asked -= 1
            if ended and not _failed(value):
                self._forget(ended)
            if wanted.do == "create" and not (isinstance(value, dict) and value.get("created")):
                self._count_created(-1)
            if not self.client.closed:
                answer(value)

        if wanted.do == "create":
            self._count_created(1)

        self._call(wanted.stream, "consume", [wanted.stream, wanted], done)

    def _ended_by(self, wanted: c.Consume) -> dict[MemberKey, LastRequest]:
        """The members that have left once this is done, if they ask for nothing meanwhile."""
        if wanted.do == "delete":
            consumer = wanted.stream, wanted.name
            return {member: asked for member, asked in self._members.items() if member[:2] == consumer}
        member = wanted.stream, wanted.name, wanted.member
        return {member: self._members[member]} if wanted.do == "leave" and member in self._members else {}

    def _forget(self, ended: dict[MemberKey, LastRequest]) -> None:
        for member, asked in ended.items():
            if self._members.get(member) == asked:
                del self._members[member]

    def _creation_refusal(self) -> str:
        """Why its address or its user creates no consumer now; empty if it may."""
        client = self.client
        now_s = client.services.now_s
        return next(filter(None, (account.consumers_refusal(now_s) for account in client.accounts)), "")

    def _count_created(self, count: int) -> None:
        """Count creations against the limits, also those under way; one that creates nothing is counted back (-1)."""
        for account in self.client.accounts:
            if account.consumers is None:
                continue
            if count > 0:
                account.consumers.take(1, self.client.services.now_s)
            else:
                account.consumers.put_back(1)

    def get(self, wanted: c.Get, answer: GetCallback) -> None:
        """`answer` gets the member's messages, or Refused; it is not called once the connection is closed."""
        member = wanted.stream, wanted.name, wanted.member
        if len(self._gets) >= GETS_MAX:
            answer(Refused(Code.OVERLOADED, f"this connection has {GETS_MAX} gets without an answer, its limit"))
            return
        if member not in self._members and len(self._members) >= MEMBERS_MAX:
            answer(Refused(Code.OVERLOADED, f"this connection has {MEMBERS_MAX} members of consumers, its limit"))
            return
        if self.client.ending:  # commands that were sent behind a get that waited
            wanted = replace(wanted, wait_ms=0)
        now_s = self.client.services.now_s
        self._members[member] = LastRequest(now_s, wanted.session)
        getting = PendingGet(wanted, now_s + wanted.wait_ms / 1000, answer)
        self._gets[getting] = None
        self._call(wanted.stream, "get", [wanted.stream, wanted], lambda value: self._given(getting, value))
        self.client.note_awaited()

    def _given(self, getting: PendingGet, value: Any) -> None:
        """The owner's word on a get."""
        if getting not in self._gets:
            return  # the connection is closed
        wanted = getting.wanted
        if isinstance(value, Refused):
            if value.code in _NO_SUCH:
                self._members.pop((wanted.stream, wanted.name, wanted.member), None)
            self._settle(getting, value)
            return
        services = self.client.services
        getting.given = value
        getting.until_s = max(getting.until_s, services.now_s + COPY_WAIT_MIN_S)
        if not self._answer(getting):
            services.held_gets[self] = None

    # --- answers ----------------------------------------------------------------------------------------------------

    def retry(self) -> None:
        """Answer the held gets that can be answered now."""
        for getting in [each for each in self._gets if each.given is not None]:
            self._answer(getting)

    @property
    def holds(self) -> bool:
        """Whether anything is to be looked at again."""
        return any(each.given is not None for each in self._gets)

    @property
    def is_full(self) -> bool:
        """Whether the peer has more to read than is added to."""
        return len(self.client.out) > OUT_HIGH_BYTES

    def _answer(self, getting: PendingGet, *, at_once: bool = False) -> bool:
        """Answer a get with its messages, as soon as they can be read; `at_once`: with those that can be read now."""
        given, late = getting.given, at_once or self.client.services.now_s > getting.until_s
        assert given is not None
        if self.is_full and not at_once and given["runs"]:
            return False
        try:
            fetched = self._fetched(getting.wanted, given["runs"], late=late)
        except Refused as refused:
            self._settle(getting, refused)
            return True
        if fetched is None:
            return False
        stale = [(first, last) for first, last in given["stale"]]
        self._settle(getting, FetchedGet(fetched.runs, fetched.frames, stale, given["trimmed"] + fetched.trimmed))
        return True

    def _fetched(self, wanted: c.Get, runs: list[list[int]], *, late: bool) -> fetch.Fetched | None:
        """The messages; None if they are not here yet, and it is not too `late` to wait. Raises Refused."""
        nothing = fetch.Fetched([], [], 0)
        if not runs:
            return nothing
        readers, name = self.client.services.readers, wanted.stream
        with storage_refusals(name):
            try:
                reader = readers.get(name)
                next_seq = reader.next_seq()
                if next_seq >= fetch.end_of(runs) or late:
                    return fetch.fetch(reader, fetch.before(runs, next_seq), wanted.max_bytes)
            except StreamCut:
                readers.forget(name)
            except fetch.OtherMessages as error:  # until this copy learns of the promotion that lost them
                if late:
                    text = f"this node's copy has parted from its master's: {error}; ask again, or another node"
                    raise Refused(Code.UNAVAILABLE, text) from error
            except (StreamMissing, Trimmed, ValueError):  # not here yet, or gone since it was asked for
                pass
        return nothing if late else None

    def _settle(self, getting: PendingGet, outcome: FetchedGet | Refused) -> None:
        del self._gets[getting]
        getting.answer(outcome)

    # --- the end ----------------------------------------------------------------------------------------------------

    def end_waits(self) -> None:
        """Let every get be answered soon: the connection is to move or to end. Nothing that was given is lost by it."""
        for getting in list(self._gets):
            if getting.given is not None:
                self._answer(getting, at_once=True)
            elif not getting.woken:
                getting.woken = True
                wanted = getting.wanted
                self._notify(c.MemberNotice("wake", wanted.stream, wanted.name, wanted.member))

    def end_denied(self) -> None:
        """The rights have changed: no get goes on waiting if its user may not consume the stream any more."""
        if not all(self.client.may(Right.CONSUME, getting.wanted.stream) for getting in self._gets):
            self.end_waits()

    def close(self) -> None:
        """The connection has closed: its members are away, for all that is known here."""
        members, self._members = self._members, {}
        self._gets.clear()
        now_s = self.client.services.now_s
        for member, asked in members.items():
            idle_ms = max(round((now_s - asked.at_s) * 1000), 0)
            self._notify(c.MemberNotice("away", *member, idle_ms, asked.session))

    def _notify(self, notice: c.MemberNotice) -> None:
        """No answer is needed: an owner that does not get it finds out by time-outs."""
        self._call(notice.stream, "consume", [notice.stream, notice], lambda _value: None)

    def _call(self, stream: bytes, verb: str, args: list[Any], done: Callable[[Any], None]) -> None:
        self.client.services.router.call(stream, verb, args, done, self.client)

    # --- moving -----------------------------------------------------------------------------------------------------

    def export_state(self) -> list[list[Any]]:
        """The members, for how many seconds each has asked for nothing, and its session; for msgpack."""
        now_s = self.client.services.now_s
        return [[*member, now_s - asked.at_s, asked.session] for member, asked in self._members.items()]

    def restore_state(self, state: list[list[Any]]) -> None:
        """Go on where `export_state` was called."""
        now_s = self.client.services.now_s
        self._members = {tuple(member): LastRequest(now_s - idle_s, session) for *member, idle_s, session in state}


def _failed(value: Any) -> bool:
    """Whether a member's leave has failed; without such a consumer there cannot be such a member, so it has not."""
    return isinstance(value, Refused) and value.code not in _NO_SUCH
