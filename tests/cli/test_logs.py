"""The log of a node: for a person, or for the journal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest

from tailrace.cli.logs import LEVELS, JournalFormatter, set_up_logging


@pytest.fixture(autouse=True)
def _bare_root() -> Iterator[None]:
    """Put everything back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("tailrace.broker.worker", level, __file__, 1, text, (), None)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7), (5, 7)],
)
def test_priorities_for_the_journal(level: int, priority: int) -> None:
    assert JournalFormatter().format(record(level, "text")) == f"<{priority}>tailrace.broker.worker: text"


def test_every_line_of_a_record_has_its_priority() -> None:
    assert JournalFormatter().format(record(logging.ERROR, "a\nb")) == "<3>tailrace.broker.worker: a\n<3>b"


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: str) -> None:
    set_up_logging(level)
    assert logging.getLogger().level == getattr(logging, level.upper())


def test_a_person_gets_the_time_and_the_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    set_up_logging("info")
    logging.getLogger("broker").info("hello")
    assert f"INFO    [{os.getpid()}] broker: hello" in capfd.readouterr().err


def test_the_journal_is_known_by_its_stream(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = os.fstat(sys.stderr.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    set_up_logging("info")
    logging.getLogger("broker").warning("hello")
    assert capfd.readouterr().err == "<4>broker: hello\n"
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")  # inherited from a service, but redirected since
    set_up_logging("info")
    logging.getLogger("broker").warning("hello")
    assert "<4>" not in capfd.readouterr().err


def test_names_are_shown_as_text(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    log = logging.getLogger("broker")
    log.info("stream %r: %d messages", "käse".encode(), 7)
    log.info("%d%%", 5)
    log.info("stream %(name)r", {"name": "a"})
    heard = capfd.readouterr().err
    assert "broker: stream 'käse': 7 messages\n" in heard
    assert "broker: 5%\n" in heard and "broker: stream 'a'\n" in heard
