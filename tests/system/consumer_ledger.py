"""Compares the work of durable consumers with the log: each message's effect is there once.

A consumer's effects are rows in a database of SQLite, written in the transaction that notes the message as finished.
The rows stand in the order in which they were committed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.system.tree_ledger import name_in

BUSY_S = 30.0
MADE = """
CREATE TABLE IF NOT EXISTS effects (
    place INTEGER PRIMARY KEY, stream TEXT, consumer TEXT, seq INTEGER, name TEXT, member TEXT, deliveries INTEGER
)
"""
ADDED = "INSERT INTO effects (stream, consumer, seq, name, member, deliveries) VALUES (?, ?, ?, ?, ?, ?)"
READ = "SELECT seq, name, member, deliveries FROM effects WHERE stream = ? AND consumer = ? ORDER BY place"
READ_LAST = f"{READ} DESC LIMIT 1"


class Effect(NamedTuple):
    """What one delivery of a message has left behind. `deliveries`: which it was, from 1 on."""

    seq: int
    name: str
    member: str = ""
    deliveries: int = 1


def open_books(path: Path) -> sqlite3.Connection:
    """The effects of any number of consumers. Several processes may have it open."""
    database = sqlite3.connect(path, timeout=BUSY_S)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")  # processes die here, not the machine
    with database:
        database.execute(MADE)
    return database


def write(database: sqlite3.Connection, stream: str, consumer: str, effect: Effect) -> None:
    """Within a transaction that the caller commits."""
    database.execute(ADDED, (stream, consumer, *effect))


def effect_of(seq: int, payload: bytes, member: str, deliveries: int) -> Effect:
    return Effect(seq, name_in(payload), member, deliveries)


def read(path: Path, stream: str, consumer: str) -> list[Effect]:
    """In the order they were committed; none without books yet."""
    return _read(path, READ, stream, consumer)


def read_last(path: Path, stream: str, consumer: str) -> Effect | None:
    """The latest that was committed, for books that are looked at again and again while they grow."""
    return next(iter(_read(path, READ_LAST, stream, consumer)), None)


def _read(path: Path, query: str, stream: str, consumer: str) -> list[Effect]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as database:
        try:
            return [Effect(*row) for row in database.execute(query, (stream, consumer))]
        except sqlite3.OperationalError:  # that old: the table is not made yet
            return []


Log = Mapping[int, str]
"""The names of a stream's messages, by their seqs."""


def faults(log: Log, effects: Sequence[Effect], *, first_seq: int = 0) -> list[str]:
    """What must not be of a consumer that is alone, and began at `first_seq`; a line each."""
    seqs = [effect.seq for effect in effects]
    return [
        *_missing(log, seqs, first_seq),
        *_wrong(log, effects, first_seq),
        *(f"message {seq} was done {times} times" for seq, times in Counter(seqs).items() if times > 1),
        *(f"message {after} was done behind {before}" for before, after in _falls(seqs)),
    ]


def group_faults(log: Log, effects: Sequence[Effect], key_of: Callable[[str], str]) -> list[str]:
    """Violations by a group, whose members may repeat work that another did without being able to report it.

    Nothing may be missing. Repeated work must be a later delivery. `key_of` gives a message's key, "" without one: the
    first times that the messages of one key are done are in order.
    """
    return [
        *_missing(log, [effect.seq for effect in effects], 0),
        *_wrong(log, effects, 0),
        *_uncounted(effects),
        *_out_of_order(effects, key_of),
    ]


def _missing(log: Log, seqs: Iterable[int], first_seq: int) -> Iterable[str]:
    done = set(seqs)
    for seq, name in sorted(log.items()):
        if seq >= first_seq and seq not in done:
            yield f"message {seq}, {name}, was never done"


def _wrong(log: Log, effects: Iterable[Effect], first_seq: int) -> Iterable[str]:
    for effect in effects:
        there = log.get(effect.seq)
        if there != effect.name:
            yield f"message {effect.seq} was done as {effect.name}, and the log has {there or 'nothing'} there"
        if effect.seq < first_seq:
            yield f"message {effect.seq} was done, which is before {first_seq}"


def _falls(seqs: Sequence[int]) -> Iterable[tuple[int, int]]:
    return ((before, after) for before, after in pairwise(seqs) if after < before)


def _uncounted(effects: Iterable[Effect]) -> Iterable[str]:
    told: dict[int, Effect] = {}
    for effect in effects:
        before = told.setdefault(effect.seq, effect)
        if effect is not before and effect.deliveries == before.deliveries and effect.member != before.member:
            yield f"message {effect.seq} was done by {before.member} and by {effect.member} as the same delivery"


def _out_of_order(effects: Iterable[Effect], key_of: Callable[[str], str]) -> Iterable[str]:
    latest: dict[str, int] = {}
    done: set[int] = set()
    for effect in effects:
        key = key_of(effect.name)
        if key and effect.seq not in done and effect.seq < latest.get(key, -1):
            yield f"key {key}: message {effect.seq} was done behind {latest[key]}"
        done.add(effect.seq)
        latest[key] = max(latest.get(key, -1), effect.seq)
