"""The log of sessions: read again after a kill, and kept short."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tailrace.broker.sessions import session_log
from tailrace.broker.sessions.record import Exactness, HolderProcess, SessionRecord
from tailrace.broker.sessions.session_log import SessionLog
from tests.broker.owning import make_owner, release_all

NAME = b"$sessions/3"


def made(state: bytes, user: str = "") -> SessionRecord:
    return SessionRecord(1, user, 60, HolderProcess(1, 1), 5, Exactness.HERE, None, state)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_it_has_the_newest_of_each_over_kills_and_is_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(session_log, "SLACK", 20)
    monkeypatch.setattr(session_log, "AGAIN", 5)
    rng, wanted = random.Random(seed), dict[bytes, bytes]()
    owner = make_owner(tmp_path)
    log = SessionLog(owner, NAME)
    for number in range(2_000):
        client_id = b"%d" % (rng.randrange(3) if rng.random() < 0.9 else rng.randrange(30))
        if rng.random() < 0.1:
            log.put(client_id, None, 0.0)
            wanted.pop(client_id, None)
        else:
            wanted[client_id] = b"%d" % number
            log.put(client_id, made(wanted[client_id], rng.choice(["", "ann", "bob"])), 0.0)
        if number % 10 == 0:
            log.tidy(0.0)
            log.stream().log.sync()
            log.tidy(0.0)
        if rng.random() < 0.01:
            release_all()
            owner = make_owner(tmp_path)
            log = SessionLog(owner, NAME)
            log.read()
        assert {each: record.state for each in log.client_ids() if (record := log.get(each))} == wanted
        assert len(log) == len(wanted) and log.nbytes == sum(nbytes for _count, nbytes in log.held.values())
        users = Counter(record.user for each in log.client_ids() if (record := log.get(each)))
        assert {user: count for user, (count, _nbytes) in log.held.items()} == users
    found = log.stream().log
    assert found.next_seq - found.first_seq < 400


def test_a_log_that_is_not_there_has_none(tmp_path: Path) -> None:
    log = SessionLog(make_owner(tmp_path), NAME)
    log.read()
    log.tidy(0.0)
    assert not len(log) and b"c" not in log and log.get(b"c") is None
