"""Notes of the client on the streams of a pattern, shown by the commands that read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.cli.ending import complain

LOGGER = "tailrace.streams"


class NoteHandler(logging.Handler):
    """Each record is a line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"tailrace: {record.getMessage()}")


@contextmanager
def notes_shown() -> Iterator[None]:
    """Within it, notes are shown; the logger is left as it was."""
    logger, handler = logging.getLogger(LOGGER), NoteHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
