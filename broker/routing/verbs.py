"""Which calls of an owner concern one stream, and how."""

from __future__ import annotations

from typing import Final

OF_A_STREAM: Final = frozenset(
    {
        "end",
        "master",
        "promote",
        "unmaster",
        "slave",
        "unslave",
        "claim",
        "fence",
        "follow",
        "trim",
        "stat",
        "consume",
        "get",
        "keep_last",
        "missed_last",
        "last",
        "list_stream",
        "list_names",
        "list_grown",
        "list_ends",
    }
)
"""Calls that concern one stream, their first argument, and may have to open it. A page of names is as long, and its
first argument is a prefix; so are the ends of some streams, of which one is the first argument.
"""
LONG: Final = OF_A_STREAM - {"end", "consume", "get", "keep_last", "last", "missed_last"}
"""Those that are long even if the stream is open, since they read its history or change its role."""

NOT_IN_MEMORY: Final = frozenset(
    {"master", "promote", "unmaster", "slave", "unslave", "claim", "fence", "follow", "consume", "get", "keep_last"}
    | {"await", "delete"}
)
"""What a stream in memory cannot do."""

OF_A_COPY: Final = frozenset({"end", "get", "follow", "last", "list_stream", "copied"})
"""Calls after which the messages of the stream are read here: they wait for a copy that is made for readers."""
