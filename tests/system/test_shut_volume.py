"""A file system that shuts down under open streams gives errors, and never a signal; and nothing is synced any more."""

from __future__ import annotations

import subprocess

import pytest

from tests.system.mounts import CannotMount
from tests.system.power_loss import EXIT_CANNOT_MOUNT
from tests.system.shut_volume import command

pytestmark = pytest.mark.system


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_file_system_that_shuts_down_is_an_error(kind: str) -> None:
    try:
        tried = command(kind)
    except CannotMount as error:
        pytest.skip(str(error))
    done = subprocess.run(tried, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == EXIT_CANNOT_MOUNT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"
    assert done.stdout.startswith(f"{kind} {{'appended': ")
