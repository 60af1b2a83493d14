"""Members of a consumer, each a process that handles its messages until it is stopped, or dies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from tests.system.consumer_faults import Change, Shift, steps
from tests.system.consumer_party import Process, Spec

END_S = 180.0
READY, ENDED = "ready", "ended"


class Members:
    """Use it as a context: all begin but those for `later`, and are gone in the end."""

    def __init__(
        self, specs: Mapping[str, Spec], run: Callable[[Connection, Spec], None], *, later: Sequence[str] = ()
    ) -> None:
        self._specs = specs
        self._later = later
        self._run = run
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Members:
        for name in self._specs:
            if name not in self._later:
                self.begin(name)
        return self

    def __exit__(self, *_error: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    def begin(self, name: str) -> None:
        """Starts it, and waits until it is connected; it resumes at its last position."""
        process = self._processes[name] = Process(self._run, self._specs[name])
        expect(process, READY)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.close()

    def is_gone(self, name: str) -> bool:
        """Whether it has ended by itself."""
        return self._processes[name].exit_code is not None

    def pause(self, name: str) -> None:
        process = self._processes[name]
        if process.exit_code is not None:
            expect(process, READY)  # gives the reason of its end
        process.pause()

    def resume(self, name: str) -> None:
        self._processes[name].resume()

    def leave(self, name: str) -> None:
        """It ends well: its work is reported before."""
        process = self._processes.pop(name)
        with contextlib.suppress(BrokenPipeError):  # it has ended, with its reason
            process.pipe.send(None)
        expect(process, ENDED)
        process.close()

    def leave_all(self) -> None:
        for name in list(self._processes):
            self.leave(name)

    def play(self, plan: Sequence[Shift]) -> None:
        """All of it at its times, or as soon as the earlier shifts of the same member are done. They wait for each
        other: one that is paused may hold what another one needs to leave.
        """
        began_s = time.monotonic()
        plans = [[shift for shift in plan if shift.member == name] for name in self._specs]
        with ThreadPoolExecutor(len(plans)) as pool:
            for played in [pool.submit(self._play, each, began_s) for each in plans]:
                played.result()

    def _play(self, plan: Sequence[Shift], began_s: float) -> None:
        for step in steps(plan):
            time.sleep(max(0.0, began_s + step.at_s - time.monotonic()))
            if step.begins:
                print(f"{time.monotonic() - began_s:6.2f} s, planned for {step.shift}")
            (AWAY if step.begins else BACK)[step.shift.change](self, step.shift.member)


def expect(process: Process, told: str) -> None:
    """Waits until a member prints this."""
    assert process.pipe.poll(END_S), f"a member does not say that it is {told}"
    heard = process.pipe.recv()
    assert heard == told, heard


AWAY: Mapping[Change, Callable[[Members, str], None]] = {
    Change.KILL: Members.kill,
    Change.PAUSE: Members.pause,
    Change.LEAVE: Members.leave,
}
BACK: Mapping[Change, Callable[[Members, str], None]] = {
    Change.KILL: Members.begin,
    Change.PAUSE: Members.resume,
    Change.LEAVE: Members.begin,
}
