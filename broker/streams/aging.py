"""The time by which messages grow old: the wall clock, unless that has jumped forward.

A clock that is set forward by mistake makes every message old at once. So a jump is compared with the clock that counts
seconds since the machine was started, and is accepted only when it has lasted for `wait_s`. Until then time goes on for
`max_age_s` as it did before the jump. A clock that is set back is accepted at once: messages stay longer for it.

The accepted time is saved (DATA/clock.json), so that a worker or a node that starts during a jump does not accept the
wrong time. Messages that were logged with a wrong time keep it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

CLOCK_FILE: Final = "clock.json"
FILE_BYTES_MAX: Final = 4_096
JUMP_S: Final = 60.0
"""More than this between two looks is a jump. What is less is taken for a clock that is being corrected."""
AWAY_S: Final = 3_600.0
"""The same after the machine was started: for how long it was off is not known."""
SAVE_S: Final = 60.0
"""Between two times that what is believed is written down."""
MICROSECONDS: Final = 1_000_000


def since_boot_us() -> int:
    """Microseconds since the machine was started, its sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


@dataclass(frozen=True, slots=True)
class BelievedTime:
    """At `since_boot_us` of the boot `boot_id` it was `wall_us`. `doubted_us`: since boot, when a jump that is not
    believed yet was noticed; -1 for none.
    """

    boot_id: str
    since_boot_us: int
    wall_us: int
    doubted_us: int = -1


class AgingClock:
    """Each worker has one. Call `now_us` every few seconds; the helper thread calls `sync`, which writes."""

    def __init__(
        self,
        directory: Path,
        slot: int,
        boot_id: str,
        wait_s: float,
        wall_us: Callable[[], int],
        since_boot_us: Callable[[], int] = since_boot_us,
    ) -> None:
        self.name = CLOCK_FILE  # for the log, should it not be written
        self._path = directory / CLOCK_FILE
        self._draft = directory / f"{CLOCK_FILE}.{slot}.new"  # each worker has one of its own
        self._wait_us = int(wait_s * MICROSECONDS)
        self._wall_us = wall_us
        self._since_boot_us = since_boot_us
        wall, since_boot = wall_us(), since_boot_us()
        self._belief = BelievedTime(boot_id, since_boot, wall)
        before = read_belief(self._path)
        if before is not None:
            self._go_on_from(before)

    def _go_on_from(self, before: BelievedTime) -> None:
        """Continue from the saved time, if it is of this boot or the clock has jumped since."""
        now = self._belief
        if before.boot_id == now.boot_id:
            self._belief = before
        elif now.wall_us - before.wall_us - now.since_boot_us > AWAY_S * MICROSECONDS:
            self._belief = BelievedTime(now.boot_id, 0, before.wall_us)

    @property
    def ahead_s(self) -> float:
        """How far the wall clock is ahead of the accepted time; 0 while the two agree."""
        if self._belief.doubted_us < 0:
            return 0.0
        return max(0, self._wall_us() - self._believed_us(self._since_boot_us())) / MICROSECONDS

    def now_us(self) -> int:
        """The time by which messages grow old, in microseconds since 1970."""
        belief, wall, since_boot = self._belief, self._wall_us(), self._since_boot_us()
        ahead_us = wall - self._believed_us(since_boot)
        if ahead_us <= JUMP_S * MICROSECONDS:
            if belief.doubted_us >= 0:
                log.warning("the clock is back where it was: max_age_s goes by it again")
            self._belief = BelievedTime(belief.boot_id, since_boot, wall)
        elif belief.doubted_us < 0:
            self._belief = BelievedTime(belief.boot_id, belief.since_boot_us, belief.wall_us, since_boot)
            text = "the clock is %.0f s ahead of what was expected (it has jumped, or the machine was off): "
            text += "max_age_s goes on as before for %.0f s, then by the clock"
            log.warning(text, ahead_us / MICROSECONDS, self._wait_us / MICROSECONDS)
        elif since_boot - belief.doubted_us >= self._wait_us:
            log.warning("the clock has stayed %.0f s ahead: max_age_s goes by it from now on", ahead_us / MICROSECONDS)
            self._belief = BelievedTime(belief.boot_id, since_boot, wall)
        return self._believed_us(since_boot)

    def _believed_us(self, since_boot_us: int) -> int:
        return self._belief.wall_us + since_boot_us - self._belief.since_boot_us

    def sync(self) -> None:
        """Save the accepted time. It need not survive a power loss. Raises OSError."""
        self._draft.write_text(json.dumps(asdict(self._belief)))
        self._draft.replace(self._path)


def read_belief(path: Path) -> BelievedTime | None:
    """The saved time; None if there is nothing of use."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
        belief = BelievedTime(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s is of no use, the clock is believed: %s", path, error)
        return None
    numbers = (belief.since_boot_us, belief.wall_us, belief.doubted_us)
    if type(belief.boot_id) is not str or any(type(each) is not int for each in numbers):
        log.warning("%s is of no use, the clock is believed: not what it should hold", path)
        return None
    return belief
