"""A worker turned by hand in this process: its phases, and the actions allowed in each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.broker.connection.client import READ_BYTES_MAX
from tailrace.broker.delivery.chunk_cache import DROP_EVERY_S, LONE_BYTES_MAX
from tailrace.broker.delivery.frame_chunks import FrameChunk
from tailrace.broker.process.control import ControlChannel, ControlMessage
from tailrace.broker.process.scoreboard import STATE_DRAINING, STATE_EMPTY, STATE_READY, Board
from tailrace.broker.process.settings import Durability, Settings, StreamPolicy
from tailrace.broker.process.tls_contexts import TLSContexts
from tailrace.broker.worker import (
    EXIT_CANNOT_OPEN,
    GATHERED_MAX_BYTES,
    IDLE_S,
    REST_AFTER_S,
    REST_S,
    SUPERVISORS_SIGNALS,
    SWITCH_S,
    Worker,
    WorkerBoot,
    WorkerPhase,
    run_worker,
)
from tailrace.protocol import sibling
from tailrace.protocol.messages import Ended
from tailrace.protocol.places import From
from tailrace.shard.directory import data_dir_exists, make_data_dir, open_data_dir
from tailrace.shard.frame import pack_frame
from tests.broker import world as nodes
from tests.broker.binary import BinaryPeer
from tests.broker.owning import BOOT, SHARDS, Sink, batch, publish
from tests.system.standstill import assert_within

PATIENCE_S = 60.0
LINE = b"pub s |" + b"x" * 991 + b"\r\n"


class World:
    """A worker, the supervisor's end of its channel, and a client."""

    def __init__(self, path: Path, board: Board, *, own: bool = True, slot: int = 0, **settings: object) -> None:
        directory = open_data_dir(path) if data_dir_exists(path) else make_data_dir(path, SHARDS)
        self.board = board
        self.supervisor, control = ControlChannel.pair()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.worker = Worker(
            WorkerBoot(
                settings=Settings(data=path, **settings),  # type: ignore[arg-type]
                directory=directory,
                slot=slot,
                slots=board.slots,
                generation=1,
                boot_id=BOOT,
                own=own,
                control=control,
                listener=self.listener,
                board=board,
                tls=TLSContexts(),
            )
        )
        self.worker.start(own=own)
        self.left = False

    def turn_until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"in phase {self.worker.phase}"
            self.worker.turn()

    def told(self) -> list[str]:
        """The messages the worker has sent to its supervisor since the last call."""
        kinds = []
        while (message := self.supervisor.receive()) is not None:
            kinds.append(message.kind)
        return kinds

    def tell(self, kind: str) -> None:
        self.worker._control(ControlMessage(kind, {}, []))

    def ask(self, client: socket.socket, line: bytes) -> bytes:
        client.sendall(line + b"\r\n")
        client.setblocking(False)
        received = b""

        def answered() -> bool:
            nonlocal received
            try:
                received += client.recv(65_536)
            except BlockingIOError:
                return False
            return received.endswith(b"\n")

        self.turn_until(answered)
        return received

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port))
        self.turn_until(lambda: self.worker.services.clients)
        return client

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self.worker._leave()
            self.supervisor.close()
            self.worker.control.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def made(board: Board | None = None, **rest: object) -> World:
        worlds.append(World(tmp_path / "data", board or Board(1), **rest))  # type: ignore[arg-type]
        return worlds[-1]

    yield made
    for world in worlds:
        world.leave()


def test_an_owner_serves(make: Callable[..., World]) -> None:
    world = make()
    assert world.told() == ["ready", "owning"]
    assert (world.worker.phase, world.board.slot(0).state) == (WorkerPhase.SERVING, STATE_READY)
    with world.connect() as client:
        assert world.ask(client, b"ack on") == b"ok ack on\r\n"
        assert world.ask(client, b"pub s |x") == b"ok pub s 0\r\n"
        assert (world.board.slot(0).connections, world.board.slot(0).streams) == (1, 1)
        before_ns = world.board.slot(0).beat_ns
        world.worker.turn()
        assert world.board.slot(0).beat_ns > before_ns


def test_a_successor_leaves_the_board_to_its_predecessor(make: Callable[..., World]) -> None:
    world = make(own=False)
    assert world.told() == ["ready"]
    world.worker.turn()
    cells = world.board.slot(0)
    assert (cells.state, cells.beat_ns, world.worker.owner.catalog.owning) == (STATE_EMPTY, 0, False)
    world.tell("own")
    assert world.told() == ["owning"]
    assert (cells.state, world.worker.phase) == (STATE_READY, WorkerPhase.SERVING)


