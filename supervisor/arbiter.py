"""The supervisor's loop: wait, read signals and control messages, reap, start, watch the beats. It does nothing else.

All decisions are taken here, in one thread, from events that were queued; the handlers of signals only queue.
"""

from __future__ import annotations

import enum
import logging
import selectors
import signal
import time
from collections.abc import Callable

from tailrace.broker.process.control import ControlClosed, ControlMessage
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.broker.worker import CANNOT_BOOT
from tailrace.supervisor.backoff import count_death, delay_s
from tailrace.supervisor.crew import Crew, reap
from tailrace.supervisor.notify import Notifier
from tailrace.supervisor.process import Child, Stage
from tailrace.supervisor.rolling import Rolling
from tailrace.supervisor.signals import SignalQueue

log = logging.getLogger(__name__)

TICK_S = 0.25  # between two looks at what goes on
REST_S = 1.0  # the same while nothing does: at whether the workers beat
ABORT_GRACE_S = 2.0  # between SIGABRT (which leaves a stack in the log) and SIGKILL
LEAVE_GRACE_S = 10.0  # for workers to put everything on the disk at the end
DRAIN_SLACK_S = 1.0
STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


class NodePhase(enum.Enum):
    RUNNING = "running"
    DRAINING = "draining"  # workers finish what their clients have under way
    LEAVING = "leaving"  # workers close their logs
    STOPPED = "stopped"


