"""The messages of streams in memory that another node gets over its connection: a cursor for each stream it wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from tailrace.broker.delivery.cursor import Cursor, Delivery
from tailrace.broker.delivery.frame_runs import FrameRuns, RawFrames
from tailrace.broker.delivery.watches import Watches
from tailrace.broker.process.metrics import Traffic
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.services import Services
from tailrace.broker.sharing.peer_wants import PeerFilters, PeerStream, PeerWants
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import CHUNK_HEAD, HANDLE_BYTES, Op
from tailrace.protocol.sharing import Interest

UNSENT_MAX_BYTES: Final = 1 << 20
"""Of a connection: with more than that the cursors wait, and messages that are trimmed meanwhile are lost to it."""
CHUNK_BYTES: Final = 32 << 10
"""Of frames in one CHUNK, or one frame that is longer."""

NOT_IN_MEMORY_TEXT: Final = "this stream is not in memory here; nodes follow it instead"
ENDED_TEXT: Final = "there is no such stream of this connection, or it has another id, or there are too many"


class PeerConnection(Protocol):
    """The part used of the connection of another node."""

    closed: bool

    @property
    def unsent_bytes(self) -> int: ...

    def send_envelope(self, envelope: bytes) -> None: ...

    def refuse_request(self, op: int, number: int, code: Code, text: str) -> None: ...


class SharingServices:
    """What the senders of a worker have in common. `in_memory`: whether streams of a name are."""

    def __init__(self, services: Services, work: WorkQueue, in_memory: Callable[[bytes], bool]) -> None:
        settings = services.settings
        self.services = services
        self.work = work
        self.in_memory = in_memory
        self.filters = PeerFilters(settings.max_filter_bytes, settings.topic_cache_bytes)
        self.senders: dict[PeerSender, None] = {}
        self.blocked: dict[PeerSender, None] = {}

    def shown(self, start: int, count: int) -> tuple[bool, list[tuple[bytes, str]]]:
        """For a dump: what nodes want by filters numbered from `start` on, with the nodes and the streams; the wants of
        whole streams are on the first page. Also whether there are more filters behind these.
        """
        trie = self.filters.trie
        numbers = set(range(start, start + count))
        rows = []
        for sender in self.senders:
            for stream in sender.wants.by_name.values():
                node = f"{sender.address} {stream.name.decode()}"
                if not start and (stream.everything or stream.overflowed):
                    rows.append((b"#", node))
                rows += [(trie[number], node) for number in numbers & stream.numbers]
        return start + count < trie.numbers_end, sorted(rows)

    def flush(self) -> None:
        """Once a turn: those whose connection has room again go on."""
        for sender in [each for each in self.blocked if each.has_room]:
            del self.blocked[sender]
            sender.go_on()


class PeerSender:
    """One per connection of a node that wants something. `address`: the node's. To fan-out it is a subscriber."""

    out = b""  # there are none

    def __init__(self, client: PeerConnection, address: str, shared: SharingServices) -> None:
        services = shared.services
        shared.senders[self] = None
        self.address = "".join(address.split())
        self._client = client
        self._shared = shared
        self._metrics = services.metrics
        self.wants = PeerWants(shared.filters)
        self._watches = Watches(services, shared.work, self)
        # For fan-out:
        self.traffic = Traffic()
        self.delivery: Delivery = FrameRuns(services.readers, services.fanout.fresh)
        self.ready: list[Cursor] = []
        self.current: Cursor | None = None
        self.queued = self.blocked = self.closed = False

    def take(self, message: Interest) -> None:
        """The node wants something else now."""
        stream = self.wants.find(message.id)
        if stream is not None and stream.name != message.stream:
            self._client.refuse_request(Op.INTEREST, message.id, Code.USAGE, ENDED_TEXT)
        elif message.ends:
            if stream is not None:
                self._end(stream)
        elif not self._shared.in_memory(message.stream):
            self._client.refuse_request(Op.INTEREST, message.id, Code.UNSUPPORTED, NOT_IN_MEMORY_TEXT)
        elif stream is not None:
            stream.change(message)
        elif (begun := self.wants.begin(message)) is not None:
            begun.change(message)
            self._watches.want((begun.name,))
        else:
            self._client.refuse_request(Op.INTEREST, message.id, Code.SUBSCRIPTIONS, ENDED_TEXT)

    def _end(self, stream: PeerStream) -> None:
        self.wants.end(stream)
        self._watches.unwant((stream.name,))

    def close(self) -> None:
        """The connection has ended."""
        self.closed = True
        self._shared.blocked.pop(self, None)
        self._shared.senders.pop(self, None)
        self._watches.close()
        for stream in list(self.wants.by_name.values()):
            self.wants.end(stream)

    def retry(self) -> None:
        """From the timer: streams that could not be read."""
        if not self.closed:
            self._watches.retry()

    @property
    def has_room(self) -> bool:
        return self.closed or self._client.unsent_bytes <= UNSENT_MAX_BYTES

    def go_on(self) -> None:
        self.blocked = False
        if self.ready:
            self._shared.services.fanout.make_runnable(self)

    # --- for fan-out ------------------------------------------------------------------------------------------------

    def send_chunk(self, cursor: Cursor, chunk: RawFrames) -> int:
        stream = self.wants.by_name.get(cursor.feed.name)
        if self._client.closed or stream is None:
            return chunk.nbytes
        if self._client.unsent_bytes > UNSENT_MAX_BYTES:
            self.blocked = True
            self._shared.blocked[self] = None
            return 0
        picked = stream.pick(chunk.frames, cursor.seq, chunk.next_seq)
        self._metrics.shared_sent += len(picked)
        for frames in _chunks(picked):
            head = CHUNK_HEAD.pack(Op.CHUNK, HANDLE_BYTES + len(frames), stream.number)
            self._client.send_envelope(head + frames)
        return chunk.nbytes

    def flush_answers(self) -> bool:
        return True

    def keep(self, text: bytes) -> None:
        raise AssertionError("no chunk is ever half out")

    def chunk_ended(self) -> None:
        """Nothing waits for that."""

    def answer(self, name: bytes, text: bytes) -> None:
        raise AssertionError("no answer waits for a stream")

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        self._metrics.shared_dropped += first_seq - cursor.seq

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        self._watches.ended(cursor, code)


def _chunks(frames: list[bytearray]) -> Iterator[bytes]:
    """The frames joined to pieces of bounded size."""
    piece: list[bytearray] = []
    nbytes = 0
    for each in frames:
        if piece and nbytes + len(each) > CHUNK_BYTES:
            yield b"".join(piece)
            piece, nbytes = [], 0
        piece.append(each)
        nbytes += len(each)
    if piece:
        yield b"".join(piece)