def test_a_retired_worker_touches_neither_streams_nor_board(make: Callable[..., World]) -> None:
    board = Board(1)
    old = make(board, retention_interval_s=0.1, streams=(StreamPolicy(max_bytes=4_096),))
    with old.connect() as client:
        old.ask(client, b"ack on")
        old.ask(client, b"pub s |x")
        old.told()
        old.tell("retire")
        assert old.told() == ["released"]
        new = make(board, own=False)
        new.tell("own")
        cells = board.slot(0)
        cells.beat_ns = 7
        for _ in range(3):
            old.worker._seldom()
            old.worker.turn()
        assert not old.worker.owner.catalog.open, "retention is its successor's"
        assert (cells.beat_ns, cells.state, cells.connections) == (7, STATE_READY, 0)
        assert old.worker.phase is WorkerPhase.RETIRED, "its client has not moved yet"


@pytest.mark.parametrize(("bytes_max", "turns"), [(GATHERED_MAX_BYTES, 1), (20_000, 2)])
def test_a_turn_of_publishes_to_many_streams_reads_on(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, bytes_max: int, turns: int
) -> None:
    """One append per stream, not one per read; up to a bound."""
    monkeypatch.setattr("tailrace.broker.worker.GATHERED_MAX_BYTES", bytes_max)
    monkeypatch.setattr("tailrace.broker.routing.router.NEW_STREAMS", 100)
    world = make()
    with world.connect() as client:
        world.ask(client, b"ping")
        client.sendall(b"".join(b"pub s%d |%s\r\n" % (number % 100, b"x" * 50) for number in range(500)))
        counted = world.worker.metrics
        before = sum(counted.append.counts)
        world.turn_until(lambda: counted.appended_messages == 500)
        assert sum(counted.append.counts) - before == turns


