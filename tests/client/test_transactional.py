"""Effects that happen once, in SQLite."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace.core.consumed_message import ConsumedMessage
from tailrace.errors import InvalidArgument
from tailrace.transactional import JOIN_EVERY, Once


def make_message(
    seq: int, said: list[str | None] | None = None, *, epoch: int = 1, of: str = "billing"
) -> ConsumedMessage:
    message = tuple.__new__(ConsumedMessage, ("s", seq, 1, b"%d" % seq, b"", epoch))
    message.consumer = of
    message._settle = lambda _message, reason, _delay_s: None if said is None else said.append(reason)
    return message


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=0.05)
    database.execute("CREATE TABLE IF NOT EXISTS effects (seq INTEGER)")
    database.commit()
    return database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "effects.db"


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    database = connect(path)
    yield database
    database.close()


def do(database: sqlite3.Connection, once: Once, message: ConsumedMessage) -> bool:
    with once(message) as is_new:
        if is_new:
            database.execute("INSERT INTO effects VALUES (?)", (message.seq,))
    return is_new


def effects(database: sqlite3.Connection) -> list[int]:
    return [seq for (seq,) in database.execute("SELECT seq FROM effects ORDER BY rowid")]


def rows(database: sqlite3.Connection) -> list[tuple[int, int]]:
    return list(database.execute("SELECT first_seq, last_seq FROM tailrace_done ORDER BY first_seq"))


def test_what_comes_again_is_skipped_and_acknowledged(database: sqlite3.Connection) -> None:
    said: list[str | None] = []
    once = Once(database)
    assert [do(database, once, make_message(seq, said)) for seq in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    assert effects(database) == [0, 1, 2]
    assert said == [None] * 5
    assert rows(database) == [(0, 0), (1, 1), (2, 2)]


def test_also_after_a_restart(path: Path) -> None:
    for is_new in (True, False):
        database = connect(path)
        assert do(database, Once(database), make_message(7)) is is_new
        database.close()


def test_a_block_that_fails_leaves_nothing(database: sqlite3.Connection) -> None:
    said: list[str | None] = []
    once = Once(database)
    with pytest.raises(ZeroDivisionError), once(make_message(0, said)) as is_new:
        assert is_new
        database.execute("INSERT INTO effects VALUES (0)")
        raise ZeroDivisionError("of the test")
    assert (effects(database), rows(database), said) == ([], [], ["ZeroDivisionError: of the test"])
    with pytest.raises(KeyboardInterrupt), once(make_message(0, said)):
        raise KeyboardInterrupt
    assert (rows(database), len(said)) == ([], 1)
    assert do(database, once, make_message(0))


def test_out_of_order_and_with_gaps(database: sqlite3.Connection) -> None:
    """As members of a group finish them."""
    once, chance = Once(database), random.Random(1)
    order = [*range(60), *chance.choices(range(60), k=60)]
    chance.shuffle(order)
    for seq in order:
        do(database, once, make_message(seq))
    assert sorted(effects(database)) == list(range(60))


def test_rows_that_touch_are_joined(database: sqlite3.Connection) -> None:
    once = Once(database)
    for seq in (5, 4, 3, 9, 1, 0, JOIN_EVERY - 2):
        do(database, once, make_message(seq))
    assert len(rows(database)) > 4
    do(database, once, make_message(JOIN_EVERY - 1))
    assert rows(database) == [(0, 1), (3, 5), (9, 9), (JOIN_EVERY - 2, JOIN_EVERY - 1)]
    assert [do(database, once, make_message(seq)) for seq in range(10)] == [
        seq in (2, 6, 7, 8) for seq in range(10)
    ]  # fmt: skip


def test_each_consumer_and_each_term_has_its_own(database: sqlite3.Connection) -> None:
    """After a failover that lost it, a seq is another message's."""
    once = Once(database)
    assert do(database, once, make_message(3))
    assert do(database, once, make_message(3, of="shipping"))
    assert do(database, once, make_message(3, epoch=2))
    assert not do(database, once, make_message(3, epoch=2))


def test_two_members_do_the_same_message(path: Path) -> None:
    """One has it in a transaction that is not over: the other waits, and then fails or finds it done."""
    first, second = connect(path), connect(path)
    one, other = Once(first), Once(second)
    with one(make_message(0)) as is_new:
        assert is_new
        with pytest.raises(sqlite3.OperationalError, match="locked"), other(make_message(0)):
            pass
    assert not do(second, other, make_message(0))
    first.close()
    second.close()


def test_whatever_is_killed_when(path: Path) -> None:
    """A process that ends before its transaction does, or before the broker has the acknowledgement: some messages
    come again."""
    chance, killed, next_seq = random.Random(7), 0, 0
    while next_seq < 40:
        database = connect(path)
        once = Once(database)
        for seq in range(max(0, next_seq - 3), 40):
            doing = once(make_message(seq))
            if doing.__enter__():
                if chance.random() < 0.1:
                    killed += 1
                    break
                database.execute("INSERT INTO effects VALUES (?)", (seq,))
                if chance.random() < 0.1:
                    killed += 1
                    break
            doing.__exit__(None, None, None)
            next_seq = seq + 1
        database.close()
    database = connect(path)
    assert effects(database) == list(range(40))
    assert killed > 5
    database.close()


def test_forgetting(database: sqlite3.Connection) -> None:
    once = Once(database)
    do(database, once, make_message(0))
    do(database, once, make_message(0, of="shipping"))
    once.forget("s", "billing")
    assert do(database, once, make_message(0))
    assert not do(database, once, make_message(0, of="shipping"))


def test_connections_that_cannot_be_used(database: sqlite3.Connection) -> None:
    committing = sqlite3.connect(":memory:", isolation_level=None)
    with closing(committing), pytest.raises(InvalidArgument, match="commits each statement by itself"):
        Once(committing)
    with pytest.raises(InvalidArgument, match="is not a table name"):
        Once(database, table="a; DROP TABLE effects")
    once = Once(database)
    database.execute("INSERT INTO effects VALUES (0)")
    with pytest.raises(InvalidArgument, match="within a transaction"), once(make_message(0)):
        pass


def test_another_way_to_write_parameters(database: sqlite3.Connection) -> None:
    """As drivers do whose paramstyle is "format"."""

    class Cursor:
        def __init__(self) -> None:
            self._cursor = database.cursor()

        def execute(self, statement: str, parameters: tuple[object, ...]) -> None:
            assert "?" not in statement
            self._cursor.execute(statement.replace("%s", "?"), parameters)

        def __getattr__(self, name: str) -> object:
            return getattr(self._cursor, name)

    class Driver:
        cursor = Cursor
        commit = database.commit
        rollback = database.rollback

    once = Once(Driver(), placeholder="%s", table="done_by_us")
    assert [do(database, once, make_message(0)), do(database, once, make_message(0))] == [True, False]
