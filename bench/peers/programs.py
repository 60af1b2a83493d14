"""Finding the peers' servers: beside this interpreter (the wheels put them there), on the path, or in sbin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.base import Unavailable

VERSION_TIMEOUT_S = 10.0


def find_program(name: str) -> str:
    """The path of server `name`. Unavailable, with what to do, if there is none."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise Unavailable(f"{name} is not installed (`make bench` installs the peers)")
    return found


def program_version(name: str, *arguments: str) -> str:
    """The first line that `name` prints when asked for its version. Unavailable if it is not installed or says none."""
    command = [find_program(name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    if not lines:
        raise Unavailable(f"{' '.join(command)} printed no version")
    return lines[0]
