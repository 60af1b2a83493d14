"""Effects that happen once: the transaction that writes the effects also marks the message as done.

A durable consumer delivers a message again if it does not know that it was acknowledged. If the message's effects go to
a database, the same transaction can mark the message as done; then the effects are there once, or not at all, at any
crash.

    once = tailrace.Once(database)
    for message in consumer:
        with once(message) as is_new:
            if is_new:
                database.execute("INSERT INTO orders VALUES (?)", (message.payload,))

Done messages are kept as rows of seqs, one for each message at first. Adjacent rows are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Protocol

from tailrace.core.consumed_message import ConsumedMessage, reason_of
from tailrace.errors import InvalidArgument

TABLE: Final = "tailrace_done"
JOIN_EVERY: Final = 1_000
"""After so many messages rows that touch each other are made one."""
SAME: Final = "stream = ? AND consumer = ? AND epoch = ?"


class Database(Protocol):
    """The methods used of a connection of the Python database API (PEP 249)."""

    def cursor(self) -> Any: ...

    def commit(self) -> object: ...

    def rollback(self) -> object: ...


class Once:
    """The messages that consumers have handled, in a table of the application's own database."""

    def __init__(self, database: Database, *, table: str = TABLE, placeholder: str = "?") -> None:
        """Creates the table if needed, and commits. `placeholder`: how the driver writes a parameter.

        Raises InvalidArgument for a connection that commits each statement by itself.
        """
        if not table.replace("_", "").isalnum():
            raise InvalidArgument(f"{table!r} is not a table name: letters, digits and _")
        if getattr(database, "autocommit", False) is True or getattr(database, "isolation_level", "") is None:
            raise InvalidArgument("this database connection commits each statement by itself: turn transactions on")
        self._database = database
        self._table = table
        self._mark = placeholder
        columns = "stream VARCHAR(200), consumer VARCHAR(100), epoch BIGINT, first_seq BIGINT, last_seq BIGINT"
        key = "PRIMARY KEY (stream, consumer, epoch, first_seq)"
        self._do(f"CREATE TABLE IF NOT EXISTS {table} ({columns}, {key})")
        database.commit()

    def __call__(self, message: ConsumedMessage) -> Doing:
        """A context that commits, or rolls back, the message's effects, and settles it. See `Doing`."""
        return Doing(self, message)

    def forget(self, stream: str, consumer: str) -> None:
        """Let everything be new again, such as after the consumer was reset to do it once more; commits."""
        self._do(f"DELETE FROM {self._table} WHERE stream = ? AND consumer = ?", stream, consumer)
        self._database.commit()

    # --- for Doing ----------------------------------------------------------------------------------------------------

    def claim(self, message: ConsumedMessage) -> bool:
        """Note it as done, within a transaction; whether nobody had.

        The note comes first and the look afterwards: of two who do the same message at the same time, one waits for the
        other's transaction and then finds its note, there or in a row that it was joined to.
        """
        if getattr(self._database, "in_transaction", False):
            raise InvalidArgument(
                "the database connection is within a transaction: end it first, the block starts its own"
            )
        of, seq = (message.stream, message.consumer, message.epoch), message.seq
        insert = f"INSERT INTO {self._table} VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        covering = f"SELECT first_seq FROM {self._table} WHERE {SAME} AND first_seq <= ? AND last_seq >= ?"
        return self._do(insert, *of, seq, seq) == 1 and len(self._ask(covering, *of, seq, seq)) == 1

    def commit(self, message: ConsumedMessage) -> None:
        self._database.commit()
        if message.seq % JOIN_EVERY == JOIN_EVERY - 1:
            self._join(message)

    def rollback(self) -> None:
        self._database.rollback()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _join(self, message: ConsumedMessage) -> None:
        """Make rows that touch each other one, unless somebody changes them at this moment; commits."""
        of = (message.stream, message.consumer, message.epoch)
        rows = self._ask(f"SELECT first_seq, last_seq FROM {self._table} WHERE {SAME} ORDER BY first_seq", *of)
        for first, last, joined in _touching(rows):
            extend = f"UPDATE {self._table} SET last_seq = ? WHERE {SAME} AND first_seq = ? AND last_seq = ?"
            if self._do(extend, joined, *of, first, last) == 1:
                delete = f"DELETE FROM {self._table} WHERE {SAME} AND first_seq > ? AND last_seq <= ?"
                self._do(delete, *of, first, joined)
        self._database.commit()

    def _do(self, statement: str, *parameters: object) -> int:
        """The number of changed rows."""
        cursor = self._database.cursor()
        try:
            cursor.execute(statement.replace("?", self._mark), parameters)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self._database.cursor()
        try:
            cursor.execute(statement.replace("?", self._mark), parameters)
            return list(cursor.fetchall())
        finally:
            cursor.close()


class Doing:
    """One message's transaction. Entering it returns whether the message is new: its effects are not in the database
    yet.

    At the end of the block the transaction is committed and the message acknowledged; for one that is not new there is
    nothing to commit. An exception rolls back, reports a failure, and propagates.
    """

    def __init__(self, once: Once, message: ConsumedMessage) -> None:
        self._once = once
        self._message = message
        self._is_new = False

    def __enter__(self) -> bool:
        try:
            self._is_new = self._once.claim(self._message)
        finally:
            if not self._is_new:
                self._once.rollback()
        return self._is_new

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._once.commit(self._message)
            except BaseException as failure:
                self._undo(failure)
                raise
            self._message.ack()
        else:
            self._undo(error)

    def _undo(self, error: BaseException | None) -> None:
        self._once.rollback()
        if isinstance(error, Exception):
            self._message.nack(reason_of(error))


def _touching(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, int, int]]:
    """Returns the rows (first and last seq, in order) that have adjacent successors, and the last seq of each group."""
    run: tuple[int, int, int] | None = None
    for first, last in rows:
        if run is not None and first <= run[2] + 1:
            run = (run[0], run[1], max(run[2], last))
            continue
        if run is not None and run[2] > run[1]:
            yield run
        run = (first, last, last)
    if run is not None and run[2] > run[1]:
        yield run
