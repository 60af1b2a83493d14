"""The line protocol's codec: the bytes of one connection in, its commands out.

Most input is complete, well-formed `pub` lines, and those never become objects: `line_cy.stage` turns a whole read of
them into frames. The rest is handled here, one line at a time: any other command, a line that a read cut in two, one
that is too long, one from telnet.

A line ends at LF; one CR before it belongs to the line end. Only new bytes are searched, so the cost of a line does not
depend on how many pieces it came in; no more than `max_line_bytes` are ever held.

A connection whose first line is not a command is closed, so that no other protocol is executed line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Final

from tailrace.protocol.commands import Ack, Command, Foreign, Invalid, Reply, Staged
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.foreign import foreign_refusal, foreign_start
from tailrace.protocol.grammar import begins_command, is_blank, parse_line
from tailrace.protocol.names import shown
from tailrace.protocol.telnet import TelnetFilter
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES
from tailrace.shard.leaves import load

LINE_OVERHEAD_BYTES: Final = 256
"""More than a line that `stage` takes can have beyond its payload (HEAD_BYTES_MAX and the line end)."""

_line_cy = load("tailrace.protocol.line_cy")
_stage = _line_cy.stage
_find_lf = _line_cy.find_lf

assert _line_cy.HEAD_BYTES_MAX + 2 <= LINE_OVERHEAD_BYTES

_IAC = b"\xff"
_PIECES = re.compile(rb"[^\n]*\n|[^\n]+")
_BEGINNING_BYTES = 64  # of a line that is too long: enough to see its first word


def staged_max_bytes(max_line_bytes: int, max_message_bytes: int) -> int:
    """The largest payload that `stage` may take independently of its line's length; the rest is left to `LineCodec`."""
    return max(min(max_message_bytes, MAX_FRAME_BYTES - HEADER_BYTES, max_line_bytes - LINE_OVERHEAD_BYTES), 0)


class LinePhase(IntEnum):
    """Whether the peer has shown that it speaks lines. The value is also handed over to another worker."""

    NEW = 0  # no line has come but empty ones
    OPEN = 1
    OVER = 2  # its first line was not a command, or it speaks another protocol: the rest is not read


