from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.consumers.patrol import Measures
from broker.owner_calls import call
from broker.settings import StreamPolicy
from shard.meta import Role, StreamMeta
from tests.broker.consumers.desks import Office, S

DAY_S = 86_400
SPARING: dict[str, Any] = {"max_bytes": 4096, "spare_consumers": True, "consumer_max_age_s": 2 * DAY_S}


def office(path: Path, **policy: Any) -> Office:
    """Ten messages of 1 KB, of which a plain retention keeps the last few."""
    made = Office(path, streams=(StreamPolicy(**policy),))
    made.publish(*[b"x" * 1000] * 10)
    made.turn()
    return made


def sweep(world: Office, seconds: float = 0.0) -> int:
    """Let time pass and the walk go round, twice: the first may have begun before. What the stream begins with then."""
    world.clock.now_s += seconds
    for _ in range(4):
        world.clock.now_s += world.owner.settings.retention_interval_s
        world.upkeep.sweep()
        world.turn()
    return world.owner.stream(S).log.first_seq


def test_retention_spares_what_a_consumer_has_not_finished(tmp_path: Path) -> None:
    world = office(tmp_path, **SPARING)
    world.create()
    assert sweep(world) == 0
    world.runs(most=5)
    assert sweep(world) == 0


def test_retention_goes_on_behind_what_all_have_finished(tmp_path: Path) -> None:
    world = office(tmp_path, **SPARING)
    world.create()
    world.create(b"other", ("seq", 3))
    world.runs(most=5)
    world.runs(finished=[[0, 4]], most=0)
    assert sweep(world) == 3
    world.consume("delete", name=b"other")
    assert sweep(world) == 5


def test_without_the_setting_nothing_is_spared(tmp_path: Path) -> None:
    world = office(tmp_path, max_bytes=4096)
    world.create()
    assert sweep(world) > 5


def test_an_abandoned_consumer_spares_nothing_and_is_told_of_before(tmp_path: Path) -> None:
    world = office(tmp_path, **SPARING)
    world.create()
    metrics = world.owner.metrics
    assert (sweep(world), metrics.consumers, metrics.consumers_soon_abandoned) == (0, 1, 0)
    assert metrics.consumer_lag_messages_max == 10
    assert sweep(world, 1.6 * DAY_S) == 0
    assert (metrics.consumers_soon_abandoned, metrics.consumers_abandoned) == (1, 0)
    assert metrics.consumer_lag_s_max == pytest.approx(1.6 * DAY_S, rel=0.01)
    assert sweep(world, 0.5 * DAY_S) > 5
    assert (metrics.consumers_soon_abandoned, metrics.consumers_abandoned) == (0, 1)
    world.runs(most=1)  # it comes back: what is kept now is kept for it
    first_seq = sweep(world)
    world.publish(*[b"x" * 1000] * 10)
    assert sweep(world) == first_seq
    assert metrics.consumers_abandoned == 0


def test_a_trim_spares_them_when_told_to(tmp_path: Path) -> None:
    world = office(tmp_path)
    assert call(world.owner, "trim", [S, ["seq", 2], True]) == [2, 2], "there is nobody to spare"
    world.create(start=("seq", 4))
    assert call(world.owner, "trim", [S, ["seq", 7], True]) == [4, 2]
    assert call(world.owner, "trim", [S, ["seq", 7], True]) == [4, 0]
    assert call(world.owner, "trim", [S, ["seq", 7], False]) == [7, 3]


def test_a_slave_spares_what_its_copy_of_the_log_says(tmp_path: Path) -> None:
    world = office(tmp_path)
    world.create(start=("seq", 4))
    for name in (S, b"$cursor/s"):
        world.owner.set_meta(StreamMeta(name.decode(), Role.DISABLED, 1))
    assert call(world.owner, "trim", [S, ["seq", 7], True]) == [4, 4]
    world.upkeep.sweep()
    assert world.owner.metrics.consumers == 0, "the master measures them"


def test_measures_add_up() -> None:
    assert Measures(1, 5, 10, 0, 1).plus(Measures(2, 4, 20, 1, 0)) == Measures(3, 5, 20, 1, 1)
