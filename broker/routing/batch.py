"""From the edge to the log: the publishes of one turn to one stream, and the receivers of their outcome.

A `StreamBatch` gathers, for one stream and one turn of the loop, the staged frames of every connection (and of every
sibling) that published to it, in the order they came. It is appended, or forwarded, as one. The parts of a batch that
nobody waits for (a client without `ack on` whose stream lives here) cost one tuple; the others have an
`OutcomeSink`, which gets the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tailrace.broker.process.work import NOBODY, Asker
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol import answers
from tailrace.protocol.errors import Code

if TYPE_CHECKING:
    from tailrace.broker.routing.route import Route

StampableFrames: TypeAlias = bytearray | memoryview


class StreamMaker(Protocol):
    """Somebody whose publish may make its stream."""

    def may_create(self, name: bytes) -> bool: ...

    def creation_refusal(self, name: bytes) -> Refused: ...

    def count_created(self) -> None: ...


class Creator(StreamMaker, Asker, Protocol):
    """A connection that publishes."""


class OutcomeSink(StreamMaker, Protocol):
    """Somebody who waits for the outcome of a part of a batch; `key` is what the sink gave with the part."""

    @property
    def asker(self) -> Asker:
        """Who is held up while the batch waits for its stream to be opened."""

    def published(self, key: int, first_seq: int, subscribers: int) -> None: ...

    def refused(self, key: int, code: Code, text: str) -> None: ...

    def unreplicated(self, key: int, first_seq: int, text: str) -> None: ...


class LoneSink(OutcomeSink, Protocol):
    """Somebody who waits for the outcome of all that is published to a stream in a turn."""

    @property
    def wants_subscribers(self) -> bool:
        """Whether the number of subscribers is of use to it."""


LonePart: TypeAlias = tuple[LoneSink, int, int, StampableFrames]
"""All that is published to a stream in a turn: who waits for the outcome, its key, messages, frames."""


class UnsyncedSink(Protocol):
    """The part of a `LoneSink` that is needed once the messages are logged."""

    @property
    def wants_subscribers(self) -> bool: ...

    def published(self, key: int, first_seq: int, subscribers: int) -> None: ...

    def refused(self, key: int, code: Code, text: str) -> None: ...


UnsyncedPart: TypeAlias = tuple[UnsyncedSink, int, int, int]
"""What is logged and waits for the disk: who waits for the outcome, its key, messages, the first one's seq."""


class QuietPublisher(Creator, Protocol):
    """A publisher that gets no answer unless its publish fails."""

    def publish_refused(self, name: bytes, count: int, code: Code, text: str) -> None: ...


