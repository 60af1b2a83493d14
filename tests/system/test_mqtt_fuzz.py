"""A short part of `mqtt_fuzz`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.system.mqtt_fuzz import codec_inputs, fuzz_node
from tests.system.node import running

INPUTS = 4_000
GROWTH_MAX_BYTES = 16 << 20


def test_the_codec_gives_packets_or_an_error() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert codec_inputs(2 * INPUTS, random.Random(seed)) >= 2 * INPUTS


@pytest.mark.thorough
@pytest.mark.system
def test_no_worker_ends_by_any_transport(tmp_path: Path) -> None:
    """And a neighbour is served meanwhile."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    authority = Authority(tmp_path / "ca")
    with running(tmp_path / "data", config=authority.issue("server", "DNS:localhost").toml()) as node:
        found = fuzz_node(node, authority.certificate, INPUTS, seed, 0.2)
    assert found.inputs >= INPUTS and not found.ended
    assert found.memory[1] - found.memory[0] < GROWTH_MAX_BYTES
    assert all(found.waits_s), "the neighbour was served"
