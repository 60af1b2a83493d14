"""The copy of a log of sessions is kept short, and loses no record that counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tailrace.broker.sessions import session_copy
from tailrace.broker.sessions.record import Exactness, HolderProcess, SessionRecord
from tailrace.broker.sessions.session_copy import SessionCopy
from tailrace.broker.sessions.session_log import SessionLog
from tests.broker.owning import make_owner

NAME = b"$sessions/3"


def made(state: bytes) -> SessionRecord:
    return SessionRecord(1, "", 60, HolderProcess(1, 1), 5, Exactness.HERE, None, state)


@pytest.mark.parametrize("seed", range(3))
def test_it_has_all_that_counts_and_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The log is one that grows as its master has it; it is trimmed here as its copy."""
    print(f"seed {seed}")
    monkeypatch.setattr(session_copy, "SLACK", 50)
    owner, dice, wanted = make_owner(tmp_path), random.Random(seed), dict[bytes, bytes]()
    clock = iter(range(1 << 30))  # a run at a time is looked at
    log, copy = SessionLog(owner, NAME), SessionCopy(owner, NAME, lambda: float(next(clock)))
    for number in range(1_500):
        client_id = b"%d" % dice.randrange(20)
        wanted[client_id] = b"%d" % number
        log.put(client_id, made(wanted[client_id]), 0.0)
        if dice.random() < 0.02:
            log.put(client_id, None, 0.0)
            del wanted[client_id]
        if dice.random() < 0.5:
            copy.tidy()
        if dice.random() < 0.1:
            log.stream().log.sync()
    found = SessionLog(owner, NAME)
    found.read()
    assert {each: record.state for each in found.client_ids() if (record := found.get(each))} == wanted
    stream_log = found.stream().log
    assert stream_log.next_seq - stream_log.first_seq < 600


def test_a_look_ends_when_messages_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values behind the cut may have superseded nothing."""
    monkeypatch.setattr(session_copy, "SLACK", 2)
    owner = make_owner(tmp_path)
    log, copy = SessionLog(owner, NAME), SessionCopy(owner, NAME, lambda: 0.0)
    for state in (b"0", b"1", b"2", b"3"):
        log.put(b"c", made(state), 0.0)
    copy.tidy()
    stream_log = log.stream().log
    stream_log.set_aside(1)
    for _ in range(4):
        stream_log.sync()
        copy.tidy()
    found = SessionLog(owner, NAME)
    found.read()
    record = found.get(b"c")
    assert record is not None and record.state == b"0"
