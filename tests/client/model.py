"""A broker in memory, made of the broker's codec and nothing else: what the client is tested against.

`Model` holds the streams, `ModelConnection` is one peer: bytes in, bytes out. Faults come on demand: a test may answer
a request itself (`on_message`), trim, or end a connection with an error. It keeps the broker's promises otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tailrace.protocol import listing
from tailrace.protocol import messages as m
from tailrace.protocol.messages import AnyMessage
from tailrace.shard.frame import unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.numbering import read_numbering
from tailrace.shard.producers import Judgement, NumberVerdict, ProducerRun, Producers
from tests.protocol.plain_codec import PlainCodec

MAX_MESSAGE_BYTES = 1 << 20
FIRST_TIME_US = 1_000_000

_leaf = load("tailrace.shard.frame_cy")


class Stream:
    """Stamped frames from `first_seq` on; message n has the timestamp FIRST_TIME_US + n."""

    def __init__(self, epoch: int = 1) -> None:
        self.first_seq = 0
        self.epoch = epoch
        self.frames: list[bytes] = []
        self.producers = Producers(1 << 60)

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.frames)

    def take(self, frames: bytes, count: int) -> int | Judgement:
        """Append frames unless they are numbered and logged before; the first seq, or why not."""
        header = unpack_header(frames)
        if not header.flags:
            return self.append(frames)
        producer_id, number = read_numbering(frames[32 : 32 + header.metadata_bytes])
        judged = self.producers.judge(producer_id, number, count, 0)
        if judged.kind is NumberVerdict.NEW:
            self.producers.note(producer_id, ProducerRun(number, count, self.next_seq), 0)
            return self.append(frames)
        return judged.seq if judged.kind is NumberVerdict.REPEAT else judged

    def append(self, frames: bytes) -> int:
        """Append whole unstamped frames; the first seq."""
        first_seq, position = self.next_seq, 0
        while position < len(frames):
            length = unpack_header(frames, position).length
            frame = bytearray(frames[position : position + length])
            _leaf.stamp(frame, self.next_seq, FIRST_TIME_US + self.next_seq, self.epoch, 0)
            self.frames.append(bytes(frame))
            position += length
        return first_seq

    def epoch_of(self, seq: int) -> int:
        return unpack_header(self.frames[seq - self.first_seq]).epoch

    def lose(self, seq: int) -> None:
        """Messages from this one on are lost in a promotion."""
        del self.frames[seq - self.first_seq :]
        self.epoch += 1

    def trim(self, seq: int) -> None:
        del self.frames[: seq - self.first_seq]
        self.first_seq = seq

    def row(self, name: bytes) -> listing.StreamRow:
        sizes, last_us = sum(map(len, self.frames)), FIRST_TIME_US + self.next_seq - 1
        numbers = (self.first_seq, self.next_seq, sizes, 2 * sizes, FIRST_TIME_US + self.first_seq, last_us, 30, 600)
        return listing.StreamRow(name.decode(), "master", self.epoch, *numbers, 0, 0, 0)

    def end(self) -> listing.EndRow:
        epoch = unpack_header(self.frames[-1]).epoch if self.frames else 0
        return listing.EndRow(self.first_seq, self.next_seq, FIRST_TIME_US + self.next_seq - 1, epoch)

    def payloads(self) -> list[bytes]:
        return [frame[32 + unpack_header(frame).metadata_bytes :] for frame in self.frames]

    def seq_at(self, timestamp_us: int) -> int:
        times = range(FIRST_TIME_US + self.first_seq, FIRST_TIME_US + self.next_seq)
        return self.first_seq + bisect_left(times, timestamp_us)


class Cursor:
    def __init__(self, stream: Stream, seq: int, end_seq: int | None, credit: int | None) -> None:
        self.stream = stream
        self.seq = seq
        self.end_seq = end_seq
        self.credit = credit


class Model:
    """The node. `chunk_messages`: the most messages of a chunk."""

    def __init__(self) -> None:
        self.streams: dict[bytes, Stream] = {}
        self.names_version = 1
        self.epochs: dict[bytes, int] = {}  # of streams that were deleted
        self.deleted: set[bytes] = set()  # names that are unknown until somebody publishes to them
        self.connections: list[ModelConnection] = []
        self.received: list[AnyMessage] = []  # all messages of all clients, frames copied
        self.chunk_messages = 3
        self.page = 2  # streams of one LISTED
        self.token: str | None = None
        self.features = {m.PRODUCERS_FEATURE, listing.FEATURE}
        self.limits = {"max_message_bytes": MAX_MESSAGE_BYTES, "max_envelope_bytes": 2 * MAX_MESSAGE_BYTES}
        self.on_message: Callable[[ModelConnection, AnyMessage], bool] = lambda _connection, _message: False
        """Given each message first; True where that was all there is to do."""
        self.on_pump: Callable[[], None] = lambda: None
        """Called when messages may have come."""

    def stream(self, name: bytes) -> Stream:
        if name not in self.streams:
            self.streams[name] = Stream(self.epochs.get(name, 0) + 1)
            self.names_version += 1
        return self.streams[name]

    def connect(self) -> ModelConnection:
        connection = ModelConnection(self)
        self.connections.append(connection)
        return connection

    def publish(self, name: bytes, *payloads: bytes) -> None:
        """As if somebody else did."""
        self.stream(name).append(bytes(_leaf.pack_frames(list(payloads), b"")))
        self.driver()

    def trim(self, name: bytes, seq: int) -> None:
        self.stream(name).trim(seq)

    def delete(self, name: bytes) -> None:
        """Its readers are at its end; reading it does not make it again."""
        gone = self.streams.pop(name)
        self.epochs[name] = gone.epoch
        self.names_version += 1
        self.deleted.add(name)
        for connection in self.connections:
            for number in [number for number, cursor in connection.cursors.items() if cursor.stream is gone]:
                seq = connection.cursors.pop(number).seq
                connection.say(m.Ended(number, seq, "deleted", "it was deleted"))

    def driver(self) -> None:
        for connection in self.connections:
            connection.driver()
        self.on_pump()

    def said(self, kind: type) -> list[AnyMessage]:
        """The clients' messages of one kind."""
        return [each for each in self.received if type(each) is kind]


