"""Finding the peers' servers: beside this interpreter (the wheels put them there), on the path, or in sbin; and running
modules of ours, or several programs, as one server.
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
OWN_MODULES: Mapping[str, str] = MappingProxyType({"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)})
"""The environment in which `python -m bench.…` works, whatever directory a server is started in."""


def find_program(name: str) -> str:
    """The path of server `name`. Unavailable, with advice, if it is not installed."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
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
