"""The services that the parts of one worker share. The worker makes them; only the supervisor knows the worker itself.

`Services` has all that every connection needs, in any protocol. A class that needs more for one protocol or one command
gets it by its constructor.
"""

from __future__ import annotations

import mmap
import select
import time
from typing import TYPE_CHECKING, Protocol

from tailrace.broker.access.policy import AccessPolicy, policy_of
from tailrace.broker.connection.accounts import AccountBook
from tailrace.broker.connection.deadlines import Deadlines, Delays
from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.process.event_log import EventLog
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.poller import Poller
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.routing.router import Router
from tailrace.broker.topics.rules import TopicRules

if TYPE_CHECKING:
    from tailrace.broker.connection.base import Connection

RECEIVE_BUFFER_BYTES = 4 << 20  # the largest read of any connection


class ConnectionGets(Protocol):
    """The gets of one connection, some of which cannot be answered yet."""

    @property
    def holds(self) -> bool: ...

    def retry(self) -> None: ...


class Services:
    """The collaborators of one worker's connections, the connections themselves, and the sums over all of them.

    access: what connections may do here.
    now_s: the monotonic time of this turn of the loop, read once when events have come.
    cells: where the number of connections is shown. The slot on the board belongs to its owner; a worker that stands by
    or is retired writes to cells that nobody reads.
    """

    __slots__ = (
        "access",
        "accounts",
        "answered",
        "answered_bytes",
        "cells",
        "clients",
        "deadlines",
        "delays",
        "events",
        "fanout",
        "held_gets",
        "lingering",
        "metrics",
        "now_s",
        "partial_bytes",
        "poller",
        "pongs",
        "readers",
        "receive_buffer",
        "receive_view",
        "router",
        "settings",
        "topic_rules",
        "unsent_bytes",
        "work",
    )

    def __init__(
        self,
        settings: Settings,
        metrics: WorkerMetrics,
        poller: Poller,
        router: Router,
        readers: StreamReaders,
        fanout: FanOut,
        work: WorkQueue,
    ) -> None:
        self.settings = settings
        self.topic_rules = TopicRules(settings.topics, settings.own_levels)
        self.access: AccessPolicy = policy_of(settings, self.topic_rules)
        self.metrics = metrics
        self.poller = poller
        self.router = router
        self.readers = readers
        self.fanout = fanout
        self.work = work
        self.cells = Board(1).slot(0)
        self.now_s = time.monotonic()
        self.accounts = AccountBook(settings, Board(1).address_cells(None))
        self.deadlines = Deadlines(settings.first_byte_timeout_s, settings.login_timeout_s, settings.request_timeout_s)
        self.delays = Delays()
        self.events = EventLog(settings.events, time.monotonic)
        # A mapping takes memory for its written pages only: few workers ever read that much at once.
        self.receive_buffer = mmap.mmap(-1, RECEIVE_BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.receive_view = memoryview(self.receive_buffer)
        self.partial_bytes = 0  # of unfinished requests
        self.unsent_bytes = 0  # of answers
        self.answered_bytes = 0  # in this turn
        self.pongs = 0  # events of this turn that were answers to pings and nothing else
        self.clients: dict[int, Connection] = {}  # by descriptor
        self.lingering: dict[Connection, None] = {}
        self.answered: dict[Connection, None] = {}  # in this turn
        self.held_gets: dict[ConnectionGets, None] = {}

    def add_client(self, client: Connection) -> None:
        self.clients[client.fd] = client
        self.accounts.moved((), client.accounts, self.now_s)
        self.poller.register(client.fd, select.EPOLLIN, client.on_event)
        self.cells.connections = len(self.clients)

    def replace_client(self, client: Connection) -> None:
        """Put the connection of a detected protocol in the place of the newcomer that it was."""
        newcomer = self.clients[client.fd]
        self.clients[client.fd] = client
        self.accounts.moved(newcomer.accounts, client.accounts, self.now_s)
        self.answered.pop(newcomer, None)
        self.poller.modify(client.fd, select.EPOLLIN)  # which is what a new connection waits for
        self.poller.handlers[client.fd] = client.on_event

    def client_closed(self, client: Connection, reason: str) -> None:
        """The client has closed itself, for `reason`; forget it."""
        if self.clients.pop(client.fd, None) is None:
            return
        self.poller.unregister(client.fd)
        self.accounts.moved(client.accounts, (), self.now_s)
        self.deadlines.forget(client)
        self.lingering.pop(client, None)
        self.answered.pop(client, None)
        self.metrics.dropped.add(reason)
        self.cells.connections = len(self.clients)

    def note_answered(self, client: Connection) -> None:
        """There may be something to send to this connection at the end of the turn."""
        self.answered[client] = None

    def note_lingering(self, client: Connection) -> None:
        self.lingering[client] = None

    def is_remote(self, name: bytes) -> bool:
        """Whether a stream belongs to another worker."""
        return self.router.slot_of(name) in self.router.routes

    def retry_held_gets(self) -> None:
        """Once a turn: answer the gets that had to wait, as far as they can be."""
        for held in list(self.held_gets):
            held.retry()
            if not held.holds:
                del self.held_gets[held]
