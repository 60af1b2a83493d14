"""A real node on a real file system that loses power: some rounds of what `tests.system.power_loss` does by hand."""

from __future__ import annotations

import subprocess

import pytest

from tests.system.mounts import CannotMount
from tests.system.power_loss import EXIT_CANNOT_MOUNT, command
from tests.thorough import only_thorough

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROUNDS = {"ext4": 2, "xfs": 1}
PATIENCE_S = 180.0


@pytest.mark.parametrize("kind", ["ext4", *only_thorough("xfs")])
def test_nothing_acknowledged_under_always_is_lost_and_no_stream_refused(kind: str) -> None:
    try:
        rounds = command(kind, ROUNDS[kind], seed=12)
    except CannotMount as error:
        pytest.skip(str(error))
    done = subprocess.run(rounds, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode == EXIT_CANNOT_MOUNT:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: {ROUNDS[kind]} rounds" in done.stdout
