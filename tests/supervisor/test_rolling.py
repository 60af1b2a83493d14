"""Replacing workers, step by step, with children that are only written down."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tailrace.supervisor.process import Stage
from tailrace.supervisor.rolling import BOOT_PATIENCE_S, HANDING_SLACK_S, Rolling, RollingStep


class FakeChild:
    def __init__(self, slot: int, pid: int, stage: Stage) -> None:
        self.slot = slot
        self.pid = pid
        self.stage = stage
        self.told: list[str] = []
        self.killed: list[int] = []

    def send(self, kind: str, **_fields: int) -> None:
        self.told.append(kind)

    def kill(self, number: int) -> None:
        self.killed.append(number)


class FakeCrew:
    """As `supervisor.crew.Crew`, without processes."""

    def __init__(self, slots: int) -> None:
        self.pids = iter(range(100, 1_000))
        self.current = {slot: FakeChild(slot, next(self.pids), Stage.OWNING) for slot in range(slots)}
        self.standby: dict[int, FakeChild] = {}
        self.retired: list[FakeChild] = []

    def start_successor(self, slot: int) -> FakeChild:
        child = self.standby[slot] = FakeChild(slot, next(self.pids), Stage.BOOTING)
        return child

    def promote(self, slot: int) -> FakeChild:
        old = self.current.get(slot)
        if old is not None:
            old.stage = Stage.RETIRING
            self.retired.append(old)
        child = self.current[slot] = self.standby.pop(slot)
        return child

    def die(self, child: FakeChild) -> None:
        child.stage = Stage.GONE
        if self.current.get(child.slot) is child:
            del self.current[child.slot]
        if self.standby.get(child.slot) is child:
            del self.standby[child.slot]


DRAIN_S = 10.0


class World:
    def __init__(self, slots: int = 2) -> None:
        self.crew = FakeCrew(slots)
        self.rolling = Rolling(self.crew, DRAIN_S)  # type: ignore[arg-type]
        self.first = dict(self.crew.current)

    def step(self, later_s: float = 0.0) -> RollingStep:
        self.rolling.step(time.monotonic() + later_s)
        return self.rolling.step_now

    def die(self, child: FakeChild) -> None:
        self.crew.die(child)
        self.rolling.ended(child)  # type: ignore[arg-type]

    def released(self, child: FakeChild) -> None:
        self.rolling.released(child)  # type: ignore[arg-type]

    def to(self, step: RollingStep, slot: int = 0) -> FakeChild:
        """Bring the replacement of a slot to a step; gives the successor."""
        if self.step() is step:
            return self.crew.standby[slot]
        new = self.crew.standby[slot]
        new.stage = Stage.STANDBY
        if self.step() is step:
            return new
        self.released(self.first[slot])
        if self.rolling.step_now is step:
            return new
        new.stage = Stage.OWNING
        assert self.step() is step
        return new


def test_slot_after_slot_the_new_one_ready_before_the_old_one_gives_anything_up() -> None:
    world = World()
    world.rolling.begin([0, 1])
    for slot in (0, 1):
        old = world.first[slot]
        assert world.step() is RollingStep.BOOTING
        new = world.crew.standby[slot]
        assert [child.pid for child in world.rolling.started()] == [new.pid]
        assert world.step() is RollingStep.BOOTING and old.told == []
        new.stage = Stage.STANDBY
        assert world.step() is RollingStep.RELEASING and old.told == ["retire"]
        world.released(old)
        assert new.told == ["own"] and world.crew.current[slot] is new
        assert world.step() is RollingStep.TAKING
        new.stage = Stage.OWNING
        assert world.step() is RollingStep.HANDING
        world.die(old)
        assert world.rolling.step_now is RollingStep.IDLE
    assert world.step() is RollingStep.IDLE and not world.rolling.busy


def test_a_slot_that_waits_is_not_queued_twice() -> None:
    world = World()
    world.rolling.begin([0, 1])
    world.rolling.begin([0, 1])
    world.to(RollingStep.HANDING)
    world.rolling.begin([0, 1])
    world.die(world.first[0])
    world.to(RollingStep.HANDING, 1)
    world.die(world.first[1])
    assert world.step() is RollingStep.BOOTING, "slot 0 once more, asked for after it had begun"
    assert list(world.crew.standby) == [0]


def test_a_slot_without_a_worker_is_waited_for() -> None:
    world = World()
    world.crew.die(world.first[0])
    world.rolling.begin([0])
    assert world.step() is RollingStep.IDLE and world.rolling.busy
    world.crew.current[0] = FakeChild(0, 500, Stage.BOOTING)
    assert world.step() is RollingStep.IDLE
    world.crew.current[0].stage = Stage.OWNING
    assert world.step() is RollingStep.BOOTING


def test_a_successor_that_does_not_boot_costs_nothing() -> None:
    world = World()
    world.rolling.begin([0, 1])
    new = world.to(RollingStep.BOOTING)
    assert world.step(BOOT_PATIENCE_S + 1) is RollingStep.BOOTING
    assert new.killed, "it hangs"
    world.die(new)
    assert not world.rolling.busy, "the others would fare no better"
    assert world.first[0].told == [] and world.crew.current == world.first


def test_a_successor_that_dies_while_the_old_one_releases_is_followed_by_another() -> None:
    world = World()
    world.rolling.begin([0])
    world.die(world.to(RollingStep.RELEASING))
    other = world.crew.standby[0]
    assert other.pid in [child.pid for child in world.rolling.started()]
    world.released(world.first[0])
    assert other.told == ["own"] and world.crew.current[0] is other


def test_a_successor_that_dies_later_is_a_worker_that_dies() -> None:
    for step in (RollingStep.TAKING, RollingStep.HANDING):
        world = World()
        world.rolling.begin([0])
        world.die(world.to(step))
        assert not world.rolling.busy


@pytest.mark.parametrize("step", [RollingStep.BOOTING, RollingStep.RELEASING])
def test_an_old_worker_that_dies_early_is_succeeded_at_once(step: RollingStep) -> None:
    world = World()
    world.rolling.begin([0])
    new = world.to(step)
    world.die(world.first[0])
    assert new.told == ["own"] and world.crew.current[0] is new
    new.stage = Stage.OWNING
    assert world.step() is RollingStep.IDLE


def test_an_old_worker_that_leaves_while_its_successor_takes_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """The successor's message and the end of the old one may arrive in one turn."""
    caplog.set_level("INFO")
    world = World()
    world.rolling.begin([0])
    new = world.to(RollingStep.TAKING)
    new.stage = Stage.OWNING
    world.die(world.first[0])
    assert world.rolling.step_now is RollingStep.TAKING
    assert world.step() is RollingStep.IDLE
    assert "all workers are replaced" in caplog.text


