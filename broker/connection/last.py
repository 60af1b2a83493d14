"""Last values for a connection: a page of those that a name stands for, from the owners of their streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.listing import LISTS_MAX, GatheredCalls, ListingClient
from tailrace.broker.connection.named import NamedReading, StreamSelection, reading_of
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.work import Asker, WorkQueue
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.services import Services
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.answers import ok_last
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import NAMES_MAX
from tailrace.protocol.messages import pack
from tailrace.protocol.opcodes import Op
from tailrace.protocol.recalling import VALUE_BYTES_MAX as VALUE_BYTES_MAX
from tailrace.protocol.recalling import VALUES_MAX as VALUES_MAX
from tailrace.protocol.recalling import Recall, Recalled
from tailrace.protocol.topics import ANY_LEVELS
from tailrace.shard.frame import unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.names import LAST_PREFIX

STREAMS_A_TURN: Final = 64
"""Whose owners one page asks, before others have their turn."""

_render = load("tailrace.protocol.text_cy").render


class Position(NamedTuple):
    """A topic of a stream, behind which a page begins; both empty at the beginning."""

    stream: bytes
    topic: bytes


START: Final = Position(b"", b"")


class GatheredPage(NamedTuple):
    """`values`: streams, each with its stamped frames in the order of their topics. `after`: where to go on, if there
    is more.
    """

    values: list[tuple[bytes, bytes]]
    messages: int
    after: Position | None


PageDone = Callable[[GatheredPage | Refused], None]


class LastFilter(NamedTuple):
    """The streams and topics that are wanted. `stream`: the only one, or b"": those that `selects` takes. `topics`: the
    filter for what the client may read of a stream, or None.
    """

    stream: bytes
    selects: Callable[[bytes], bool]
    topics: Callable[[bytes], bytes | None]


class StreamNames(Protocol):
    """The parts that find the streams of a pattern or filter: see `PatternSubscriptions`."""

    @property
    def work(self) -> WorkQueue: ...

    @property
    def board(self) -> Board: ...

    @property
    def calls(self) -> WorkerCalls: ...

    @property
    def selection(self) -> Callable[[bytes], StreamSelection]: ...


class LastReader:
    """One per worker."""

    def __init__(self, services: Services, patterns: StreamNames) -> None:
        self.services = services
        self.patterns = patterns

    def filter_of(self, client: ClientConnection, reading: NamedReading) -> LastFilter:
        """What a name stands for that the client may read."""
        stream, topics = reading
        if stream:
            return LastFilter(stream, lambda _stream: True, lambda _stream: topics or ANY_LEVELS)
        selection = self.patterns.selection(topics)

        def topics_in(stream: bytes) -> bytes | None:
            found = selection.topics(client, stream)
            return ANY_LEVELS if found == b"" else found

        return LastFilter(b"", selection.selects, topics_in)

    def read(
        self,
        client: Asker,
        wanted: LastFilter,
        after: Position,
        most: int,
        bytes_max: int,
        done: PageDone,
        *,
        retained: bool = False,
    ) -> None:
        """Calls `done` once, with the last values that the client may read, or a Refused. The streams and, in each of
        them, the topics are in the order of their bytes. `retained`: of messages that were to be retained.
        """
        _Gathering(self, client, wanted, after, most, bytes_max, done, retained=retained).go_on()


class _Gathering:
    """One page that is being read."""

    def __init__(
        self,
        reader: LastReader,
        client: Asker,
        wanted: LastFilter,
        after: Position,
        most: int,
        bytes_max: int,
        done: PageDone,
        *,
        retained: bool,
    ) -> None:
        self._reader = reader
        self._client = client
        self._wanted = wanted
        self._after = after
        self._most, self._bytes_max = most, bytes_max
        self._done = done
        self._retained = retained
        self._values: list[tuple[bytes, bytes]] = []
        self._messages = self._asked = 0
        self._streams: deque[bytes] = deque()
        self._listed = after.stream  # names up to this one are listed
        self._lists_more = not wanted.stream
        self._waiting = self._looping = self._ended = False
        if wanted.stream:
            self._streams.append(wanted.stream)
        elif after.stream:
            self._streams.append(after.stream)

    def go_on(self) -> None:
        """A loop, since most calls are answered before they return."""
        if self._looping:
            return
        self._looping = True
        while not (self._waiting or self._ended):
            if self._streams:
                self._ask(self._streams.popleft())
            elif self._lists_more:
                self._list()
            else:
                self._end(None)
        self._looping = False

    def _end(self, after: Position | None) -> None:
        self._ended = True
        self._done(GatheredPage(self._values, self._messages, after))

    def _fail(self, refused: Refused) -> None:
        self._ended = True
        self._done(refused)

    # --- the streams that have some -----------------------------------------------------------------------------------

    def _list(self) -> None:
        patterns = self._reader.patterns
        slots = patterns.board.slots
        gathered = GatheredCalls(slots, self._listed_names)
        self._waiting = True
        for slot in range(slots):
            args = [LAST_PREFIX, LAST_PREFIX + self._listed, NAMES_MAX]
            patterns.calls.call_slot(slot, "list_names", args, gathered.take, self._client)

    def _listed_names(self, parts: Any) -> None:
        self._waiting = False
        if isinstance(parts, Refused):
            self._fail(parts)
            return
        names = sorted(name for part in parts for name in part)[:NAMES_MAX]
        streams = [name.removeprefix(LAST_PREFIX) for name in names]
        self._lists_more = len(names) == NAMES_MAX
        self._listed = streams[-1] if streams else b""
        self._streams.extend(filter(self._wanted.selects, streams))
        self.go_on()

    # --- their values -------------------------------------------------------------------------------------------------

    def _ask(self, stream: bytes) -> None:
        topics = self._wanted.topics(stream)
        if topics is None:
            return
        self._asked += 1
        if self._asked % STREAMS_A_TURN == 0:
            self._waiting = True
            self._streams.appendleft(stream)
            self._reader.patterns.work.later(stream, (self._client,), self._resume)
            return
        after = self._after.topic if stream == self._after.stream else b""
        room = self._bytes_max - sum(len(frames) for _stream, frames in self._values)
        args = [stream, topics, after, self._retained, self._most - self._messages, room]
        self._waiting = True
        self._reader.services.router.call(stream, "last", args, lambda value: self._take(stream, value), self._client)

    def _resume(self) -> None:
        self._waiting = False
        self.go_on()

    def _take(self, stream: bytes, value: Any) -> None:
        self._waiting = False
        if isinstance(value, Refused):
            self._fail(value)
            return
        frames, messages, after, more = value
        if messages:
            self._values.append((stream, frames))
            self._messages += messages
        full = self._messages >= self._most or sum(len(each) for _name, each in self._values) >= self._bytes_max
        if more or (full and messages and (self._streams or self._lists_more)):
            self._end(Position(stream, after))
        self.go_on()


def each_value(frames: bytes) -> list[bytes]:
    """The stamped frames of a page one by one."""
    found, at = [], 0
    while at < len(frames):
        end = at + unpack_header(frames, at).length
        found.append(frames[at:end])
        at = end
    return found


def page_text(name: bytes, page: GatheredPage) -> bytes:
    """The answer to `last`: the messages, as a subscription has them, and a line with their number."""
    parts = []
    for stream, frames in page.values:
        for frame in each_value(frames):
            seq = unpack_header(frame).seq
            prefix = b"msg " + stream + b" "
            parts.append(_render(frame, 0, len(frame), seq, seq + 1, prefix, True, len(frame))[0])
    after = page.after or START
    return b"".join(parts) + ok_last(name, page.messages, *after)


class RecallingClient(ListingClient, Protocol):
    """A connection that may send RECALL. `listing` counts those too that are not answered yet."""


def recall(reader: LastReader, client: ClientConnection, asker: RecallingClient, message: Recall) -> None:
    """Answers a RECALL. `asker`: the client as it is answered."""
    found = reading_of(client, message.name, b"")
    if isinstance(found, Refused):
        asker.refuse_request(Op.RECALL, message.id, found.code, f"{message.name.decode()}: {found.text}")
        return
    if asker.listing >= LISTS_MAX:
        text = f"this connection waits for {LISTS_MAX} lists, which is its limit"
        asker.refuse_request(Op.RECALL, message.id, Code.OVERLOADED, text)
        return

    def done(page: GatheredPage | Refused) -> None:
        asker.listing -= 1
        if isinstance(page, Refused):
            asker.refuse_request(Op.RECALL, message.id, page.code, page.text)
            return
        stream, after = page.after or START
        values = tuple([(name.decode(), frames) for name, frames in page.values])
        asker.send_envelope(pack(Recalled(message.id, values, stream.decode(), after.decode())))

    asker.listing += 1
    place = Position(message.stream, message.after)
    reader.read(asker, reader.filter_of(client, found), place, VALUES_MAX, VALUE_BYTES_MAX, done)
    asker.note_awaited()
