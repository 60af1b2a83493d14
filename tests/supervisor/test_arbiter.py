"""The supervisor's loop with real processes that only send the messages of workers."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.control import ControlChannel, ControlClosed
from tailrace.broker.process.scoreboard import Board
from tailrace.broker.process.settings import Settings
from tailrace.supervisor.arbiter import REST_S, TICK_S, Arbiter, NodePhase, describe_exit
from tailrace.supervisor.crew import Crew
from tailrace.supervisor.notify import Notifier
from tailrace.supervisor.process import Child, fork_child
from tailrace.supervisor.signals import SignalQueue
from tests.system.standstill import assert_within

PATIENCE_S = 60.0
SLOTS = 2


class FakeNotifier(Notifier):
    def __init__(self) -> None:
        super().__init__({})
        self.said: list[str] = []

    def _send(self, *lines: str) -> None:
        if lines[0] != "WATCHDOG=1":
            self.said.append(lines[0])


class World:
    """An arbiter whose workers behave as `worker` does; `step` is one turn of its loop."""

    def __init__(self, worker: Callable[[World, int, bool, ControlChannel], int], **settings: object) -> None:
        self.board = Board(SLOTS)
        self.notifier = FakeNotifier()
        self.signals = SignalQueue()
        self.reloads = 0
        self.reload_is_good = True
        self.crew = Crew(self.board, lambda slot, _gen, own, control: worker(self, slot, own, control), self._let_go)
        self.arbiter = Arbiter(
            Settings(data=Path("unused"), **settings),  # type: ignore[arg-type]
            self.board,
            self.crew,
            self.signals,
            start_metrics=self._start_metrics,
            reload=self._reload,
            notifier=self.notifier,
        )
        self.code = -1

    def _let_go(self) -> None:
        self.signals.close()
        self.arbiter.let_go()

    def _start_metrics(self) -> Child:
        return fork_child("metrics", -1, 0, self._let_go, wait_for_the_end)

    def _reload(self) -> bool:
        self.reloads += 1
        return self.reload_is_good

    def run(self, *moves: Callable[[World], bool]) -> None:
        """Run the loop in this thread; after each turn the first move that is left is tried, until it is true."""
        left = list(moves)
        deadline_s = time.monotonic() + PATIENCE_S
        wait = self.arbiter._wait

        def watch() -> None:
            assert time.monotonic() < deadline_s, f"stuck before {left[:1]}; {self.arbiter.phase}"
            while left and left[0](self):
                left.pop(0)
            wait()

        self.arbiter._wait = watch  # type: ignore[method-assign]
        self.code = self.arbiter.run()
        assert not left

    def close(self) -> None:
        """Nobody stays, nor a zombie of anybody. Other tests may have a child of their own that lives on."""
        for child in list(self.crew):
            child.kill(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
            self.crew.forget(child)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        self.signals.close()


def wait_for_the_end(control: ControlChannel) -> int:
    """The metrics process: it ends by signal, or with its supervisor."""
    try:
        while control.receive() is None:
            time.sleep(0.002)
    except ControlClosed:
        return 0
    return 1


def obey(world: World, slot: int, own: bool, control: ControlChannel) -> int:
    """A worker that obeys every command at once."""
    cells = world.board.slot(slot)
    control.send("ready")
    if own:
        control.send("owning")
    try:
        while True:
            message = control.receive()
            cells.beat()
            match message.kind if message else "":
                case "link":
                    assert message is not None
                    os.close(message.fds[0])
                case "own":
                    control.send("owning")
                case "retire":
                    control.send("released")
                    return 0
                case "drain":
                    control.send("drained")
                case "leave":
                    return 0
                case "":
                    time.sleep(0.002)
    except ControlClosed:
        return 0


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def made(worker: Callable[..., int] = obey, **settings: object) -> World:
        worlds.append(World(worker, **settings))
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()


def serving(world: World) -> bool:
    return world.notifier.said[-1:] == ["READY=1"]


def send(number: signal.Signals) -> Callable[[World], bool]:
    def move(_world: World) -> bool:
        os.kill(os.getpid(), number)
        return True

    return move


def pids(world: World) -> list[int]:
    return [child.pid for child in world.crew.current.values()]


def test_a_life_without_events(make: Callable[..., World]) -> None:
    world = make()
    world.run(serving, send(signal.SIGTERM))
    assert (world.code, world.arbiter.phase) == (0, NodePhase.STOPPED)
    assert world.notifier.said[0] == "READY=1" and world.notifier.said[-1] == "STOPPING=1"
    assert list(world.crew) == []


def test_the_loop_rests_only_while_all_is_well(make: Callable[..., World]) -> None:
    world = make()
    waits_s: list[float] = []

    def note(world: World) -> bool:
        waits_s.append(world.arbiter._wait_s())
        return True

    def replacing(world: World) -> bool:
        return world.arbiter.rolling.busy

    def replaced(world: World) -> bool:
        return not world.arbiter.rolling.busy and serving(world)

    def aborted(world: World) -> bool:
        next(iter(world.crew.current.values())).aborted_s = time.monotonic()
        return note(world)

    def watched(world: World) -> bool:
        world.notifier.watchdog_s = 2.0
        return note(world)

    moves = note, serving, note, send(signal.SIGHUP), replacing, note, replaced, watched, aborted, send(signal.SIGTERM)
    world.run(*moves)
    booting_s, *later_s = waits_s
    assert booting_s <= TICK_S and later_s == [REST_S, TICK_S, 0.5, TICK_S]


def test_a_reload_replaces_everybody_and_then_says_so(make: Callable[..., World]) -> None:
    world = make()
    before: list[int] = []

    def note(world: World) -> bool:
        before.extend(pids(world))
        return True

    def replaced(world: World) -> bool:
        if not serving(world):
            return False
        assert not set(pids(world)) & set(before), "READY before the last one was replaced"
        return len(pids(world)) == SLOTS

    def reloading(world: World) -> bool:
        return world.notifier.said[-1] == "RELOADING=1"

    world.run(serving, note, send(signal.SIGHUP), reloading, replaced, send(signal.SIGINT))
    assert (world.code, world.reloads) == (0, 1)


def test_a_reload_with_a_fault_replaces_nobody_and_says_so(make: Callable[..., World]) -> None:
    world = make()
    world.reload_is_good = False
    before: list[int] = []

    def note(world: World) -> bool:
        before.extend(pids(world))
        return True

    def answered(world: World) -> bool:
        return world.notifier.said[-2:] == ["RELOADING=1", "READY=1"]

    def same(world: World) -> bool:
        assert pids(world) == before and not world.arbiter.rolling.busy
        return True

    world.run(serving, note, send(signal.SIGHUP), answered, same, send(signal.SIGINT))
    assert (world.code, world.reloads) == (0, 1)


def test_a_stop_while_workers_are_replaced(make: Callable[..., World]) -> None:
    world = make()

    def replacing(world: World) -> bool:
        return world.arbiter.rolling.busy

    world.run(serving, send(signal.SIGHUP), replacing, send(signal.SIGTERM))
    assert world.code == 0


def test_a_worker_that_died_is_started_again(make: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    world = make()
    first: list[int] = []

    def kill(world: World) -> bool:
        first.extend(pids(world))
        os.kill(first[0], signal.SIGKILL)
        return True

    def back(world: World) -> bool:
        return world.board.slot(0).restarts == 1 and len(pids(world)) == SLOTS and first[0] not in pids(world)

    world.run(serving, kill, back, send(signal.SIGTERM))
    assert f"(pid {first[0]}) ended: SIGKILL" in caplog.text
    assert world.code == 0


def test_a_worker_that_cannot_start_ends_the_node_with_its_code(make: Callable[..., World]) -> None:
    def cannot(_world: World, slot: int, _own: bool, control: ControlChannel) -> int:
        return 5 if slot == 1 else wait_for_leave(control)

    world = make(cannot)
    world.run()
    assert world.code == 5


def wait_for_leave(control: ControlChannel) -> int:
    control.send("ready")
    control.send("owning")
    while (message := control.receive()) is None or message.kind != "leave":
        if message is not None and message.kind == "drain":
            control.send("drained")
        time.sleep(0.002)
    return 0


def test_a_silent_worker_is_aborted_then_killed(make: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    def deaf(world: World, slot: int, own: bool, control: ControlChannel) -> int:
        if slot == 0 and world.board.slot(0).restarts == 0:
            signal.signal(signal.SIGABRT, signal.SIG_IGN)
            control.send("ready")
            control.send("owning")
            time.sleep(60)
        return obey(world, slot, own, control)

    world = make(deaf, beat_timeout_s=1.0)
    began_s = time.monotonic()
    world.run(serving, lambda world: world.board.slot(0).restarts == 1 and serving(world), send(signal.SIGTERM))
    took_s = time.monotonic() - began_s
    assert took_s > 1.0
    assert_within(took_s, 6.0)
    assert "is silent for 1.0 s" in caplog.text and "SIGKILL" in caplog.text


def test_a_worker_that_does_not_leave_is_killed(make: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(world: World, slot: int, own: bool, control: ControlChannel) -> int:
        if slot == 1:
            control.send("ready")
            control.send("owning")
            while True:
                world.board.slot(slot).beat()
                time.sleep(0.01)
        return obey(world, slot, own, control)

    monkeypatch.setattr("tailrace.supervisor.arbiter.LEAVE_GRACE_S", 0.2)
    monkeypatch.setattr("tailrace.supervisor.arbiter.DRAIN_SLACK_S", 0.1)
    world = make(stubborn, drain_timeout_s=0.1)
    world.run(serving, send(signal.SIGTERM))
    assert world.code == 0 and list(world.crew) == []


def test_the_metrics_process_comes_back(make: Callable[..., World]) -> None:
    world = make()
    first: list[int] = []

    def kill(world: World) -> bool:
        metrics = world.arbiter._metrics
        assert metrics is not None
        first.append(metrics.pid)
        os.kill(metrics.pid, signal.SIGKILL)
        return True

    def back(world: World) -> bool:
        metrics = world.arbiter._metrics
        return metrics is not None and metrics.pid != first[0]

    world.run(serving, kill, back, send(signal.SIGTERM))
    assert world.code == 0


def test_an_administrator_ends_the_node(make: Callable[..., World]) -> None:
    def asks(world: World, slot: int, own: bool, control: ControlChannel) -> int:
        control.send("ready")
        if slot == 0:
            control.send("shutdown")
        return obey(world, slot, own, control)

    world = make(asks)
    world.run()
    assert world.code == 0 and "STOPPING=1" in world.notifier.said


def test_exits_are_described() -> None:
    assert describe_exit(70) == "exit code 70"
    assert describe_exit(-signal.SIGSEGV) == "SIGSEGV"
    assert "out of memory" in describe_exit(-signal.SIGKILL)
