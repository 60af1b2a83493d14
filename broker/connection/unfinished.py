"""Which unfinished requests give way when a worker holds too many bytes of them. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Protocol, TypeVar

from tailrace.broker.connection.accounts import Account


class Unfinished(Protocol):
    """A connection that holds a request which has begun and not ended."""

    account: Account

    @property
    def held_bytes(self) -> int: ...


Holder = TypeVar("Holder", bound=Unfinished)


def holders_to_end(holders: Iterable[Holder], excess_bytes: int) -> list[Holder]:
    """Those that are to end, so that `excess_bytes` are freed. holders: the one whose request is oldest first.

    Each time the address that holds most loses its oldest: neither connecting often nor coming first helps.
    """
    queues: dict[Account, deque[Holder]] = {}
    bytes_held: Counter[Account] = Counter()
    for holder in holders:
        queues.setdefault(holder.account, deque()).append(holder)
        bytes_held[holder.account] += holder.held_bytes
    ended = []
    while excess_bytes > 0 and queues:
        largest = max(queues, key=bytes_held.__getitem__)
        holder = queues[largest].popleft()
        ended.append(holder)
        bytes_held[largest] -= holder.held_bytes
        excess_bytes -= holder.held_bytes
        if not queues[largest]:
            del queues[largest]
    return ended
