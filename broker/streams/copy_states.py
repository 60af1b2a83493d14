"""Which streams of an owner are copied only while they are read, and what is known of their copies."""

from __future__ import annotations


class CopyStates:
    """By the names of streams; a stream that is copied for good is in none of them.

    on_demand: slaved streams that are copied only for readers. unready: those whose copies must not be read yet.
    filling: streams that were copied so, and have not been whole since. quiet: of streams whose copies were begun for
    readers, the seq up to which messages are history: nobody who waits for new messages is woken by them.
    """

    __slots__ = ("filling", "on_demand", "quiet", "unready")

    def __init__(self) -> None:
        self.on_demand: set[bytes] = set()
        self.unready: set[bytes] = set()
        self.filling: set[bytes] = set()
        self.quiet: dict[bytes, int] = {}

    def clear(self) -> None:
        for names in (self.on_demand, self.unready, self.filling, self.quiet):
            names.clear()