class StreamBatch:
    """The publishes of one turn to one stream. `frames` are whole unstamped frames, of buffers that are the batch's.

    route: the way to who appends it, a sibling or the stream's master; None when it is appended here.
    sync: somebody waits until it is on the disk, so all are answered then.
    numbered: each part is a publish of a producer that numbers its messages, with one of `frames`, in the same order.
    replicas: all of its publishers wait until this many nodes below hold it; waiting: that is all they wait for.
    """

    __slots__ = (
        "count",
        "frames",
        "name",
        "nbytes",
        "numbered",
        "parts",
        "quiet",
        "replicas",
        "route",
        "slot",
        "sync",
        "waiting",
    )

    def __init__(self, name: bytes, slot: int, route: Route | None = None, replicas: int = 0) -> None:
        self.name = name
        self.slot = slot
        self.route = route
        self.count = 0
        self.nbytes = 0
        self.sync = False
        self.numbered = False
        self.replicas = replicas
        self.waiting = False
        self.frames: list[StampableFrames] = []
        self.quiet: list[tuple[QuietPublisher, int]] = []
        self.parts: list[tuple[OutcomeSink, int, int]] = []  # sink, key, messages of the batch before this part

    def add_quiet(self, publisher: QuietPublisher, count: int, frames: StampableFrames) -> None:
        self.quiet.append((publisher, count))
        self.frames.append(frames)
        self.count += count
        self.nbytes += len(frames)

    def add(self, sink: OutcomeSink, key: int, count: int, frames: StampableFrames) -> None:
        self.parts.append((sink, key, self.count))
        self.frames.append(frames)
        self.count += count
        self.nbytes += len(frames)

    def take_frames(self) -> StampableFrames:
        """All frames as one run that may be stamped in place. The batch keeps no hold on them."""
        frames, self.frames = self.frames, []
        return frames[0] if len(frames) == 1 else bytearray(b"").join(frames)

    def take_pieces(self) -> list[StampableFrames]:
        """The same as they came."""
        frames, self.frames = self.frames, []
        return frames

    def apart(self) -> list[StreamBatch]:
        """Each publish of a numbered batch as a batch of its own."""
        if len(self.parts) == 1:
            return [self]
        batches = []
        ends = [base for _sink, _key, base in self.parts[1:]] + [self.count]
        for (sink, key, base), end, frames in zip(self.parts, ends, self.frames, strict=True):
            batch = StreamBatch(self.name, self.slot, self.route, self.replicas)
            batch.numbered, batch.sync = True, self.sync
            batch.add(sink, key, end - base, frames)
            batches.append(batch)
        return batches

    def creator(self) -> OutcomeSink | QuietPublisher | None:
        """Who of the publishers may still create a stream; None when each has reached its limit."""
        for publisher, _count in self.quiet:
            if publisher.may_create(self.name):
                return publisher
        for sink, _key, _base in self.parts:
            if sink.may_create(self.name):
                return sink
        return None

    def creation_refusal(self) -> Refused:
        """Why none of the publishers may; the first one's reason."""
        first = self.quiet[0][0] if self.quiet else self.parts[0][0] if self.parts else None
        return Refused(Code.UNKNOWN, "no such stream here") if first is None else first.creation_refusal(self.name)

    def askers(self) -> tuple[Asker, ...]:
        """Each of its publishers once."""
        found: dict[Asker, None] = {publisher: None for publisher, _count in self.quiet}
        for sink, _key, _base in self.parts:
            found[sink.asker] = None
        return tuple(found)

    def give_back(self, resubmit: Callable[[StreamBatch], None]) -> None:
        """The worker gives up its shards and has not appended this: it goes to the successor."""
        resubmit(self)

    def published(self, first_seq: int, subscribers: int) -> None:
        for sink, key, base in self.parts:
            sink.published(key, first_seq + base, subscribers)

    def refused(self, code: Code, text: str) -> None:
        for publisher, count in self.quiet:
            publisher.publish_refused(self.name, count, code, text)
        for sink, key, _base in self.parts:
            sink.refused(key, code, text)

    def unreplicated(self, first_seq: int, text: str) -> None:
        """It is logged from `first_seq` on, and not held by as many nodes as its publishers asked for."""
        for sink, key, base in self.parts:
            sink.unreplicated(key, first_seq + base, text)


class UnsyncedBatch:
    """A batch that waits for the disk, as a sink. `logged` is called with it and its first seq then."""

    __slots__ = ("_batch", "_logged")

    wants_subscribers = False

    def __init__(self, batch: StreamBatch, logged: Callable[[StreamBatch, int], None]) -> None:
        self._batch = batch
        self._logged = logged

    def published(self, _key: int, first_seq: int, _subscribers: int) -> None:
        self._logged(self._batch, first_seq)

    def refused(self, _key: int, code: Code, text: str) -> None:
        self._batch.refused(code, text)


class OfOneClient:
    """The part of an `OutcomeSink` that its client answers."""

    __slots__ = ()

    _client: Creator

    @property
    def asker(self) -> Asker:
        return self._client

    def may_create(self, name: bytes) -> bool:
        return self._client.may_create(name)

    def creation_refusal(self, name: bytes) -> Refused:
        return self._client.creation_refusal(name)

    def count_created(self) -> None:
        self._client.count_created()


