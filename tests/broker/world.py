"""The workers of a node in one process: real sockets, real files, no thread of their own, no waiting.

`World` makes workers that own their shards and are linked to each other, as the supervisor would. A test decides what
the peers send and whose turn it is; `settle` gives everybody turns until nothing moves any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tailrace.broker import worker as worker_module
from tailrace.broker.access.identity import LOCAL, REMOTE
from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.binary import BinaryClient
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.detect import UndetectedConnection
from tailrace.broker.connection.line import LineClient
from tailrace.broker.process.control import ControlChannel
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.process.tls_contexts import load_contexts
from tailrace.broker.streams.memory_rings import uses_memory
from tailrace.broker.streams.syncer import SyncJob
from tailrace.broker.worker import Worker, WorkerBoot, WorkerPhase
from tailrace.shard.directory import make_data_dir
from tailrace.shard.memory_directory import make_memory_directory, memory_path, remove_memory_directory
from tailrace.shard.names import shard_of
from tailrace.supervisor.listeners import open_udp_sockets

SHARDS = 8
BOOT = "a boot of the machine"
TURNS_MAX = 400
PATIENCE_S = 60.0


class Peer:
    """The other end of a connection. Bytes received are in `received`; `lines` are its answers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.setblocking(False)
        self.received = bytearray()
        self.ended = False
        self.deaf = False  # reads nothing while it is

    def send(self, *lines: str | bytes) -> None:
        self.send_raw(b"".join((line.encode() if isinstance(line, str) else line) + b"\r\n" for line in lines))

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self) -> bool:
        """Take the bytes available; returns whether there were any."""
        before = len(self.received), self.ended
        while not self.deaf and not self.ended:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            self.received += data
            self.ended = not data
        return (len(self.received), self.ended) != before

    def close(self) -> None:
        self.sock.close()
        self.ended = True

    @property
    def lines(self) -> list[str]:
        """Whole lines so far."""
        return self.received.decode("utf-8", "backslashreplace").split("\r\n")[:-1]

    def take(self) -> list[str]:
        """Whole lines so far, which are then forgotten."""
        lines = self.lines
        del self.received[: self.received.rfind(b"\n") + 1]
        return lines

    def messages(self) -> list[tuple[str, int, str]]:
        """(stream, seq, payload) of each message so far; for payloads without line ends."""
        found = []
        for line in self.lines:
            if line.startswith("msg "):
                head, _, payload = line.partition("|")
                found.append((head.split()[1], int(head.split()[2]), payload))
        return found


class _LastRequest:
    """A request to the thread for the disk that ends when the test ends it."""

    name = "the last request"

    def __init__(self) -> None:
        self.reached, self.ends = threading.Event(), threading.Event()

    def sync(self) -> None:
        self.reached.set()
        self.ends.wait(PATIENCE_S)


