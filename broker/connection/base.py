"""One connection: its socket, its pending output, why it is not read, its end. `broker.connection.client` serves it.

A connection that must end for an error first gets the reason: the rest of its input is read and thrown away until it
closes too, so that no reset overtakes the answer.
"""

from __future__ import annotations

import logging
import select
import socket
from abc import ABC, abstractmethod
from enum import IntFlag
from typing import TYPE_CHECKING

from tailrace.broker.access.identity import Identity, Proof
from tailrace.broker.access.rules import Right
from tailrace.broker.connection.deadlines import Awaited
from tailrace.broker.connection.transport import AnySocket, Transport
from tailrace.broker.process.event_log import Event
from tailrace.broker.process.metrics import Traffic
from tailrace.protocol.errors import Code

if TYPE_CHECKING:
    from tailrace.broker.services import Services

log = logging.getLogger(__name__)

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
    RATE = 32  # its address has sent more than it may in a second
    WORK = 16  # something that it asked for waits until this worker has time for it (`broker.process.work`)


NOT_PAUSED = Pause(0)


class Connection(ABC):
    """There may be tens of thousands of these: parts that few need are made when needed.

    `identity`: its user, as far as it has been proven. `account`: its address's; `accounts`: that and its user's.
    `encrypted`: nobody on the way can read what it sends. `layer`: its socket once more if that is not a plain one, but
    TLS or WebSocket, else None.
    """

    __slots__ = (
        "_interest",
        "_unsent_bytes",
        "accepted_s",
        "account",
        "accounts",
        "blocked",
        "closed",
        "encrypted",
        "eof",
        "fd",
        "held_bytes",
        "identity",
        "layer",
        "lingering_since_s",
        "out",
        "paused",
        "peer",
        "progress_s",
        "services",
        "sock",
        "traffic",
    )

    def __init__(self, services: Services, sock: AnySocket, peer: str, identity: Identity) -> None:
        self.services = services
        self.sock: Transport = sock
        self.layer = None if isinstance(sock, socket.socket) else sock
        self.fd = sock.fileno() if isinstance(sock, socket.socket) else sock.polled_fd
        self.peer = peer
        self.identity = identity
        self.account = services.accounts.of(peer, services.now_s)
        self.accounts = services.accounts.all_of(self.account, identity, services.now_s)
        self.encrypted = False
        self.traffic: Traffic
        self.out = bytearray()
        self.blocked = self.closed = self.eof = False
        self.paused = NOT_PAUSED
        self.lingering_since_s = 0.0
        self.held_bytes = 0  # of something that has begun and not ended; they count in `services.partial_bytes`
        self.accepted_s = self.progress_s = services.now_s
        self._interest = _IN
        self._unsent_bytes = 0

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    def may(self, right: Right, stream: bytes = b"") -> bool:
        """Whether this connection has the right to a stream; b"" stands for what concerns no stream."""
        return self.services.access.may(self.identity, right, stream)

    def may_all(self, right: Right, prefix: bytes) -> bool:
        """Whether it has the right to every stream whose name begins so."""
        return self.services.access.may_all(self.identity, right, prefix)

    @property
    def used_s(self) -> float:
        """When it was last of use to its peer."""
        return self.progress_s

    @property
    def evictable(self) -> bool:
        """Whether it may be closed for others. Nodes and administrators stay."""
        return not self.bound and self.identity.proof is not Proof.SOCKET

    @property
    def bound(self) -> bool:
        """Whether it is another node's, which stays in its worker and is not bounded as clients are."""
        return False

    @property
    def rooted(self) -> bool:
        """Whether it is another node's that this worker has something of, so that it cannot be handed over."""
        return False

    def take_no_more(self) -> None:
        """Refuse another node's publishes from now on, with `closing`: it keeps them for the successor."""
        return

    @abstractmethod
    def readable(self) -> None:
        """There is something to read, or the end of it."""

    @abstractmethod
    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        """Send an error; after a fatal one the connection ends (`end_with`)."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def on_event(self, mask: int) -> None:
        if mask & _OUT and self._flush_layer():
            self._writable()
        if self.closed:
            return
        if mask & _IN:
            self.readable()
        elif mask & _GONE:
            self.close("reset")

    def _read_after_the_end(self, count: int) -> None:
        if not count:
            self.eof = True
            self._update_interest()
            self._close_when_done()

    def pause(self, reason: Pause) -> None:
        self.paused |= reason
        self._update_interest()

    def resume(self, reason: Pause) -> None:
        self.paused &= ~reason
        if not self.closed:
            self._update_interest()

    def has_unread(self) -> bool:
        """Whether the socket holds bytes, or an end, that were not read yet."""
        if self.eof:
            return False
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError:  # it was reset; epoll reports it too
            return False

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
            self.progress_s = self.services.now_s
        if self.out or (self.layer is not None and self.layer.unsent_bytes):
            self.block()
            return False
        return True

    def after_turn(self) -> None:
        """Once a turn for a connection that was answered: send, and see whether this was all."""
        if self.closed:
            return
        done = self.flush_answers()
        self._account()
        if done:
            self._close_when_done()

    def _account(self) -> None:
        """Stop reading from a peer that does not take its answers. Keep the worker's sum of them; past its bound, end
        the connection that adds to it.
        """
        services = self.services
        unsent = 0 if self.closed else len(self.out)
        if self.layer is not None and not self.closed:
            unsent += self.layer.unsent_bytes
        if unsent > OUT_HIGH_BYTES:
            self.pause(Pause.ANSWERS)
        services.unsent_bytes += unsent - self._unsent_bytes
        grows, self._unsent_bytes = unsent > self._unsent_bytes, unsent
        if grows and services.unsent_bytes > services.settings.max_unsent_bytes:
            log.warning("closing %s: its %d bytes of unread answers are more than can be held", self.peer, unsent)
            services.metrics.refused.add(Code.SLOW)
            self.close("slow")

    @property
    def stays(self) -> bool:
        """Whether it cannot move to another worker."""
        return self.layer is not None

    @property
    def unsent_bytes(self) -> int:
        """Answers that the socket has not taken, and what TLS has encrypted and not sent."""
        return len(self.out) + (0 if self.layer is None else self.layer.unsent_bytes)

    def _flush_layer(self) -> bool:
        """Send the encrypted bytes. False if the socket is still full, or gone."""
        if self.layer is None or not self.layer.unsent_bytes:
            return True
        before = self.layer.unsent_bytes
        try:
            done = self.layer.flush()
        except OSError:
            self.close("reset")
            return False
        if self.layer.unsent_bytes < before:
            self.progress_s = self.services.now_s
        return done

    def _writable(self) -> None:
        self.blocked = False
        self._update_interest()
        self.services.note_answered(self)

    def block(self) -> None:
        """The socket took less than it was given."""
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        if not self.blocked:
            self.blocked = True
            self.progress_s = self.services.now_s
            self._update_interest()

    def _update_interest(self) -> None:
        interest = 0
        if not self.eof and (not self.paused or self.lingering_since_s):
            interest |= _IN
        if self.blocked:
            interest |= _OUT
        if interest != self._interest:
            self._interest = interest
            self.services.poller.modify(self.fd, interest)

    # --- the end ----------------------------------------------------------------------------------------------------

    def end_with(self, code: Code, text: str, *, is_logged: bool = False) -> None:
        """Send the peer an error, and end the connection once it is sent. is_logged: the log has the reason already."""
        if not self.lingering_since_s and not self.closed:
            self.services.metrics.refused.add(code)
            if code is not Code.CLOSING and not is_logged:
                self.log_refusal(code, text)
            self.send_error(code, text, fatal=True)
            self.finish()

    def log_refusal(self, code: Code, text: str) -> None:
        self.services.events.write(Event.REFUSED, self, code=code.value, text=text)

    def event_fields(self) -> dict[str, str | int]:
        """Who this is, for the log of events."""
        identity = self.identity
        return {"peer": self.peer, "user": identity.user, "uid": identity.uid, "proof": identity.proof.value}

    def overdue(self, what: Awaited, timeout_s: float) -> bool:
        """Something did not come in time (`broker.connection.deadlines`)."""
        if self.paused and not self.lingering_since_s:
            return False
        self.services.metrics.overdue.add(what)
        self.end_with(Code.TIMEOUT, f"the {what} did not come within {timeout_s:g} s")
        return True

    def finish(self) -> None:
        """End this connection once its answers are on their way; input from here on is thrown away."""
        if self.lingering_since_s or self.closed:
            return
        self.lingering_since_s = self.services.now_s
        self.services.note_answered(self)

    @property
    def awaited(self) -> int:
        """How many answers are not known yet."""
        return 0

    @property
    def owed(self) -> bool:
        """Whether anything is still to be sent, or not known yet."""
        return self.unsent_bytes > 0

    def _close_when_done(self) -> None:
        if self.closed or self.owed or not self.lingering_since_s:
            return
        if self.eof:
            self.close("ended")
        else:
            self._shutdown()

    def _shutdown(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:  # it is gone already
            self.close("reset")
            return
        self.services.note_lingering(self)
        self._update_interest()

    def close(self, reason: str) -> None:
        """Close now, with all that belongs to the connection."""
        if self.closed:
            return
        self.closed = True
        self._release()
        self.out = bytearray()
        self.services.client_closed(self, reason)
        self.sock.close()

    def _release(self) -> None:
        """Take this connection out of all that the worker keeps of it."""
        self._account()

    def leave(self) -> int:
        """Give the socket away (see `broker.connection.handover`): forget everything here, close nothing. Returns the
        descriptor.
        """
        assert isinstance(self.sock, socket.socket)  # see `handover.possible`: what TLS knows cannot be given away
        self.closed = True
        self._release()
        self.services.client_closed(self, "handed over")
        return self.sock.detach()
