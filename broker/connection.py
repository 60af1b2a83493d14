"""One client connection, whatever it speaks: its socket, what is to go out, its cursors, its end.

Reading: one `recv_into` the worker's shared buffer a turn; what the bytes ask for is its protocol's business
(`LineClient`, `BinaryClient`). Writing: answers, and between answers whole chunks. A connection that must end for an
error first gets the reason: the rest of its input is read and thrown away until it closes too, so that no reset
overtakes the answer.
"""

from __future__ import annotations

import logging
import select
import socket
from abc import ABC, abstractmethod
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from broker.fanout import Cursor, Delivery
from broker.metrics import Traffic
from broker.protocol.errors import Code
from broker.routes import Route

if TYPE_CHECKING:
    from broker.worker import Worker

log = logging.getLogger(__name__)

ANSWERS_PENDING_MAX = 4_096  # answers not known yet; reading pauses above it
# A read is small after anything but a publish, so that little input cannot ask for much output before it is noticed;
# it doubles with each full read of publishes.
READ_BYTES_MIN, READ_BYTES_MAX = 16 << 10, 1 << 20
# Of publishes to many streams more is read at once: they are appended stream by stream, and what comes in one read is
# staged together.
READ_BYTES_SCATTERED_MAX = 4 << 20
STREAM_BYTES = 8 << 10  # where a read holds less than that for each of its streams, it is scattered
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


