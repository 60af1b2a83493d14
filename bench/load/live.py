"""A live Spark query over a node's files that looks at every message, in a process of its own.

`python -m bench.load.live DATA CHECKPOINT`: prints `begun` when its first batch is done. When its input ends it reads
the rest, and prints how long its batches took, in seconds, as JSON: `{"rows": 5, "batches": [0.4]}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from bench.load.limits import Deadline, LoadError
from bench.load.spark_server import CORES, MEMORY

TRIGGER: Final = "1 second"
COLUMNS: Final = "stream string, seq bigint"
BATCHES_KEPT: Final = 10_000
_BEGUN: Final = "begun"
_END_S: Final = 30.0
_LOG_TAIL_BYTES: Final = 2_000
_POLL_S: Final = 0.05


class Lived(NamedTuple):
    """`batches` are the seconds of each that had messages, from trigger to commit, in their order."""

    rows: int
    batches: list[float]


class LiveQuery:
    """The query as a process. Entering starts it and waits for its first batch; leaving ends it."""

    def __init__(self, data: Path, scratch: Path, deadline: Deadline) -> None:
        self._command = [sys.executable, "-m", "bench.load.live", str(data), str(scratch / "checkpoint")]
        self._out, self._log = scratch / "live.out", scratch / "live.log"
        self._deadline = deadline

    def __enter__(self) -> Self:
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=out, stderr=log)
        try:
            while _BEGUN not in self._out.read_text():
                self._require(self._process.poll() is None, "ended before its first batch")
                self._deadline.check("the live query's first batch")
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        return self

    def finish(self) -> Lived:
        """Let it read the rest. Raises LoadError if it has failed."""
        try:
            self._close_input()
            self._process.wait(self._deadline.left_s(self._deadline.timeout_s))
        except subprocess.TimeoutExpired:
            raise LoadError("the live query did not end in time") from None
        self._require(self._process.returncode == 0, f"ended with {self._process.returncode}")
        found = json.loads(self._out.read_text().splitlines()[-1])
        return Lived(found["rows"], found["batches"])

    def _require(self, right: bool, text: str) -> None:
        if not right:
            raise LoadError(f"the live query {text}: {self._log.read_bytes()[-_LOG_TAIL_BYTES:]!r}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(_END_S)
        self._close_input()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


class Seen:
    """How far each stream was read."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()

    def take(self, rows: list[tuple[str, int, int, int]]) -> None:
        """Name, first seq, last seq and number of messages of each stream of a batch. ValueError unless they follow on
        those before, each once."""
        for name, low, high, count in rows:
            if (low, high - low + 1) != (self.ends[name], count):
                raise ValueError(f"{name}: {count} messages from {low} to {high}, and before them {self.ends[name]}")
            self.ends[name] = high + 1


def follow(session: Any, data: str, checkpoint: str, seen: Seen) -> Any:
    """The query, begun."""
    from pyspark.sql import functions as sql

    def take(batch: Any, _number: int) -> None:
        found = batch.groupBy("stream").agg(sql.min("seq"), sql.max("seq"), sql.count("seq")).collect()
        seen.take([tuple(row) for row in found])

    stream = session.readStream.format("tailrace").schema(COLUMNS).load(data)
    writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    return writing.trigger(processingTime=TRIGGER).start()


def main(data: str, checkpoint: str) -> None:
    from tailrace.spark.session import local_session

    settings = {"spark.sql.streaming.numRecentProgressUpdates": str(BATCHES_KEPT)}
    session, seen = local_session("bench", cores=CORES, memory=MEMORY, settings=settings), Seen()
    query = follow(session, data, checkpoint, seen)
    query.processAllAvailable()
    print(_BEGUN, flush=True)
    sys.stdin.read()
    query.processAllAvailable()
    took = [each.durationMs["triggerExecution"] / 1e3 for each in query.recentProgress if each.numInputRows]
    query.stop()
    session.stop()
    print(json.dumps({"rows": seen.ends.total(), "batches": took}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