def test_an_old_worker_that_does_not_leave_is_killed() -> None:
    world = World()
    world.rolling.begin([0])
    world.to(RollingStep.HANDING)
    old = world.first[0]
    world.step(DRAIN_S)
    assert not old.killed
    world.step(DRAIN_S + HANDING_SLACK_S + 1)
    assert len(old.killed) == 1


def leaves(world: World, new: FakeChild) -> None:
    assert new.told == ["leave"] and world.first[0].told == []


def goes_on(world: World, new: FakeChild) -> None:
    world.released(world.first[0])
    assert new.told == ["own"]


@pytest.mark.parametrize(("step", "then"), [(RollingStep.BOOTING, leaves), (RollingStep.RELEASING, goes_on)])
def test_a_stop_in_the_middle(step: RollingStep, then: Callable[[World, FakeChild], None]) -> None:
    """Replacements that have not begun end; shards that are being given up must still find their new owner."""
    world = World()
    world.rolling.begin([0, 1])
    new = world.to(step)
    world.rolling.cancel()
    then(world, new)
    assert 1 not in world.crew.standby


def test_words_of_others_change_nothing() -> None:
    world = World()
    world.rolling.begin([0])
    new = world.to(RollingStep.BOOTING)
    world.released(world.first[0])
    world.released(world.first[1])
    world.die(world.first[1])
    assert world.rolling.step_now is RollingStep.BOOTING and new.told == []