class Connection(ABC):
    """`protocol` names it in a handover. There may be tens of thousands of these: what few need is made when needed."""

    protocol: str

    __slots__ = (
        "_interest",
        "_pending_bytes",
        "_read_bytes",
        "_recv_into",
        "_unsent_bytes",
        "accepted_s",
        "blocked",
        "closed",
        "created",
        "current",
        "cursors",
        "delivery",
        "eof",
        "fd",
        "life_s",
        "lingering_since_s",
        "local",
        "moved_s",
        "out",
        "paused",
        "peer",
        "progress_s",
        "queued",
        "ready",
        "sock",
        "traffic",
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
        self.delivery: Delivery
        self.traffic: Traffic
        self.out = bytearray()
        self.cursors: dict[Any, Cursor] = {}  # by what the peer knows them by
        self.ready: list[Cursor] = []
        self.current: Cursor | None = None
        self.created = 0
        self.queued = self.blocked = self.closed = self.eof = False
        self.paused = Pause(0)
        self.lingering_since_s = 0.0
        self.moved_s = float("-inf")
        self.window_slot = -1  # the sibling most published to, see `broker.affinity`
        self.window_messages = self.window_away = 0
        self.accepted_s = self.progress_s = self.life_s = worker.now_s
        self._interest = _IN
        self._pending_bytes = 0
        self._unsent_bytes = 0
        self._read_bytes = READ_BYTES_MIN
        self._recv_into = sock.recv_into

    # --- what a protocol says of itself -----------------------------------------------------------------------------

    @abstractmethod
    def take(self, count: int) -> None:
        """Do what the first `count` bytes of the worker's buffer ask for."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """What is held of a request that has begun and not ended."""

    @abstractmethod
    def end_of_input(self) -> None:
        """The peer sends no more: what it has begun and not ended is lost, and it is told."""

    @abstractmethod
    def forget_input(self) -> None:
        """What has begun and not ended is held no longer."""

    @property
    @abstractmethod
    def awaited(self) -> int:
        """How many answers are not known yet."""

    @abstractmethod
    def tell(self, code: Code, text: str, *, fatal: bool = False) -> None:
        """Send an error; after a fatal one the connection ends (`end_with`)."""

    @abstractmethod
    def tell_trimmed(self, cursor: Cursor, first_seq: int) -> None: ...

    @abstractmethod
    def tell_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """A subscription has ended: at its end (no code) or since it cannot go on."""

    @abstractmethod
    def send_chunk(self, cursor: Cursor, chunk: Any) -> int: ...

    @abstractmethod
    def lose(self, key: Any, name: bytes, next_seq: int, why: str) -> None:
        """A subscription that cannot go on in this worker."""

    @abstractmethod
    def export_state(self) -> dict[str, Any]:
        """What only this protocol knows of a connection that moves on, for msgpack."""

    @abstractmethod
    def restore_state(self, state: dict[str, Any]) -> None: ...

    def admitted(self) -> bool:
        """Whether this peer may speak this protocol here; it has been told when it may not."""
        return True

    # --- reading ----------------------------------------------------------------------------------------------------

    def on_event(self, mask: int) -> None:
        if mask & _OUT:
            self._writable()
        if mask & _IN:
            self.readable()
        elif mask & _GONE:
            self.close("reset")

    def readable(self) -> None:
        """One read, and what it asks for. With 1,000 connections that send a message each this is most of the loop."""
        worker = self.worker
        try:
            count = self._recv_into(worker.receive_buffer, self._read_bytes)
        except BlockingIOError:
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        if not count or self.lingering_since_s:
            self._read_after_the_end(count)
            return
        self.life_s = worker.now_s
        self.traffic.bytes_in += count
        self.take(count)

    def _read_after_the_end(self, count: int) -> None:
        if not count:
            self.eof = True
            if not self.lingering_since_s:
                self.end_of_input()
                self.hold(0)
            self._update_interest()
            self._close_when_done()

    def read_more(self, count: int, streams: int) -> None:
        """After a read of `count` bytes: read more at once from whoever fills a read with publishes, to `streams` of
        them (0 where it ended in anything else).
        """
        pending = self.pending_bytes
        if count == self._read_bytes and (streams or pending >= count):
            bytes_max = READ_BYTES_SCATTERED_MAX if count < streams * STREAM_BYTES else READ_BYTES_MAX
            self._read_bytes = min(2 * count, bytes_max)
        if pending != self._pending_bytes:
            self.hold(pending)

    def read_less(self) -> None:
        self._read_bytes = READ_BYTES_MIN

    def hold(self, pending_bytes: int) -> None:
        """Account for what is held of an unfinished request, over all connections of the worker."""
        worker = self.worker
        worker.partial_bytes += pending_bytes - self._pending_bytes
        self._pending_bytes = pending_bytes
        if worker.partial_bytes > worker.settings.max_partial_bytes and pending_bytes:
            self.end_with(Code.OVERLOADED, "too many unfinished requests are held here; send this one again later")

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

    def note_awaited(self) -> None:
        """One answer more is not known yet."""
        if self.awaited > ANSWERS_PENDING_MAX:
            self.pause(Pause.ANSWERS)

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

    def refuse(self, code: Code, text: str) -> None:
        self.worker.metrics.refused.add(code)
        self.tell(code, text)

    def end_with(self, code: Code, text: str) -> None:
        """Tell the peer why, and end the connection once it has been told."""
        if not self.lingering_since_s and not self.closed:
            self.worker.metrics.refused.add(code)
            self.tell(code, text, fatal=True)
            self.finish()

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
        self.traffic.bytes_out += sent
        if sent:
            self.progress_s = self.worker.now_s
        if self.out:
            self.block()
            return False
        return True

    def after_turn(self) -> None:
        """Once a turn for a client that was answered: send, and see whether this was all."""
        if self.closed:
            return
        done = self.current is None and self.flush_answers()
        self._account()
        if not done:
            return
        if self.paused and self.paused & Pause.ANSWERS and self.awaited <= ANSWERS_PENDING_MAX // 2:
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
        self.worker.fanout.blocked.pop(self, None)
        self._update_interest()
        if self.current is not None or self.ready:
            self.worker.fanout.make_runnable(self)
        self.worker.note_answered(self)

    def block(self) -> None:
        """The socket took less than it was given."""
        if not self.blocked:
            self.blocked = True
            self.worker.fanout.blocked[self] = None
            self.progress_s = self.worker.now_s
            self._update_interest()

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
        self.forget_input()
        self.hold(0)
        self.worker.note_answered(self)

    @property
    def owed(self) -> bool:
        """Whether answers, or the rest of a chunk, are still to be sent."""
        return bool(self.out or self.awaited) or self.current is not None

    def _close_when_done(self) -> None:
        if self.closed or self.owed:
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
        """Hold the rest of a chunk that is half out, before any answer."""
        self.out[:0] = text
        self.worker.note_answered(self)

    def chunk_ended(self) -> None:
        """The last chunk of a subscription that was ended in the middle of it is out: what waited for that may go."""
        self.worker.note_answered(self)

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """Fan-out has ended a subscription; where half a chunk is out, nothing sensible can follow it."""
        self.cursors.pop(cursor.key, None)
        if cursor.skip:
            self.close("damaged")
        else:
            self.tell_ended(cursor, code, text)

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
        self._release()
        self.out = bytearray()
        self._account()
        self.worker.client_closed(self, reason)
        self.sock.close()

    def _release(self) -> None:
        """Take this connection out of all that the worker keeps of it."""
        self._end_subscriptions()
        self.worker.fanout.blocked.pop(self, None)
        self.worker.partial_bytes -= self._pending_bytes
        self._pending_bytes = 0

    # --- moving to another worker (see `broker.handover`) -----------------------------------------------------------

    def leave(self) -> int:
        """Give the socket away: forget everything here, close nothing. Returns the descriptor."""
        self.closed = True
        self._release()
        self._account()
        self.worker.client_closed(self, "handed over")
        return self.sock.detach()

    def take_over(self, *, eof: bool) -> None:
        """Begin where the last worker stopped: send what is ready, read on."""
        self.eof = eof
        self.hold(self.pending_bytes)
        self._update_interest()
        if self.current is not None:
            self.worker.fanout.make_runnable(self)
        self.worker.note_answered(self)