class QuietRead(OfOneClient):
    """What one read of one connection published, of which only failures are answered; keys are places among it."""

    __slots__ = ("_client", "_counts", "_names")

    _client: QuietPublisher

    wants_subscribers = False

    def __init__(self, client: QuietPublisher, groups: list[tuple[bytes, int, bytearray]]) -> None:
        self._client = client
        self._names = [name for name, _count, _frames in groups]
        self._counts = [count for _name, count, _frames in groups]

    def published(self, key: int, first_seq: int, subscribers: int) -> None: ...

    def refused(self, key: int, code: Code, text: str) -> None:
        self._client.publish_refused(self._names[key], self._counts[key], code, text)

    def unreplicated(self, key: int, _first_seq: int, text: str) -> None:
        self.refused(key, Code.UNREPLICATED, text)


class Pending:
    """A place in a connection's row of answers that is filled later; the answers after it wait."""

    __slots__ = ("_ready", "after", "text")

    def __init__(self, ready: Callable[[], None], after: Callable[[], None] | None = None) -> None:
        self._ready = ready
        self.after = after  # called when the answer has taken its place in the output
        self.text: bytes | None = None

    def settle(self, text: bytes) -> None:
        """Fill the place; only the first filling counts (a time-out and a late answer may both come)."""
        if self.text is None:
            self.text = text
            self._ready()


class FramePublisher(Creator, Protocol):
    """A publisher that is notified of the outcome of each of its requests."""

    def publish_done(self, publication: FramePublication) -> None: ...


