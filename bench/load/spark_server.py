"""A warm Spark session, or polars, that answers questions.

`python -m bench.load.spark_server PORT KIND STREAMS MESSAGES PAYLOAD_BYTES`, in an empty directory.

Each question is a line. `ready` is answered `!`; `prepare` makes the data and the session, and the other questions of
its kind are answered with the seconds they took: `done SECONDS`, or `failed TEXT`.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.load.spark_data import DAY_START_US, make_data

CORES: Final = "2"
MEMORY: Final = "2g"
HOUR_US: Final = 3_600_000_000
NOON_US: Final = DAY_START_US + 12 * HOUR_US
ALL_COLUMNS: Final = "stream string, seq bigint, timestamp timestamp, size int, payload binary"
INDEX_COLUMNS: Final = "stream string, seq bigint, timestamp timestamp, size int"


@dataclass(slots=True)
class Context:
    """Where questions read and write: a data directory and a scratch directory."""

    session: Any
    data: Path
    scratch: Path
    streams: int
    messages: int
    columns: Any = None
    """Columns of all messages in memory, once they are gathered."""

    def table(self, schema: str = ALL_COLUMNS, **options: str) -> Any:
        """The data source, planned anew."""
        return self.session.read.format("tailrace").schema(schema).options(**options).load(str(self.data))

    def exported(self) -> Any:
        """The same messages as native Parquet."""
        return self.session.read.parquet(str(self.scratch / "parquet"))


Question = Callable[[Context], object]


def read_all(frame: Any) -> None:
    """Every row and column, into nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _count_hour(frame: Any) -> Any:
    return frame.groupBy("stream").count().collect()


def _export(context: Context) -> None:
    # In the order and the files that the source has, as any export would leave it.
    context.table().write.parquet(str(context.scratch / "parquet"))


def _rollup() -> Any:
    """Imported when it is asked for: it needs Spark from the start."""
    from bench.load import rollup

    return rollup


def _gather(context: Context) -> None:
    context.columns = _rollup().gather(context.data, DAY_START_US)


def _parquet_hour(context: Context) -> Any:
    hour = f"timestamp >= timestamp_micros({NOON_US}) AND timestamp < timestamp_micros({NOON_US + HOUR_US})"
    return _count_hour(context.exported().filter(hour))


FILES: Final[Mapping[str, Question]] = MappingProxyType(
    {
        "scan": lambda context: read_all(context.table()),
        "rollup": lambda context: _rollup().roll_up(context.session, context.data, context.scratch, DAY_START_US),
        "hour": lambda context: _count_hour(
            context.table(INDEX_COLUMNS, **{"from": f"{NOON_US}", "to": f"{NOON_US + HOUR_US}"})
        ),
    }
)
PARQUET: Final[Mapping[str, Question]] = MappingProxyType(
    {
        "export": _export,
        "scan": lambda context: read_all(context.exported()),
        "rollup": lambda context: _rollup().roll_up_parquet(context.exported(), context.scratch),
        "hour": _parquet_hour,
    }
)
POLARS: Final[Mapping[str, Question]] = MappingProxyType(
    {
        "export": _gather,
        "rollup": lambda context: _rollup().roll_up_polars(context.columns, _rollup().UNITS[:1]),
        "rollup-all": lambda context: _rollup().roll_up_polars(context.columns, _rollup().UNITS),
    }
)
KINDS: Final[Mapping[str, Mapping[str, Question]]] = MappingProxyType(
    {"files": FILES, "parquet": PARQUET, "polars": POLARS}
)


def prepare(kind: str, streams: int, messages: int, payload_bytes: int) -> Context:
    """Make the data in the present directory; and a session, except for polars."""
    data = Path.cwd() / "data"
    make_data(data, streams, messages, payload_bytes)
    return Context(None if kind == "polars" else _session(), data, Path.cwd(), streams, messages)


def _session() -> Any:
    from tailrace.spark.session import local_session

    return local_session("bench", cores=CORES, memory=MEMORY)


class Answers:
    """Answers one line after the other."""

    def __init__(self, questions: Mapping[str, Question], make: Callable[[], Context]) -> None:
        self._questions = questions
        self._make = make
        self._context: Context | None = None

    def answer(self, line: str) -> str:
        if line == "ready":
            return "!"
        begin = time.perf_counter()
        try:
            self._ask(line)
        except (OSError, ValueError) as error:  # anything else ends this process, with its stack in the log
            return f"failed {type(error).__name__}: {error}".replace("\n", " ")
        return f"done {time.perf_counter() - begin:.6f}"

    def _ask(self, line: str) -> None:
        if line == "prepare":
            self._context = self._make()
        elif self._context is None or line not in self._questions:
            raise ValueError(f"{line!r} cannot be asked; first prepare, then {', '.join(self._questions)}")
        else:
            self._questions[line](self._context)


def serve(listener: socket.socket, answers: Answers) -> None:
    """One connection at a time, for ever."""
    while True:
        sock, _ = listener.accept()
        with sock, sock.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                sock.sendall((answers.answer(line.strip()) + "\n").encode())


def main(port: str, kind: str, streams: str, messages: str, payload_bytes: str) -> None:
    sizes = (int(streams), int(messages), int(payload_bytes))
    answers = Answers(KINDS[kind], lambda: prepare(kind, *sizes))
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        serve(listener, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
