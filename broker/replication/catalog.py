"""The names of all streams of the node, for other nodes that follow whatever begins with a prefix.

Each owner is asked for what its worker has not heard yet, as soon as the board shows that it has more. Names come in
the order in which the owner learnt them, so "not heard yet" is a place in that order; it counts for one owner only.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.owner import Owner, Refused
from broker.protocol.messages import pack
from broker.protocol.replication import NAMES_MAX, Names
from shard.names import base_of, is_reserved

if TYPE_CHECKING:
    from broker.binary_client import BinaryClient
    from broker.worker import Worker

Args = list[Any]

NAMES_A_CALL = 4_096
SCANNED_A_TICK = 16_384
"""Names that are looked at for one watch in one tick."""
UNSENT_MAX_BYTES = 256 << 10
"""A connection with more unsent than this gets no names for now."""


def names(owner: Owner, args: Args) -> list[Any]:
    """[of which owner, from which place] -> [owner, place, names from there]: a verb of `broker.owner_calls`.

    From the beginning, where the place is not this owner's.
    """
    known, start = args
    if known != owner.incarnation:
        start = 0
    return [owner.incarnation, start, list(islice(owner.names, start, start + NAMES_A_CALL))]


class Watch:
    """`place`: of the next name to look at, among all that the worker knows."""

    __slots__ = ("client", "number", "place", "prefix")

    def __init__(self, client: BinaryClient, number: int, prefix: bytes) -> None:
        self.client = client
        self.number = number
        self.prefix = prefix
        self.place = 0


class Catalog:
    """One a worker. It asks and keeps nothing until somebody watches."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._names: list[bytes] = []
        self._known: set[bytes] = set()
        self._heard: dict[int, tuple[int, int]] = {}  # by slot: of which owner, how many
        self._asking: set[int] = set()
        self._watches: dict[tuple[BinaryClient, bytes], Watch] = {}

    def watch(self, client: BinaryClient, number: int, prefix: bytes) -> None:
        """From the beginning, also where the client watches this prefix already, by another number then."""
        self._watches[client, prefix] = Watch(client, number, prefix)
        self.tick()

    def forget(self, client: BinaryClient) -> None:
        for key in [key for key in self._watches if key[0] is client]:
            del self._watches[key]

    @property
    def watched(self) -> bool:
        """Whether anybody wants to hear of new streams, and so whether `tick` has anything to look for."""
        return bool(self._watches)

    def tick(self) -> None:
        if not self._watches:
            return
        for slot in self._worker.board:
            if slot.index not in self._asking and slot.streams > self._heard.get(slot.index, (0, 0))[1]:
                self._ask(slot.index)
        for watch in self._watches.values():
            self._serve(watch)

    def _ask(self, slot: int) -> None:
        self._asking.add(slot)
        owner, count = self._heard.get(slot, (0, 0))
        self._worker.router.call_slot(slot, "names", [owner, count], lambda value: self._answered(slot, value))

    def _answered(self, slot: int, value: Any) -> None:
        self._asking.discard(slot)
        if isinstance(value, Refused):
            return  # asked again at the next tick
        owner, start, found = value
        self._heard[slot] = owner, start + len(found)
        for name in found:
            if name not in self._known and not is_reserved(base_of(name)):
                self._known.add(name)
                self._names.append(name)

    def _serve(self, watch: Watch) -> None:
        client = watch.client
        end = min(len(self._names), watch.place + SCANNED_A_TICK)
        while watch.place < end and len(client.out) < UNSENT_MAX_BYTES:
            found: list[bytes] = []
            while watch.place < end and len(found) < NAMES_MAX:
                name = self._names[watch.place]
                watch.place += 1
                if base_of(name).startswith(watch.prefix):
                    found.append(name)
            if found:
                client.say(pack(Names(watch.number, tuple(found))))
