"""Children that are really forked, and do next to nothing."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.broker.process.control import ControlChannel, ControlClosed
from tailrace.supervisor.process import EXIT_CRASH, Child, Stage, fork_child

PATIENCE_S = 60.0


def forked(body: Callable[[ControlChannel], int]) -> Child:
    return fork_child("a test's child", 3, 7, lambda: None, body)


def code_of(child: Child) -> int:
    _pid, status = os.waitpid(child.pid, 0)
    child.control.close()
    return os.waitstatus_to_exitcode(status)


def message_from(child: Child) -> str:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        message = child.control.receive()
        if message is not None:
            return message.kind
        time.sleep(0.001)
    raise AssertionError("the child says nothing")


def answer_once(control: ControlChannel) -> int:
    while (message := control.receive()) is None:
        time.sleep(0.001)
    control.send("shutdown")
    return int(message.fields["slot"])


def test_a_child_talks_and_its_body_says_how_it_ends() -> None:
    child = forked(answer_once)
    assert (child.slot, child.generation, child.stage) == (3, 7, Stage.BOOTING)
    child.send("owner", slot=42, generation=1)
    assert message_from(child) == "shutdown"
    assert code_of(child) == 42
    assert 0 <= child.lived_s() < PATIENCE_S


def test_an_exception_ends_the_child_and_is_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "log"

    def fail(_control: ControlChannel) -> int:
        logging.getLogger().addHandler(logging.FileHandler(file))
        raise LookupError("what the child died of")

    child = forked(fail)
    assert code_of(child) == EXIT_CRASH
    assert "a test's child died of an exception" in file.read_text()
    assert "LookupError: what the child died of" in file.read_text()


def test_not_even_an_exit_gets_out_of_the_child() -> None:
    def leave(_control: ControlChannel) -> int:
        raise SystemExit(0)

    assert code_of(forked(leave)) == EXIT_CRASH


def test_what_is_the_parents_is_let_go_before_the_body() -> None:
    called: list[str] = []

    def body(_control: ControlChannel) -> int:
        return len(called)

    child = fork_child("a test's child", 0, 0, lambda: called.append("let go"), body)
    assert code_of(child) == 1
    assert called == [], "in the child only"


def test_talking_to_a_child_that_is_gone_is_no_fault() -> None:
    child = forked(lambda _control: 0)
    os.waitpid(child.pid, 0)
    child.send("drain")
    child.kill(signal.SIGTERM)
    with pytest.raises(ControlClosed):
        child.control.receive()
    child.control.close()