class Arbiter:
    """Runs until the node has stopped; `run` gives the exit code."""

    def __init__(
        self,
        settings: Settings,
        board: Board,
        crew: Crew,
        signals: SignalQueue,
        *,
        start_metrics: Callable[[], Child],
        reload: Callable[[], bool],
        notifier: Notifier,
    ) -> None:
        self.settings = settings
        self.board = board
        self.crew = crew
        self.rolling = Rolling(crew, settings.drain_timeout_s)
        self.phase = NodePhase.RUNNING
        self.exit_code = 0
        self._signals = signals
        self._start_metrics = start_metrics
        self._metrics: Child | None = None
        self._metrics_due_s = 0.0
        self._reload = reload
        self._notifier = notifier
        self._selector = selectors.DefaultSelector()
        self._quick_deaths = dict.fromkeys(range(board.slots), 0)
        self._due_s = dict.fromkeys(range(board.slots), 0.0)
        self._drained: set[int] = set()
        self._deadline_s = float("inf")
        self._said_ready = False
        self._reloading = False
        self._refused = False  # the last reload, since its configuration has a fault

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run(self) -> int:
        self._selector.register(self._signals, selectors.EVENT_READ)
        while self.phase is not NodePhase.STOPPED:
            self._start_missing()
            self._wait()
            self._reap()
            self._watch_beats()
            self.rolling.step(time.monotonic())
            self._notify_replaced()
            self._move_on()
            self._notifier.watchdog()
        self._selector.close()
        return self.exit_code

    def let_go(self) -> None:
        """In a forked child: closes the loop's descriptors, which are not the child's."""
        self._selector.close()
        if self._metrics is not None:
            self._metrics.control.close()

    def _wait(self) -> None:
        for key, _events in self._selector.select(self._wait_s()):
            if key.fileobj is self._signals:
                for number in self._signals.take():
                    self._on_signal(number)
            else:
                self._on_control(key.data)

    def _wait_s(self) -> float:
        """The time until the next due start, at most a tick; longer if all is well."""
        if self.phase is not NodePhase.RUNNING:
            return TICK_S
        dues_s = [self._due_s[slot] for slot in range(self.board.slots) if slot not in self.crew.current]
        if not dues_s and self._all_well():
            return min(REST_S, self._notifier.watchdog_interval_s)
        return min(TICK_S, max(min(dues_s, default=float("inf")) - time.monotonic(), 0.0))

    def _all_well(self) -> bool:
        """Whether nothing is pending: every event wakes the loop, except a silent worker."""
        children = self.crew.current.values()
        return (
            self._metrics is not None
            and not self.rolling.busy
            and not self._reloading
            and all(child.stage is Stage.OWNING and not child.aborted_s for child in children)
        )

    def _on_signal(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self.stop(f"got {signal.Signals(number).name}")
        elif number == signal.SIGHUP and self.phase is NodePhase.RUNNING:
            self._notifier.reloading("replacing the workers one by one")
            self._reloading = True
            self._refused = not self._reload()
            if not self._refused:  # else no worker is replaced, and the next turn says READY
                self.rolling.begin(range(self.board.slots))

    def _on_control(self, child: Child) -> None:
        try:
            message = child.control.receive()
        except ControlClosed:
            self._selector.unregister(child.control)  # it is about to be reaped
            return
        if message is not None:
            self._on_message(child, message)

    def _on_message(self, child: Child, message: ControlMessage) -> None:
        match message.kind:
            case "ready":
                if child.stage is Stage.BOOTING:
                    child.stage = Stage.STANDBY
            case "owning":
                child.stage = Stage.OWNING
                self.crew.announce(child)
                self._notify_ready()
            case "released":
                self.rolling.released(child)
            case "drained":
                self._drained.add(child.pid)
            case "shutdown":
                self.stop("an administrator asked for it")

    # --- keeping them there -----------------------------------------------------------------------------------------

    def _start_missing(self) -> None:
        if self.phase is not NodePhase.RUNNING:
            return
        now_s = time.monotonic()
        for slot in range(self.board.slots):
            if slot not in self.crew.current and slot not in self.crew.standby and self._due_s[slot] <= now_s:
                self._watch(self.crew.start(slot))
        for child in self.rolling.started():
            self._watch(child)
        if self._metrics is None and self._metrics_due_s <= now_s:
            self._metrics = self._start_metrics()

    def _watch(self, child: Child) -> None:
        self._selector.register(child.control, selectors.EVENT_READ, child)

    def _reap(self) -> None:
        for pid, code in reap():
            if self._metrics is not None and pid == self._metrics.pid:
                self._metrics_ended(code)
            elif (child := self.crew.by_pid(pid)) is not None:
                self._worker_ended(child, code)

    def _metrics_ended(self, code: int) -> None:
        assert self._metrics is not None
        if self.phase is NodePhase.RUNNING:
            log.error("the metrics process ended (%s); starting another in a second", describe_exit(code))
        self._metrics.control.close()
        self._metrics = None
        self._metrics_due_s = time.monotonic() + 1.0

    def _worker_ended(self, child: Child, code: int) -> None:
        if child.control.fileno() in self._selector.get_map():
            self._drain_control(child)
            self._selector.unregister(child.control)
        was_current = self.crew.current.get(child.slot) is child
        stage = child.stage
        expected = stage is Stage.RETIRING or self.phase is not NodePhase.RUNNING
        self.crew.forget(child)
        self.rolling.ended(child)
        if expected and code == 0:
            log.info("worker %d (pid %d) has left", child.slot, child.pid)
            return
        log.error("worker %d (pid %d) ended: %s", child.slot, child.pid, describe_exit(code))
        if code in CANNOT_BOOT and stage is not Stage.OWNING and self.phase is NodePhase.RUNNING and was_current:
            self.exit_code = code
            self.stop(f"worker {child.slot} cannot start")
        elif was_current:
            self._schedule_restart(child)

    def _drain_control(self, child: Child) -> None:
        """A worker's last words may still be in the channel; `released` must not be lost."""
        try:
            while (message := child.control.receive()) is not None:
                self._on_message(child, message)
        except ControlClosed:
            return

    def _schedule_restart(self, child: Child) -> None:
        slot = child.slot
        self._quick_deaths[slot] = count_death(self._quick_deaths[slot], child.lived_s())
        self._due_s[slot] = time.monotonic() + delay_s(self._quick_deaths[slot])
        self.board.slot(slot).restarts += 1

    def _watch_beats(self) -> None:
        now_s = time.monotonic()
        for child in self.crew.current.values():
            if child.aborted_s:
                if now_s - child.aborted_s > ABORT_GRACE_S:
                    child.kill(signal.SIGKILL)
            elif self.board.slot(child.slot).beat_age_s() > self.settings.beat_timeout_s:
                silent_s = self.settings.beat_timeout_s
                log.error("worker %d (pid %d) is silent for %s s: killing it", child.slot, child.pid, silent_s)
                child.aborted_s = now_s
                child.kill(signal.SIGABRT)
                child.kill(signal.SIGCONT)  # one that was stopped would not leave its stack

    def _notify_replaced(self) -> None:
        """The service manager considers a reload finished at the next READY."""
        if self._reloading and not self.rolling.busy:
            self._reloading = False
            self._notify_ready()

    def _notify_ready(self) -> None:
        if len(self.crew.current) < self.board.slots or self._reloading:
            return
        if all(child.stage is Stage.OWNING for child in self.crew.current.values()) and self.phase is NodePhase.RUNNING:
            refused = "; the last reload was refused, see the log" if self._refused else ""
            self._notifier.ready(f"serving with {self.board.slots} workers{refused}")
            if not self._said_ready:
                log.info("serving with %d workers", self.board.slots)
            self._said_ready = True

    # --- stopping ---------------------------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        if self.phase is not NodePhase.RUNNING:
            return
        log.info("stopping: %s", why)
        self._notifier.stopping(why)
        self.phase = NodePhase.DRAINING
        self.rolling.cancel()
        self._deadline_s = time.monotonic() + self.settings.drain_timeout_s + DRAIN_SLACK_S
        self.crew.send_all("drain")

    def _move_on(self) -> None:
        if self.phase is NodePhase.DRAINING:
            serving = (Stage.OWNING, Stage.RETIRING)
            waiting = [child for child in self.crew if child.stage in serving and child.pid not in self._drained]
            if not waiting or time.monotonic() > self._deadline_s:
                self.phase = NodePhase.LEAVING
                self._deadline_s = time.monotonic() + LEAVE_GRACE_S
                self.crew.send_all("leave")
        elif self.phase is NodePhase.LEAVING:
            if not list(self.crew):
                self._stop_metrics()
                self.phase = NodePhase.STOPPED
            elif time.monotonic() > self._deadline_s:
                log.error("some workers did not leave in %s s: killing them", LEAVE_GRACE_S)
                self._deadline_s = float("inf")
                self.crew.kill_all()

    def _stop_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.kill(signal.SIGTERM)
            self._metrics.control.close()


def describe_exit(code: int) -> str:
    """Describes an exit code, with the likely cause if it is known.

    >>> describe_exit(-9)
    'SIGKILL (by hand, or the kernel was out of memory)'
    >>> describe_exit(1)
    'exit code 1'
    """
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name} (by hand, or the kernel was out of memory)" if code == -signal.SIGKILL else name
