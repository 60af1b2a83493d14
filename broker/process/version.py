"""Which version of the program this is."""

from __future__ import annotations

import importlib.metadata
from functools import cache


@cache
def program_version() -> str:
    """As installed; "unknown" if it runs without being installed."""
    try:
        return importlib.metadata.version("tailrace")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
