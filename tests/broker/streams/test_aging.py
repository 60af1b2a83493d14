"""The time by which messages grow old, when the clock jumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.streams.aging import AWAY_S, CLOCK_FILE, JUMP_S, AgingClock, since_boot_us

WAIT_S = 3_600.0
YEAR_S = 365 * 86_400.0
WALL_S, BOOT_S = 1_700_000_000.0, 500.0


class World:
    """Both clocks, in seconds, and an aging clock that looks at them."""

    def __init__(self, path: Path, boot_id: str = "boot") -> None:
        self.path = path
        self.wall_s = WALL_S
        self.boot_s = BOOT_S
        self.start(boot_id)

    def start(self, boot_id: str = "boot", slot: int = 0) -> None:
        """A worker is started, anew."""

        def wall_us() -> int:
            return int(self.wall_s * 1e6)

        self.clock = AgingClock(self.path, slot, boot_id, WAIT_S, wall_us, lambda: int(self.boot_s * 1e6))

    def later(self, seconds: float, *, jump_s: float = 0.0, step_s: float = 10.0) -> float:
        """Time passes, with a look every `step_s`; the clock jumps at first. Returns the time believed in the end."""
        self.wall_s += jump_s
        believed_us = self.clock.now_us()
        while seconds > 0:
            step = min(step_s, seconds)
            self.wall_s += step
            self.boot_s += step
            seconds -= step
            believed_us = self.clock.now_us()
        return believed_us / 1e6

    @property
    def passed_s(self) -> float:
        return self.boot_s - BOOT_S


def test_the_clock_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also after small corrections, forth, and back by any amount."""
    world = World(tmp_path)
    assert world.later(100_000.0) == world.wall_s
    assert world.later(100.0, jump_s=JUMP_S) == world.wall_s
    assert world.later(100.0, jump_s=-YEAR_S) == world.wall_s
    assert world.clock.ahead_s == 0.0 and not caplog.records


def test_a_jump_is_not_believed_before_it_has_lasted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    assert world.later(WAIT_S - 20.0, jump_s=YEAR_S) == WALL_S + world.passed_s, "time goes on as it did"
    assert world.clock.ahead_s == YEAR_S
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it is said once"
    assert world.later(30.0) == world.wall_s == WALL_S + YEAR_S + world.passed_s
    assert world.clock.ahead_s == 0.0
    assert "has stayed" in caplog.text


def test_a_jump_that_is_taken_back_in_time_was_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    world.later(WAIT_S - 20.0, jump_s=YEAR_S)
    assert world.later(10 * WAIT_S, jump_s=-YEAR_S) == world.wall_s == WALL_S + world.passed_s
    assert "back where it was" in caplog.text and world.clock.ahead_s == 0.0
    assert world.later(WAIT_S / 2, jump_s=YEAR_S) == WALL_S + world.passed_s, "the next one has its own time"


def test_a_worker_that_is_started_meanwhile_does_not_take_it_for_granted(tmp_path: Path) -> None:
    """Nor does it wait anew."""
    world = World(tmp_path)
    world.clock.sync()
    world.later(WAIT_S / 2, jump_s=YEAR_S)
    world.clock.sync()
    world.start(slot=1)
    assert world.later(WAIT_S / 4) == WALL_S + world.passed_s
    assert world.later(WAIT_S / 4 + 20.0) == world.wall_s
    assert [each.name for each in tmp_path.iterdir()] == [CLOCK_FILE]


def test_a_jump_while_the_node_was_down(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.clock.sync()
    world.wall_s += YEAR_S + 5_000.0
    world.boot_s += 5_000.0
    world.start()
    assert world.later(10.0) == WALL_S + world.passed_s


@pytest.mark.parametrize(("off_s", "is_believed"), [(AWAY_S / 2, True), (AWAY_S * 2, False)])
def test_a_machine_that_was_off(tmp_path: Path, off_s: float, is_believed: bool) -> None:
    """How long is not known: less than an hour is believed, and more is waited for."""
    world = World(tmp_path)
    world.clock.sync()
    world.wall_s += off_s + 30.0
    world.boot_s = 30.0
    world.start("another boot")
    assert (world.later(10.0) == world.wall_s) is is_believed
    assert world.later(WAIT_S + 20.0) == world.wall_s


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": 1}', '{"boot_id": 1, "since_boot_us": 1, "wall_us": 2}'])
def test_a_file_that_is_of_no_use(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CLOCK_FILE).write_text(text)
    world = World(tmp_path)
    assert world.later(10.0) == world.wall_s and "of no use" in caplog.text


def test_the_clock_since_the_start_of_the_machine_goes_on() -> None:
    assert 0 < since_boot_us() <= since_boot_us()