class World:
    def __init__(self, path: Path, workers: int, settings: Settings, port: int = 0) -> None:
        """`port`: at which the first worker listens."""
        self.settings = settings
        self.tls = load_contexts(settings)
        self.directory = make_data_dir(path / "data", SHARDS)
        self.memory_path = memory_path(self.directory.node_id)
        if uses_memory(settings):
            make_memory_directory(self.memory_path, SHARDS)
        self.board = Board(workers)
        self.controls: list[ControlChannel] = []
        self.listeners = [socket.create_server(("127.0.0.1", 0 if slot else port)) for slot in range(workers)]
        self.udp_sockets = open_udp_sockets("127.0.0.1", 0, workers, 1 << 20) if settings.udp else []
        self.peers: list[Peer] = []
        self.workers = [self._make(slot, workers) for slot in range(workers)]
        for left in range(workers):
            for right in range(left):
                self._link(left, right)
        self.settle()

    def _make(self, slot: int, slots: int, generation: int = 0) -> Worker:
        ours, theirs = ControlChannel.pair()
        self.controls.append(ours)
        worker = Worker(
            WorkerBoot(
                settings=self.settings,
                directory=self.directory,
                slot=slot,
                slots=slots,
                generation=generation or slot + 1,
                boot_id=BOOT,
                own=True,
                control=theirs,
                listener=self.listeners[slot].dup(),
                board=self.board,
                udp_socket=self.udp_sockets[slot].dup() if self.udp_sockets else None,
                tls=self.tls,
            )
        )
        worker.start(own=True)
        return worker

    def _link(self, left: int, right: int) -> None:
        for slot, other, end in zip((left, right), (right, left), socket.socketpair(), strict=True):
            siblings = self.workers[slot].siblings
            siblings.add(other, other + 1, end.detach())
            siblings.owner_is(other, other + 1)

    def relink(self, left: int, right: int, generation: int) -> None:
        """The two workers lose each other, and each takes the other for another process that owns the slot now."""
        for slot, other, end in zip((left, right), (right, left), socket.socketpair(), strict=True):
            siblings = self.workers[slot].siblings
            for link in [link for link in siblings.links.open.values() if link.slot == other]:
                siblings._closed(link)
            siblings.add(other, generation, end.detach())
            siblings.owner_is(other, generation)

    def replace(self, slot: int, generation: int) -> None:
        """Another worker takes the slot over, and the connections of the one before."""
        old = self.workers[slot]
        old._retire()
        new = self._make(slot, len(self.workers), generation)
        for other in (*(each for each in self.workers if each is not old), old):
            numbers = (other.slot, other.generation), (slot, generation)
            for worker, (number, made), end in zip((new, other), numbers, socket.socketpair(), strict=True):
                worker.siblings.add(number, made, end.detach())
                if worker is other or other is not old:
                    worker.siblings.owner_is(number, made)
        self.workers[slot] = new
        for _ in range(TURNS_MAX):
            for worker in (*self.workers, old):
                worker.turn()
            old._often()
            if old.phase is WorkerPhase.LEAVING:
                break
        assert old.phase is WorkerPhase.LEAVING
        self._close_worker(old)
        self.settle()

    def worker_of(self, client: Connection) -> Worker:
        """The worker that serves this connection now."""
        return next(worker for worker in self.workers if worker.services is client.services)

    def connect(self, slot: int = 0, *, local: bool = True, small: bool = False) -> Peer:
        """A connection that this worker serves. `small`: with the least of buffers, so that it is soon full."""
        ours, theirs = socket.socketpair()
        if small:
            for sock, option in ((ours, socket.SO_RCVBUF), (theirs, socket.SO_SNDBUF)):
                sock.setsockopt(socket.SOL_SOCKET, option, 4_096)
        peer = Peer(ours)
        self.peers.append(peer)
        identity = LOCAL if local else REMOTE
        state = {"peer": f"peer:{len(self.peers)}", "identity": identity.export_state()}
        self.workers[slot].acceptor.adopt(theirs, state)
        return peer

    def connection_of(self, peer: Peer) -> Connection:
        """The broker's side of a connection, in any worker."""
        name = f"peer:{self.peers.index(peer) + 1}"
        return next(
            client for worker in self.workers for client in worker.services.clients.values() if client.peer == name
        )

    def speaker_of(self, peer: Peer) -> ClientConnection:
        """The same for a peer whose protocol has been detected."""
        client = self.connection_of(peer)
        assert isinstance(client, ClientConnection)
        return client

    def client_of(self, peer: Peer) -> LineClient:
        """The same of a peer that speaks lines, or is going to."""
        client = self.connection_of(peer)
        if isinstance(client, UndetectedConnection):
            client = client.become(LineClient.protocol)
        assert isinstance(client, LineClient)
        return client

    def binary_client_of(self, peer: Peer) -> BinaryClient:
        """The same of a peer that speaks the binary protocol, or is going to."""
        client = self.connection_of(peer)
        if isinstance(client, UndetectedConnection):
            client = client.become(BinaryClient.protocol)
        assert isinstance(client, BinaryClient)
        return client

    def name(self, slot: int, prefix: str = "s") -> str:
        """A stream that this slot owns."""
        return next(name for name in (f"{prefix}{i}" for i in range(1_000)) if self.owner_of(name) == slot)

    def owner_of(self, name: str) -> int:
        return shard_of(name.encode(), SHARDS) % len(self.workers)

    def settle(self, *slots: int) -> None:
        """Turns for these workers (all of them), until two rounds have moved nothing."""
        workers = [self.workers[slot] for slot in slots] or self.workers
        peers = [peer for peer in self.peers if not peer.ended]  # a test may have had hundreds before
        still = 0
        for _ in range(TURNS_MAX):
            for worker in workers:
                worker.turn()
            moved = [peer.read() for peer in peers]
            still = 0 if any(moved) else still + 1
            for worker in workers:
                while worker.role_writer.pending or worker.logins.busy:
                    time.sleep(0.0005)  # the disk, or a helper thread, takes its time
                    worker.turn()
                    still = 0
            if still > 2 * len(workers) and not any(busy(worker) for worker in workers):
                return
        raise AssertionError("the workers do not come to rest")

    def stop_timers(self) -> None:
        """From here on nothing runs because time has passed: however long the test takes, it sees the same."""
        for worker in self.workers:
            worker.timers.next_due_s = float("inf")

    def wait_synced(self) -> None:
        """Until the thread for the disk has done all it was asked for, and no outcome of it is to come any more."""
        for worker in self.workers:
            last, done = _LastRequest(), list[bool]()
            worker.syncer.request(last, SyncJob(lambda done=done: done.append(True)))  # type: ignore[misc]
            assert last.reached.wait(PATIENCE_S)
            worker.turn()  # work due before this request
            last.ends.set()
            assert select.select([worker.syncer.fileno()], [], [], PATIENCE_S)[0]
            worker.turn()
            assert done

    def ask(self, peer: Peer, *lines: str | bytes) -> list[str]:
        """Send these lines; every line that comes back."""
        peer.take()
        peer.send(*lines)
        self.settle()
        return peer.take()

    def fill(self, name: str, payloads: list[bytes]) -> None:
        """Publish through a connection of the stream's owner."""
        peer = self.connect(self.owner_of(name))
        for start in range(0, len(payloads), 100):
            peer.send(*(b"pub %s |%s" % (name.encode(), payload) for payload in payloads[start : start + 100]))
            self.settle()
        assert peer.lines == []
        peer.close()
        self.settle()

    def close(self) -> None:
        for peer in self.peers:
            peer.sock.close()
        for worker in self.workers:
            self._close_worker(worker)
        for control in self.controls:
            control.close()
        for sock in (*self.listeners, *self.udp_sockets):
            sock.close()
        remove_memory_directory(self.memory_path)

    def _close_worker(self, worker: Worker) -> None:
        for client in list(worker.services.clients.values()):
            client.close("stopped")
        worker.acceptor.stop()
        worker.udp.close()
        worker.uplinks.stop("stopped")
        worker.upkeep.finish_syncs(lambda: None)
        worker.syncer.close()
        os.close(worker.syncer.fileno())  # which a worker process leaves open until it ends
        worker.siblings.close()
        worker.readers.close()
        worker.owner.release()
        worker.poller.close()
        worker.control.close()


def busy(worker: Worker) -> bool:
    return bool(
        worker.udp.is_busy
        or worker.fanout.runnable
        or worker.services.answered
        or worker.movers.waiting
        or worker.work.stirred
        or worker.work.turns
    )


@contextlib.contextmanager
def world(path: Path, workers: int = 1, **settings: Any) -> Iterator[World]:
    """A world for the length of a block, with these settings in place of the defaults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "IDLE_S", 0)
        patch.setattr(worker_module, "REST_S", 0)
        patch.setattr(
            worker_module, "gc", Mock()
        )  # it collects and freezes a process of its own, not that of the tests
        made = World(path, workers, Settings(**settings))
        try:
            yield made
        finally:
            made.close()
