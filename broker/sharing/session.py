"""The wants of this node on the connections to other nodes, and the messages that come for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tailrace.broker.replication.roles.peers import NodeAddress
from tailrace.broker.sharing.wants import WantTable, pieces
from tailrace.protocol.messages import pack
from tailrace.protocol.sharing import SHARED_FROM, Interest
from tailrace.protocol.sibling import WantRow

LAST_ID: Final = (1 << 31) - 1
"""Ids are not used again on a connection; one that has used all of them has to be made anew."""

TakeMessages = Callable[[bytes, Sequence[bytes | memoryview]], None]
"""Takes a stream and pieces of whole frames of it, which are valid until it returns. Raises ValueError for others."""


class ShareSession:
    """One per connection to another node. `node`: its id while wants go out on it, else empty."""

    def __init__(self, sessions: ShareSessions, send_envelope: Callable[[bytes], None], *, enabled: bool) -> None:
        self._sessions = sessions
        self._send_envelope = send_envelope
        self.enabled = enabled
        self.node = ""
        self._ids: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._refused: set[bytes] = set()
        self._next_id = SHARED_FROM

    @property
    def needed(self) -> bool:
        """Whether there is something to ask the node for."""
        return self.enabled and bool(self._sessions.wants.streams)

    def went_up(self, node: str) -> None:
        """Sends everything that is wanted; not if another connection leads to the same node."""
        if not self.enabled or self.node or node in self._sessions.by_node:
            return
        self._sessions.send_changes()  # or else what goes before they are sent would stay wanted there
        self.node = node
        self._sessions.by_node[node] = self
        self.send(self._sessions.wants.whole())

    def went_down(self) -> None:
        if self.node:
            del self._sessions.by_node[self.node]
        self.node = ""
        self._ids, self._names, self._next_id = {}, {}, SHARED_FROM
        self._refused.clear()

    def send(self, rows: Iterable[WantRow]) -> None:
        for name, everything, added, removed in pieces(rows):
            if everything is None:
                self._end(name)
            elif name not in self._refused and (number := self._id_of(name)):
                self._send(Interest(number, name, everything, tuple(added), tuple(removed)))

    def _id_of(self, name: bytes) -> int:
        """0 if all of them are used up."""
        number = self._ids.get(name)
        if number is None:
            if self._next_id > LAST_ID:
                return 0
            number = self._ids[name] = self._next_id
            self._names[number] = name
            self._next_id += 1
        return number

    def _end(self, name: bytes) -> None:
        self._refused.discard(name)
        number = self._ids.pop(name, None)
        if number is not None:
            del self._names[number]
            self._send(Interest(number, name, ends=True))

    def _send(self, message: Interest) -> None:
        self._send_envelope(pack(message))

    def refused(self, number: int) -> None:
        """The node does not send this stream; it is asked again when the connection is made anew."""
        name = self._names.get(number)
        if name is not None:
            self._refused.add(name)

    def is_expected(self, number: int) -> bool:
        """Whether chunks with this id may come, or may still be on their way."""
        return bool(self.node) and SHARED_FROM <= number < self._next_id

    def take(self, number: int, frames: Sequence[bytes | memoryview]) -> None:
        """Frames for this id. Raises ValueError."""
        name = self._names.get(number)
        if name is not None:
            self._sessions.publish(name, frames)


class ShareSessions:
    """One per worker. by_node: the sessions that are up; publish: takes their messages; changed: connections to other
    nodes may be needed that are not there.
    """

    def __init__(self, wants: WantTable, addresses: Iterable[NodeAddress], publish: TakeMessages) -> None:
        self.wants = wants
        self.addresses = frozenset(addresses)
        self.publish = publish
        self.by_node: dict[str, ShareSession] = {}
        self.changed = False

    def begin(self, addresses: Sequence[NodeAddress], send_envelope: Callable[[bytes], None]) -> ShareSession:
        """One of several nodes is asked for nothing: each has a connection of its own for this."""
        return ShareSession(self, send_envelope, enabled=len(addresses) == 1 and addresses[0] in self.addresses)

    def send_changes(self) -> None:
        """To all nodes."""
        self.changed = True
        rows = self.wants.take_changes()
        for session in self.by_node.values():
            session.send(rows)
