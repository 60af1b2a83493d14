"""The binary protocol's codecs: the bytes of one connection in, messages out. One for each end.

The broker's end, `ServerCodec`, raises nothing for any bytes: invalid messages come out as `Malformed`, and after a
fatal one nothing more. The client's end, `ClientCodec`, raises: a peer that violates the protocol is not a broker.

Frames are not copied here. Those of an envelope received whole stay in the receive buffer; an envelope received in
several reads is assembled once, in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from tailrace.protocol.envelope import BODY_BYTES_MAX, HEAD, HEAD_BYTES, EnvelopeReader, too_long
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import NO_FEATURES
from tailrace.protocol.messages import (
    CONTROL_BODY_MAX_BYTES,
    PUBLISHED_ONE,
    PUBLISHED_ONE_BODY_BYTES,
    VERSION,
    Hello,
    Malformed,
    Op,
    PublishRun,
    Request,
    Response,
)
from tailrace.protocol.requests import read_publish, read_request
from tailrace.protocol.responses import check_opcode, read_chunk, read_response
from tailrace.shard.frame import MAX_FRAME_BYTES
from tailrace.shard.leaves import load

RESPONSE_MAX_BYTES: Final = MAX_FRAME_BYTES + CONTROL_BODY_MAX_BYTES
"""The longest envelope that a client takes unless told otherwise: a CHUNK of one message of any size."""

_stage = load("tailrace.protocol.publish_cy").stage

_HEAD_AT = HEAD.unpack_from
_HELLO = int(Op.HELLO)
_PUBLISH = int(Op.PUBLISH)
_CHUNK = int(Op.CHUNK)
_PUBLISHED = int(Op.PUBLISHED)

PublishedRow: TypeAlias = tuple[int, int, int, int, int, int]
"""The fields of a PUBLISHED with one result: opcode, body length, request, first seq, count, subscribers."""


class PlacedHandle(NamedTuple):
    """A topic's handle: the stream in which it lies, and the metadata of the messages to it."""

    stream: bytes
    topic: bytes
    metadata: bytes


class _RequestReader(EnvelopeReader):
    """Judges an envelope by its head: HELLO comes first, and all but PUBLISH is short."""

    __slots__ = ("refused", "welcomed")

    def __init__(self, body_max_bytes: int) -> None:
        super().__init__(body_max_bytes)
        self.welcomed = False
        self.refused = 0  # the opcode of the envelope that was refused

    def checked_length(self, opcode: int, length: int) -> int:
        self.refused = opcode
        if opcode != _HELLO and not self.welcomed:
            text = f"the first envelope is HELLO (opcode {_HELLO}), not opcode {opcode}"
            raise PeerError(Code.PROTOCOL, text, fatal=True)
        limit = self.body_max_bytes if opcode == _PUBLISH else CONTROL_BODY_MAX_BYTES
        if length > limit:
            raise too_long(opcode, length, limit)
        return length


