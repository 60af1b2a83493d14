"""Handshakes: connections that speak TLS until their first byte of plaintext, which shows the protocol inside.

A step of a handshake costs about a millisecond of the processor, as much as thousands of messages. So the steps wait in
a queue, and a turn of the loop does few of them. A connection whose step waits is not read.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections import deque

from tailrace.broker.access.identity import Identity, LoginFailure, Proof
from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import READ_BYTES_MIN
from tailrace.broker.connection.deadlines import Awaited
from tailrace.broker.connection.detect import BeginTLS, ProtocolFactories, UndetectedConnection
from tailrace.broker.connection.transport import TLSTransport
from tailrace.broker.process.event_log import Event
from tailrace.broker.services import Services
from tailrace.protocol.errors import Code
from tailrace.protocol.tls import TLSEngine
from tailrace.protocol.tls_stream import TLSWorkspace

log = logging.getLogger(__name__)

HANDSHAKES_TURN_S = 0.002  # of a turn for steps of handshakes; one step at least
COMPLAINT_S = 1.0  # between two log lines about handshakes that failed


class TLSNewcomer(UndetectedConnection):
    """A connection under TLS whose protocol is not known yet."""

    __slots__ = ("handshakes", "open", "secured")

    secured: TLSTransport

    def __init__(
        self,
        services: Services,
        protocols: ProtocolFactories,
        transport: TLSTransport,
        peer: str,
        identity: Identity,
        handshakes: Handshakes,
    ) -> None:
        super().__init__(services, protocols, transport, peer, identity, None)
        self.encrypted = True
        self.handshakes = handshakes
        self.secured = transport
        self.open = False  # the handshake is done

    def readable(self) -> None:
        if self.lingering_since_s:
            super().readable()
        elif self.open:
            self._detect()
        else:
            self.pause(Pause.WORK)
            self.handshakes.wait(self)

    def step(self) -> None:
        """A step of the handshake."""
        self.resume(Pause.WORK)
        try:
            self.open = self.secured.handshake()
        except OSError as error:
            self.handshakes.failed(self, error.strerror or str(error))
            self.finish()
            return
        if self.secured.unsent_bytes:
            self.block()
        self._hold(0 if self.open else self.secured.received_bytes)
        if self.closed:
            return
        if self.open:
            self.services.metrics.tls_handshakes += 1
            if self.secured.certificate is not None:
                self._certified((self.secured.certificate.subject, *self.secured.certificate.names))
            self.services.deadlines.handshake.stop(self)
            self.services.deadlines.first_byte.start(self, self.services.now_s)
            self._detect()  # bytes that came behind the handshake raise no event

    def _certified(self, names: tuple[str, ...]) -> None:
        """It has shown a verified certificate of these names, which may be a user's."""
        services = self.services
        self.identity = services.access.certified(self.identity, names)
        if not self.identity.user:
            return
        account = services.accounts.of_user(self.identity.user, services.now_s)
        if services.accounts.is_full(account):
            services.metrics.login_failures.add(LoginFailure.LIMIT.value)
            self.refused = Code.CONNECTIONS, account.connections_refusal()
        else:
            services.metrics.logins.add(Proof.CERTIFICATE.value)
            services.events.write(Event.LOGIN, self)

    def overdue(self, what: Awaited, timeout_s: float) -> bool:
        if what is not Awaited.HANDSHAKE:
            return super().overdue(what, timeout_s)
        if self.paused:  # its step waits for its turn here
            return False
        self.services.metrics.overdue.add(what)
        self.handshakes.failed(self, f"it is not done after {timeout_s:g} s")
        self.close("handshake")
        return True

    def _detect(self) -> None:
        services = self.services
        try:
            count = self.secured.recv_into(services.receive_buffer, READ_BYTES_MIN)
        except BlockingIOError:
            self._hold(self.secured.half_record_bytes)
            return
        except OSError:
            self.close("reset")
            return
        if not count:
            self.close("ended")
            return
        head = bytes(services.receive_view[:count])
        self.secured.put_back(head)
        self._sniff(head)

    def end_with(self, code: Code, text: str, *, is_logged: bool = False) -> None:
        super().end_with(code, text, is_logged=is_logged)
        if not self.open:
            self.close("refused")

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        if self.open:  # before that nothing can be sent that the peer could read
            super().send_error(code, text, fatal=fatal)

    def block(self) -> None:
        """The rest of a handshake waits for its peer to read; a refusal does not."""
        if self.lingering_since_s:
            super().block()
        else:
            self._wait_for_room()


class Handshakes:
    """The handshakes of a worker."""

    def __init__(self, services: Services, protocols: ProtocolFactories, context: ssl.SSLContext | None) -> None:
        """context: with the certificate of this node; None: TLS is not spoken here."""
        self._services = services
        self._protocols = protocols
        self._context = context
        self._workspace = TLSWorkspace()
        self.steps: deque[TLSNewcomer] = deque()  # each connection once: it is not read meanwhile
        self._complained_s = float("-inf")
        self._unlogged = 0

    @property
    def begin_tls(self) -> BeginTLS | None:
        """None if this node has no certificate."""
        return None if self._context is None else self.begin

    def begin(self, sock: socket.socket, peer: str, identity: Identity) -> TLSNewcomer:
        """The connection under TLS of a socket whose first byte is that of a handshake, still unread."""
        assert self._context is not None
        engine = TLSEngine(self._context, self._workspace.buffers, server_side=True)
        transport = TLSTransport(sock, engine, self._workspace)
        newcomer = TLSNewcomer(self._services, self._protocols, transport, peer, identity, self)
        self._services.deadlines.handshake.start(newcomer, self._services.now_s)
        return newcomer

    def wait(self, newcomer: TLSNewcomer) -> None:
        self.steps.append(newcomer)

    def run(self) -> None:
        """Once a turn: HANDSHAKES_TURN_S of steps, one at least."""
        steps, until_s = self.steps, time.monotonic() + HANDSHAKES_TURN_S
        while steps:
            newcomer = steps.popleft()
            if newcomer.closed or newcomer.lingering_since_s:
                continue
            newcomer.step()
            if time.monotonic() >= until_s:
                return

    def failed(self, newcomer: TLSNewcomer, reason: str) -> None:
        """Log it, at most once in COMPLAINT_S."""
        self._services.deadlines.handshake.stop(newcomer)
        self._services.metrics.tls_failures += 1
        now_s = self._services.now_s
        if now_s - self._complained_s < COMPLAINT_S:
            self._unlogged += 1
            return
        others = f" ({self._unlogged} others were not logged)" if self._unlogged else ""
        self._complained_s, self._unlogged = now_s, 0
        log.warning("TLS handshake with %s failed: %s%s", newcomer.peer, reason, others)