class FramePublication(OfOneClient):
    """One PUBLISH of the binary protocol: `count` messages to each of the streams `names`.

    When all of them have an outcome its client is notified: `results` (first seq, messages, subscribers of the stream)
    in the order of the names, and `refusals` by place among them. A publish refused as unreplicated has a result too.
    """

    __slots__ = ("_client", "_waiting", "count", "names", "refusals", "request", "results", "wants_answer")

    _client: FramePublisher

    def __init__(
        self, client: FramePublisher, request: int, wants_answer: bool, names: list[bytes], count: int
    ) -> None:
        self._client = client
        self._waiting = len(names)
        self.request = request
        self.wants_answer = wants_answer
        self.names = names
        self.count = count
        self.results: list[tuple[int, int, int]] = [(0, 0, 0)] * len(names)
        self.refusals: dict[int, tuple[Code, str]] = {}

    def published(self, key: int, first_seq: int, subscribers: int) -> None:
        self.results[key] = first_seq, self.count, subscribers
        self._count_down()

    def refused(self, key: int, code: Code, text: str) -> None:
        self.refusals[key] = code, text
        self._count_down()

    def unreplicated(self, key: int, first_seq: int, text: str) -> None:
        self.results[key] = first_seq, self.count, 0
        self.refused(key, Code.UNREPLICATED, text)

    def _count_down(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._client.publish_done(self)


class RunPublisher(Creator, Protocol):
    """A publisher that is notified of each group of a run."""

    def group_done(self, run: RunPublication, key: int, first_seq: int, subscribers: int) -> None: ...

    def group_refused(self, run: RunPublication, key: int, code: Code, text: str, first_seq: int | None) -> None: ...


class RunPublication(OfOneClient):
    """A run of PUBLISH requests, staged (`protocol.publish_cy`): the requests of a stream are answered together.

    names, counts, requests: of each group its stream, its messages, and what `pack_answers` takes.
    """

    __slots__ = ("_client", "counts", "names", "requests", "wants_answers", "wants_subscribers")

    _client: RunPublisher

    def __init__(self, client: RunPublisher, wants_answers: bool) -> None:
        self._client = client
        self.wants_answers = self.wants_subscribers = wants_answers  # the answers have them
        self.names: list[bytes] = []
        self.counts: list[int] = []
        self.requests: list[bytes] = []

    def add(self, name: bytes, count: int, requests: bytes) -> int:
        """Adds a group; returns its key."""
        self.names.append(name)
        self.counts.append(count)
        self.requests.append(requests)
        return len(self.names) - 1

    def published(self, key: int, first_seq: int, subscribers: int) -> None:
        self._client.group_done(self, key, first_seq, subscribers)

    def refused(self, key: int, code: Code, text: str) -> None:
        self._client.group_refused(self, key, code, text, None)

    def unreplicated(self, key: int, first_seq: int, text: str) -> None:
        self._client.group_refused(self, key, Code.UNREPLICATED, text, first_seq)


class PublicationClient(QuietPublisher, Protocol):
    """The side of a connection that publishes by lines."""

    def note_refused(self, code: Code, text: str, count: int) -> None: ...


class LoggedAnswer:
    """Answers with a value once that which it stands for is logged, here and on as many nodes as are asked."""

    __slots__ = ("_done", "_value")

    asker: Asker = NOBODY

    def __init__(self, done: OnResult, value: Any) -> None:
        self._done = done
        self._value = value

    def published(self, _key: int, _first_seq: int, _subscribers: int) -> None:
        self._done(self._value)

    def refused(self, _key: int, code: Code, text: str) -> None:
        self._done(Refused(code, text))

    def unreplicated(self, _key: int, _first_seq: int, text: str) -> None:
        self._done(Refused(Code.UNREPLICATED, text))

    def may_create(self, _name: bytes) -> bool:
        return False

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def count_created(self) -> None: ...


class LinePublication(OfOneClient, Pending):
    """What one read of one connection published: settled when every stream of it has an outcome.

    With `order` (the stream's index of each message, `ack on`) it becomes one answer a message, in the order they were
    sent; without, only failures are answered.
    """

    __slots__ = ("_client", "_counts", "_first_seqs", "_names", "_order", "_refusals", "_waiting")

    _client: PublicationClient

    wants_subscribers = False

    def __init__(
        self,
        ready: Callable[[], None],
        client: PublicationClient,
        groups: list[tuple[bytes, int, bytearray]],
        order: list[int],
    ) -> None:
        super().__init__(ready)
        self._client = client
        self._names = [name for name, _count, _frames in groups]
        self._counts = [count for _name, count, _frames in groups]
        self._order = order
        self._first_seqs = [0] * len(groups)
        self._refusals: dict[int, tuple[Code, str]] = {}
        self._waiting = len(groups)

    def published(self, key: int, first_seq: int, _subscribers: int) -> None:
        self._first_seqs[key] = first_seq
        self._count_down()

    def refused(self, key: int, code: Code, text: str) -> None:
        self._refusals[key] = (code, text)
        self._client.note_refused(code, f"{self._names[key].decode()}: {text}", self._counts[key])
        self._count_down()

    def unreplicated(self, key: int, _first_seq: int, text: str) -> None:
        self.refused(key, Code.UNREPLICATED, text)

    def _count_down(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.settle(self._render())

    def _render(self) -> bytes:
        if not self._order:
            return b"".join(
                answers.publish_refused(self._names[key], self._counts[key], code, text)
                for key, (code, text) in self._refusals.items()
            )
        if not self._refusals:
            return answers.ok_pub(self._names, self._order, self._first_seqs)
        return b"".join(self._one_by_one())

    def _one_by_one(self) -> list[bytes]:
        """One answer per message, if some were refused, so that a client can pair answers with its messages."""
        lines = []
        next_seqs = list(self._first_seqs)
        for key in self._order:
            if key in self._refusals:
                lines.append(answers.publish_refused(self._names[key], 1, *self._refusals[key]))
            else:
                lines.append(answers.ok_pub([self._names[key]], [0], [next_seqs[key]]))
                next_seqs[key] += 1
        return lines
