"""Claims of streams' masters that the node at the other end of an uplink must learn of, until it has answered.

A node claims each stream whose latest term it knows, as its master or as a slave on the way to the master, from every
contact of the stream that has not confirmed that term (`broker.replication.upstream.contacts`). So a new term reaches
every node that was ever above, and each of them turns round. The claims still to be made follow from the .meta files.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.protocol.messages import pack
from tailrace.protocol.replication import Claim, Claimed
from tailrace.shard.errors import StorageError
from tailrace.shard.meta import Role, Upstream

log = logging.getLogger(__name__)

CLAIM_RETRY_S = 2.0
CLAIMS_AT_ONCE = 256
"""Claims of one connection that have no answer yet."""

_NOTHING: Final[tuple[bytes, stream_roles.Term]] = (b"", (0, ""))


class LeadershipClaims:
    """The claims of one uplink, to the node at (host, port). `send_envelope` queues bytes for it. Each stream has one
    claim at most, on each connection.
    """

    def __init__(self, owner: Owner, send_envelope: Callable[[bytes], None], node: tuple[str, int]) -> None:
        self._owner = owner
        self._send_envelope = send_envelope
        self._node = node
        self._wanted: dict[bytes, None] = {}
        self._queue: deque[bytes] = deque()  # to be claimed next; some of them may not be wanted any more
        self._later: dict[bytes, float] = {}  # when to claim again
        self._asked: dict[int, tuple[bytes, stream_roles.Term]] = {}  # those that are not answered yet
        self._last = 0

    def __len__(self) -> int:
        return len(self._wanted)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._wanted)

    def add(self, name: bytes) -> None:
        """The node must learn of the stream's term, or of a later one than before."""
        self._wanted[name] = None
        self._later.pop(name, None)
        self._queue.append(name)

    def drop(self, name: bytes) -> None:
        """There is nothing to claim from this node."""
        if name in self._wanted:
            del self._wanted[name]
            self._later.pop(name, None)

    def clear(self) -> None:
        """This node need not learn of anything."""
        self._wanted.clear()
        self._later.clear()

    def went_up(self) -> None:
        self._later.clear()
        self._queue = deque(self._wanted)

    def went_down(self) -> None:
        self._asked.clear()
        self._last = 0

    def tick(self, now_s: float) -> None:
        for name in [name for name, due_s in self._later.items() if due_s <= now_s]:
            del self._later[name]
            self._queue.append(name)
        while self._queue and len(self._asked) < CLAIMS_AT_ONCE:
            name = self._queue.popleft()
            if name in self._wanted:
                self._claim(name, now_s)

    def _claim(self, name: bytes, now_s: float) -> None:
        owner = self._owner
        history = stream_roles.written_history(owner, name)
        was_above = any(each.was_above for each in stream_roles.to_be_told(owner, name) if each[:2] == self._node)
        self._last += 1
        self._asked[self._last] = name, history[-1][::2]
        self._send_envelope(pack(Claim(self._last, name, history, not was_above)))

    def answered(self, message: Claimed, now_s: float) -> None:
        name, claimed = self._asked.pop(message.id, _NOTHING)
        if name not in self._wanted:
            return
        owner = self._owner
        try:
            if stream_roles.claimable(owner, name) != claimed:
                self.add(name)  # another term has begun, or was learnt of, meanwhile
                return
            self.drop(name)
            if not message.accepted and (owner.roles.role(name) is Role.MASTER or message.role != Role.DISABLED):
                stream_roles.give_in(owner, name, message.epoch, message.master, Upstream(*self._node, "seq", 0))
            stream_roles.note_confirmed(owner, name, self._node)
        except (Refused, StorageError, OSError) as error:
            log.error("stream %r: the answer of %s:%d to its claim could not be taken: %s", name, *self._node, error)
            self._wanted[name] = None
            self._again(name, now_s)  # and it is answered again

    def failed(self, number: int, now_s: float) -> None:
        """The node could not take the claim of this number."""
        self._again(self._asked.pop(number, _NOTHING)[0], now_s)

    def _again(self, name: bytes, now_s: float) -> None:
        if name in self._wanted:
            self._later[name] = now_s + CLAIM_RETRY_S