class LineCodec:
    """The codec of one connection. It knows whether publishes are to be acknowledged, because that changes staging."""

    __slots__ = (
        "_discarding",
        "_head_open",
        "_held",
        "_phase",
        "_plain",
        "_stage_max_bytes",
        "_telnet",
        "ack",
        "in_order",
        "max_line_bytes",
        "max_message_bytes",
        "strayed",
        "table",
    )

    def __init__(
        self, max_line_bytes: int, max_message_bytes: int, *, in_order: bool = False, table: bytes = b""
    ) -> None:
        """in_order: `Staged` always has the order of its messages. table: places names in streams, as far as it tells.

        Both limits in bytes; a line's includes its end, a message's is for its payload (at most that of a frame)."""
        self.max_line_bytes = max_line_bytes
        self.max_message_bytes = min(max_message_bytes, MAX_FRAME_BYTES - HEADER_BYTES)
        self.ack = False
        self._stage_max_bytes = staged_max_bytes(max_line_bytes, max_message_bytes)
        self.in_order = in_order
        self.table = table
        self._held: bytearray | None = None  # the line that has begun and not ended
        self._head_open = True  # no bar yet in the held bytes: an IAC there comes from telnet
        self._discarding = False  # the line that has begun is too long
        self._telnet: TelnetFilter | None = None
        self._phase = LinePhase.NEW
        self._plain = False  # nothing is held or discarded, no telnet, and the first line has come: try the fast path
        self.strayed = False  # a line was not a command

    @property
    def is_plain(self) -> bool:
        """Whether whole `pub` lines may be staged without this codec: it holds nothing, and the peer speaks lines."""
        return self._plain

    @property
    def pending_bytes(self) -> int:
        """Bytes held of an unfinished line."""
        return 0 if self._held is None else len(self._held)

    def feed(self, buffer: memoryview | bytearray | bytes, count: int) -> Iterable[Command]:
        """The commands in buffer[:count], in order. To be run through at once, while the buffer holds these bytes.

        A bad line gives `Invalid`; no bytes raise anything.
        """
        if self._plain:
            stop, groups, order = self._stage_from(buffer, 0, count)
            if stop == count and groups:
                return (Staged(groups, order, bool(self.table)),)
            return self._lines(buffer, count, stop, groups, order)
        return self._resume(buffer, count)

    def feed_eof(self) -> list[Command]:
        """The input has ended. An unfinished line is discarded, and the peer is notified."""
        held, self._held = self._held, None
        if held is None or is_blank(held) or self._phase is LinePhase.OVER:
            return []
        text = f"the connection ended within the line {shown(bytes(held[:80]))}: end it with CRLF; it was discarded"
        return [Invalid(PeerError(Code.INCOMPLETE, text))]

    def export_state(self) -> list[Any]:
        """All there is to know of the connection's place in its input, as msgpack carries it."""
        held = None if self._held is None else bytes(self._held)
        telnet = None if self._telnet is None else int(self._telnet.state)
        return [held, self._head_open, self._discarding, telnet, self.ack, int(self._phase), self.strayed]

    def restore_state(self, state: list[Any]) -> None:
        """Go on where `export_state` was called."""
        held, self._head_open, self._discarding, telnet, self.ack, phase, self.strayed = state
        self._phase = LinePhase(phase)
        self._held = None if held is None else bytearray(held)
        self._telnet = None if telnet is None else TelnetFilter(telnet)
        self._note_plain()

    # --- the slow path ----------------------------------------------------------------------------------------------

    def _lines(
        self,
        buffer: memoryview | bytearray | bytes,
        count: int,
        stop: int,
        groups: list[tuple[bytes, int, bytearray]],
        order: list[int],
    ) -> Iterator[Command]:
        """Yields the messages found by `stage`, then the line it stopped at, and so on to the end of the buffer."""
        while True:
            if groups:
                self._begin()
                yield Staged(groups, order, bool(self.table))
            if stop >= count:
                return
            end = _find_lf(buffer, stop, count)
            piece = memoryview(buffer)[stop : count if end < 0 else end + 1]
            if self._telnet is None and _from_telnet(bytes(piece)):
                yield from self._begin_telnet(bytes(memoryview(buffer)[stop:count]))
                return
            if end < 0:
                yield from self._hold(piece)
                return
            yield from self._line(bytes(piece))
            if self._phase is LinePhase.OVER:
                return
            stop, groups, order = self._stage_from(buffer, end + 1, count)

    def _resume(self, buffer: memoryview | bytearray | bytes, count: int) -> Iterator[Command]:
        """Continues with a line that was cut or is being discarded, or with a peer that is new or speaks telnet."""
        if self._phase is LinePhase.OVER:
            return
        if self._telnet is None:
            yield from self._continue(buffer, count)
            return
        for piece in _PIECES.findall(memoryview(buffer)[:count]):
            yield from self._filtered(self._telnet, piece)

    def _filtered(self, telnet: TelnetFilter, piece: bytes) -> Iterator[Command]:
        """Takes a line, or a part of one, from telnet. Nothing after a line that ends the session is answered."""
        if self._phase is LinePhase.OVER:
            return
        data, replies = telnet.feed(piece)
        if replies:
            yield Reply(replies)
        yield from self._continue(data, len(data))

    def _continue(self, buffer: memoryview | bytearray | bytes, count: int) -> Iterator[Command]:
        """As `feed`, if the buffer begins within a line."""
        start = 0
        if self._discarding or self._held is not None:
            end = _find_lf(buffer, 0, count)
            start = count if end < 0 else end + 1
            piece = memoryview(buffer)[:start]
            if self._discarding:
                self._discarding = end < 0
            elif self._telnet is None and self._head_open and _from_telnet(bytes(piece)):
                held, self._held = bytes(self._held or b""), None
                yield from self._begin_telnet(held + bytes(memoryview(buffer)[:count]))
                return
            else:
                yield from self._hold(piece)
                if end >= 0 and self._held is not None:
                    line, self._held = self._held, None
                    yield from self._line(line)
            self._note_plain()
        if self._phase is LinePhase.NEW and start < count:
            yield from self._check_start(memoryview(buffer)[start:count])
        if start < count and self._phase is not LinePhase.OVER:
            yield from self._lines(buffer, count, *self._stage_from(buffer, start, count))

    def _check_start(self, buffer: memoryview) -> Iterator[Command]:
        """`stage` knows nothing of other protocols, so this comes before it."""
        end = _find_lf(buffer, 0, len(buffer))
        refusal = foreign_start(_without_end(bytes(buffer[: end + 1]))) if end >= 0 else None
        if refusal is not None:
            yield self._end(Foreign(refusal))

    def _stage_from(
        self, buffer: memoryview | bytearray | bytes, start: int, count: int
    ) -> tuple[int, list[tuple[bytes, int, bytearray]], list[int]]:
        staged: tuple[int, list[tuple[bytes, int, bytearray]], list[int]] = _stage(
            buffer, start, count, self._stage_max_bytes, self.ack or self.in_order, self.table
        )
        return staged

    def _hold(self, piece: memoryview) -> Iterator[Command]:
        """Keeps a piece of a line until the rest comes; past the limit keeps nothing, and reports it once."""
        held = self._held
        size = len(piece) + (0 if held is None else len(held))
        whole = bytes(piece[-1:]) == b"\n"
        if size > self.max_line_bytes or (size == self.max_line_bytes and not whole):
            beginning = bytes((held or b"")[:_BEGINNING_BYTES]) + bytes(piece[:_BEGINNING_BYTES])
            self._held = None
            self._discarding = not whole
            self._note_plain()
            yield self._too_long(beginning)
            return
        if held is None:
            self._held = bytearray(piece)
            self._head_open = b"|" not in self._held
            self._plain = False
            return
        held += piece
        if self._head_open:
            self._head_open = b"|" not in bytes(piece)

    def _line(self, line: bytes | bytearray) -> Iterator[Command]:
        """Handles one whole line with its LF."""
        size = len(line)
        if size > self.max_line_bytes:
            yield self._too_long(bytes(line[:_BEGINNING_BYTES]))
            return
        if is_blank(line):
            return
        if self._phase is LinePhase.NEW and (refusal := foreign_start(_without_end(line))) is not None:
            yield self._end(Foreign(refusal))
            return
        stop, groups, order = self._stage_from(line, 0, size)
        if stop == size:
            self._begin()
            yield Staged(groups, order, bool(self.table))
            return
        yield self._parsed(_without_end(line))

    def _parsed(self, line: bytes) -> Command:
        refusal = foreign_refusal(line)
        if refusal is not None:
            return self._end(Foreign(refusal))
        command = parse_line(line, self.max_message_bytes)
        if type(command) is Invalid:
            return self._invalid(command)
        self._begin()
        if type(command) is Ack:
            self.ack = command.on
        elif type(command) is Staged and not (self.ack or self.in_order):
            command.order.clear()
        return command

    def _invalid(self, invalid: Invalid) -> Command:
        """Handles a bad line: the first of a connection must at least begin as a command does."""
        error = invalid.error
        self.strayed |= error.code is Code.COMMAND
        if self._phase is LinePhase.NEW and error.code is Code.COMMAND:
            text = f"{error.text}; the connection ends, since its first line is not a command"
            return self._end(Invalid(PeerError(error.code, text, fatal=True)))
        self._begin()
        return invalid

    def _begin(self) -> None:
        """The peer speaks lines."""
        if self._phase is LinePhase.NEW:
            self._phase = LinePhase.OPEN
            self._note_plain()

    def _end(self, last: Command) -> Command:
        """Nothing more is read."""
        self._phase = LinePhase.OVER
        self._held = None
        self._note_plain()
        return last

    def _begin_telnet(self, data: bytes) -> Iterator[Command]:
        """The line that begins with `data` has an IAC before any bar: from here on the peer is telnet."""
        self._telnet = TelnetFilter()
        self._note_plain()
        yield from self._resume(data, len(data))

    def _too_long(self, beginning: bytes) -> Command:
        text = f"the line has more than {self.max_line_bytes} bytes; it is discarded up to its end"
        if begins_command(beginning):
            self._begin()
            return Invalid(PeerError(Code.LINE, text))
        self.strayed = True
        if self._phase is LinePhase.NEW:
            return self._end(Invalid(PeerError(Code.LINE, f"{text}, and so is the connection", fatal=True)))
        return Invalid(PeerError(Code.LINE, text))

    def _note_plain(self) -> None:
        self._plain = (
            self._held is None and not self._discarding and self._telnet is None and self._phase is LinePhase.OPEN
        )


def _without_end(line: bytes | bytearray) -> bytes:
    return bytes(line[:-2] if line.endswith(b"\r\n") else line[:-1])


def _from_telnet(piece: bytes) -> bool:
    """Returns whether an IAC comes before the bar. Commands never have this byte there: it is invalid in UTF-8."""
    iac = piece.find(_IAC)
    return iac >= 0 and piece.find(b"|", 0, iac) < 0
