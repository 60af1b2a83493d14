"""What the node at the other end of an uplink is to hear of the masters of streams, until it has answered.

A node that has become a stream's master claims it from its former upstream. One that has turned to a claimant from
another upstream passes the claim on to that one: whoever claims is on the way to the master, if not the master itself.
So a new term is heard by everybody above, and each of them turns round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from broker.owner import Owner, Refused
from broker.protocol.messages import pack
from broker.protocol.replication import Claim, Claimed
from broker.replication import roles
from shard.epochs import History
from shard.errors import StorageError

log = logging.getLogger(__name__)

CLAIM_RETRY_S = 2.0


class Claims:
    """Of one uplink. `say` queues bytes for the other end. Each stream has one claim at most, on each connection."""

    def __init__(self, owner: Owner, say: Callable[[bytes], None]) -> None:
        self._owner = owner
        self._say = say
        self._due_s: dict[bytes, float] = {}  # when it is to be said next
        self._passed_on: dict[bytes, History] = {}  # of those that are another node's: the terms it told
        self._asked: dict[int, bytes] = {}  # those that are not answered yet
        self._last = 0

    def __len__(self) -> int:
        return len(self._due_s)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._due_s)

    def add(self, name: bytes) -> None:
        """This node is the stream's master."""
        self._passed_on.pop(name, None)
        self._due_s[name] = 0.0

    def pass_on(self, name: bytes, history: History) -> None:
        """The stream has a master, by another node's word, that this node follows now."""
        self._passed_on[name] = history
        self._due_s[name] = 0.0

    def drop(self, name: bytes) -> None:
        """This node is the stream's master no more. What it has passed on for another one still holds."""
        if name not in self._passed_on:
            self._due_s.pop(name, None)

    def drop_all_of(self, name: bytes) -> None:
        """The stream follows this very upstream."""
        self._passed_on.pop(name, None)
        self._due_s.pop(name, None)

    def went_up(self) -> None:
        for name in self._due_s:
            self._due_s[name] = 0.0

    def went_down(self) -> None:
        self._asked.clear()
        self._last = 0

    def tick(self, now_s: float) -> None:
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s]:
            self._claim(name, now_s)

    def _claim(self, name: bytes, now_s: float) -> None:
        try:
            history = self._passed_on.get(name) or roles.history_of(self._owner, self._owner.stream(name))
        except (Refused, StorageError, OSError) as error:
            log.warning("stream %r cannot be claimed now: %s", name, error)
            self._due_s[name] = now_s + CLAIM_RETRY_S
            return
        self._due_s[name] = float("inf")  # until it is answered, or the connection is another one
        self._last += 1
        self._asked[self._last] = name
        self._say(pack(Claim(self._last, name, history)))

    def answered(self, message: Claimed, now_s: float) -> None:
        name = self._asked.pop(message.id, None)
        if name not in self._due_s:
            return
        try:
            if message.accepted:
                roles.settle_claim(self._owner, name)
            elif name not in self._passed_on:
                roles.give_in(self._owner, name, message.epoch)
        except (Refused, StorageError, OSError) as error:
            log.error("stream %r: what its former upstream said could not be taken: %s", name, error)
            self._again(name, now_s)  # and it is answered again
        else:
            self.drop_all_of(name)

    def failed(self, number: int, now_s: float) -> None:
        """The claim of this number could not be heard."""
        self._again(self._asked.pop(number, None), now_s)

    def _again(self, name: bytes | None, now_s: float) -> None:
        if name in self._due_s:
            self._due_s[name] = now_s + CLAIM_RETRY_S
