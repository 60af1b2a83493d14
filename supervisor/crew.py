"""The worker processes of a node, slot by slot: forks and links them, and announces owners.

Every pair of workers shares one link, a socket pair made here whenever either side is new. A slot has one owner;
while it is being replaced it has a successor that stands by, and after that a retired worker that hands its
connections on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from itertools import count

from tailrace.broker.process.control import ControlChannel
from tailrace.broker.process.scoreboard import STATE_EMPTY, STATE_STARTING, Board
from tailrace.supervisor.process import Child, Stage, fork_child

log = logging.getLogger(__name__)

WorkerBody = Callable[[int, int, bool, ControlChannel], int]  # slot, generation, own, control: the worker's life


class Crew:
    def __init__(self, board: Board, body: WorkerBody, let_go: Callable[[], None]) -> None:
        self.board = board
        self.current: dict[int, Child] = {}
        self.standby: dict[int, Child] = {}
        self.retired: list[Child] = []
        self._body = body
        self._let_go = let_go
        self._generations = count(1)

    def __iter__(self) -> Iterator[Child]:
        yield from self.current.values()
        yield from self.standby.values()
        yield from self.retired

    def by_pid(self, pid: int) -> Child | None:
        return next((child for child in self if child.pid == pid), None)

    # --- starting ---------------------------------------------------------------------------------------------------

    def start(self, slot: int) -> Child:
        """Fork the owner of a slot that has none."""
        cells = self.board.slot(slot)
        cells.state, cells.connections, cells.subscriptions = STATE_STARTING, 0, 0
        cells.beat()
        child = self._fork(slot, own=True)
        self.current[slot] = child
        cells.pid, cells.generation = child.pid, child.generation
        self._link_to_all(child)
        return child

    def start_successor(self, slot: int) -> Child:
        """Fork a worker that stands by to take a slot over."""
        child = self._fork(slot, own=False)
        self.standby[slot] = child
        self._link_to_all(child)
        return child

    def _fork(self, slot: int, *, own: bool) -> Child:
        generation = next(self._generations)
        if not self.board.take_row(generation):
            log.warning("worker %d will be missing from /metrics: too many workers have not ended yet", slot)

        def in_child() -> None:
            for child in self:
                child.control.close()
            self._let_go()

        child = fork_child(
            f"worker {slot}", slot, generation, in_child, lambda control: self._body(slot, generation, own, control)
        )
        how = "" if own else ", standing by"
        log.info("started worker %d (pid %d, generation %d)%s", slot, child.pid, generation, how)
        return child

    def _link_to_all(self, fresh: Child) -> None:
        for other in self:
            if other is not fresh and other.stage is not Stage.GONE:
                _link(fresh, other)
        for other in self.current.values():
            if other is not fresh and other.stage is Stage.OWNING:
                fresh.send("owner", slot=other.slot, generation=other.generation)

    # --- changes of ownership ---------------------------------------------------------------------------------------

    def announce(self, owner: Child) -> None:
        """Notifies all other workers of the present owner of the slot."""
        for other in self:
            if other is not owner and other.stage is not Stage.GONE:
                other.send("owner", slot=owner.slot, generation=owner.generation)

    def promote(self, slot: int) -> Child:
        """The successor becomes the slot's worker, the old one a retired one."""
        old = self.current.get(slot)
        if old is not None:
            old.stage = Stage.RETIRING
            self.retired.append(old)
        child = self.current[slot] = self.standby.pop(slot)
        cells = self.board.slot(slot)
        cells.pid, cells.generation = child.pid, child.generation
        cells.beat()
        return child

    def forget(self, child: Child) -> None:
        """A child has been reaped."""
        child.stage = Stage.GONE
        child.control.close()
        self.board.free_row(child.generation)
        if self.current.get(child.slot) is child:
            del self.current[child.slot]
            cells = self.board.slot(child.slot)
            cells.state, cells.connections, cells.subscriptions = STATE_EMPTY, 0, 0
        if self.standby.get(child.slot) is child:
            del self.standby[child.slot]
        if child in self.retired:
            self.retired.remove(child)

    def send_all(self, kind: str, fds: tuple[int, ...] = (), **fields: int | str | bytes) -> None:
        for child in self:
            child.send(kind, fds, **fields)

    def kill_all(self) -> None:
        for child in self:
            child.kill(signal.SIGKILL)


def _link(left: Child, right: Child) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        left.send("link", (one.fileno(),), slot=right.slot, generation=right.generation)
        right.send("link", (other.fileno(),), slot=left.slot, generation=left.generation)


def reap() -> Iterator[tuple[int, int]]:
    """(pid, exit code) of every child that has ended; a negative code is the signal that ended it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)
