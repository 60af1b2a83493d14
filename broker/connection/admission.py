"""Whether a new connection can be taken, and at the cost of which others.

While there is room, each address may have its share. When connections or descriptors run out, silent connections go
first, those that have not logged in next, then the longest idle ones of the address that has the most: an address that
took all is not the one that keeps it. Nodes and administrators stay.
"""

from __future__ import annotations

import heapq
import logging
import resource
from typing import Final

from tailrace.broker.access.identity import Proof
from tailrace.broker.connection.accounts import Account
from tailrace.broker.connection.base import Connection
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.services import Services
from tailrace.protocol.errors import Code

log = logging.getLogger(__name__)

SILENT_S: Final = 1.0
"""How long a connection may owe its first byte or its login when others need its place."""
REFUSED_MAX: Final = 256
"""Refused connections that get the reason at the same time; others are closed without it."""
EVICTIONS_A_SCAN: Final = 64
"""Connections that are closed at once, since finding them takes a look at all."""
RESERVED_A_STREAM: Final = 5
"""Two are its files, in the worker that owns it, two in one that reads it; one is for telling connections why they are
refused."""
RESERVED_LEAST: Final = 64
ADMINISTRATORS_MAX: Final = 64
"""Connections of a worker by the unix socket. A process that may open it can still not take all descriptors."""
EVICTED_TEXT = "this connection is closed, since others need its place: connect again"


class ConnectionAdmission:
    """One per worker."""

    def __init__(self, services: Services, board: Board) -> None:
        self._services = services
        self._board = board
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reserved = reserved_descriptors(services.settings, limit)
        self._descriptors_max = limit - reserved
        self._refused_max = self._descriptors_max + reserved // RESERVED_A_STREAM

    def refusal(self, account: Account, fd: int) -> str:
        """Why a new connection cannot be taken; empty if it can. May close others for it."""
        services = self._services
        if services.accounts.is_full(account):
            return account.connections_refusal()
        if fd >= self._descriptors_max:  # the lowest that was free
            text = "this worker has as many connections as its descriptors allow; try again later"
        elif self._board.total_connections() >= services.settings.max_connections:
            text = f"this node has {services.settings.max_connections} connections, which is its limit; try again later"
        else:
            return ""
        return "" if self._make_room(account) else text

    def may_be_answered(self, fd: int, refused: int) -> bool:
        """Whether a refused connection may be kept until it has its answer: few are, and their descriptors are
        counted.
        """
        return fd < self._refused_max and refused < REFUSED_MAX

    def _make_room(self, newcomer: Account) -> bool:
        services = self._services
        deadlines, before_s = services.deadlines, services.now_s - SILENT_S
        for queue in (deadlines.first_byte, deadlines.handshake, deadlines.login):
            silent = queue.oldest(before_s)
            if isinstance(silent, Connection):
                _evict(silent)
                return True
        victims = self._of_the_largest(newcomer)
        for victim in victims:
            _evict(victim)
        return bool(victims)

    def make_room_for_administrator(self) -> None:
        """Close connections by the unix socket that have been idle for longest, so that there may be one more."""
        own = [client for client in self._services.clients.values() if client.identity.proof is Proof.SOCKET]
        for idle in heapq.nsmallest(len(own) + 1 - ADMINISTRATORS_MAX, own, key=lambda client: client.used_s):
            log.warning("closing the longest idle of %d connections by the socket of administration", len(own))
            _evict(idle)

    def _of_the_largest(self, newcomer: Account) -> list[Connection]:
        """The longest idle connections of the address with the most: half of those that it has more than the
        newcomer's, so that both may have as many in the end.
        """
        clients = [client for client in self._services.clients.values() if client.evictable]
        if not clients:
            return []
        largest = max(clients, key=lambda client: client.account.connections).account
        count = min(EVICTIONS_A_SCAN, (largest.connections - newcomer.connections) // 2)
        if count <= 0:
            return []
        log.warning("closing %d connections of %s, which has the most, for others", count, largest.key)
        own = [client for client in clients if client.account is largest]
        return heapq.nsmallest(count, own, key=lambda client: client.used_s)


def _evict(connection: Connection) -> None:
    """Close it now: its descriptor is needed. The reason is sent if the socket takes it."""
    connection.end_with(Code.CONNECTIONS, EVICTED_TEXT)
    connection.flush_answers()
    connection.close("evicted")


def reserved_descriptors(settings: Settings, limit: int) -> int:
    """Descriptors that connections do not get: for the files of streams, for links and for administration."""
    wanted = settings.reserved_descriptors or settings.max_open_streams * RESERVED_A_STREAM
    return min(max(wanted, RESERVED_LEAST), limit // 2)
