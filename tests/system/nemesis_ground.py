"""The nodes that a nemesis works on, each with a disk of its own, and their present faults."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from tests.system.mounts import mounted
from tests.system.nemesis_plan import Event, Kind, Plan
from tests.system.tree_net import network
from tests.system.tree_node import PORT, Tree

DISK_BYTES = 256 << 20
HTTP_OK = 200
BALLAST = "ballast"
BALLAST_PIECE_BYTES = 1 << 20
CONFIG = """
[timing]
upstream_timeout_s = "2 s"
unavailable_timeout_s = "3 s"
replication_timeout_s = "2 s"

[replication]
peers = [{peers}]
"""


class Ground:
    """Faults are begun and ended on it. It knows only its own actions; it asks no node."""

    def __init__(self, tree: Tree, disks: dict[str, Path]) -> None:
        self.tree = tree
        self.names = list(tree.nodes)
        self._disks = disks
        self._active: list[Event] = []

    def begin(self, event: Event) -> None:
        """A fault that is on this node already is not begun again."""
        if self._is_new(event):
            self._active.append(event)
            _BEGIN[event.kind](self, event)

    def end(self, event: Event) -> None:
        if event in self._active:
            self._active.remove(event)
            _END[event.kind](self, event)

    def heal(self) -> None:
        """End all faults, and wait until every node is ready."""
        for event in list(self._active):
            self.end(event)
        for node in self.tree.nodes.values():
            node.wait_ready()

    def reload(self, name: str) -> bool:
        """False if the node does not run now, or has only begun to: before it takes signals, this one would end it."""
        node = self.tree.nodes[name]
        if name in self.away() or node.get("/readyz")[0] != HTTP_OK:
            return False
        node.signal(signal.SIGHUP)
        return True

    def away(self) -> set[str]:
        """The nodes that do not run."""
        return {event.nodes[0] for event in self._active if event.kind in (Kind.KILL, Kind.STOP)}

    def reached_from(self, name: str) -> list[str]:
        """This node and those that exchange packets with it; none if it does not run."""
        away, blocked = self.away(), set(self._blocked())
        if name in away:
            return []
        cut_off = {other for other in self.names if {(name, other), (other, name)} & blocked}
        return [name, *(other for other in self.names if other not in {name} | away | cut_off)]

    def _is_new(self, event: Event) -> bool:
        if event.kind in (Kind.KILL, Kind.STOP):
            return event.nodes[0] not in self.away()
        return not (event.kind is Kind.FULL and any(each[1:3] == event[1:3] for each in self._active))

    def _blocked(self) -> Iterator[tuple[str, str]]:
        for event in self._active:
            others = [name for name in self.names if name not in event.nodes]
            if event.kind in (Kind.SPLIT, Kind.ONE_WAY):
                yield from product(event.nodes, others)
            if event.kind is Kind.SPLIT:
                yield from product(others, event.nodes)

    def _block(self, _event: Event) -> None:
        self.tree.net.block(self._blocked())

    def _kill(self, event: Event) -> None:
        self.tree.nodes[event.nodes[0]].kill()

    def _start(self, event: Event) -> None:
        self.tree.nodes[event.nodes[0]].start(wait=False)

    def _stop(self, event: Event) -> None:
        self.tree.nodes[event.nodes[0]].pause()

    def _continue(self, event: Event) -> None:
        self.tree.nodes[event.nodes[0]].resume()

    def _fill(self, event: Event) -> None:
        piece = bytes(BALLAST_PIECE_BYTES)
        with contextlib.suppress(OSError), (self._disks[event.nodes[0]] / BALLAST).open("wb", buffering=0) as file:
            while file.write(piece):
                pass

    def _empty(self, event: Event) -> None:
        (self._disks[event.nodes[0]] / BALLAST).unlink()


Action = Callable[[Ground, Event], None]
_BEGIN: dict[Kind, Action] = {
    Kind.KILL: Ground._kill,
    Kind.STOP: Ground._stop,
    Kind.SPLIT: Ground._block,
    Kind.ONE_WAY: Ground._block,
    Kind.FULL: Ground._fill,
}
_END: dict[Kind, Action] = {
    Kind.KILL: Ground._start,
    Kind.STOP: Ground._continue,
    Kind.SPLIT: Ground._block,
    Kind.ONE_WAY: Ground._block,
    Kind.FULL: Ground._empty,
}


@contextlib.contextmanager
def ground(folder: Path, plan: Plan) -> Iterator[Ground]:
    """A running tree for the length of a block. Raises CannotMount, or skips the test, if it may not be made."""
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(network(*plan.parents))
        disks = {
            name: stack.enter_context(mounted(folder / f"{name}-disk", f"size={DISK_BYTES}")) for name in plan.parents
        }
        peers = ", ".join(f'"{machine.address}:{PORT}"' for machine in net.machines.values())
        tree = Tree(net, folder, plan.parents, config=CONFIG.format(peers=peers), workers=plan.workers)
        for name, node in tree.nodes.items():
            node.data = disks[name] / "data"
        stack.callback(tree.kill)
        tree.start()
        for name in tree.slaves():
            tree.follow(name)
        yield Ground(tree, disks)
