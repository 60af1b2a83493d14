from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.consumers.coordinator import coordinator, lag_scanner
from tailrace.broker.consumers.coordinator.lag_scanner import LagTotals
from tailrace.broker.consumers.state.records import ConsumerReset, pack
from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.streams.owner_calls import call
from tailrace.shard.frame import pack_frame
from tailrace.shard.meta import Role, StreamMeta
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
    world.runs(most=1)  # it comes back: messages kept now are kept for it
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
        world.owner.roles.set_meta(StreamMeta(name.decode(), Role.DISABLED, 1))
    assert call(world.owner, "trim", [S, ["seq", 7], True]) == [4, 4]
    world.upkeep.sweep()
    assert world.owner.metrics.consumers == 0, "the master measures them"


# --- more streams than are held in memory -----------------------------------------------------------------------------

STREAMS = [b"s%d" % number for number in range(8)]


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(coordinator, "BOOKS_MAX", 3)
    made = Office(tmp_path, streams=(StreamPolicy(spare_consumers=True, consumer_max_age_s=2 * DAY_S),))
    made.publish()
    for number, name in enumerate(STREAMS):
        made.publish(*[b"x"] * (number + 1), name=name)
        made.consume("create", stream=name, start=("seq", 0))
        made.turn()
    return made


def rounds(world: Office, count: int = 1) -> int:
    """The number of logs that `count` rounds of the walk read."""
    patrol = world.upkeep._patrol
    before = patrol.read
    for _ in range(count):
        world.clock.now_s += world.owner.settings.retention_interval_s
        world.upkeep.sweep()
        world.upkeep.sweep()
        world.turn()
    return patrol.read - before


def test_their_logs_are_read_once_and_nobody_is_put_away_for_it(crowd: Office) -> None:
    held = list(crowd.desk.books)
    metrics = crowd.owner.metrics
    assert rounds(crowd) == len(STREAMS) - len(held) == 5
    assert rounds(crowd, 20) == 0
    assert (metrics.consumers, metrics.consumer_lag_messages_max) == (8, 8)
    crowd.publish(*[b"x"] * 30, name=STREAMS[0])
    assert rounds(crowd) == 0 and metrics.consumer_lag_messages_max == 31
    assert list(crowd.desk.books) == held


def test_what_somebody_asks_for_is_read_again_and_right(crowd: Office) -> None:
    rounds(crowd)
    metrics = crowd.owner.metrics
    for name in STREAMS:  # each in memory for a while, and put away
        (given,) = crowd.runs(name=name, most=99)
        crowd.get(name=name, finished=[[0, given[1] - 1]], most=0)
        crowd.turn()
    assert rounds(crowd) == 5
    assert (metrics.consumers, metrics.consumer_lag_messages_max) == (8, 0)
    crowd.consume("delete", stream=STREAMS[0])
    crowd.turn()
    assert rounds(crowd) <= 2 and metrics.consumers == 7


def test_what_is_due_is_done_also_where_nobody_asks(crowd: Office) -> None:
    """A deadline passes for a stream that is not in memory."""
    crowd.consume("create", stream=STREAMS[0], name=b"once", start=("seq", 0), deliveries_max=1)
    crowd.turn()
    crowd.runs(name=STREAMS[0], consumer=b"once", most=1)
    for name in STREAMS[1:]:
        crowd.rows(name)
    assert STREAMS[0] not in crowd.desk.books
    rounds(crowd, 3)
    crowd.tick()
    assert crowd.rows(STREAMS[0])[b"once"]["dead"] == 1


def test_those_about_to_be_abandoned_are_told_of_in_time(crowd: Office) -> None:
    rounds(crowd)
    metrics = crowd.owner.metrics
    crowd.clock.now_s += 1.6 * DAY_S
    assert rounds(crowd) == 5 and metrics.consumers_soon_abandoned == 8
    assert rounds(crowd, 5) == 0
    crowd.clock.now_s += 0.5 * DAY_S
    assert rounds(crowd) == 5 and (metrics.consumers_soon_abandoned, metrics.consumers_abandoned) == (0, 8)


def test_of_a_stream_that_is_another_now_nothing_is_remembered(crowd: Office) -> None:
    rounds(crowd)
    (name,) = [each for each in STREAMS if each not in crowd.desk.books][:1]
    for verb in ("unmaster", "promote"):
        call(crowd.owner, verb, [name])
    assert rounds(crowd) == 1


def test_so_many_are_remembered(crowd: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_scanner, "SURVEYS_MAX", 2)
    rounds(crowd)
    assert len(crowd.upkeep._patrol._memory) == 2


def test_a_slave_reads_its_copy_when_that_has_grown(tmp_path: Path) -> None:
    world = office(tmp_path, **SPARING)
    world.create(start=("seq", 4))
    for name in (S, b"$cursor/s"):
        world.owner.roles.set_meta(StreamMeta(name.decode(), Role.DISABLED, 1))
    patrol = world.upkeep._patrol
    assert [patrol.spared_seq(S) for _ in range(5)] == [4] * 5 and patrol.read == 1
    frame = bytearray(pack_frame(pack(ConsumerReset(b"c", world.owner.clock_us(), 6))))
    world.owner.stream(b"$cursor/s").log.append(frame, 1, world.owner.clock_us(), 1)
    assert [patrol.spared_seq(S) for _ in range(5)] == [6] * 5 and patrol.read == 2


def test_measures_add_up() -> None:
    assert LagTotals(1, 5, 10, 0, 1).plus(LagTotals(2, 4, 20, 1, 0)) == LagTotals(3, 5, 20, 1, 1)


def test_the_figures_of_a_round_stand_until_the_next_one_has_ended(tmp_path: Path) -> None:
    """The timer calls many times between two rounds."""
    world = office(tmp_path, **SPARING)
    world.create()
    sweep(world)
    metrics = world.owner.metrics
    shown = []
    for _ in range(30):
        world.clock.now_s += world.owner.settings.retention_interval_s / 9
        world.upkeep.sweep()
        world.turn()
        shown.append((metrics.consumers, metrics.consumer_lag_messages_max))
    assert set(shown) == {(1, 10)}