def test_a_turn_that_makes_many_streams_does_not_read_on(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches are of one message each, and the memory of very many would never be free again."""
    monkeypatch.setattr("tailrace.broker.routing.router.NEW_STREAMS", 99)
    world = make()
    counted, router = world.worker.metrics, world.worker.router
    with world.connect() as client:
        world.ask(client, b"ping")
        for turns in (2, 1):  # 100 streams are made with the first read; then they are there
            before, known = sum(counted.append.counts), counted.appended_messages
            client.sendall(b"".join(b"pub s%d |%s\r\n" % (number % 100, b"x" * 50) for number in range(500)))
            world.turn_until(lambda known=known: counted.appended_messages == known + 500)  # type: ignore[misc]
            assert sum(counted.append.counts) - before == turns
        assert not router.makes_streams


def test_what_a_client_sent_before_a_drain_is_answered(make: Callable[..., World]) -> None:
    """All of it, which is more than one read takes."""
    world = make()
    with world.connect() as client:
        world.ask(client, b"ack on")
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += client.send(LINE[sent % len(LINE) :])
        count = sent // len(LINE)
        assert sent > READ_BYTES_MAX, "this machine's sockets hold less than one read"
        world.tell("drain")
        world.worker._often()
        assert world.board.slot(0).state == STATE_DRAINING
        world.turn_until(lambda: world.worker.phase is WorkerPhase.DRAINED)
        client.setblocking(True)
        received = b"".join(iter(lambda: client.recv(65_536), b""))
    lines = received.splitlines()
    assert lines[:count] == [b"ok pub s %d" % number for number in range(count)]
    assert [line.split()[:2] for line in lines[count:]] == [[b"err", b"closing"]]
    assert "drained" in world.told()


def test_a_retired_worker_stays_until_its_siblings_have_moved_on_and_its_links_are_empty(
    make: Callable[..., World],
) -> None:
    world = make(Board(2))
    ends = {}
    for slot, generation in ((0, 2), (1, 3)):  # its successor, and a sibling
        ours, theirs = socket.socketpair()
        world.worker._control(ControlMessage("link", {"slot": slot, "generation": generation}, [theirs.detach()]))
        ends[slot] = ours
    world.tell("retire")
    world.worker._control(ControlMessage("owner", {"slot": 0, "generation": 2}, []))
    for _ in range(3):
        world.worker.turn()
    assert world.worker.phase is WorkerPhase.RETIRED, "the sibling may still send something"
    successor = world.worker.links.open[0, 2]
    successor.queue(bytes(8 << 20))  # as if many connections were on their way
    world.worker.siblings.links.touch(successor)
    ends[1].sendall(sibling.pack_switched())
    for _ in range(3):
        world.worker.turn()
    assert world.worker.phase is WorkerPhase.RETIRED, "they have not left yet"
    ends[0].setblocking(False)

    def taken_and_left() -> bool:
        with contextlib.suppress(BlockingIOError):
            ends[0].recv(1 << 20)
        return world.worker.phase is WorkerPhase.LEAVING

    world.turn_until(taken_and_left)
    for end in ends.values():
        end.close()


def test_a_client_that_reads_nothing_holds_a_drain_up_no_longer_than_told(make: Callable[..., World]) -> None:
    world = make(drain_timeout_s=0.3)
    with world.connect() as client, world.connect() as reader:
        world.ask(client, b"ack on")
        for _ in range(16):
            world.ask(client, b"pub s |" + b"x" * 1_000_000)
        reader.sendall(b"sub s 0 wait\r\n")
        world.turn_until(lambda: any(each.blocked for each in world.worker.services.clients.values()))
        began_s = time.monotonic()
        world.tell("drain")
        world.turn_until(lambda: world.worker.phase is WorkerPhase.DRAINED)
        took_s = time.monotonic() - began_s
        assert took_s > 0.2
        assert_within(took_s, 2.0)


def test_a_worker_that_is_told_to_own_while_the_node_stops_owns_and_serves_nobody(make: Callable[..., World]) -> None:
    world = make(own=False)
    world.tell("drain")
    world.tell("own")
    assert world.told() == ["ready", "owning"]
    assert world.worker.owner.catalog.owning and world.worker.phase is WorkerPhase.DRAINING
    world.turn_until(lambda: world.worker.phase is WorkerPhase.DRAINED)


def test_no_word_moves_a_worker_back(make: Callable[..., World]) -> None:
    world = make()
    world.tell("leave")
    for kind in ("drain", "retire"):
        world.tell(kind)
        assert world.worker.phase is WorkerPhase.LEAVING
    assert world.worker.owner.catalog.owning, "its shards are given back when its logs are closed"


def test_without_its_supervisor_a_worker_leaves(make: Callable[..., World]) -> None:
    world = make()
    world.supervisor.close()
    world.turn_until(lambda: world.worker.phase is WorkerPhase.LEAVING)


def test_signals_to_the_group_are_the_supervisors() -> None:
    assert set(SUPERVISORS_SIGNALS) >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    assert signal.SIGABRT not in SUPERVISORS_SIGNALS and os.name == "posix"


# --- a stream whose end is set aside ----------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [0, 1])
def test_whoever_has_got_some_of_what_was_set_aside_hears_it_in_every_worker(tmp_path: Path, slot: int) -> None:
    """In both protocols, at the owner and at its sibling; a reader that got none of the cut messages gets their
    successors.
    """
    with nodes.world(tmp_path, workers=2, affinity=False) as node:
        name = node.name(slot)
        node.fill(name, [b"x"] * 5)
        lines, late_lines = node.connect(0), node.connect(1)
        binary, late_binary = BinaryPeer(node, 0), BinaryPeer(node, 1)
        for peer, place in ((lines, "#0"), (late_lines, "#0")):
            node.ask(peer, f"sub {name} {place} wait")
        for binary_peer in (binary, late_binary):
            binary_peer.subscribe(1, name)
        owner = node.workers[slot].owner
        stream = owner.stream(name.encode())
        stream.log.set_aside(3)
        owner.events.on_cut(name.encode(), 3)
        node.settle()
        for peer in (lines, late_lines):
            assert [line for line in peer.lines if line.startswith("err diverged")]
        for binary_peer in (binary, late_binary):
            (ended,) = binary_peer.take()
            assert isinstance(ended, Ended) and (ended.next_seq, ended.code) == (3, "diverged")
        assert not any(worker.fanout.feeds for worker in node.workers)
        node.ask(late_lines, f"sub {name} #3 wait")
        late_binary.subscribe(2, name, From("seq", 3))
        stream.log.append(bytearray(pack_frame(b"y")), 1, 1 << 60, 2)
        for worker in node.workers:
            worker.fanout.grew(name.encode(), 0, 0)
        node.settle()
        late_binary.take()
        assert late_lines.messages()[-1] == (name, 3, "y") and late_binary.got[2] == [(3, b"y")]


def _noting(order: list[str], name: str, method: Callable[..., None]) -> Callable[..., None]:
    def noted(*args: object) -> None:
        order.append(name)
        method(*args)

    return noted


def test_what_grew_before_the_cut_is_announced_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes.world(tmp_path, workers=2, affinity=False) as node:
        name = node.name(0)
        peer = node.connect(1)
        node.ask(peer, f"sub {name} #0 wait")
        worker = node.workers[0]
        order: list[str] = []
        for method in ("announce", "announce_cut"):
            monkeypatch.setattr(worker.siblings, method, _noting(order, method, getattr(worker.siblings, method)))
        publish(worker.owner, name.encode(), b"a", b"b")
        worker.owner.stream(name.encode()).log.set_aside(1)
        worker.owner.events.on_cut(name.encode(), 1)
        assert order == ["announce", "announce_cut"]
        node.settle()
        assert [seq for _name, seq, _payload in peer.messages()] == [0]


def test_publishes_that_wait_for_replicas_of_what_was_set_aside_are_told(tmp_path: Path) -> None:
    with nodes.world(tmp_path) as node:
        owner = node.workers[0].owner
        sink = Sink()
        made = batch(b"s", b"a", sink=sink)
        made.replicas = 1
        owner.append(made, 1_000.0)
        owner.stream(b"s").log.set_aside(0)
        owner.events.on_cut(b"s", 0)
        assert sink.logged_at == {0: 0} and "set aside" in sink.refusals[0][1]
        node.settle()


# --- rest -------------------------------------------------------------------------------------------------------------


def quiet_for(worker: Worker, seconds: float) -> float:
    """How long the worker would wait for events, `seconds` after the last one."""
    worker.stirred_s = worker.services.now_s - seconds
    return worker._wait_s()


def at_rest(world: World) -> Worker:
    """A worker with nothing to do, its start's sync included."""
    worker = world.worker
    worker.owner.syncs.unsynced_due_s = float("inf")
    assert quiet_for(worker, REST_AFTER_S) == REST_S > IDLE_S
    assert quiet_for(worker, REST_AFTER_S - 0.1) == IDLE_S
    return worker


def test_a_worker_rests_when_nothing_goes_on(make: Callable[..., World]) -> None:
    world = make(beat_timeout_s=15.0)
    worker = at_rest(world)
    with world.connect() as client:
        assert worker.stirred_s == worker.services.now_s, "a newcomer is an event"
        at_rest(world)
        world.ask(client, b"ping")
        assert worker.stirred_s == worker.services.now_s


def test_a_worker_that_rests_never_looks_hung(make: Callable[..., World]) -> None:
    worker = make(beat_timeout_s=2.0).worker
    worker.owner.syncs.unsynced_due_s = float("inf")
    assert quiet_for(worker, REST_AFTER_S) == 0.5


def test_what_goes_by_the_clock_is_looked_after(make: Callable[..., World]) -> None:
    world = make(streams=(StreamPolicy(pattern="*", durability=Durability.INTERVAL, interval_ms=10),))
    worker = world.worker
    with world.connect() as client:
        for line in b"ack on", b"pub s |x":
            world.ask(client, line)
        worker.owner.syncs.unsynced_due_s = float("inf")
        assert quiet_for(worker, REST_AFTER_S) < IDLE_S, "it wakes when the stream is to be synced"
        world.turn_until(lambda: not worker.owner.syncs.dirty)
        at_rest(world)
        for line in b"consume s c new", b"get s c 60000":
            client.sendall(line + b"\r\n")
        world.turn_until(lambda: worker.desk.waiters.count)
        world.turn_until(lambda: not worker.owner.syncs.dirty)
        assert quiet_for(worker, REST_AFTER_S) < REST_S, "a get waits"
    world.turn_until(lambda: not worker.services.clients)
    world.tell("drain")
    assert quiet_for(worker, REST_AFTER_S) == IDLE_S, "it is about to end"


def test_chunks_that_nobody_asks_for_any_more_are_dropped(make: Callable[..., World]) -> None:
    world = make()
    worker = world.worker
    with world.connect() as client:
        for line in b"ack on", b"pub s |" + b"x" * LONE_BYTES_MAX:
            world.ask(client, line)
        worker.timers.next_due_s = float("inf")  # until it is due below
        client.sendall(b"sub s 0 wait\r\n")
        world.turn_until(lambda: len(worker.renderings.cache))
        worker.frame_chunks.cache.keep((b"s", 0), FrameChunk(1, 33, 45, 0, 33, b"f" * 33))
        for due_s in DROP_EVERY_S, 2 * DROP_EVERY_S:
            assert len(worker.renderings.cache) == len(worker.frame_chunks.cache) == 1
            worker.timers.next_due_s = 0.0
            worker.timers.run_due(time.monotonic() + due_s + 1.0)
    assert len(worker.renderings.cache) == len(worker.frame_chunks.cache) == 0


def test_the_loop_does_not_wait_long_for_a_helper_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes holds the interpreter for 5 ms by default, at each system call of the loop."""
    for changed in ("signal.signal", "setproctitle.setproctitle", "faulthandler.enable"):
        monkeypatch.setattr(changed, Mock())
    monkeypatch.setattr("tailrace.broker.worker.Worker", Mock(return_value=Mock(start=Mock(side_effect=OSError))))
    before_s = sys.getswitchinterval()
    try:
        assert run_worker(Mock()) == EXIT_CANNOT_OPEN
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before_s)
