"""The client's side of the line protocol, sans-IO: text in, `pub` commands out; answers and messages in, in batches.

Whatever a batch holds, the work per message is a few bytes methods: encoding is one `replace` a block, acknowledgements
are checked by one regular expression a read, and a message costs one split of its head. Payloads are taken by their
LENGTH, so they may hold any byte.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD_MAX_BYTES = 4_096  # `msg STREAM SEQ TIMESTAMP LENGTH ` with the longest name is a tenth of it
ANSWER_MAX_BYTES = 64 << 10  # one line that is no message
MESSAGE_MAX_BYTES = 1 << 30
CRLF = b"\r\n"

# Errors about the connection as a whole: they answer no line, and the connection ends after them.
CONNECTION_CODES = frozenset({"closing", "connections", "slow", "protocol"})


class ProtocolFault(Exception):
    """The peer does not speak the line protocol, or breaks one of its promises."""


class Refusal(NamedTuple):
    """An `err` answer: the code, the text, and which line (from 1) it answers; 0 for the connection as a whole."""

    code: str
    text: str
    line: int


class Message(NamedTuple):
    """One message as it came. `timestamp_us` is since the Unix epoch."""

    seq: int
    timestamp_us: int
    payload: bytes


def parse_error(line: bytes) -> tuple[str, str] | None:
    """(code, text) of a line `err CODE text`, None for any other line."""
    if not line.startswith(b"err "):
        return None
    code, _, text = line[4:].decode("utf-8", "replace").partition(" ")
    return code, text


class PublishEncoder:
    """Turns blocks of text into `pub` commands. Only the LF of a line goes: a CR before it is part of the payload."""

    __slots__ = ("_at_line_start", "_prefix", "lines")

    def __init__(self, stream: str) -> None:
        self._prefix = b"pub %s |" % stream.encode()
        self._at_line_start = True
        self.lines = 0  # begun so far

    def encode(self, block: bytes) -> bytes:
        """The commands of one block of input; the last line may stay unfinished until the next block."""
        if not block:
            return b""
        begun = block.count(b"\n") + self._at_line_start
        encoded = block.replace(b"\n", CRLF + self._prefix)
        if self._at_line_start:
            encoded = self._prefix + encoded
        self._at_line_start = block.endswith(b"\n")
        if self._at_line_start:
            encoded = encoded[: -len(self._prefix)]
            begun -= 1
        self.lines += begun
        return encoded

    def finish(self) -> bytes:
        """The end of a last line that had no LF; it is a message like any other."""
        if self._at_line_start:
            return b""
        self._at_line_start = True
        return CRLF


class AckReader:
    """Checks the answers to `pub` commands under `ack on`: one a line, in order, for this stream, seqs rising."""

    __slots__ = ("_all_ok", "_ok", "_rest", "acknowledged", "answered", "first_seq", "last_seq", "ponged")

    def __init__(self, stream: str) -> None:
        self._ok = b"ok pub %s " % stream.encode()
        self._all_ok = re.compile(rb"(?:%s[0-9]{1,20}\r\n)*" % re.escape(self._ok))
        self._rest = b""
        self.answered = 0  # lines with an outcome
        self.acknowledged = 0  # lines that are in the stream
        self.first_seq = -1
        self.last_seq = -1
        self.ponged = False  # the answer to a `ping` has come, and so every error before it

    def feed(self, received: bytes) -> list[Refusal]:
        """Take what came; the refusals in it. Raises ProtocolFault."""
        data = self._rest + received
        whole = data.rfind(CRLF) + 2
        if whole < 2:
            whole = 0
        self._rest = data[whole:]
        if len(self._rest) > ANSWER_MAX_BYTES:
            raise ProtocolFault(f"an answer of more than {ANSWER_MAX_BYTES:,} bytes; is this a tailrace broker?")
        return self._take(data[:whole]) if whole else []

    def _take(self, data: bytes) -> list[Refusal]:
        if self._all_ok.fullmatch(data):
            self._take_ok(data, data.count(CRLF))
            return []
        refusals = []
        for line in data[:-2].split(CRLF):
            if self._all_ok.fullmatch(line + CRLF):
                self._take_ok(line + CRLF, 1)
                continue
            refusal = self._refusal(line)
            if refusal is not None:
                refusals.append(refusal)
        return refusals

    def _take_ok(self, data: bytes, count: int) -> None:
        """`count` acknowledgements; a seq that does not rise is a broken promise of the broker."""
        first = int(data[len(self._ok) : data.index(CRLF)])
        last = int(data[data.rindex(b" ") + 1 : -2])
        if first <= self.last_seq or last - first < count - 1:
            raise ProtocolFault(
                f"acknowledged seqs do not rise: {self.last_seq}, then {first} to {last} for {count} lines"
            )
        self.first_seq = first if self.first_seq < 0 else self.first_seq
        self.last_seq = last
        self.answered += count
        self.acknowledged += count

    def _refusal(self, line: bytes) -> Refusal | None:
        error = parse_error(line)
        if error is not None:
            code, text = error
            if code in CONNECTION_CODES:
                return Refusal(code, text, 0)
            self.answered += 1
            return Refusal(code, text, self.answered)
        if line == b"ok pong":
            self.ponged = True
        elif line != b"ok ack on":
            raise ProtocolFault(f"unexpected answer {line[:200]!r}; is this a tailrace broker?")
        return None


class MessageReader:
    """Splits what a subscriber receives into messages and other lines, by LENGTH and not by line ends."""

    __slots__ = ("_data", "_need", "_parts", "_parts_bytes", "_position")

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._need = 1  # bytes without which nothing more can be read

    def feed(self, received: bytes) -> None:
        """Take what came. A large message is put together once, when all of it is there."""
        self._parts.append(received)
        self._parts_bytes += len(received)

    def read(self) -> tuple[list[Message], bytes | None]:
        """The messages up to the next line that is none, and that line (without its end), None when there is none yet.

        ([], None) when more must come first. Raises ProtocolFault.
        """
        self._gather()
        messages = self._messages()
        return messages, self._line()

    def _gather(self) -> None:
        rest_bytes = len(self._data) - self._position
        if self._parts and rest_bytes + self._parts_bytes >= self._need:
            self._data = b"".join([self._data[self._position :], *self._parts])
            self._position = 0
            self._parts.clear()
            self._parts_bytes = 0
            self._need = 1

    def _messages(self) -> list[Message]:
        data, position = self._data, self._position
        messages: list[Message] = []
        append, find, starts = messages.append, data.find, data.startswith
        size = len(data)
        make = tuple.__new__
        while starts(b"msg ", position):
            bar = find(b"|", position, position + HEAD_MAX_BYTES)
            if bar < 0:
                _check_head(size - position)
                break
            try:
                _msg, _name, seq, timestamp_us, length = data[position:bar].split()
                end = bar + 1 + int(length)
                message = make(Message, (int(seq), int(timestamp_us), data[bar + 1 : end]))
                if end <= bar:
                    raise ValueError
            except ValueError:
                raise ProtocolFault(f"not the head of a message: {data[position:bar][:200]!r}") from None
            if end + 2 > size:
                self._need_message(end + 2 - position)
                break
            if not starts(CRLF, end):
                raise ProtocolFault(f"message {message.seq} is longer than its LENGTH of {int(length)} says")
            append(message)
            position = end + 2
        self._position = position
        return messages

    def _need_message(self, whole_bytes: int) -> None:
        if whole_bytes > MESSAGE_MAX_BYTES:
            raise ProtocolFault(f"a message of {whole_bytes:,} bytes; at most {MESSAGE_MAX_BYTES:,} are taken")
        self._need = whole_bytes

    def _line(self) -> bytes | None:
        """The line at the position, if it is whole and no message."""
        data, position = self._data, self._position
        if data.startswith(b"msg ", position):
            return None
        end = data.find(CRLF, position)
        if end < 0:
            if len(data) - position > ANSWER_MAX_BYTES:
                raise ProtocolFault(f"a line of more than {ANSWER_MAX_BYTES:,} bytes; is this a tailrace broker?")
            self._need = len(data) - position + 1
            return None
        self._position = end + 2
        return data[position:end]


def _check_head(head_bytes: int) -> None:
    if head_bytes > HEAD_MAX_BYTES:
        raise ProtocolFault(
            f"the head of a message is longer than {HEAD_MAX_BYTES:,} bytes; is this a tailrace broker?"
        )
