"""A short part of `mqtt_kills`. Kills of workers and nodes are left to runs by hand: each waits for a start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.protocol.mqtt.wire import VERSIONS
from tests.system.mqtt_kills import FAULTS, kills, report, site_of

pytestmark = pytest.mark.system

KILLS = {"client": 20}


@pytest.mark.few(1)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("faults", KILLS)
def test_nothing_is_lost_over_kills(tmp_path: Path, version: int, faults: str) -> None:
    """With kills of clients alone, nothing comes twice with QoS 2 either, and all in order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with site_of(tmp_path, faults) as site:
        found = kills(site, version, KILLS[faults], FAULTS[faults], random.Random(seed))
    print(report(found))
    assert not found.lost and found.messages
    if faults == "client":
        assert not found.doubled and not found.disordered
