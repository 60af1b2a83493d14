"""Links between workers and messages to them: with children that only keep their channel open."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tailrace.broker.process.control import ControlChannel, ControlClosed, ControlMessage
from tailrace.broker.process.scoreboard import STATE_EMPTY, STATE_READY, STATE_STARTING, Board
from tailrace.supervisor.crew import Crew, reap
from tailrace.supervisor.process import Child, Stage

PATIENCE_S = 60.0


def repeat_what_was_told(_slot: int, _generation: int, _own: bool, control: ControlChannel) -> int:
    """The life of these children: each message but `leave` is echoed, as a link of that many."""
    try:
        while (message := take(control)).kind != "leave":
            told = f"{message.kind} {message.fields.get('slot')} {message.fields.get('generation')} {len(message.fds)}"
            control.send("ready", told=told)
            for fd in message.fds:
                os.close(fd)
    except ControlClosed:
        return 1
    return 0


def take(control: ControlChannel) -> ControlMessage:
    deadline_s = time.monotonic() + PATIENCE_S
    while (message := control.receive()) is None:
        if time.monotonic() > deadline_s:
            raise AssertionError("nothing is said")
        time.sleep(0.001)
    return message


def told(child: Child, count: int) -> list[str]:
    return [take(child.control).fields["told"] for _ in range(count)]


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(Board(3), repeat_what_was_told, lambda: None)
    yield made
    for child in list(made):
        child.kill(signal.SIGKILL)
        os.waitpid(child.pid, 0)
        made.forget(child)


def test_every_pair_of_workers_has_a_link(crew: Crew) -> None:
    first = crew.start(0)
    second = crew.start(1)
    assert told(first, 1) == [f"link 1 {second.generation} 1"]
    assert told(second, 1) == [f"link 0 {first.generation} 1"]
    third = crew.start(2)
    assert sorted(told(third, 2)) == [f"link 0 {first.generation} 1", f"link 1 {second.generation} 1"]
    assert told(first, 1) == told(second, 1) == [f"link 2 {third.generation} 1"]
    assert crew.by_pid(second.pid) is second and crew.by_pid(1) is None
    cells = crew.board.slot(1)
    assert (cells.pid, cells.generation, cells.state) == (second.pid, second.generation, STATE_STARTING)


def test_who_comes_later_is_told_who_owns_what(crew: Crew) -> None:
    first = crew.start(0)
    first.stage = Stage.OWNING
    second = crew.start(1)
    assert told(second, 2) == [f"link 0 {first.generation} 1", f"owner 0 {first.generation} 0"]
    assert told(first, 1) == [f"link 1 {second.generation} 1"]
    second.stage = Stage.OWNING
    crew.announce(second)
    assert told(first, 1) == [f"owner 1 {second.generation} 0"]


def test_a_successor_is_linked_to_its_predecessor_and_takes_its_place(crew: Crew) -> None:
    old = crew.start(0)
    old.stage = Stage.OWNING
    crew.board.slot(0).state = STATE_READY
    new = crew.start_successor(0)
    assert told(old, 1) == [f"link 0 {new.generation} 1"]
    assert told(new, 2) == [f"link 0 {old.generation} 1", f"owner 0 {old.generation} 0"]
    assert crew.current[0] is old and crew.board.slot(0).pid == old.pid
    assert crew.promote(0) is new
    assert (crew.current[0], crew.retired, old.stage) == (new, [old], Stage.RETIRING)
    assert (crew.board.slot(0).pid, crew.board.slot(0).state) == (new.pid, STATE_READY)
    assert list(crew) == [new, old]
    old.send("leave")
    os.waitpid(old.pid, 0)
    crew.forget(old)
    assert list(crew) == [new] and crew.board.slot(0).pid == new.pid


def test_a_worker_that_died_leaves_an_empty_slot(crew: Crew) -> None:
    child = crew.start(0)
    cells = crew.board.slot(0)
    cells.state, cells.connections, cells.streams = STATE_READY, 5, 7
    child.kill(signal.SIGKILL)
    os.waitpid(child.pid, 0)
    crew.forget(child)
    assert (cells.state, cells.connections, cells.streams) == (STATE_EMPTY, 0, 7), "its streams are still there"
    assert child.stage is Stage.GONE and list(crew) == []
    again = crew.start(0)
    assert again.generation > child.generation


def test_a_worker_has_its_row_of_metrics_until_it_is_reaped(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    rows = crew.board.metric_rows
    child = crew.start(0)
    assert [row.generation for row in rows if row.generation] == [child.generation]
    child.kill(signal.SIGKILL)
    os.waitpid(child.pid, 0)
    assert [row.generation for row in rows if row.generation] == [child.generation], "it might write still"
    crew.forget(child)
    assert not any(row.generation for row in rows)
    for number in range(len(rows)):
        assert crew.board.take_row(1_000 + number)
    crew.start(0)
    assert "worker 0 will be missing from /metrics" in caplog.text


def test_everybody_is_told_and_everybody_is_reaped(crew: Crew) -> None:
    pids = {crew.start(slot).pid for slot in range(3)}
    crew.send_all("leave")
    ended: dict[int, int] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while len(ended) < 3 and time.monotonic() < deadline_s:
        ended.update((pid, status) for pid, status in reap() if pid in pids)  # not what other tests have left
        time.sleep(0.001)
    assert ended == dict.fromkeys(pids, 0)
    for child in list(crew):
        crew.forget(child)
    assert list(reap()) == []