class ServerCodec:
    """The codec of one connection at the broker's end.

    Publishes come out staged, a run of them as one `PublishRun`; a `Publish` is one that cannot be staged, such as a
    numbered one. The class attribute `stages` turns that off.
    """

    __slots__ = ("_dead", "_placed", "_reader", "_rest", "features", "max_message_bytes", "waits")
    stages: ClassVar[bool] = True

    def __init__(
        self, max_envelope_bytes: int, max_message_bytes: int, placed: Mapping[int, PlacedHandle] | None = None
    ) -> None:
        """The limits in bytes: of a whole PUBLISH with its head; of a message's metadata and payload. `placed`: a
        dictionary of the handles that stand for topics, which its owner may change at any time."""
        self.max_message_bytes = max_message_bytes
        self._placed = {} if placed is None else placed
        self.features = NO_FEATURES
        """Those that were granted: from then on their messages are taken."""
        self.waits = False
        """Set while a HELLO or COLLECT waits for its answer: the bytes behind it are kept for `take_rest`."""
        self._rest = b""
        self._reader = _RequestReader(min(max_envelope_bytes - HEAD_BYTES, BODY_BYTES_MAX))
        self._dead = False

    @property
    def welcomed(self) -> bool:
        """Whether a HELLO of a supported version was received."""
        return self._reader.welcomed

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an unfinished envelope."""
        return self._reader.pending_bytes

    def take_rest(self) -> bytes:
        """Wait no longer. Returns the bytes that were kept, to be fed."""
        self.waits = False
        rest, self._rest = self._rest, b""
        return rest

    def feed(self, buffer: memoryview | bytearray | bytes, count: int) -> Iterable[Request | PublishRun | Malformed]:
        """The messages in buffer[:count], in order. To be run through to its end, while the buffer holds these bytes.

        After a fatal Malformed all input is discarded. No bytes raise anything.
        """
        reader = self._reader
        if count > HEAD_BYTES and reader.welcomed and not reader.pending_bytes and not self._dead:
            opcode, length = _HEAD_AT(buffer)
            if opcode == _PUBLISH:
                if self.stages:
                    stop, ack, groups = self._staged(buffer, 0, count)
                    if stop == count:
                        return (PublishRun(ack, groups),)
                    if stop:
                        return self._after(PublishRun(ack, groups), memoryview(buffer)[:count], stop)
                if length == count - HEAD_BYTES <= reader.body_max_bytes:
                    return (read_publish(memoryview(buffer)[HEAD_BYTES:count], self.max_message_bytes, False),)
        return self._messages(memoryview(buffer)[:count], 0)

    def feed_eof(self) -> list[Malformed]:
        """The input has ended. An unfinished envelope is discarded, and the peer is notified."""
        pending = self._reader.pending_bytes
        self.forget()
        if not pending:
            return []
        text = f"the connection ended within an envelope, after {pending} bytes of it; they were discarded"
        return [Malformed(0, 0, PeerError(Code.INCOMPLETE, text))]

    def forget(self) -> None:
        """Hold nothing, and read nothing more."""
        self._dead = True
        self.waits, self._rest = False, b""
        self._reader.restore_state(b"")

    def export_state(self) -> list[Any]:
        """All there is to know of the connection's place in its input, as msgpack carries it."""
        return [self._reader.export_state(), self._reader.welcomed, self._dead, sorted(self.features)]

    def restore_state(self, state: list[Any]) -> None:
        """Go on where `export_state` was called."""
        held, self._reader.welcomed, self._dead, features = state
        self.features = frozenset(features)
        self._reader.restore_state(held)

    def _staged(
        self, buffer: memoryview | bytearray | bytes, start: int, end: int
    ) -> tuple[int, int, list[tuple[int, int, bytearray, bytes]]]:
        found: tuple[int, int, list[tuple[int, int, bytearray, bytes]]] = _stage(
            buffer, start, end, self.max_message_bytes, self._reader.body_max_bytes, self._placed
        )
        return found

    def _after(self, run: PublishRun, view: memoryview, position: int) -> Iterator[Request | PublishRun | Malformed]:
        yield run
        yield from self._messages(view, position)

    def _messages(self, view: memoryview, position: int) -> Iterator[Request | PublishRun | Malformed]:
        reader, max_message_bytes, size = self._reader, self.max_message_bytes, len(view)
        staged_to = position  # where the last run ended: the next envelope cannot be staged
        while not self._dead:
            if self.stages and staged_to < position < size and view[position] == _PUBLISH:
                staged_to, ack, groups = self._staged(view, position, size)
                if groups:
                    yield PublishRun(ack, groups)
                    position = staged_to
            try:
                taken = reader.take(view, position)
            except PeerError as error:
                yield self._die(Malformed(reader.refused, 0, error.with_traceback(None)))
                return
            if taken is None:
                return
            opcode, body, position = taken
            if opcode == _PUBLISH:
                yield read_publish(body, max_message_bytes, reader.owned)
            elif opcode == _HELLO:
                yield self._hello(body)
            else:
                yield read_request(opcode, body, self.features)
            if self.waits:
                self._rest = bytes(view[position:])
                return

    def _hello(self, body: memoryview) -> Request | Malformed:
        """Reads the one HELLO. A bad one is fatal."""
        if self._reader.welcomed:
            return Malformed(_HELLO, 0, PeerError(Code.PROTOCOL, "HELLO comes once, at the beginning"))
        hello = read_request(_HELLO, body)
        if isinstance(hello, Malformed):
            return self._die(Malformed(_HELLO, 0, PeerError(hello.error.code, hello.error.text, fatal=True)))
        if isinstance(hello, Hello) and hello.version != VERSION:
            text = f"version {hello.version} of the binary protocol; this broker speaks version {VERSION}"
            return self._die(Malformed(_HELLO, 0, PeerError(Code.UNSUPPORTED, text, fatal=True)))
        self._reader.welcomed = True
        return hello

    def _die(self, malformed: Malformed) -> Malformed:
        self.forget()
        return malformed


class _ResponseReader(EnvelopeReader):
    """Judges an envelope by its head: what no broker sends is not waited for."""

    __slots__ = ("features",)

    def __init__(self, body_max_bytes: int, features: frozenset[str]) -> None:
        super().__init__(body_max_bytes)
        self.features = features

    def checked_length(self, opcode: int, length: int) -> int:
        if opcode != _CHUNK:
            check_opcode(opcode, self.features)
        return super().checked_length(opcode, length)


class ClientCodec:
    """The codec of one connection at the client's end."""

    __slots__ = ("_reader",)

    def __init__(self, max_envelope_bytes: int = RESPONSE_MAX_BYTES, *, features: frozenset[str] = NO_FEATURES) -> None:
        """`features`: those that HELLO asks for; their messages are taken."""
        self._reader = _ResponseReader(max_envelope_bytes - HEAD_BYTES, features)

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an unfinished envelope."""
        return self._reader.pending_bytes

    @property
    def left_bytes(self) -> int:
        """The number of bytes at the end of the last input that must be fed again."""
        return self._reader.left_bytes

    def feed_published(self, data: bytes | bytearray | memoryview) -> list[PublishedRow]:
        """The PUBLISHEDs with one result each that `data` begins with, as rows; feed what is behind them to `feed`.

        Many publishes under way are answered by many of these at once, which are cheaper to read in a row.
        """
        rows: list[PublishedRow] = []
        whole = len(data) // PUBLISHED_ONE.size * PUBLISHED_ONE.size
        if whole and data[0] == _PUBLISHED and not self._reader.pending_bytes:
            self._reader.left_bytes = 0
            for row in PUBLISHED_ONE.iter_unpack(memoryview(data)[:whole]):
                if row[0] != _PUBLISHED or row[1] != PUBLISHED_ONE_BODY_BYTES:
                    break
                rows.append(row)
        return rows

    def feed(self, data: bytes | bytearray | memoryview, leave_bytes: int = 0) -> Iterator[Response]:
        """The messages in `data`, in order; run it to its end. A Chunk's frames are valid for as long as `data` is.

        An unfinished envelope is held, or left to the caller (`left_bytes`) if it has at most `leave_bytes`. Raises
        PeerError (fatal) for bytes that no broker sends: the connection is unusable after it.
        """
        try:
            for opcode, body in self._reader.feed(data, leave_bytes):
                if opcode == _CHUNK:
                    yield read_chunk(body)
                else:
                    yield read_response(opcode, body, self._reader.features)
        except PeerError as error:
            raise PeerError(error.code, error.text, fatal=True) from None
