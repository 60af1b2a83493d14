"""Streams that a nemesis deletes while they are published to, and the checks that nothing of them is left.

The publishers make them again. A deletion is final if it was answered, at the node that was promoted last, in sight of
most nodes, and if no failover followed before everything was healed: a copy that missed the deletion of its stream may
be promoted, and then the stream is there again. After a final deletion, once everything is healed:

- no node has a message that was acknowledged before it, nor a consumer that was created before it;
- the master of a stream of that name is in a later term;
- a message that was acknowledged as replicated after it is in the log at the acknowledged seq, so no producer of the
  former stream was taken for one of the new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.system.nemesis_operator import Failed, Operator
from tests.system.tree_ledger import Fate, Names, Sent
from tests.system.tree_load import BURST_MOST

DELETED = ("d0", "d1")


class Deletion(NamedTuple):
    """One that was answered. `epoch`: the stream's before; `names`: its messages that were acknowledged before."""

    stream: str
    epoch: int
    names: frozenset[str]
    consumer: str


class Deletions:
    """All of a round. `sent` returns the results of all messages so far."""

    def __init__(self, operator: Operator, sent: Callable[[], list[Sent]]) -> None:
        self.final: list[Deletion] = []
        self.answered = 0
        self.placed = True
        """Whether somebody has said at which node new streams belong, when all was healed last."""
        self._operator = operator
        self._sent = sent
        self._perhaps: list[Deletion] = []  # final unless a failover comes before all is healed
        self._unclear: set[str] = set()
        """Streams of which nobody knows, before all is healed, which messages are kept."""
        self._floors: dict[tuple[str, str], int] = {}
        self._count = 0

    def delete(self, reached: Sequence[str]) -> str:
        """Delete each stream whose master is reached, with a consumer; returns a description. Raises Failed."""
        found = [f"{stream} at {self._delete(stream, name)}" for stream, name in self._masters(reached)]
        return f"deleted {', '.join(found)}" if found else "no master is reached"

    def _masters(self, reached: Sequence[str]) -> list[tuple[str, str]]:
        roles = {name: self._operator.roles(name) for name in reached if self._operator.answers(name)}
        return [(stream, name) for stream in DELETED for name in roles if roles[name].get(stream) == "master"]

    def _delete(self, stream: str, name: str) -> str:
        self._count += 1
        consumer = f"c{self._count}"
        self._operator.command(name, f"consume {stream} {consumer} #0")
        epoch = self._operator.look(name, stream).epoch
        before = self._sent()
        names = {each.name for each in before if each.stream == stream and each.fate is Fate.ACKNOWLEDGED}
        try:
            self._operator.command(name, f"delete {stream}")
        except Failed:
            self._unclear.add(stream)  # it may be done later
            raise
        self.answered += 1
        operator = self._operator
        if operator.unfinished or not operator.is_sure or operator.heirs[stream] != name:
            self._unclear.add(stream)  # another node may be its master
        else:
            self._perhaps.append(Deletion(stream, epoch, frozenset(names), consumer))
            self._raise_floor(stream)
        return name

    def failing_over(self) -> None:
        """A failover has begun: it may promote a copy that missed a deletion."""
        self._unclear.update(each.stream for each in self._perhaps)
        self._perhaps.clear()

    def healed(self, master: str) -> None:
        """Everything is healed, and each node follows this one for all streams. "": nobody has said which."""
        self.placed = bool(master)
        self._operator.all_is_healed(master)
        if not master:
            self.failing_over()
            self._unclear.update(DELETED)
            return  # until somebody says it
        for stream in self._unclear:
            self._raise_floor(stream)
        self._unclear.clear()
        self.final += self._perhaps
        self._perhaps.clear()

    def _raise_floor(self, stream: str) -> None:
        """All messages that were sent to the stream so far, or are under way, may be lost."""
        for message in self._sent():
            key = message.publisher, stream
            self._floors[key] = max(self._floors.get(key, 0), message.number + BURST_MOST)

    def as_promised(self, message: Sent) -> Sent:
        """A message that may have been deleted: its acknowledgement promises nothing."""
        floor = self._floors.get((message.publisher, message.stream), -1)
        is_unclear = message.number <= floor or message.stream in self._unclear
        if message.fate is Fate.ACKNOWLEDGED and is_unclear:
            return message._replace(fate=Fate.UNKNOWN, seq=-1)
        return message

    def faults(self, names: Sequence[str]) -> list[str]:
        """Remains of deleted streams at the healed nodes of these names. Raises Failed."""
        found = []
        for stream in {each.stream for each in self.final}:
            deleted = [each for each in self.final if each.stream == stream]
            for name in names:
                copy = self._operator.look(name, stream)
                epoch = max(each.epoch for each in deleted)
                if copy.role != "master":  # a slave learns both from it
                    continue
                if copy.epoch <= epoch:
                    found.append(f"{name} has {stream} in term {copy.epoch}, and it was deleted in term {epoch}")
                kept = self._operator.consumers(name, stream) & {each.consumer for each in deleted}
                if kept:
                    found.append(f"{name} has consumers {kept} of {stream}, which was deleted since")
        return found

    def faults_of_logs(self, node: str, logs: Names) -> list[str]:
        """Messages in these logs that were deleted."""
        return [
            f"{node}: {deletion.stream} has {name} as {seq}, which was deleted in term {deletion.epoch}"
            for deletion in self.final
            for seq, name in logs.get(deletion.stream, {}).items()
            if name in deletion.names
        ]
