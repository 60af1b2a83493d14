"""Replacing the workers one by one, the new one proven ready before the old one gives anything up.

    BOOTING    the successor is forked and linked to all      -> it reports ready
    RELEASING  the old worker is ordered to retire            -> it reports released (its shards are free)
    TAKING     the successor is ordered to own                -> it reports owning; all workers are notified
    HANDING    the old worker hands its connections on        -> it leaves; next slot

A successor that dies before the old worker was ordered to retire costs nothing: the old one stays, the replacement
ends. One that dies while the old worker gives its shards up has a successor of its own. Any death after that is an
ordinary death of a worker, and the slot is started anew.
"""

from __future__ import annotations

import enum
import logging
import signal
import time
from collections import deque
from collections.abc import Iterable

from tailrace.supervisor.crew import Crew
from tailrace.supervisor.process import Child, Stage

log = logging.getLogger(__name__)

BOOT_PATIENCE_S = 20.0
HANDING_SLACK_S = 5.0


class RollingStep(enum.Enum):
    IDLE = "idle"
    BOOTING = "booting"
    RELEASING = "releasing"
    TAKING = "taking"
    HANDING = "handing"


class Rolling:
    """Replaces one worker at a time; `step` is called once per turn of the supervisor's loop."""

    def __init__(self, crew: Crew, drain_timeout_s: float) -> None:
        self.step_now = RollingStep.IDLE
        self._crew = crew
        self._drain_timeout_s = drain_timeout_s
        self._slots: deque[int] = deque()
        self._old: Child | None = None
        self._new: Child | None = None
        self._fresh: list[Child] = []
        self._deadline_s = 0.0

    def begin(self, slots: Iterable[int]) -> None:
        """Replace these workers. A slot that waits already is not queued twice."""
        self._slots.extend(slot for slot in slots if slot not in self._slots)
        log.info("replacing the workers of slots %s", list(self._slots))

    @property
    def busy(self) -> bool:
        return self.step_now is not RollingStep.IDLE or bool(self._slots)

    def cancel(self) -> None:
        """Begin no more. A replacement in which the old worker has begun to give up its shards goes on to its end."""
        self._slots.clear()
        if self.step_now is RollingStep.BOOTING and self._new is not None:
            self._new.send("leave")
            self._finish()

    def started(self) -> list[Child]:
        """Successors forked since the last call, for the loop to listen to."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def step(self, now_s: float) -> None:
        if self.step_now is RollingStep.IDLE:
            self._next()
        elif self.step_now is RollingStep.BOOTING:
            self._booting(now_s)
        elif self.step_now is RollingStep.TAKING:
            self._taking(now_s)
        elif self.step_now is RollingStep.HANDING and now_s > self._deadline_s and self._old is not None:
            log.error("worker %d (pid %d) did not leave: killing it", self._old.slot, self._old.pid)
            self._old.kill(signal.SIGKILL)
            self._deadline_s = now_s + HANDING_SLACK_S

    def released(self, child: Child) -> None:
        """The old worker's shards are free."""
        if child is self._old and self.step_now is RollingStep.RELEASING:
            new = self._crew.promote(child.slot)
            new.send("own")
            self.step_now = RollingStep.TAKING

    def ended(self, child: Child) -> None:
        """Some worker has been reaped."""
        if child is self._new:
            self._new_ended(child)
        elif child is self._old:
            self._old_ended(child)

    def _next(self) -> None:
        if not self._slots:
            return
        slot = self._slots[0]
        old = self._crew.current.get(slot)
        if old is None or old.stage is not Stage.OWNING:
            return  # it is being started anyway; its turn comes when it serves
        self._slots.popleft()
        self._old = old
        self._new = self._crew.start_successor(slot)
        self._fresh.append(self._new)
        self._deadline_s = time.monotonic() + BOOT_PATIENCE_S
        self.step_now = RollingStep.BOOTING

    def _booting(self, now_s: float) -> None:
        assert self._old is not None and self._new is not None
        if self._new.stage is Stage.STANDBY:
            self.step_now = RollingStep.RELEASING
            self._old.send("retire")
        elif now_s > self._deadline_s:
            log.error("the successor of worker %d does not get ready: keeping the old one", self._old.slot)
            self._new.kill(signal.SIGKILL)
            self._deadline_s = now_s + BOOT_PATIENCE_S

    def _taking(self, now_s: float) -> None:
        if self._new is None or self._new.stage is not Stage.OWNING:
            return
        self.step_now = RollingStep.HANDING
        self._deadline_s = now_s + self._drain_timeout_s + HANDING_SLACK_S
        if self._old is None:
            self._finish()

    def _new_ended(self, child: Child) -> None:
        if self.step_now is RollingStep.BOOTING:
            log.error("the successor of worker %d died: keeping the old one, the replacement ends", child.slot)
            self._slots.clear()
            self._finish()
        elif self.step_now is RollingStep.RELEASING:
            # The old one gives its shards up already: another successor takes them, booted or not.
            self._new = self._crew.start_successor(child.slot)
            self._fresh.append(self._new)
        else:
            self._finish()

    def _old_ended(self, child: Child) -> None:
        if self.step_now in (RollingStep.BOOTING, RollingStep.RELEASING) and self._new is not None:
            # It died before it released; its locks went with it, so the successor can take over at once.
            self._crew.promote(child.slot).send("own")
            self.step_now = RollingStep.TAKING
            self._old = None
        elif self.step_now is RollingStep.TAKING:
            self._old = None  # it had nothing to hand on; the successor's word may have come in this very turn
        else:
            self._finish()

    def _finish(self) -> None:
        if not self._slots and self.step_now is RollingStep.HANDING:
            log.info("all workers are replaced")
        self._old = self._new = None
        self.step_now = RollingStep.IDLE
