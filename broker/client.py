"""One client connection of the line protocol: its socket, its row of answers, its cursors.

Reading: one `recv_into` the worker's shared buffer a turn, through the codec, each command run at once. Writing:
answers in the order of their commands (one that is not known yet holds back those after it), and between answers
whole chunks. A connection that must end for an error first gets the reason: the rest of its input is read and thrown
away until it closes too, so that no reset overtakes the answer.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from enum import IntFlag
from typing import TYPE_CHECKING

from broker.fanout import Cursor
from broker.protocol import answers
from broker.protocol.commands import Close, Invalid, Reply, Staged
from broker.protocol.errors import Code
from broker.protocol.line import LineCodec
from broker.protocol.sniff import sniff
from broker.publish import Pending
from broker.routes import Route

if TYPE_CHECKING:
    from broker.commands import Turn
    from broker.worker import Worker

log = logging.getLogger(__name__)

ANSWERS_PENDING_MAX = 4_096  # answers not known yet; reading pauses above it
# A read is small after anything but a publish, so that little input cannot ask for much output before it is noticed;
# it doubles with each full read of publishes.
READ_BYTES_MIN, READ_BYTES_MAX = 16 << 10, 1 << 20
OUT_HIGH_BYTES = 1 << 20  # answers not taken by the peer yet; reading pauses above it
LINGER_S = 5.0  # how long a connection that must end may take to read why

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_GONE = select.EPOLLHUP | select.EPOLLERR


class Pause(IntFlag):
    """Why a connection is not read."""

    LINK = 1  # its publishes wait for a sibling
    ANSWERS = 2  # it does not read its answers, or they are not known yet
    LEAVING = 4  # its worker is being replaced: it follows when it is answered
    MOVE = 8  # it is about to be handed over


class Client:
    __slots__ = (
        "_interest",
        "_pending_bytes",
        "_read_bytes",
        "_recv_into",
        "_unsent_bytes",
        "accepted_s",
        "answers",
        "blocked",
        "closed",
        "codec",
        "created",
        "current",
        "cursors",
        "eof",
        "fd",
        "lingering_since_s",
        "local",
        "moved_s",
        "out",
        "paused",
        "peer",
        "progress_s",
        "queued",
        "ready",
        "sniffed",
        "sock",
        "subscribing",
        "window_away",
        "window_messages",
        "window_slot",
        "worker",
    )

    def __init__(self, worker: Worker, sock: socket.socket, peer: str, local: bool) -> None:
        self.worker = worker
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.local = local
        self.codec = LineCodec(worker.settings.max_line_bytes, worker.settings.max_message_bytes)
        self.answers: deque[Pending] = deque()  # the first is not known yet; the others wait behind it
        self.out = bytearray()
        self.cursors: dict[bytes, Cursor] = {}
        self.subscribing: deque[Turn] = deque()  # the first waits for a stream's owner; see `broker.commands`
        self.ready: deque[Cursor] = deque()
        self.current: Cursor | None = None
        self.created = 0
        self.queued = self.blocked = self.closed = self.eof = self.sniffed = False
        self.paused = Pause(0)
        self.lingering_since_s = 0.0
        self.moved_s = float("-inf")
        self.window_slot = -1  # the sibling most published to, see `broker.affinity`
        self.window_messages = self.window_away = 0
        self.accepted_s = self.progress_s = worker.now_s
        self._interest = _IN
        self._pending_bytes = 0
        self._unsent_bytes = 0
        self._read_bytes = READ_BYTES_MIN
        self._recv_into = sock.recv_into

    # --- reading ----------------------------------------------------------------------------------------------------

    def on_event(self, mask: int) -> None:
        if mask & _OUT:
            self._writable()
        if mask & _IN:
            self._readable()
        elif mask & _GONE:
            self.close("reset")

    def _readable(self) -> None:
        """One read, and what it asks for. With 1,000 connections that send a message each this is most of the loop."""
        worker = self.worker
        try:
            count = self._recv_into(worker.receive_buffer, self._read_bytes)
        except BlockingIOError:
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        if (not count or not self.sniffed or self.lingering_since_s) and not self._begin(count):
            return
        worker.metrics.line.bytes_in += count
        command: object = None
        for command in self.codec.feed(worker.receive_view, count):
            if type(command) is Staged:
                worker.router.publish(self, command)
            else:
                self._execute(command)
                if self.closed or self.lingering_since_s:
                    return
        pending = self.codec.pending_bytes
        if count == self._read_bytes < READ_BYTES_MAX and (type(command) is Staged or pending >= count):
            self._read_bytes *= 2
        if pending != self._pending_bytes:
            self._hold(pending)

    def _begin(self, count: int) -> bool:
        """The reads that are not like the others: the first, the last, and those after the end. Whether to go on."""
        if self.lingering_since_s:
            if not count:
                self.eof = True
                self._update_interest()
                self._close_when_done()
            return False
        if not count:
            self._end_of_input()
            return False
        return self._sniff(self.worker.receive_view[0])

    def _execute(self, command: object) -> None:
        """Any command but a publish, after everything this connection published before it."""
        self.worker.router.flush()
        self._read_bytes = READ_BYTES_MIN
        if type(command) is Invalid:
            error = command.error
            self.refuse(error.code, error.text)
            if error.fatal:
                self.finish()
        elif type(command) is Reply:
            self.answer(command.data)
        elif type(command) is Close:
            self.answer(answers.ok_close())
            self.finish()
        else:
            self.worker.commands.execute(self, command)

    def _sniff(self, first: int) -> bool:
        refusal = sniff(first)
        self.sniffed = True
        if refusal is None:
            return True
        self.worker.metrics.refused.add(Code.PROTOCOL)
        self.answer(refusal)
        self.finish()
        return False

    def _end_of_input(self) -> None:
        """The peer has shut its sending side: it still gets every answer, and what it subscribed to."""
        self.eof = True
        for command in self.codec.feed_eof():
            self._execute(command)
        self._hold(0)
        self._update_interest()
        self._close_when_done()

    def _hold(self, pending_bytes: int) -> None:
        worker = self.worker
        worker.partial_bytes += pending_bytes - self._pending_bytes
        self._pending_bytes = pending_bytes
        if worker.partial_bytes > worker.settings.max_partial_bytes and pending_bytes:
            self.refuse(Code.OVERLOADED, "too many unfinished lines are held here; send this one again later")
            self.finish()

    def pause(self, reason: Pause) -> None:
        self.paused |= reason
        self._update_interest()

    def resume(self, reason: Pause) -> None:
        self.paused &= ~reason
        if not self.closed:
            self._update_interest()

    def pause_for(self, route: Route) -> None:
        route.feeders.add(self.resume_from_link)
        self.pause(Pause.LINK)

    def resume_from_link(self) -> None:
        self.resume(Pause.LINK)

    def has_unread(self) -> bool:
        """Whether the socket holds bytes, or an end, that were not read yet."""
        if self.eof:
            return False
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError:  # it was reset; epoll tells it too
            return False

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, text: bytes) -> None:
        """Put an answer in its place: at once, or behind those that are not known yet."""
        self.worker.answered_bytes += len(text)
        if not self.answers:
            self.out += text
        else:
            settled = Pending(self.answers_ready)
            settled.text = text
            self.answers.append(settled)
        self.worker.note_answered(self)

    def pend(self, pending: Pending) -> None:
        self.answers.append(pending)
        if len(self.answers) > ANSWERS_PENDING_MAX:
            self.pause(Pause.ANSWERS)

    def answers_ready(self) -> None:
        """Some pending answer was filled: move on what is now in front."""
        row = self.answers
        while row and (text := row[0].text) is not None:
            pending = row.popleft()
            self.out += text
            if pending.after is not None:
                pending.after()
        self.worker.note_answered(self)

    def refuse(self, code: Code, text: str) -> None:
        self.worker.metrics.refused.add(code)
        self.answer(answers.err(code, text))

    def publish_refused(self, name: bytes, count: int, code: Code, text: str) -> None:
        self.worker.metrics.refused.add(code, count)
        self.answer(answers.publish_refused(name, count, code, text))

    def may_create(self) -> bool:
        return self.created < self.worker.settings.max_streams_connection

    def count_created(self) -> None:
        self.created += 1

    # --- writing ----------------------------------------------------------------------------------------------------

    def flush_answers(self) -> bool:
        """Send the answers that are ready. False when the socket is full or gone."""
        if not self.out:
            return True
        if self.closed or self.blocked:
            return False
        try:
            sent = self.sock.send(self.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("reset")
            return False
        del self.out[:sent]
        self.worker.metrics.line.bytes_out += sent
        self._note_progress(sent)
        if self.out:
            self._block()
            return False
        return True

    def send_chunk(self, text: bytes, skip: int) -> int:
        try:
            sent = self.sock.send(memoryview(text)[skip:] if skip else text)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close("reset")
            return 0
        if skip + sent < len(text):
            self._block()
        if sent:
            self.progress_s = self.worker.now_s
        return sent

    def after_turn(self) -> None:
        """Once a turn for a client that was answered: send, and see whether this was all."""
        if self.closed:
            return
        done = self.current is None and self.flush_answers()
        self._account()
        if not done:
            return
        if self.paused & Pause.ANSWERS and len(self.answers) <= ANSWERS_PENDING_MAX // 2:
            self.resume(Pause.ANSWERS)
        self._close_when_done()

    def _account(self) -> None:
        """Stop reading from whoever does not take its answers. Keep the worker's sum of them; past its bound, end the
        connection that adds to it.
        """
        worker = self.worker
        unsent = 0 if self.closed else len(self.out)
        if unsent > OUT_HIGH_BYTES:
            self.pause(Pause.ANSWERS)
        worker.unsent_bytes += unsent - self._unsent_bytes
        grows, self._unsent_bytes = unsent > self._unsent_bytes, unsent
        if grows and worker.unsent_bytes > worker.settings.max_unsent_bytes:
            log.warning("closing %s: its %d bytes of unread answers are more than can be held", self.peer, unsent)
            worker.metrics.refused.add(Code.SLOW)
            self.close("slow")

    def _writable(self) -> None:
        self.blocked = False
        self._update_interest()
        if self.current is not None or self.ready:
            self.worker.fanout.make_runnable(self)
        self.worker.note_answered(self)

    def _block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self.progress_s = self.worker.now_s
            self._update_interest()

    def _note_progress(self, sent: int) -> None:
        if sent:
            self.progress_s = self.worker.now_s

    def _update_interest(self) -> None:
        interest = 0
        if not self.eof and (not self.paused or self.lingering_since_s):
            interest |= _IN
        if self.blocked:
            interest |= _OUT
        if interest != self._interest:
            self._interest = interest
            self.worker.poller.modify(self.fd, interest)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End this connection once what it was answered is on its way; input from here on is thrown away."""
        if self.lingering_since_s or self.closed:
            return
        self.lingering_since_s = self.worker.now_s
        self._end_subscriptions()
        self.codec.feed_eof()  # a line that has begun is held no longer
        self._hold(0)
        self.worker.note_answered(self)

    @property
    def owed(self) -> bool:
        """Whether answers, or the rest of a chunk, are still to be sent."""
        return bool(self.out or self.answers) or self.current is not None

    def _close_when_done(self) -> None:
        if self.owed:
            return
        if self.lingering_since_s:
            if self.eof:
                self.close("ended")
            else:
                self._shutdown()
        elif self.eof and not self.cursors:
            self.close("ended")

    def _shutdown(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:  # it is gone already
            self.close("reset")
            return
        self.worker.note_lingering(self)
        self._update_interest()

    def keep(self, text: bytes) -> None:
        """Hold the rest of a message that is half out, before any answer."""
        self.out[:0] = text
        self.worker.note_answered(self)

    def chunk_ended(self) -> None:
        """The last chunk of a subscription that was ended in the middle of it is out: what waited for that may go."""
        self.worker.note_answered(self)

    def subscription_ended(self, cursor: Cursor) -> None:
        """Fan-out gave a subscription up; where half a message is out, nothing sensible can follow it."""
        self.cursors.pop(cursor.feed.name, None)
        if cursor.skip:
            self.close("damaged")

    def _end_subscriptions(self) -> None:
        for cursor in self.cursors.values():
            self.worker.fanout.end(cursor)
        self.cursors.clear()
        self.ready.clear()

    def close(self, reason: str) -> None:
        """Close now, with all that belongs to the connection."""
        if self.closed:
            return
        self.closed = True
        self._end_subscriptions()
        self.worker.partial_bytes -= self._pending_bytes
        self._pending_bytes = 0
        self.out = bytearray()
        self._account()
        self.worker.client_closed(self, reason)
        self.sock.close()

    # --- moving to another worker (see `broker.handover`) -----------------------------------------------------------

    def leave(self) -> int:
        """Give the socket away: forget everything here, close nothing. Returns the descriptor."""
        self.closed = True
        self._end_subscriptions()
        self.worker.partial_bytes -= self._pending_bytes
        self._pending_bytes = 0
        self._account()
        self.worker.client_closed(self, "handed over")
        return self.sock.detach()

    def take_over(self, *, eof: bool) -> None:
        """Begin where the last worker stopped: send what is ready, read on."""
        self.eof = eof
        self._hold(self.codec.pending_bytes)
        self._update_interest()
        if self.current is not None:
            self.worker.fanout.make_runnable(self)
        self.worker.note_answered(self)

    def lose(self, name: bytes, why: str, *, in_chunk: bool) -> None:
        """A subscription that cannot go on here."""
        if in_chunk:
            self.close("damaged")
            return
        self.refuse(Code.UNAVAILABLE, f"{name.decode()}: {why}; the subscription has ended")
