"""Notes on the streams of a pattern, on standard error."""

from __future__ import annotations

import logging

import pytest

from tailrace.cli.notes import LOGGER, notes_shown


def test_they_are_shown_within_a_command_only(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger(LOGGER)
    before = list(logger.handlers), logger.level
    with notes_shown():
        logger.info("%s was deleted", "a")
        logger.debug("a detail")
    logger.info("%s was deleted", "b")
    assert capsys.readouterr().err == "tailrace: a was deleted\n"
    assert (list(logger.handlers), logger.level) == before
