"""Selects streams by names and shell-like patterns."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from tailrace.shard.names import is_reserved

WILDCARDS = "*?["


def split_patterns(text: str) -> tuple[str, ...]:
    """The words of an option. White space parts them, because no name has any; commas may be in names."""
    return tuple(dict.fromkeys(text.split()))


def is_exact(pattern: str) -> bool:
    """Whether it can select one stream only."""
    return not any(character in pattern for character in WILDCARDS)


def needs_listing(patterns: Sequence[str]) -> bool:
    """Whether the list of streams is needed."""
    return not patterns or not all(map(is_exact, patterns))


def is_wanted(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern is this very name, or matches it. The broker's own streams (`$…`) match only patterns that
    begin with `$`.

    No pattern at all means every stream but the broker's own.
    """
    if not patterns:
        return not is_reserved(name)
    return any(
        pattern == name or (is_reserved(name) == is_reserved(pattern) and fnmatchcase(name, pattern))
        for pattern in patterns
    )
