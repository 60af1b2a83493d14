"""The log of `tailrace serve`: standard error, one line for each event.

Under systemd the journal has the time already and wants the priority in front; elsewhere a person reads it.
"""

from __future__ import annotations

import logging
import os
import sys

LEVELS = ("debug", "info", "warning", "error")

# sd-daemon(3)
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))


class JournalFormatter(logging.Formatter):
    """`<PRIORITY>PID name: text`; a traceback's lines each carry the priority, or the journal would lose it."""

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


def show_names(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass: names of streams, which are bytes in the broker, stand as text in the log."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            each.decode("utf-8", "backslashreplace") if isinstance(each, bytes) else each for each in record.args
        )
    return True


def set_up_logging(level: str) -> None:
    """Send every record of `level` and above to standard error, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(show_names)
    if _is_journal():
        handler.setFormatter(JournalFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _is_journal() -> bool:
    """Returns whether standard error is the journal's stream, which systemd names in the environment."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
