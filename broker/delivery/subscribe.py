"""Making a subscription, in either protocol: see that the stream is there, find its place, put a cursor there.

Reading makes no stream. A subscription that waits is placed at the beginning of a stream that does not exist yet. The
owner of the stream is asked if need be: whether it exists, to open it first after a crash of the machine, and for its
end, if the subscription begins with new messages, behind all that this connection published before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.delivery.cursor import Cursor, Feed
from tailrace.broker.process.timers import now_us
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.services import Services
from tailrace.broker.streams.owner import Refused
from tailrace.broker.topics.trie import TooManyFilters
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import WirePlace
from tailrace.protocol.places import From
from tailrace.protocol.topics import has_wildcards
from tailrace.shard.errors import StorageError, StreamDamaged, StreamMissing, peer_text
from tailrace.shard.reader import StreamReader

ABSENT = -1  # as the end of a stream: it does not exist yet, and the subscription waits for it


class SubscribeRequest(Protocol):
    """The parameters of a subscription in both protocols."""

    @property
    def stream(self) -> bytes: ...

    @property
    def start(self) -> From: ...

    @property
    def skip(self) -> int: ...

    @property
    def wait(self) -> bool: ...

    @property
    def topics(self) -> bytes: ...


class Subscriptions:
    """One per worker. `on_started` is called with each client and its new subscription's feed."""

    def __init__(
        self, services: Services, work: WorkQueue, on_started: Callable[[ClientConnection, Feed], None]
    ) -> None:
        self._services = services
        self._work = work
        self._on_started = on_started

    def find(
        self,
        client: ClientConnection,
        wanted: SubscribeRequest,
        done: Callable[[int | Refused], None],
        *,
        ask_end: bool,
    ) -> None:
        """`done` gets the error, or an int for `place`: the stream's end if `ask_end`, or ABSENT.

        The owner is asked for the end at once: what the client publishes after this must not reach it before.
        """
        name = wanted.stream

        def begin() -> None:
            if self._readable(name):
                done(0)
            else:
                ask()

        def ask() -> None:
            self._services.router.call(name, "end", [name], answered, client)

        def answered(value: Any) -> None:
            # No publish makes a stream of a topic's name, or of one with wildcards: to wait for it would be in vain.
            is_stream = self._services.topic_rules.place(name).stream == name and not has_wildcards(name)
            may_come = wanted.wait and is_stream
            if isinstance(value, Refused) and value.code is Code.UNKNOWN and may_come:
                value = ABSENT
            self.after_opening(client, name, lambda: done(value))

        if ask_end or self._services.router.owner.roles.rules.has_on_demand:
            ask()
        else:
            self.after_opening(client, name, begin)

    def after_opening(self, client: ClientConnection, name: bytes, step: Callable[[], None]) -> None:
        """Do what may have to open the stream's files to read them, now or when this worker has time for that."""
        if name in self._services.readers and name not in self._work.waiting:
            step()
        else:
            self._work.do(name, (client,), step)

    def place(self, client: ClientConnection, wanted: SubscribeRequest, key: Any, end_seq: int) -> Cursor:
        """A cursor where the subscription begins, parked until `start`. `end_seq` is `find`'s. Raises Refused."""
        services, name = self._services, wanted.stream
        with storage_refusals(name):
            seq = 0 if end_seq == ABSENT else first_seq_of(services.readers.get(name), wanted, end_seq)
            remote, may_wait = services.is_remote(name), end_seq == ABSENT
            return services.fanout.subscribe(
                client, name, seq, remote=remote, key=key, may_wait=may_wait, topics=wanted.topics
            )

    def start(self, client: ClientConnection, cursor: Cursor) -> None:
        """The client has its answer: let the cursor move."""
        self._services.fanout.start(cursor)
        if not cursor.done:
            self._on_started(client, cursor.feed)

    def bounds(self, stream: bytes, end: WirePlace | None, end_seq: int) -> tuple[int, int | None]:
        """The oldest seq that is kept, and the one at which a subscription with this end is to end. `end_seq` is
        `find`'s. Raises Refused.
        """
        if end is not None and end[0] == "time" and end[1] > now_us():
            raise Refused(Code.FROM, "the time at which this subscription is to end has not come yet")
        if end_seq == ABSENT:
            return 0, None if end is None else end[1] if end[0] == "seq" else 0
        with storage_refusals(stream):
            reader = self._services.readers.get(stream)
            first_seq = reader.first_seq()
            if end is None:
                return first_seq, None
            kind, value = end
            if kind == "seq":
                return first_seq, value
            if kind == "now":
                return first_seq, max(end_seq, first_seq)
            return first_seq, reader.seq_at(value)

    def _readable(self, name: bytes) -> bool:
        """Whether all of a stream can be read without its owner, who opens it first after a crash of the machine. If
        the files that are open here were cut or deleted, the owner's answer comes behind its word about that.
        """
        try:
            reader = self._services.readers.get(name)
            return reader.is_current and reader.recovered and reader.has_place
        except (StreamMissing, StreamDamaged):
            return False  # its owner knows whether it exists, and takes up what a loss of power has left of it
        except (StorageError, OSError):
            return True  # the subscription meets the fault, and reports it


@contextmanager
def storage_refusals(name: bytes) -> Iterator[None]:
    """An error of storage in this block of reading a stream becomes the Refused for its subscriber."""
    try:
        yield
    except TooManyFilters as full:
        raise Refused(Code.OVERLOADED, str(full)) from full
    except StreamDamaged as damage:
        raise Refused(Code.DAMAGED, peer_text(damage)) from damage
    except (StorageError, OSError) as error:
        raise Refused(Code.UNAVAILABLE, f"cannot read {name.decode()}: {peer_text(error)}") from error


def first_seq_of(reader: StreamReader, wanted: SubscribeRequest, end_seq: int) -> int:
    """The seq of the first message a subscription gets: never before the first kept one, nor after the end.

    `end_seq` is the end by the owner's answer, after it had done all earlier publishes of this connection.
    """
    start = wanted.start
    if start.kind == "new":
        return max(end_seq, reader.first_seq())
    if start.kind == "last":
        return max(end_seq - start.value, reader.first_seq())
    if start.kind == "seq":
        return min(max(start.value, reader.first_seq()), reader.next_seq())
    return reader.seq_at(start.value, wanted.skip)
