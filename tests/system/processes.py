"""The system's view of a node's processes, from outside: their names, pids and descriptors."""

from __future__ import annotations

import contextlib
import os
from itertools import chain

import psutil

from tests.system.node import Node, wait_for


def titles(node: Node) -> dict[int, str]:
    """The process title of each child of the supervisor, by pid; "" for a zombie."""
    assert node.process is not None
    found = {}
    for child in psutil.Process(node.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[child.pid] = title(child.pid)
    return found


def title(pid: int) -> str:
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.ZombieProcess:
        return ""
    return command[0].rstrip() if command else ""


def worker_pids(node: Node) -> dict[int, list[int]]:
    """The pids of the workers of each slot: two while one is replaced."""
    found: dict[int, list[int]] = {}
    for pid, text in sorted(titles(node).items()):
        if text.startswith("tailrace: worker "):
            found.setdefault(int(text.split()[2]), []).append(pid)
    return found


def all_workers(node: Node) -> set[int]:
    """The pids of all workers, whichever slot they have."""
    return set(chain.from_iterable(worker_pids(node).values()))


def worker_pid(node: Node, slot: int) -> int:
    """The pid of the one worker of a slot, waited for if need be."""
    return wait_for(lambda: only(worker_pids(node).get(slot, [])), f"slot {slot} has one worker")


def only(pids: list[int]) -> int | None:
    """The pid if there is exactly one; None otherwise."""
    return pids[0] if len(pids) == 1 else None


def metrics_pid(node: Node) -> int:
    return wait_for(
        lambda: only([pid for pid, text in titles(node).items() if text == "tailrace: metrics"]),
        "there is one metrics process",
    )


def alive(pid: int) -> bool:
    """Whether any thread of a process runs, and so holds its descriptors open."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps") as file:
        return sum(1 for _line in file)


def resident_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
