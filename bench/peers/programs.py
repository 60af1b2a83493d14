"""Servers as programs: finding them, running several as one, and running one on a disk with slow flushes.

They are beside this interpreter (wheels put them there), in build/ (`make bench`), on the path, or in sbin. The disk of
a virtual machine often answers a flush at once, since its host keeps writes in memory. On such a machine a sync costs
processor time only, unlike on a disk that must write its cache; so slow flushes are emulated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bench.peers.base import Site, Unavailable

VERSION_TIMEOUT_S = 10.0
_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_SLOW_FLUSH = _CHECKOUT / "bench" / "slow_flush.c"
_COMPILE_TIMEOUT_S = 60.0
OWN_MODULES: Mapping[str, str] = MappingProxyType({"PYTHONPATH": str(_CHECKOUT)})
"""The environment in which `python -m bench.…` works, whatever directory a server is started in."""


def find_program(name: str) -> str:
    """The path of server `name`. Unavailable, with advice, if it is not installed."""
    built = str(_CHECKOUT / "build" / name / "bin")
    folders = [str(Path(sys.executable).parent), built, os.environ.get("PATH", os.defpath)]
    folders += ["/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise Unavailable(f"{name} is not installed (`make bench` installs the peers)")
    return found


def program_version(name: str, *arguments: str) -> str:
    """The first line of the version that `name` prints. Unavailable if it is not installed or prints nothing."""
    command = [find_program(name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if not lines:
        raise Unavailable(f"{' '.join(command)} printed no version")
    return lines[0]


def run_together(site: Site, commands: Sequence[Sequence[str]]) -> list[str]:
    """The command that runs all of these as one server (`bench.load.together`), in the environment OWN_MODULES."""
    file = site.directory / "commands.json"
    file.write_text(json.dumps(commands))
    return [sys.executable, "-m", "bench.load.together", str(file)]


def compiled_c(source: Path, directory: Path, *options: str) -> Path:
    """Compiles a program or library of one file into `directory`. Raises Unavailable without a C compiler."""
    made = directory / source.stem
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable(f"{source.name} has to be compiled, and there is no C compiler (cc)")
    built = subprocess.run(
        [compiler, "-O2", "-o", str(made), str(source), *options],
        capture_output=True,
        text=True,
        timeout=_COMPILE_TIMEOUT_S,
        check=False,
    )
    if built.returncode:
        raise Unavailable(f"{source.name} cannot be compiled: {built.stderr.strip()}")
    return made


def under_slow_flush(command: list[str], directory: Path, flush_ms: int) -> list[str]:
    """The command, run so that fsync, fdatasync, syncfs and msync take `flush_ms` longer. Several calls wait at once.

    The library for it is compiled into `directory`. Raises Unavailable without a C compiler.
    """
    library = compiled_c(_SLOW_FLUSH, directory, "-shared", "-fPIC", "-ldl")
    return ["env", f"LD_PRELOAD={library}", f"SLOW_FLUSH_US={1_000 * flush_ms}", *command]
