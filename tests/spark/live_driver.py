"""A driver with live queries on one node, to be killed: one of its files, one over a connection, and one that copies
its rows to other streams of the node. `python -m tests.spark.live_driver DATA BROKER FOLDER GAP_S NAME…`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from pyspark.errors import StreamingQueryException

from tailrace.spark.session import local_session
from tests.spark.java import QUICK

STREAMS: Final = "live.*"
SETTINGS: Final = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
ROWS_PER_BATCH: Final = 60
"""Fewer than are waiting most of the time, so that batches end within streams."""

TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark gives its Python 10 s to start, too few on a busy machine."""


def follow(session: Any, options: dict[str, str], folder: Path, *, to_the_end: bool = False, gap_s: int = 0) -> Any:
    """Starts the query of which `folder` has the checkpoint and the rows: of the present messages, or for ever."""
    rows = session.readStream.format("tailrace").option("streams", STREAMS).options(**options)
    if not to_the_end:
        rows = rows.option("maxRowsPerBatch", str(ROWS_PER_BATCH))
    live = rows.schema("stream string, seq bigint, payload binary").load()
    sink = live.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return started(sink.option("path", str(folder / "rows")), to_the_end, gap_s)


def copy(session: Any, data: str, broker: str, folder: Path, *, to_the_end: bool = False, gap_s: int = 0) -> Any:
    """Starts the query, with its checkpoint in `folder`, that copies each stream `X` to `copy.X`."""
    rows = session.readStream.format("tailrace").option("streams", STREAMS)
    if not to_the_end:
        rows = rows.option("maxRowsPerBatch", str(ROWS_PER_BATCH))
    live = rows.schema("stream string, payload binary").load(data)
    live = live.selectExpr("concat('copy.', stream) stream", "payload")
    sink = live.writeStream.format("tailrace").option("brokers", broker)
    return started(sink.option("checkpointLocation", str(folder / "checkpoint")), to_the_end, gap_s)


def started(sink: Any, to_the_end: bool, gap_s: int) -> Any:
    """`gap_s`: from the beginning of a batch to that of the next one, at least."""
    return (sink.trigger(availableNow=True) if to_the_end else sink.trigger(processingTime=f"{gap_s} seconds")).start()


def run(data: str, broker: str, folder: Path, gap_s: int, *names: str) -> NoReturn:
    """Runs these queries until the process is killed, with the Python processes of Spark that it has started."""
    session = local_session("live", cores="2", settings=SETTINGS)
    starts: dict[str, Callable[[], Any]] = {
        "path": lambda: follow(session, {"path": data}, folder / "path", gap_s=gap_s),
        "brokers": lambda: follow(session, {"brokers": broker}, folder / "brokers", gap_s=gap_s),
        "copy": lambda: copy(session, data, broker, folder / "copy", gap_s=gap_s),
    }
    queries = {name: starts[name]() for name in names}
    while True:
        with suppress(StreamingQueryException):
            session.streams.awaitAnyTermination()
        session.streams.resetTerminated()
        for name, query in queries.items():
            if not query.isActive:
                assert TOO_SLOW in str(query.exception()), query.exception()
                queries[name] = starts[name]()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
