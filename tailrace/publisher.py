"""`tailrace pub` without its face: lines from a descriptor to a stream, pipelined, every acknowledgement checked.

One loop over poll(2): it reads input while few enough lines wait for their answers (`WINDOW_LINES`) and the last block
has been taken by the socket, so memory is bounded by one block whatever either side does. Answers are read whenever
they come: a peer that only writes would stop the broker, which would stop reading.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.command.ending import NO_CONNECTION, CommandError
from tailrace.connection import RECEIVE_BYTES, Server
from tailrace.line_client import AckReader, ProtocolFault, PublishEncoder, Refusal

BLOCK_BYTES = 128 << 10  # of input a read; becomes at most 210 times as much, when all its lines are empty
WINDOW_LINES = 100_000  # sent and not answered, beyond which no input is read
REFUSALS_MAX = 10  # told one by one; the rest is counted
STALL_TIMEOUT_S = 60.0  # without one byte in either direction while something is due
TICK_S = 0.1


@dataclass
class Outcome:
    """How a run of publishing went, so far or in the end."""

    lines: int = 0  # read and handed to the socket, the last one perhaps in part
    input_bytes: int = 0
    acknowledged: int = 0
    refused: int = 0  # without acknowledgements: errors heard
    refusals: list[Refusal] = field(default_factory=list)  # the first few
    first_seq: int = -1
    last_seq: int = -1
    seconds: float = 0.0


class Publisher:
    """One run. Without `ack`, errors are heard but nobody can tell which line they mean."""

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        input_fd: int,
        stream: str,
        *,
        ack: bool,
        tick: Callable[[Outcome], None] = lambda _outcome: None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        """`tick` is called about every TICK_S with what has been done so far."""
        self.outcome = Outcome()
        self._sock = sock
        self._server = server
        self._input_fd = input_fd
        self._ack = ack
        self._tick = tick
        self._stall_timeout_s = stall_timeout_s
        self._encoder = PublishEncoder(stream)
        self._answers = AckReader(stream)
        self._pending = memoryview(b"ack on\r\n" if ack else b"")
        self._input_ended = False
        self._barrier_sent = False
        self._last_refusal = ""  # about the connection

    def run(self) -> Outcome:
        """Publish until the input ends and every line has its outcome. Raises CommandError."""
        started_s = moved_s = ticked_s = time.monotonic()
        self._sock.setblocking(False)
        while not self._finished():
            moved = self._turn()
            now_s = time.monotonic()
            if now_s - ticked_s >= TICK_S:
                ticked_s = now_s
                self.outcome.seconds = now_s - started_s
                self._tick(self.outcome)
            if moved or not self._expecting():
                moved_s = now_s
            elif now_s - moved_s > self._stall_timeout_s:
                raise self._lost(f"no sign of life for {self._stall_timeout_s:.0f} s")
        self.outcome.seconds = time.monotonic() - started_s
        self._tick(self.outcome)
        return self.outcome

    # --- one turn

    def _turn(self) -> bool:
        """Wait for what can be done, do it; whether the connection moved."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._pending else 0))
        if self._wants_input():
            poller.register(self._input_fd, select.POLLIN)
        moved = False
        for fd, events in poller.poll(TICK_S * 1_000):
            if fd == self._input_fd:
                self._read_input()
            else:
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._receive()
                moved = True
        self._send()
        return moved

    def _wants_input(self) -> bool:
        waiting = self._encoder.lines - self._answers.answered if self._ack else 0
        return not self._input_ended and not self._pending and waiting < WINDOW_LINES

    def _expecting(self) -> bool:
        if self._pending or self._barrier_sent:
            return True
        return self._ack and self._answers.answered < self._encoder.lines

    def _finished(self) -> bool:
        if not self._input_ended or self._pending:
            return False
        return self._answers.answered >= self._encoder.lines if self._ack else self._answers.ponged

    # --- input and output

    def _read_input(self) -> None:
        block = os.read(self._input_fd, BLOCK_BYTES)
        if block:
            encoded = self._encoder.encode(block)
            self.outcome.input_bytes += len(block)
        else:
            self._input_ended = True
            encoded = self._encoder.finish()
            if not self._ack:
                encoded += b"ping\r\n"  # its answer comes after every error there is
                self._barrier_sent = True
        self.outcome.lines = self._encoder.lines
        self._pending = memoryview(encoded)

    def _send(self) -> None:
        while self._pending:
            try:
                sent = self._sock.send(self._pending)
            except BlockingIOError:
                return
            except OSError as error:
                self._hear_last_words()
                raise self._lost(error.strerror or str(error)) from None
            self._pending = self._pending[sent:]

    def _receive(self) -> None:
        try:
            received = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not received:
            raise self._lost("the broker closed it")
        self._take(received)

    def _hear_last_words(self) -> None:
        """What the broker said before it closed explains why sending failed."""
        try:
            while received := self._sock.recv(RECEIVE_BYTES):
                self._take(received)
        except OSError:
            pass

    def _take(self, received: bytes) -> None:
        try:
            refusals = self._answers.feed(received)
        except ProtocolFault as fault:
            raise CommandError(f"{self._server}: {fault}") from None
        outcome, answers = self.outcome, self._answers
        outcome.acknowledged = answers.acknowledged
        outcome.first_seq, outcome.last_seq = answers.first_seq, answers.last_seq
        for refusal in refusals:
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.line == 0:
            self._last_refusal = f"{refusal.code}: {refusal.text}"
            return
        self.outcome.refused += 1
        if len(self.outcome.refusals) < REFUSALS_MAX:
            self.outcome.refusals.append(refusal if self._ack else refusal._replace(line=0))

    def _lost(self, reason: str) -> CommandError:
        outcome, answered = self.outcome, self._answers.answered
        text = f"connection to {self._server} lost ({self._last_refusal or reason}); "
        if not self._ack:
            text += f"of {outcome.lines:,} lines read, nobody can say how many arrived"
        else:
            text += f"acknowledged were {outcome.acknowledged:,} of {outcome.lines:,} lines read"
            if answered < outcome.lines:
                text += f"; line {answered + 1:,} and what follows may be missing"
        return CommandError(text, NO_CONNECTION)
