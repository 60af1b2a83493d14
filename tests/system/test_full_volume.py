"""On which file systems a full disk is an error, and never a signal. btrfs is not among them: see operations.md."""

from __future__ import annotations

import subprocess

import pytest

from tests.system.full_volume import command
from tests.system.mounts import CannotMount
from tests.system.power_loss import EXIT_CANNOT_MOUNT

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay"])
def test_a_full_file_system_is_an_error(kind: str) -> None:
    try:
        tried = command(kind)
    except CannotMount as error:
        pytest.skip(str(error))
    done = subprocess.run(tried, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == EXIT_CANNOT_MOUNT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"
    assert done.stdout.startswith(f"{kind} {{'done': ")
