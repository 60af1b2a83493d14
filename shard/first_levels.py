"""The first levels of names that are streams of their own, since there were such streams before names had topics.

A name such as `orders/eu` is a topic of the stream `orders` unless the configuration says otherwise. In a data
directory that is older than this rule, names below a first level that has streams stay what they were. That is found
out once, and written to node.json: whether a name is a topic never depends on the streams of the day.
"""

from __future__ import annotations

from typing import Final

from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import DataDirectory, write_own_levels
from tailrace.shard.names import ALL_LEVELS, REPLIES_PREFIX, base_of, is_reserved

OWN_LEVELS_MAX: Final = 15
"""With more of them there is ALL_LEVELS in their place."""


def with_own_levels(directory: DataDirectory) -> DataDirectory:
    """The directory with its first levels, which are looked for if it has none yet. Raises OSError."""
    if directory.own_levels is not None:
        return directory
    return write_own_levels(directory, _find(directory))


def _find(directory: DataDirectory) -> tuple[str, ...]:
    levels: set[str] = set()
    for _shard, name in all_streams(directory):
        base = base_of(name.encode())
        level, separator, _rest = base.partition(b"/")
        if separator and not is_reserved(base) and not base.startswith(REPLIES_PREFIX):
            levels.add(level.decode())
    levels = {level for level in levels if not set(level) & set("+#")}  # such names are never topics
    return tuple(sorted(levels)) if len(levels) <= OWN_LEVELS_MAX else (ALL_LEVELS,)
