"""Members of shared MQTT subscriptions whose worker is gone: they leave, so that others get their messages.

A worker notifies the owners of the members of its connections when these end. One that is killed does not, so the names
of such members say which process they are in, and the owner looks whether it is still there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.consumers.state import decide
from tailrace.broker.sessions.record import HolderProcess
from tailrace.broker.streams.refused import Refused

log = logging.getLogger(__name__)

SHARED_PREFIX: Final = b"$share/"
"""Of the names of consumers that are groups of shared subscriptions."""
MEMBER_KIND: Final = b"mqtt"
_FIELDS: Final = 5


def member_name(node_id: str, holder: HolderProcess, number: int) -> bytes:
    """The name of a connection of this process as a member."""
    return b"%s:%s:%x:%x:%x" % (MEMBER_KIND, node_id.encode(), holder.run, holder.pid, number)


def process_of(member: bytes, node_id: str) -> HolderProcess | None:
    """The process of a member; None if it is one of another node, or not such a member."""
    fields = member.split(b":")
    if len(fields) != _FIELDS or fields[0] != MEMBER_KIND or fields[1] != node_id.encode():
        return None
    try:
        return HolderProcess(int(fields[2], 16), int(fields[3], 16))
    except ValueError:
        return None


class SharedMembers:
    """One per worker."""

    def __init__(self, desk: Coordinator, node_id: str, is_alive: Callable[[HolderProcess], bool]) -> None:
        self._desk = desk
        self._node_id = node_id
        self._is_alive = is_alive

    def tick(self) -> None:
        """About once a second."""
        for book in list(self._desk.books.values()):
            for name, consumer in list(book.consumers.by_name.items()):
                if name.startswith(SHARED_PREFIX) and consumer.members:
                    self._look_at(book, name, [each for each in consumer.members if self._is_gone(each)])

    def _is_gone(self, member: bytes) -> bool:
        holder = process_of(member, self._node_id)
        return holder is not None and not self._is_alive(holder)

    def _look_at(self, book: StreamConsumers, name: bytes, gone: list[bytes]) -> None:
        for member in gone:
            try:
                decision = self._desk.decided(book, partial(decide.leave, book.consumers, name, member))
                self._desk.stage(book, decision, None, [name])
            except Refused as refused:
                log.warning("the group %r of stream %r: %s", name, book.name, refused.text)
                return
