"""One worker process: one thread, one epoll, and the turn of its loop.

A turn: gather events, read each ready connection once; append; announce; answer; send to subscribers; keep house; beat.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import setproctitle

from tailrace.broker.connection.accept import Acceptor
from tailrace.broker.connection.binary import BinaryClient, BinaryServices
from tailrace.broker.connection.collecting import Collections
from tailrace.broker.connection.commands import Commands
from tailrace.broker.connection.detect import HTTP, ConnectionFactory
from tailrace.broker.connection.heartbeat import TICKS_AN_INTERVAL, Heartbeats, gather_pongs
from tailrace.broker.connection.last import LastReader
from tailrace.broker.connection.line import LineClient, LineServices
from tailrace.broker.connection.listing import Listings
from tailrace.broker.connection.login import Logins
from tailrace.broker.connection.migration import Migrations
from tailrace.broker.connection.mqtt.client import MqttClient
from tailrace.broker.connection.mqtt.keep_alive import TICK_S as KEEP_ALIVE_TICK_S
from tailrace.broker.connection.mqtt.services import MqttServices
from tailrace.broker.connection.mqtt.sessions import CLAIM
from tailrace.broker.connection.mqtt.shared import HELD, stored_filter
from tailrace.broker.connection.patterns import PatternSubscriptions
from tailrace.broker.connection.singles import Singles
from tailrace.broker.connection.tls import Handshakes
from tailrace.broker.connection.upgrade import UpgradingConnection
from tailrace.broker.consumers.coordinator import verbs
from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.consumers.coordinator.shared_members import SharedMembers
from tailrace.broker.consumers.edge.session import HELD_LOOK_S
from tailrace.broker.delivery.chunk_cache import DROP_EVERY_S
from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.delivery.frame_chunks import FrameChunks
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.delivery.subscribe import Subscriptions
from tailrace.broker.delivery.text_chunks import TextChunks
from tailrace.broker.last.last_values import LastValues
from tailrace.broker.process import drain
from tailrace.broker.process.control import ControlClosed, ControlMessage
from tailrace.broker.process.lease import CLUSTER_CELL, Lease
from tailrace.broker.process.memory import HeapTrimmer, keep_freed_memory
from tailrace.broker.process.metric_cells import RowWriter
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.poller import Poller
from tailrace.broker.process.scoreboard import STATE_DRAINING, STATE_READY, STATE_STARTING, Board, SlotView
from tailrace.broker.process.timers import Timers, now_us
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.replication.downstream import ack_handover
from tailrace.broker.replication.downstream.catalog import NameCatalog
from tailrace.broker.replication.downstream.registry import FollowerRegistry
from tailrace.broker.replication.downstream.session import NodeServices
from tailrace.broker.replication.roles.apply_rules import obey
from tailrace.broker.replication.roles.promotion_check import PromotionChecks
from tailrace.broker.replication.roles.role_writer import RoleWriter
from tailrace.broker.replication.status import links
from tailrace.broker.replication.status.answer import NodeStatus
from tailrace.broker.replication.status.metrics import ReplicationMetrics
from tailrace.broker.replication.upstream.inquiry import InquiryServices
from tailrace.broker.replication.upstream.login import NodeLogins
from tailrace.broker.replication.upstream.manager import UpstreamManager
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.routing.link_table import LinkTable
from tailrace.broker.routing.router import LateAnswer, Router
from tailrace.broker.routing.worker_links import PARTLY_S, WorkerLinks
from tailrace.broker.services import Services
from tailrace.broker.sessions.record import HolderProcess
from tailrace.broker.sessions.store import SessionStore
from tailrace.broker.sessions.wills import publish_will
from tailrace.broker.sharing.shared import SharedStreams, local_wants
from tailrace.broker.streams.aging import SAVE_S, AgingClock
from tailrace.broker.streams.deletion import Deletions
from tailrace.broker.streams.journaling import JournalKeeper
from tailrace.broker.streams.maintenance import Maintenance
from tailrace.broker.streams.memory_rings import with_memory
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.stream_metrics import StreamMetrics
from tailrace.broker.streams.syncer import THREADS_MAX, syncer_of
from tailrace.broker.udp.door import ClosedDoor, UdpDoor, open_door, show_page
from tailrace.broker.wiring import OwnerWiring, readers_of
from tailrace.broker.worker_boot import WorkerBoot as WorkerBoot
from tailrace.broker.worker_boot import WorkerPhase as WorkerPhase
from tailrace.shard.errors import DirectoryError, ShardLocked
from tailrace.shard.files import FileSystem
from tailrace.shard.journal import journal_path
from tailrace.shard.journal_writer import JournalWriter

log = logging.getLogger(__name__)

STAGED_MAX_BYTES = 8 << 20  # published and answered in one turn; the connections not read yet come first in the next
# An append costs much: with publishes to many streams, a few messages each, a turn first reads what else has come.
GATHER_ROUNDS_MAX, GATHERED_MAX_BYTES = 16, 16 << 20
GC_ALLOCATIONS = 50_000  # containers made and not freed between two looks for cycles
PUMP_BYTES = 4 << 20  # sent to subscribers in one turn, about
# The longest wait for events, and so the longest time between two beats of a healthy worker; and the same if only
# answers to pings have come for REST_AFTER_S and nothing is waited for: a cold turn takes as long as four warm ones.
IDLE_S, REST_S, REST_AFTER_S = 0.25, 1.0, 1.0
SWITCH_S = 0.0005  # a helper thread that computes gives the interpreter back to the loop after that (Python's: 5 ms)
RESTS_A_BEAT_TIMEOUT = 4  # at least: a worker that rests must not look hung

# A terminal, and some who stop services, signal the whole process group; these are the supervisor's to answer.
SUPERVISORS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
EXIT_OK, EXIT_CANNOT_LOCK, EXIT_CANNOT_OPEN = 0, 3, 5
CANNOT_BOOT = frozenset({EXIT_CANNOT_LOCK, EXIT_CANNOT_OPEN})


class Worker:
    patrol: LagScanner  # these are looked up by callbacks that are made before them
    movers: Migrations
    router: Router
    mqtt: MqttServices
    siblings: WorkerLinks

    def __init__(self, boot: WorkerBoot) -> None:
        self.settings = boot.settings
        self.node_id = boot.directory.node_id
        self.slot, self.slots, self.generation = boot.slot, boot.slots, boot.generation
        self.board = boot.board
        self.control = boot.control
        self.metrics = WorkerMetrics()
        self._metric_row = RowWriter(boot.board.row_of(boot.generation))
        self.phase = WorkerPhase.STANDBY
        self._rest_s = min(REST_S, boot.settings.beat_timeout_s / RESTS_A_BEAT_TIMEOUT)
        self.drain_began_s = self.drain_deadline_s = float("inf")
        self._slot = boot.board.slot(boot.slot)
        self._build(boot)

    def _build(self, boot: WorkerBoot) -> None:
        settings = boot.settings
        self.poller = Poller()
        self.work = WorkQueue(time.monotonic, self._is_wanted)
        file_system = FileSystem(boot.directory.path, THREADS_MAX)
        directory = with_memory(boot.directory, settings)
        journal = JournalWriter(journal_path(boot.directory.path, boot.slot), THREADS_MAX)
        self.syncer = syncer_of(file_system, journal)
        self.role_writer = RoleWriter(self.syncer.request)
        self.links = LinkTable(boot.slots, boot.slot, settings.link_window_bytes, self.poller, time.monotonic)
        self.routes = self.links.routes
        wiring = OwnerWiring(self)
        owned = directory, boot.slot, boot.slots, settings, boot.boot_id, self.metrics
        self.owner = Owner(
            *owned,
            total_streams=boot.board.total_streams,
            clock_us=now_us,
            events=wiring,
            context=wiring,
            role_writer=self.role_writer,
            lease=Lease(boot.board.lease, directory.node_id),
        )
        self._heap = HeapTrimmer()
        self.aging = AgingClock(boot.directory.path, boot.slot, boot.boot_id, settings.clock_jump_wait_s, now_us)
        self.readers = StreamReaders(directory, settings.max_open_streams, boot.boot_id)
        self.last_values = LastValues(self.owner, self.readers, self.metrics)
        self.holder = HolderProcess(boot.board.run, os.getpid())
        self.sessions = SessionStore(
            *(self.owner, self.holder, self.aging.now_us, lambda *will: publish_will(self.services, *will)),
            lambda state: self.mqtt.shared.session_ended(state),
        )
        self.desk = Coordinator(self.owner, time.monotonic, on_change=lambda name: self.patrol.forget(name))
        answered_later: dict[str, LateAnswer] = {
            "consume": partial(verbs.consume, self.desk),
            "get": partial(verbs.get, self.desk),
            **ack_handover.calls_of(self.owner),
            "rules": partial(obey, self.owner, self.work),
            "watch_growth": lambda args, done: self.siblings.watch_growth(self.announce, args, done),
            **self.last_values.calls,
            **self.sessions.verbs(),
        }
        self.router = Router(
            self.owner,
            self.routes,
            boot.slots,
            boot.directory.shards,
            self.metrics,
            self.work,
            self.links.send,
            answered_later=answered_later,
            on_away=lambda client, slot: self.movers.consider_publisher(client, slot),
        )
        self.fanout = FanOut(
            *(self.readers, local_wants(settings, directory)),
            on_count=lambda feed: self.siblings.recount(feed) if feed.remote else None,
            on_cut=self._forget_chunks,
            filter_bytes=settings.max_filter_bytes,
            topic_cache_bytes=settings.topic_cache_bytes,
        )
        shared = self.metrics, self.poller, self.router, self.readers, self.fanout, self.work
        self.services: Services = Services(settings, *shared)
        self.stirred_s = self.services.now_s
        self._set_cells(self.services.cells)
        self.movers = Migrations(self.services, self.links, self.board)
        self.subscribing = Subscriptions(self.services, self.work, self.movers.consider_subscriber)
        self._build_maintenance(journal, file_system)
        self.deletions = Deletions(self.owner, self.syncer, self._forget)
        self._build_replication(boot)
        self._build_connections(boot)
        self.timers = Timers(time.monotonic)

    def _build_maintenance(self, journal: JournalWriter, file_system: FileSystem) -> None:
        self.patrol = LagScanner(self.desk)
        self.members = SharedMembers(self.desk, self.node_id, self.sessions.is_alive)
        self.journal = JournalKeeper(self.owner, self.syncer, journal, file_system)
        about = self.owner, self.patrol, self.syncer, time.monotonic, self.aging.now_us
        self.upkeep = Maintenance(*about, spared_seq=self.patrol.spared_seq, journal=self.journal)

    def _build_replication(self, boot: WorkerBoot) -> None:
        """The parts that talk with other nodes, and the status of replication."""
        owner, services = self.owner, self.services
        self.address = boot.settings.advertise or f":{boot.listener.getsockname()[1]}"
        tls, logins = boot.tls.upstream, NodeLogins(boot.settings, self.syncer.calculate)
        self.shared = SharedStreams(owner, services, self.work, self.links)
        self.singles = Singles(services)
        to_nodes = (boot.slot, boot.slots), self.address, tls, logins, self.shared.sessions, self.singles.answer
        self.uplinks = UpstreamManager(owner, services, self.work, self.syncer, *to_nodes, *readers_of(self))
        self.followers = FollowerRegistry(owner, services, self.links, boot.generation)
        own_calls: dict[str, Callable[..., Any]] = {
            CLAIM: lambda *args: self.mqtt.sessions.claimed(*args),
            HELD: lambda *args: self.mqtt.shared.is_held(*args),
            "conns": lambda: drain.connections(services, boot.slot),
            "pull": lambda place: show_page(self.udp, self.shared.serving, place),
            "udp_adopt": lambda rows, more: self.udp.adopt(rows, more),
            "links": lambda *args: links.of_worker(owner, self.uplinks, self.followers.nodes, services, *args),
        }
        self.calls = WorkerCalls(self.router, boot.slot, own_calls)
        self.catalog = NameCatalog(boot.board, self.router)
        self.status = NodeStatus(self.calls, boot.slots, self.node_id, self.address, boot.board.lease)
        outside = InquiryServices(self.poller, self.uplinks.resolve, boot.settings.token or None, tls, logins)
        self.scouts = PromotionChecks(owner, self.status, outside, services)
        self.survey = ReplicationMetrics(owner, self.uplinks, self.metrics)
        self.stream_metrics = StreamMetrics(self.desk)

    def _build_connections(self, boot: WorkerBoot) -> None:
        """What clients and other nodes are served by, and the links over which siblings hand them over."""
        self.heartbeats = Heartbeats(boot.settings.heartbeat_s, boot.settings.heartbeats_max, time.monotonic)
        services, subscribing, settings = self.services, self.subscribing, boot.settings
        sizes, fanout = (settings.chunk_bytes, settings.chunk_cache_bytes), self.fanout
        self.renderings = TextChunks(self.readers, *sizes, fanout.fresh, fanout.walks.found)
        self.frame_chunks = FrameChunks(self.readers, *sizes, fanout.fresh, fanout.walks.found)
        self.logins = Logins(services, self.syncer.calculate)
        own = boot.slot, boot.generation
        self.patterns = PatternSubscriptions(services, subscribing, self.work, self.calls, boot.board, own)
        last = LastReader(services, self.patterns)
        asked = self.scouts, self.logins, last, boot.board, lambda: self.control.send("shutdown")
        commands = Commands(services, subscribing, self.calls, *asked)
        line = LineServices(self.renderings, commands, subscribing, self.patterns, self.singles)
        here = self.node_id, self.owner, self.followers, self.catalog, subscribing
        node = NodeServices(*here, self.status.gather, self.shared.serving, self.movers.place_node)
        self.collecting = Collections(services, subscribing, self.patterns)
        rest = node, boot.slot, self.logins, Listings(services, self.calls, boot.board, self.patterns.wide), last
        binary = BinaryServices(self.frame_chunks, self.heartbeats, subscribing, *rest, self.singles, self.collecting)
        protocols: dict[str, ConnectionFactory] = {
            LineClient.protocol: partial(LineClient, services, line),
            BinaryClient.protocol: partial(BinaryClient, services, binary),
        }
        stored: Callable[[bytes], bool] = lambda topics: self.sessions.shares(stored_filter(topics))  # noqa: E731
        rest_of_mqtt = self.logins, last, boot.slots, self.holder, self.node_id, stored, self.singles
        self.mqtt = MqttServices.build(services, subscribing, self.patterns, self.calls, *rest_of_mqtt)
        if boot.settings.mqtt:
            protocols[MqttClient.protocol] = partial(MqttClient, services, self.mqtt)
            if boot.settings.websocket:
                protocols[HTTP] = partial(UpgradingConnection, services, protocols)
        self.handshakes = Handshakes(services, protocols, boot.tls.server)
        others = self.links, self.handshakes.begin_tls, boot.admin_listener
        self.acceptor = Acceptor(services, protocols, boot.listener, boot.board, boot.slot, *others)
        self.udp: UdpDoor | ClosedDoor = open_door(services, self.work, boot.udp_socket)
        known = self.links, self.owner, self.router, self.calls, self.work, self.fanout, self.followers, self.shared
        adopted = self.acceptor.adopt, self.desk.members, self.patterns.wide
        self.siblings = WorkerLinks(*known, boot.settings, boot.slot, *adopted)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self, *, own: bool) -> None:
        if own:
            self._set_cells(self._slot)
            self._beat.state = STATE_STARTING
            self._beat.beat()
        self.poller.register(self.control.fileno(), select.EPOLLIN, lambda _mask: self._on_control())
        self.poller.register(self.syncer.fileno(), select.EPOLLIN, lambda _mask: self.upkeep.take_outcomes())
        self.timers.every(0.05, self._often)
        self.timers.every(1.0, self._seldom)
        self.timers.every(1.0, self._measure, first_s=1.5)
        save_clock = partial(self.syncer.request, self.aging, None)
        self.timers.every(SAVE_S, save_clock)
        self.timers.every(DROP_EVERY_S, self._drop_old_chunks)
        save_clock()
        self.timers.every(KEEP_ALIVE_TICK_S, lambda: self.mqtt.tick(self.services.now_s))
        tick_s = self.settings.heartbeat_s / TICKS_AN_INTERVAL
        self.timers.every(tick_s, lambda: self.heartbeats.tick(self.services.now_s))
        self.control.send("ready")
        if own:
            self._own(asks=True)

    def run(self) -> None:
        while self.phase is not WorkerPhase.LEAVING:
            self.turn()
        self._leave()

    def turn(self) -> None:
        services, work = self.services, self.work
        busy = services.answered or self.singles.owing or work.stirred or work.turns or self._is_busy()
        if work.spent_s or work.stirred:
            work.begin_turn()
        events = self.poller.poll(0 if busy else self._wait_s())
        self._handle(events)
        if gather_pongs(services, self._handle, events) if services.pongs else events:
            self.stirred_s = services.now_s
        router, rounds = self.router, 1
        while router.scattered and rounds < GATHER_ROUNDS_MAX:
            if router.staged_bytes + services.answered_bytes >= GATHERED_MAX_BYTES:
                break
            events = self.poller.poll(0)
            if not events:
                break
            self._handle(events)
            rounds += 1
        services.answered_bytes = 0
        self._conclude()
        if self.udp.has_input:  # behind the answers to connections, which would wait for it
            self.udp.read()
            self._conclude()
        if self.udp.has_socket:
            self.udp.begin_sending()
        if self.handshakes.steps:
            self.handshakes.run()
        if self.movers.waiting:
            self.movers.step()
            self.siblings.flush()
        if self.fanout.runnable or self.fanout.fresh or self.fanout.walks.due:
            self.fanout.run(PUMP_BYTES)
        if self.patterns.wide.waiting or self.patterns.wide.waiters.woken:
            self.patterns.wide.work(self.siblings.flush)
        if self.catalog.due:
            self.catalog.work()
        if work.turns:
            work.run()
        if services.now_s >= self.timers.next_due_s:
            self.timers.run_due(services.now_s)
        if self.role_writer.gathered.files:
            self.role_writer.flush()
        self._beat.beat()

    def _conclude(self) -> None:
        """Append what was gathered, tell who wants to know, and answer."""
        services = self.services
        self.router.flush()
        if self.uplinks.publishing:
            self.uplinks.send_publishes()
        if self.singles.owing:
            self.singles.answer()
        self.announce()
        if self.desk.pending:
            self.desk.work()
            self.announce()
        if self.last_values.due:
            self.last_values.work()
            self.announce()
        if self.owner.syncs.urgent:
            self.upkeep.sync_urgent()
        if self.owner.syncs.due_s <= services.now_s:
            self.upkeep.request_syncs()
        self.siblings.flush()
        if self.uplinks.touched or self.shared.sessions.changed:
            self.uplinks.flush()
        if services.held_gets:
            services.retry_held_gets()
        if self.singles.owing:
            self.singles.answer()
        if services.answered:
            self._answer()

    def _is_wanted(self) -> bool:
        """Whether there is anything to do but the steps that wait."""
        return self._is_busy() or self.poller.has_events()

    def _is_busy(self) -> bool:
        """Whether something is to be gone on with at once."""
        fanout, followers, wide = self.fanout, self.followers, self.patterns.wide
        is_behind = fanout.runnable or fanout.walks.due or wide.waiters.woken or (wide.is_stirred and wide.waiting)
        owes_others = followers.changed or followers.wanted or self.catalog.due or self.last_values.due
        return bool(is_behind or owes_others or self.handshakes.steps or self.udp.is_busy or self.desk.pending)

    def _wait_s(self) -> float:
        """How long to wait for events at most."""
        if self.siblings.partly:  # other workers are soon to get the outcome of publishes of theirs
            return PARTLY_S
        if self.services.held_gets or self.udp.rest_s:
            return self.udp.rest_s or min(IDLE_S, HELD_LOOK_S)
        now_s = self.services.now_s
        if self.owner.syncs.due_s - now_s < IDLE_S:
            return max(self.owner.syncs.due_s - now_s, 0.0)
        if now_s - self.stirred_s < REST_AFTER_S or self._restless():
            return IDLE_S
        return self._rest_s

    def _restless(self) -> bool:
        """Whether anything goes on by the clock that is to be more exact than a rest."""
        owner = self.owner
        return (
            self.phase is not WorkerPhase.SERVING
            or bool(owner.syncs.dirty or owner.replicas.waiting)
            or owner.syncs.unsynced_due_s < float("inf")
            or any(True for _ in self.uplinks)
            or any(route.waiting for route in self.routes.values())
            or self.desk.watches_clock
            or self.catalog.watched
            or bool(self.scouts)
            or self.acceptor.watches_clock
            or self.logins.busy
        )

    def _handle(self, events: list[tuple[int, int]]) -> None:
        services, router = self.services, self.router
        services.now_s = time.monotonic()
        handlers = self.poller.handlers
        for fd, mask in self.singles.read(events):
            handler = handlers.get(fd)
            if handler is not None:
                handler(mask)
                if router.staged_bytes + services.answered_bytes > STAGED_MAX_BYTES:
                    break

    def announce(self) -> None:
        if not self.owner.grown:
            return
        grown = self.owner.take_grown()
        if self.owner.replicas.streams or self.owner.replicas.lease.cells[CLUSTER_CELL]:
            for name, growth in grown.items():
                self.owner.replicas.grew(name, growth.next_seq)
        if self.desk.waiters.count:
            self.desk.grew(grown)
        if self.last_values.tracked:
            self.last_values.grew(grown)
        if self.siblings.interest.streams:
            self.siblings.announce(grown)
        for name in filter(self.fanout.feeds.__contains__, grown):
            self.fanout.appended(name, grown[name])
        if (watch := self.siblings.watch).watchers or not (watch.early is None or grown.keys() <= watch.early.keys()):
            self.siblings.announce_all(grown)

    def _answer(self) -> None:
        answered, self.services.answered = self.services.answered, {}
        for client in answered:
            client.after_turn()
        if self.links.touched:
            self.links.send()  # one that has sent a page of retained messages asks for the next

    def pause(self) -> None:
        """In the middle of something long: the worker is not hung."""
        self._beat.beat()

    def count_streams(self) -> None:
        """At once, since the other workers count streams too before they make one."""
        self._beat.streams = len(self.owner.catalog.names)
        self._beat.names_version = self.owner.catalog.names_version

    def home(self, name: bytes) -> bytes:
        """See `OwnerContext.home`."""
        return self.services.topic_rules.place(name).stream

    def share_bytes(self, nbytes: int, is_whole: bool) -> int:
        """See `OwnerContext.share_bytes`."""
        self._beat.disk_bytes = nbytes if is_whole else max(self._beat.disk_bytes, nbytes)
        return self.board.total_disk_bytes()

    def _forget_chunks(self, name: bytes, seq: int) -> None:
        """A stream was cut; one that was deleted is cut at 0."""
        if not seq:
            self.catalog.dropped(name)
        self.patterns.wide.cut(name, seq)
        self.renderings.cache.clear()
        self.frame_chunks.cache.clear()
        self.mqtt.chunks.cache.clear()

    def _drop_old_chunks(self) -> None:
        self.renderings.cache.drop_old()
        self.frame_chunks.cache.drop_old()
        self.fanout.walks.found.drop_old()
        self.mqtt.chunks.cache.drop_old()

    # --- the supervisor's word --------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        try:
            while (message := self.control.receive()) is not None:
                self._control(message)
        except ControlClosed:
            log.warning("the supervisor is gone; leaving")
            self.phase = WorkerPhase.LEAVING

    def _control(self, message: ControlMessage) -> None:
        fields = message.fields
        match message.kind:
            case "link":
                self.siblings.add(fields["slot"], fields["generation"], message.fds[0])
            case "owner":
                self.siblings.owner_is(fields["slot"], fields["generation"])
            case "own":
                self._own()
            case "retire":
                self._retire()
            case "rights":
                drain.take_rights(self.services, message.fds[0])
            case "drain":
                self._drain()
            case "leave":
                self.phase = WorkerPhase.LEAVING

    def _own(self, *, asks: bool = False) -> None:
        self.owner.take()
        self.siblings.watch.owns(time.monotonic())
        for begin in (self.journal.take, self.last_values.start, self.sessions.start):
            begin()
        self.uplinks.start(asks=asks)
        self._set_cells(self._slot)
        self.count_streams()
        self._beat.connections = len(self.services.clients)
        gc.collect()
        gc.freeze()  # all present objects stay: no collection need look at them again
        gc.set_threshold(GC_ALLOCATIONS)  # a turn's batches live until its end, and are not cycles
        if self.phase is WorkerPhase.STANDBY:  # a node that stops meanwhile needs the shards owned, and no new clients
            self._beat.state = STATE_READY
            self.phase = WorkerPhase.SERVING
            self.acceptor.start()
            self.udp.start()
        self.control.send("owning")

    def _retire(self) -> None:
        """Give the shards up. From here on this worker is a client of its successor, and hands its connections on."""
        if self.phase is not WorkerPhase.SERVING:
            return
        self._stop_accepting()
        self.router.flush()
        for retire in (self.desk.retire, self.last_values.retire, self.sessions.retire):
            retire()
        self._finish_roles()
        self.announce()
        self.phase = WorkerPhase.RETIRED
        self.drain_began_s = time.monotonic()
        self.uplinks.stop("its worker is being replaced")
        self.drain_deadline_s = time.monotonic() + self.settings.drain_timeout_s
        self.upkeep.finish_syncs(self.pause)
        ask_successor = ack_handover.hand_over(self.owner, self.router.call)
        self.owner.release()
        self._set_cells(Board(1).slot(0))
        self.links.follow_successor(self.slot)
        for feed in self.fanout.feeds.values():
            feed.remote = feed.remote or self.router.slot_of(feed.name) == self.slot
        ask_successor()
        self.router.give_back()
        self.udp.hand_over(partial(self.router.call_slot, self.slot, "udp_adopt"))
        self.control.send("released")

    def _stop_accepting(self) -> None:
        self.acceptor.stop()
        self.udp.stop()

    def _finish_roles(self) -> None:
        """Let the helper threads write down roles and remove deleted files, before the shards are given up."""
        self.deletions.stop()
        while self.role_writer.pending or self.deletions.removing:
            self.role_writer.flush()
            select.select([self.syncer.fileno()], [], [], IDLE_S)
            self.upkeep.take_outcomes()
            self._beat.beat()

    def _drain(self) -> None:
        if self.phase is WorkerPhase.LEAVING:
            return
        self._stop_accepting()
        self.desk.end_waits()
        self.phase = WorkerPhase.DRAINING
        self._beat.state = STATE_DRAINING
        self.drain_began_s = time.monotonic()
        self.drain_deadline_s = self.drain_began_s + self.settings.drain_timeout_s
        if self.owner.catalog.owning:
            self._move_on()  # without clients there is nothing to wait for

    def _set_cells(self, cells: SlotView) -> None:
        """The board's slot is its owner's: a worker that stands by or is retired writes to a copy that nobody reads."""
        self._beat = self.services.cells = cells
        self.services.accounts.use_cells(self.board.address_cells(self.slot if cells is self._slot else None))

    def _move_on(self) -> None:
        """A tick of retiring or draining: see whether this worker's clients have all their answers."""
        services = self.services
        late = time.monotonic() > self.drain_deadline_s
        if self.phase is WorkerPhase.RETIRED:
            drain.hand_all_over(services, self.links, self.slot, self.drain_began_s)
            if late or (not services.clients and self.siblings.all_switched and not self.udp.is_handing_over):
                drain.finish_all(services)
                self.phase = WorkerPhase.LEAVING
        elif late or drain.drained(services, self.routes, self.drain_began_s):
            self.phase = WorkerPhase.DRAINED
            self.control.send("drained")

    # --- timers -----------------------------------------------------------------------------------------------------

    def _forget(self, name: bytes) -> None:
        """The stream is about to be no more."""
        for forget in (self.desk.deleted, self.last_values.deleted, self.upkeep.forget):
            forget(name)

    def _often(self) -> None:
        self.upkeep.request_syncs()
        self.deletions.tick()
        if self.owner.catalog.owning:  # a retired worker knows its streams still, and must not touch them
            self.upkeep.sweep()
        for tick in (self.acceptor.tick, self.udp.end_leases, self.logins.tick, self.uplinks.tick):
            tick()
        self.scouts.tick(self.services.now_s)
        for tick in (self.owner.replicas.expire, self.desk.tick, self.catalog.tick):
            tick()
        for route in self.routes.values():
            route.expire(self.services.now_s - self.settings.unavailable_timeout_s)
        self._metric_row.store_due(self.metrics, self.services.now_s)
        if self.phase in (WorkerPhase.RETIRED, WorkerPhase.DRAINING):
            self._move_on()
        self.siblings.flush()

    def _seldom(self) -> None:
        if self.owner.catalog.owning:
            self.upkeep.punch_due()
            self.upkeep.look_at_space()
            self.desk.seldom()
            for tick in (self.last_values.tick, self.sessions.tick, self.members.tick, self.shared.tick):
                tick()
        self.aging.now_us()
        self.metrics.clock_ahead_s = self.aging.ahead_s
        self.udp.tick()
        drain.drop_stalled(self.services)
        self.fanout.tick()
        for tick in (self.siblings.tick, self.followers.send_ends, self.patterns.tick, self.collecting.tick):
            tick()
        self.services.accounts.tick(self.services.now_s)

    def _measure(self) -> None:
        drain.measure(self.services, self.owner, self.links, self.work)
        for tick in (self.survey.tick, self.stream_metrics.tick, self._heap.tick):
            tick()

    def _leave(self) -> None:
        self._stop_accepting()
        for client in list(self.services.clients.values()):
            client.close("stopped")
        self.router.flush()
        self.work.finish(self.pause)
        self._finish_roles()
        self.work.finish(self.pause)
        self.desk.retire()
        self.scouts.stop()
        self.uplinks.stop("this node stops")
        self.upkeep.finish_syncs(self.pause)
        self.upkeep.close_clean(self.pause)
        self.syncer.close()
        for close in (self.udp.close, self.siblings.close, self.fanout.skips.close, self.readers.close):
            close()
        self._metric_row.store(self.metrics)
        self.poller.close()


def run_worker(boot: WorkerBoot) -> int:
    """The body of a worker process. Returns its exit code."""
    setproctitle.setproctitle(f"tailrace: worker {boot.slot}")
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()  # a silent worker is killed with SIGABRT, which leaves its stack in the log
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_S)
    try:
        worker = Worker(boot)
        worker.start(own=boot.own)
    except ShardLocked as error:
        log.critical("cannot start: %s", error)
        return EXIT_CANNOT_LOCK
    except (DirectoryError, OSError) as error:
        log.critical("cannot start: %s", error)
        return EXIT_CANNOT_OPEN
    worker.run()
    return EXIT_OK
