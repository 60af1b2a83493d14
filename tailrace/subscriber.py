"""`tailrace tail` without its face: messages of a stream from a place of its past, in batches, to a function.

The seqs that come are checked: each message once and in order. A hole is told (messages may have been trimmed while
they were read); a seq that comes twice is the broker's broken promise and ends the run.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from tailrace.command.ending import NO_CONNECTION, REFUSED, CommandError
from tailrace.connection import RECEIVE_BYTES, Server
from tailrace.line_client import CONNECTION_CODES, Message, MessageReader, ProtocolFault, parse_error

ANSWER_TIMEOUT_S = 60.0  # for the answer to `sub`; a worker that is being restarted takes some of it

Deliver = Callable[[list[Message]], None]


class Subscriber:
    """One subscription over one connection."""

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        stream: str,
        *,
        warn: Callable[[str], None] = lambda _text: None,
        watch_fd: int = -1,
    ) -> None:
        """`watch_fd`: where the messages go; when its reader has gone the run ends, even if no message comes."""
        self.next_seq = -1  # of the next message to come
        self._sock = sock
        self._server = server
        self._stream = stream
        self._name = stream.encode()
        self._warn = warn
        self._watch_fd = watch_fd
        self._reader = MessageReader()
        self._held_line: bytes | None = None  # came behind messages, which are delivered first

    def find_end(self) -> int:
        """The seq that the next message published will have. To be called before `follow`."""
        self._command(b"sub %s new" % self._name)
        end = self._await_ok(b"ok sub %s " % self._name)
        self._command(b"unsub %s" % self._name)
        self._await_ok(b"ok unsub %s" % self._name)
        return int(end)

    def begin(self, start: str) -> None:
        """Subscribe at `start` (the protocol's FROM); afterwards `next_seq` is known."""
        self._command(b"sub %s %s" % (self._name, start.encode()))
        self.next_seq = int(self._await_ok(b"ok sub %s " % self._name))

    def follow(self, deliver: Deliver, *, count: int | None = None, end_seq: int | None = None) -> None:
        """Hand over batches until `count` messages or those before `end_seq` were delivered. Without either: for ever.

        Raises CommandError when the connection ends, BrokenPipeError when the reader of `watch_fd` has gone.
        """
        left = count
        while (left is None or left > 0) and (end_seq is None or self.next_seq < end_seq):
            messages = self._next_messages()
            if end_seq is not None and messages and messages[-1].seq >= end_seq:
                messages = [each for each in messages if each.seq < end_seq]
                self.next_seq = end_seq
            if left is not None:
                messages = messages[:left]
                left -= len(messages)
            if messages:
                deliver(messages)

    # --- lines and messages

    def _next_messages(self) -> list[Message]:
        """At least one message, after whatever else came before it."""
        while True:
            if self._held_line is not None:
                self._complain(self._held_line)
            messages, self._held_line = self._read()
            if messages:
                self._check_order(messages)
                return messages
            if self._held_line is None:
                self._receive(None)

    def _check_order(self, messages: list[Message]) -> None:
        first, last = messages[0].seq, messages[-1].seq
        if first == self.next_seq and last - first == len(messages) - 1 and _rises(messages):
            self.next_seq = last + 1
            return
        for message in messages:
            if message.seq < self.next_seq:
                raise CommandError(f"{self._server}: seq {message.seq} came after seq {self.next_seq - 1}")
            if message.seq > self.next_seq:
                self._warn(f"seqs {self.next_seq} to {message.seq - 1} are missing; they may have been trimmed")
            self.next_seq = message.seq + 1

    def _complain(self, line: bytes) -> None:
        error = parse_error(line)
        if error is None:
            raise CommandError(f"{self._server}: unexpected line {line[:200]!r}")
        code, text = error
        after = f" after seq {self.next_seq - 1}" if self.next_seq > 0 else ""
        exit_code = NO_CONNECTION if code in CONNECTION_CODES else REFUSED
        raise CommandError(f"{self._server}: {code}: {text}{after}", exit_code)

    def _command(self, line: bytes) -> None:
        try:
            self._sock.sendall(line + b"\r\n")
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None

    def _await_ok(self, expected: bytes) -> bytes:
        """What follows `expected` in the answer; messages that come before it are passed over."""
        while True:
            _messages, line = self._read()
            if line is None:
                if not _messages:
                    self._receive(ANSWER_TIMEOUT_S)
            elif line.startswith(expected):
                return line[len(expected) :]
            else:
                self._complain(line)

    def _read(self) -> tuple[list[Message], bytes | None]:
        try:
            return self._reader.read()
        except ProtocolFault as fault:
            raise CommandError(f"{self._server}: {fault}") from None

    def _receive(self, timeout_s: float | None) -> None:
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        if self._watch_fd >= 0:
            poller.register(self._watch_fd, 0)
        events = dict(poller.poll(None if timeout_s is None else timeout_s * 1_000))
        if events.get(self._watch_fd, 0) & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError
        if not events:
            raise self._lost(f"no answer for {timeout_s:.0f} s")
        try:
            received = self._sock.recv(RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not received:
            raise self._lost("the broker closed it")
        self._reader.feed(received)

    def _lost(self, reason: str) -> CommandError:
        text = f"connection to {self._server} lost ({reason})"
        if self.next_seq > 0:
            text += f" after seq {self.next_seq - 1}; go on with --from '#{self.next_seq}'"
        return CommandError(text, NO_CONNECTION)


def _rises(messages: list[Message]) -> bool:
    """Whether seqs rise by one all the way; the ends have been compared already."""
    seq = messages[0].seq
    for message in messages:
        if message.seq != seq:
            return False
        seq += 1
    return True