def hang_up(connection: ModelConnection, _message: AnyMessage) -> bool:
    """As `on_message`: any message ends the connection."""
    connection.closed = True
    return True


class ModelConnection:
    """`out` holds bytes to send. `closed`: reads no more, and the connection ends after `out`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.codec = PlainCodec(model.limits["max_envelope_bytes"], model.limits["max_message_bytes"])
        self.out = bytearray()
        self.closed = False
        self.paused = False  # sends no chunks
        self.handles: dict[int, bytes] = {}
        self.cursors: dict[int, Cursor] = {}

    def say(self, message: AnyMessage) -> None:
        self.out += m.pack(message)

    def fail(self, code: str, text: str = "because of the test", **fields: object) -> None:
        self.say(m.Failed(code, text, **fields))  # type: ignore[arg-type]

    def end_with(self, code: str) -> None:
        self.fail(code, fatal=True)
        self.closed = True

    def feed(self, data: bytes) -> None:
        for message in self.codec.feed(data, len(data)):
            if self.closed:
                return
            assert not isinstance(message, m.Malformed), message
            if isinstance(message, m.Publish):
                message.frames = memoryview(bytes(message.frames))
            self.model.received.append(message)
            if not self.model.on_message(self, message):
                self.take(message)
        self.model.driver()

    def take(self, message: AnyMessage) -> None:
        """What a broker does."""
        match message:
            case m.Hello(token=token) if self.model.token not in (None, token):
                self.end_with("denied")
            case m.Hello(features=features):
                granted = tuple(self.model.features.intersection(features))
                self.codec.features = frozenset(granted)
                self.say(m.Welcome(1, granted, "model/1", "node-of-model", 1, self.model.limits))
            case m.Open(id=number, stream=stream):
                self.handles[number] = stream
                self.say(m.Opened(number))
            case m.Publish():
                self.publish(message)
            case m.Subscribe():
                self.subscribe(message)
            case m.Unsubscribe(id=number) if number not in self.cursors:
                self.fail("unsubscribed", op=m.Op.UNSUBSCRIBE, id=number)
            case m.Unsubscribe(id=number):
                self.say(m.Ended(number, self.cursors.pop(number).seq))
            case m.Credit(id=number, nbytes=nbytes):
                cursor = self.cursors.get(number)
                if cursor is not None:
                    cursor.credit = (cursor.credit or 0) + nbytes
            case listing.List():
                self.say(self.listed(message))
            case m.Ping():
                self.say(m.Pong())
            case m.Close():
                self.closed = True

    def listed(self, message: listing.List) -> listing.Listed:
        if message.what == "workers":
            return listing.Listed(message.id, workers=(listing.WorkerRow(0, 1, "ready", 2, 3, 4, 5, 0),))
        if message.what == "total":
            return listing.Listed(message.id, total=len(self.model.streams), version=self.model.names_version)
        if message.what == "ends":
            ends = {name: self.model.streams[name].end() for name in message.names if name in self.model.streams}
            return listing.Listed(message.id, tuple(map(bytes.decode, ends)), ends=tuple(ends.values()))
        found = sorted(each for each in self.model.streams if each.startswith(message.prefix) and each > message.after)
        page, rest = found[: self.model.page], found[self.model.page :]
        following = page[-1].decode() if rest else ""
        if message.what == "names":
            names, count = tuple([each.decode() for each in page]), len(self.model.streams)
            return listing.Listed(message.id, names, (), (), following, count, version=self.model.names_version)
        rows = tuple([self.model.stream(each).row(each) for each in page])
        return listing.Listed(message.id, (), rows, (), following, len(self.model.streams))

    def publish(self, message: m.Publish) -> None:
        results: list[m.PartResult] = []
        for handle in message.handles:
            taken = self.model.stream(self.handles[handle]).take(bytes(message.frames), message.count)
            if isinstance(taken, int):
                results.append((taken, message.count, 1, "", ""))
            else:
                code = "gap" if taken.kind is NumberVerdict.GAP else "producer"
                results.append((0, 0, 0, code, taken.kind.value))
        codes = [row[3] for row in results if row[3]]
        if codes:
            parts = tuple(results) if len(results) > 1 else None
            self.fail(codes[0], op=m.Op.PUBLISH, id=message.request, results=parts)
        elif message.ack:
            self.say(m.Published(message.request, tuple(row[:3] for row in results)))

    def subscribe(self, message: m.Subscribe) -> None:
        if message.stream in self.model.deleted and message.stream not in self.model.streams:
            self.fail("unknown", op=m.Op.SUBSCRIBE, id=message.id)
            return
        stream = self.model.stream(message.stream)
        kind, value = message.start
        if kind == "new":
            seq = stream.next_seq
        elif kind == "last":
            seq = max(stream.next_seq - value, stream.first_seq)
        elif kind == "seq":
            seq = min(max(value, stream.first_seq), stream.next_seq)
        else:
            seq = stream.seq_at(value) + message.skip
        end_seq = None
        if message.end is not None:
            end_kind, end_value = message.end
            end_seq = {"now": stream.next_seq, "seq": end_value, "time": stream.seq_at(end_value)}[end_kind]
            end_seq = max(end_seq, seq)
        self.cursors[message.id] = Cursor(stream, seq, end_seq, message.credit)
        self.say(m.Subscribed(message.id, seq, stream.first_seq, end_seq))

    def driver(self) -> None:
        """Send the chunks that may be sent."""
        for number, cursor in [] if self.closed or self.paused else list(self.cursors.items()):
            while self._chunk(number, cursor):
                pass
            if cursor.seq == cursor.end_seq:
                del self.cursors[number]
                self.say(m.Ended(number, cursor.seq))

    def _chunk(self, number: int, cursor: Cursor) -> bool:
        stream = cursor.stream
        if cursor.seq < stream.first_seq:
            self.fail("trimmed", op=m.Op.SUBSCRIBE, id=number)
            cursor.seq = stream.first_seq
        end_seq = stream.next_seq if cursor.end_seq is None else min(stream.next_seq, cursor.end_seq)
        if cursor.seq >= end_seq or (cursor.credit is not None and cursor.credit <= 0):
            return False
        first = cursor.seq - stream.first_seq
        frames: list[bytes] = []
        room = float("inf") if cursor.credit is None else cursor.credit
        for frame in stream.frames[first : first + min(self.model.chunk_messages, end_seq - cursor.seq)]:
            if frames and len(frame) > room:
                break
            frames.append(frame)
            room -= len(frame)
        chunk = b"".join(frames)
        if cursor.credit is not None:
            cursor.credit -= len(chunk)
        cursor.seq += len(frames)
        self.say(m.Chunk(number, memoryview(chunk)))
        return True
