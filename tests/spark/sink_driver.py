"""A driver of its own that copies streams of a data directory to a broker, in many batches; to be killed."""

from __future__ import annotations

import sys

from tailrace.spark.session import local_session
from tests.spark.java import QUICK

ROWS_PER_BATCH = 150


def copy(session: object, data: str, broker: str, checkpoint: str) -> object:
    """Starts the query: all present messages, in small batches."""
    read = session.readStream.format("tailrace").option("maxRowsPerBatch", str(ROWS_PER_BATCH))  # type: ignore[attr-defined]
    rows = (
        read.schema("stream string, payload binary").load(data).selectExpr("concat('copy.', stream) stream", "payload")
    )
    writing = rows.writeStream.format("tailrace").option("brokers", broker)
    return writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


if __name__ == "__main__":
    session = local_session("sink", cores="2", settings={"spark.driver.extraJavaOptions": QUICK})
    copy(session, *sys.argv[1:]).awaitTermination()  # type: ignore[attr-defined]
