"""What a reader must know to believe the figures: the machine, and which build of tailrace ran.

The build is the one that a new process loads, and the one in the memory maps of the running processes.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.load.limits import LoadError
from bench.load.meter import ProcessTree
from tailrace.shard.leaves import LEAF_MODULES

_ROOT = Path(__file__).resolve().parent.parent
_ASK = "from tailrace.shard.leaves import build; print(build())"
_RUN_TIMEOUT_S = 30.0


def describe_machine(scratch: Path) -> dict[str, str]:
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file system": f"{file_system(scratch)} at {scratch}",
    }


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`; "unknown" if no mount point does."""
    holders = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    return max(holders, key=lambda part: len(part.mountpoint)).fstype if holders else "unknown"


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    try:
        return _run(["git", "rev-parse", "--short", "HEAD"], {}).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, **environment}
    return subprocess.run(
        command, cwd=_ROOT, env=whole, capture_output=True, text=True, timeout=_RUN_TIMEOUT_S, check=False
    )


def build_under(environment: Mapping[str, str]) -> str:
    """Return `shard.leaves.build()` of a new process of this interpreter with that environment."""
    done = _run([sys.executable, "-c", _ASK], environment)
    if done.returncode:
        raise LoadError(f"tailrace.shard.leaves cannot be loaded: {done.stderr.strip()}")
    return done.stdout.strip()


def running_build(pid: int) -> str:
    """Return compiled, interpreted or mixed, by the shared objects that the processes of the tree have mapped."""
    loaded = {name for process in ProcessTree(pid).processes for name in _mapped_leaves(process.pid)}
    if not loaded:
        return "interpreted"
    return "compiled" if loaded == set(LEAF_MODULES) else "mixed"


def mapped_leaves(paths: Iterable[str]) -> set[str]:
    """Return the leaves whose shared objects are among these paths."""
    files = [Path(path) for path in paths if path.endswith(".so")]
    return {
        name
        for name in LEAF_MODULES
        for file in files
        if file.name.startswith(name.rpartition(".")[2] + ".") and file.parent.name == name.split(".")[-2]
    }


def _mapped_leaves(pid: int) -> set[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return mapped_leaves(line.rstrip("\n").rpartition(" ")[2] for line in file)
    except OSError:
        return set()
