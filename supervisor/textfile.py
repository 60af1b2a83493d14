"""Figures that another program leaves in a file, for /metrics: those of the last rollup.

The file is Prometheus text, written whole and renamed into place (`spark.rollup.metrics`). A scrape succeeds with any
content: a file that cannot be used gives one line in the log, and an error metric, until it has changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

TEXTFILE_BYTES_MAX: Final = 64 << 10
PREFIX: Final = "tailrace_rollup_"
"""Of all names in the file: none may be there twice in a scrape, or Prometheus takes nothing of it."""
CAUSE_CHARACTERS_MAX: Final = 200


class BadTextfile(ValueError):
    """The file cannot be used; the text gives the reason."""


class TextfileCollector(Collector):
    """A file that need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._on_message = (0, 0)
        """Time and size of the file whose fault was logged last."""

    def collect(self) -> Iterator[Metric]:
        families: list[Metric] = []
        is_bad = False
        try:
            families = read_textfile(self._path)
        except FileNotFoundError:
            pass
        except (BadTextfile, OSError) as error:
            is_bad = True
            self._warn_once(error)
        yield from families
        yield GaugeMetricFamily(
            "tailrace_textfile_error", "Whether the file of the rollup's figures cannot be used.", value=is_bad
        )

    def _warn_once(self, error: Exception) -> None:
        """Once for each state of the file, not with every scrape."""
        try:
            found = os.stat(self._path)
            state = (found.st_mtime_ns, found.st_size)
        except OSError:
            state = (-1, -1)
        if state != self._on_message:
            self._on_message = state
            log.error("%s: %s; its figures are left out of /metrics until it is replaced", self._path, error)


def read_textfile(path: Path) -> list[Metric]:
    """The families in the file. Raises BadTextfile, OSError."""
    # A fifo put there must not hold the scrape.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        content = file.read(TEXTFILE_BYTES_MAX + 1) or b""
    if len(content) > TEXTFILE_BYTES_MAX:
        raise BadTextfile(f"it is larger than the {TEXTFILE_BYTES_MAX:,} bytes such a file may have")
    try:
        families = list(text_string_to_metric_families(content.decode()))
    except (ValueError, IndexError, KeyError) as error:
        cause = f"{error}"[:CAUSE_CHARACTERS_MAX]
        raise BadTextfile(f"it is no Prometheus text: {cause!r}") from None
    _require_own_names(families)
    return families


def _require_own_names(families: list[Metric]) -> None:
    """Raises BadTextfile."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for family in families:
        for sample in family.samples:
            if not (family.name.startswith(PREFIX) and sample.name.startswith(PREFIX)):
                raise BadTextfile(f"it has {sample.name[:CAUSE_CHARACTERS_MAX]!r}; all names begin with {PREFIX}")
            key = sample.name, tuple(sorted(sample.labels.items()))
            if key in seen:
                raise BadTextfile(f"it has {sample.name!r} twice with the same labels")
            seen.add(key)
