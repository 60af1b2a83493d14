"""A network of its own for a script, so that it can have addresses that are not loopback's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


def in_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python script with loopback down and no other interface; skips the test without permission."""
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare (util-linux) and ip (iproute2)")
    if subprocess.run([*unshare, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("may not make a network namespace here")
    command = [*unshare, sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
