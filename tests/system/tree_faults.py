"""Carries out a schedule of faults on the nodes of a tree."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from tests.system.fault_schedule import Fault, Kind, steps
from tests.system.processes import worker_pid, worker_pids
from tests.system.tree_node import Tree, wait_served

Action = Callable[[Tree, Fault], None]


def play(tree: Tree, faults: Sequence[Fault]) -> None:
    """All of them at their times, or as soon as those before them are done; then until all nodes serve again."""
    began_s = time.monotonic()
    for step in steps(faults):
        time.sleep(max(0.0, began_s + step.at_s - time.monotonic()))
        if step.begins:
            print(f"{time.monotonic() - began_s:6.2f} s, planned for {step.fault}")
        (BEGIN if step.begins else END)[step.fault.kind](tree, step.fault)
    for node in tree.nodes.values():
        node.wait_ready()
        wait_served(node)


def _kill_node(tree: Tree, fault: Fault) -> None:
    tree.nodes[fault.node].kill()


def _start_node(tree: Tree, fault: Fault) -> None:
    tree.nodes[fault.node].start()


def _rebuild(tree: Tree, fault: Fault) -> None:
    tree.rebuild(fault.node)


def _cut(tree: Tree, fault: Fault) -> None:
    tree.net.cut(fault.node)


def _restore(tree: Tree, fault: Fault) -> None:
    tree.net.restore(fault.node)


def _impair(tree: Tree, fault: Fault) -> None:
    tree.net.impair(fault.node, fault.delay_ms, fault.loss_percent)


def _clear(tree: Tree, fault: Fault) -> None:
    tree.net.clear(fault.node)


def _kill_worker(tree: Tree, fault: Fault) -> None:
    node = tree.nodes[fault.node]
    slot = int(fault.slot * max(1, len(worker_pids(node))))
    os.kill(worker_pid(node, slot), signal.SIGKILL)


def _pause(tree: Tree, fault: Fault) -> None:
    tree.nodes[fault.node].pause()


def _resume(tree: Tree, fault: Fault) -> None:
    tree.nodes[fault.node].resume()


BEGIN: dict[Kind, Action] = {
    Kind.KILL_NODE: _kill_node,
    Kind.CUT_LINK: _cut,
    Kind.IMPAIR_LINK: _impair,
    Kind.KILL_WORKER: _kill_worker,
    Kind.PAUSE_NODE: _pause,
    Kind.REBUILD: _kill_node,
}
END: dict[Kind, Action] = {
    Kind.KILL_NODE: _start_node,
    Kind.CUT_LINK: _restore,
    Kind.IMPAIR_LINK: _clear,
    Kind.PAUSE_NODE: _resume,
    Kind.REBUILD: _rebuild,
}
