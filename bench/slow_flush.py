"""A disk whose flush takes its time, emulated for one server: each sync that it asks for takes so much longer.

The disk of a virtual machine often answers a flush at once, since its host keeps writes in memory. On such a machine a
sync costs processor time only, unlike on a disk that must write its cache.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.peers.base import Unavailable

_SOURCE = Path(__file__).with_name("slow_flush.c")
_COMPILE_TIMEOUT_S = 60.0


def under_slow_flush(command: list[str], directory: Path, flush_ms: int) -> list[str]:
    """The command, run so that fsync, fdatasync, syncfs and msync take `flush_ms` longer. Several calls wait at once.

    The library for it is compiled into `directory`. Raises Unavailable without a C compiler.
    """
    library = directory / "slow_flush.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("a slow flush is emulated by a small library in C, and there is no C compiler (cc)")
    built = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
        capture_output=True,
        text=True,
        timeout=_COMPILE_TIMEOUT_S,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"the library that emulates a slow flush cannot be compiled: {built.stderr.strip()}")
    return ["env", f"LD_PRELOAD={library}", f"SLOW_FLUSH_US={1_000 * flush_ms}", *command]
