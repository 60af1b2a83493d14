"""Which build of tailrace ran: asked of its own door, and seen in the memory maps of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.load.limits import LoadError
from bench.load.meter import ProcessTree
from tailrace.shard.leaves import LEAF_MODULES

_ASK = "from tailrace.shard.leaves import build; print(build())"
_ROOT = Path(__file__).resolve().parent.parent
_ASK_TIMEOUT_S = 30.0


def build_under(environment: Mapping[str, str]) -> str:
    """What `shard.leaves.build()` says in a fresh process of this interpreter with that environment."""
    command, whole = [sys.executable, "-c", _ASK], {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=_ROOT, env=whole, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise LoadError(f"tailrace.shard.leaves cannot be loaded: {done.stderr.strip()}")
    return done.stdout.strip()


def running_build(pid: int) -> str:
    """compiled, interpreted or mixed: by the leaves' shared objects that the processes of the tree have mapped."""
    loaded = {name for process in ProcessTree(pid).processes for name in _mapped_leaves(process.pid)}
    if not loaded:
        return "interpreted"
    return "compiled" if loaded == set(LEAF_MODULES) else "mixed"


def mapped_leaves(paths: Iterable[str]) -> set[str]:
    """The leaves whose shared objects are among these paths."""
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
