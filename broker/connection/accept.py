"""How connections come in: from the listener, or from a sibling that has too many or is being replaced.

Every worker listens on the same port (SO_REUSEPORT) and the kernel spreads connections by hash. A worker that holds far
more than the least loaded one passes a fresh connection on, before it has read a byte of it. A worker that is being
replaced passes all its connections to its successor, with their unfinished requests. Both are one act, `adopt`.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import time
from collections import deque
from typing import Any

from tailrace.broker.access.identity import REMOTE, Identity, unix_peer
from tailrace.broker.connection import handover
from tailrace.broker.connection.admin_door import AdminDoor
from tailrace.broker.connection.admission import ConnectionAdmission
from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.detect import BeginTLS, ProtocolFactories, UndetectedConnection
from tailrace.broker.connection.login import REVOKED_TEXT
from tailrace.broker.connection.proxied import ProxiedConnection
from tailrace.broker.process.scoreboard import STATE_READY, Board
from tailrace.broker.replication.roles.peers import Peers, is_loopback
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.services import Services
from tailrace.protocol.errors import Code

log = logging.getLogger(__name__)

ACCEPTS_A_TURN = 128
SKEW_CONNECTIONS = 16  # how many more than the least loaded worker, beyond a quarter, count as far more
RETRY_S = 0.5  # when descriptors have run out
DELAYED_MAX, DELAY_MAX_S = 1_024, 10.0  # connections that wait for their address's rate, and how long each may
SILENCE_S = 1.0  # how long one that is refused may take to show its protocol
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 15, 4
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Linux reports an error that is pending on the new socket as an error of accept. See "Error handling" in accept(2): the
# connection is gone, the listener is not. EPERM is a firewall's.
CONNECTION_GONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
        errno.ETIMEDOUT,
    }
)


class Acceptor:
    def __init__(
        self,
        services: Services,
        protocols: ProtocolFactories,
        listener: socket.socket,
        board: Board,
        slot: int,
        links: LinkTable,
        begin_tls: BeginTLS | None,
        admin_listener: socket.socket | None = None,
    ) -> None:
        self._services = services
        self._begin_tls = begin_tls
        self._protocols = protocols
        self._board = board
        self._slot = slot
        self._links = links
        self._listener = listener
        self._listening = False
        self._admin_door: AdminDoor | None = None
        if admin_listener is not None:
            self._admin_door = AdminDoor(admin_listener, services.poller, self._take_in_administrator)
        self._retry_at_s = 0.0
        self._admission = ConnectionAdmission(services, board)
        self._proxies = Peers(services.settings.proxies)
        self._delayed = 0  # connections that wait for the rate of their address
        self._passed: dict[int, int] = {}  # connections on their way to a sibling, which the board does not count yet
        self._refused: deque[UndetectedConnection] = deque()  # the oldest first

    def start(self) -> None:
        self._listener.setblocking(False)
        tune(self._listener, self._services.settings.notsent_bytes)
        self._services.poller.register(self._listener.fileno(), select.EPOLLIN, self._on_event)
        self._listening = True
        if self._admin_door is not None:
            self._admin_door.start()

    def stop(self) -> None:
        """Accept no more here. The supervisor keeps the listener open, so connections in its queue wait for the
        successor.
        """
        if self._listening:
            self._services.poller.unregister(self._listener.fileno())
            self._listening = False
        self._listener.close()
        if self._admin_door is not None:
            self._admin_door.stop()
        self._services.delays.tick(float("inf"))

    @property
    def watches_clock(self) -> bool:
        """Whether `tick` has anything to look for."""
        return bool(self._retry_at_s or self._refused or self._passed or self._services.delays)

    def tick(self) -> None:
        """From the timer: listen again after descriptors had run out; refuse who stays silent."""
        self._passed.clear()
        self._services.deadlines.tick(self._services.now_s)
        self._services.delays.tick(self._services.now_s)
        while self._refused and self._refused[0].accepted_s < self._services.now_s - SILENCE_S:
            self._refused.popleft().give_up()
        if self._retry_at_s and time.monotonic() >= self._retry_at_s and self._listening:
            self._retry_at_s = 0.0
            self._services.poller.modify(self._listener.fileno(), select.EPOLLIN)

    def _on_event(self, _mask: int) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in CONNECTION_GONE:
                    log.debug("a connection was gone before it was accepted: %s", error.strerror)
                    continue
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                log.error("cannot accept: %s; trying again in %s s", error.strerror, RETRY_S)
                self._retry_at_s = time.monotonic() + RETRY_S
                self._services.poller.modify(self._listener.fileno(), 0)
                return
            self._accepted(sock, address)

    def _accepted(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        services = self._services
        services.metrics.accepted += 1
        peer = format_peer(address)
        if services.settings.proxies and self._proxies.admit(address[0]):
            self._await_first_byte(ProxiedConnection(services, sock, peer, self._on_client))
        else:
            self._pace(sock, peer, services.access.arrived(local=is_loopback(address[0])))

    def _on_client(self, sock: socket.socket, peer: str) -> None:
        """A proxy has named its client, which is never of this machine."""
        self._pace(sock, peer, REMOTE)

    def _pace(self, sock: socket.socket, peer: str, identity: Identity) -> None:
        """Take a connection now, or when the rate of its address allows."""
        services = self._services
        account = services.accounts.of(peer, services.now_s)
        wait_s = account.accepts.take(1, services.now_s) if account.accepts is not None else 0.0
        if not wait_s:
            self._place(sock, peer, identity)
        elif account.accepts is not None and not self._may_wait(sock, wait_s):
            account.accepts.put_back(1)
            services.metrics.refused.add(Code.CONNECTIONS)
            sock.close()
        else:
            services.metrics.delayed += 1
            self._delayed += 1
            services.delays.at(services.now_s + wait_s, lambda: self._place_late(sock, peer, identity))

    def _may_wait(self, sock: socket.socket, wait_s: float) -> bool:
        return (
            wait_s <= DELAY_MAX_S and self._admission.may_be_answered(sock.fileno(), 0) and self._delayed < DELAYED_MAX
        )

    def _place_late(self, sock: socket.socket, peer: str, identity: Identity) -> None:
        self._delayed -= 1
        self._place(sock, peer, identity)

    def _place(self, sock: socket.socket, peer: str, identity: Identity) -> None:
        """Serve a connection here, or pass it on, or refuse it."""
        services = self._services
        refusal = self._admission.refusal(services.accounts.of(peer, services.now_s), sock.fileno())
        target = None if refusal else self._least_loaded()
        if target is not None and (link := self._links.link_to(target)) is not None:
            services.metrics.handed_over += 1
            self._passed[target] = self._passed.get(target, 0) + 1
            self._links.hand_over(link, sock.detach(), {"peer": peer, "identity": identity.export_state()})
            return
        newcomer = UndetectedConnection(services, self._protocols, sock, peer, identity, self._begin_tls)
        if refusal and not self._admission.may_be_answered(sock.fileno(), len(self._refused)):
            services.metrics.refused.add(Code.CONNECTIONS)
            newcomer.log_refusal(Code.CONNECTIONS, refusal)
            sock.close()
            return
        if refusal:
            newcomer.refused = Code.CONNECTIONS, refusal
            self._refused.append(newcomer)
        self._await_first_byte(newcomer)

    def _take_in_administrator(self, sock: socket.socket, uid: int, pid: int) -> None:
        """A connection by the unix socket. It counts for no other limit: administrators are needed most when one is
        met.
        """
        self._admission.make_room_for_administrator()
        peer = f"unix/{uid}:{pid}"
        self._await_first_byte(UndetectedConnection(self._services, self._protocols, sock, peer, unix_peer(uid), None))

    def _await_first_byte(self, connection: Connection) -> None:
        assert isinstance(connection.sock, socket.socket)
        self._take_in(connection, connection.sock)
        self._services.deadlines.first_byte.start(connection, self._services.now_s)

    def _least_loaded(self) -> int | None:
        """A slot that should have the next connection rather than this one; None for this one."""
        own = len(self._services.clients)
        if own < SKEW_CONNECTIONS:
            return None
        passed, board = self._passed, self._board
        loads = [
            (slot.connections + passed.get(slot.index, 0), slot.index) for slot in board if slot.state == STATE_READY
        ]
        least, index = min(loads, default=(own, self._slot))
        return index if own > least * 5 // 4 + SKEW_CONNECTIONS and index != self._slot else None

    def adopt(self, sock: socket.socket, state: dict[str, Any]) -> None:
        """Take over a connection from a sibling, in the state in which the sibling left it."""
        peer, known = state["peer"], self._services.access.restore(state["identity"])
        if sock.family != socket.AF_UNIX:
            self._tune_again(sock, peer)
        identity = REMOTE if known is None else known
        if "protocol" not in state:
            self._await_first_byte(
                UndetectedConnection(self._services, self._protocols, sock, peer, identity, self._begin_tls)
            )
            return
        client = self._protocols[state["protocol"]](sock, peer, identity)
        assert isinstance(client, ClientConnection)
        self._take_in(client, sock)
        handover.restore(client, state)
        if client.must_log_in:
            self._services.deadlines.login.start(client, self._services.now_s)
        if known is None or not (state["must_log_in"] or self._services.access.admits(known)):
            client.end_with(Code.DENIED, REVOKED_TEXT)
        elif not client.is_free:
            client.drop_what_is_denied()

    def _take_in(self, connection: Connection, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._services.add_client(connection)

    def _tune_again(self, sock: socket.socket, peer: str) -> None:
        """It was accepted by another worker, perhaps with other settings."""
        try:
            tune(sock, self._services.settings.notsent_bytes)
        except OSError:
            log.debug("connection from %s was gone before it was tuned", peer)


def tune(sock: socket.socket, notsent_bytes: int) -> None:
    """Set the options of a connection, or of a listener, whose connections have them from the kernel then.

    Small answers at once; dead peers found by the kernel, since the line protocol has no heartbeat. The kernel takes no
    more than about `notsent_bytes` beyond the bytes under way; by default it takes megabytes for a peer that never
    reads.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, notsent_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def format_peer(address: tuple[Any, ...]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
