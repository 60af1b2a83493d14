"""An operator who follows docs/operations.md, and sees only the nodes that can be reached from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.shard.names import cursor_name
from tests.system.node import LineClient, rows
from tests.system.tree_node import PORT, Tree

PATIENCE_S = 8.0  # for an answer
TABLES = ("stat", "streams", "help", "consumers")  # commands
PATH_MAX = 8  # nodes from a slave up to its master


class Failed(Exception):
    """A command was refused, or had no answer in time; the text gives the reason."""


class Copy(NamedTuple):
    """What a node has of a stream."""

    last_epoch: int
    last_master: str
    next_seq: int
    epoch: int
    role: str = ""
    upstream: str = ""

    def is_ahead_of(self, other: Copy) -> bool:
        """By docs/operations.md, "Which slave has most?"."""
        named = bool(self.last_master and other.last_master)
        if self.last_epoch != other.last_epoch or not named:
            return (self.last_epoch, self.next_seq) > (other.last_epoch, other.next_seq)
        return (self.last_master, self.next_seq) > (other.last_master, other.next_seq)


NOTHING = Copy(0, "", 0, 0)


def most(copies: Mapping[str, Copy]) -> str:
    """The first node that has as much as any."""
    best, *others = copies
    for name in others:
        if copies[name].is_ahead_of(copies[best]):
            best = name
    return best


class Operator:
    """`replicas`: the number of slaves that have messages acknowledged as replicated. `deleted`: streams that are
    deleted and made again; a node may not know them.
    """

    def __init__(self, tree: Tree, streams: Sequence[str], replicas: int, deleted: Sequence[str] = ()) -> None:
        self.tree = tree
        self.streams = list(streams)
        self.deleted = list(deleted)
        self.heirs = dict.fromkeys((*streams, *deleted), tree.top)
        """The node that was promoted last, for each stream."""
        self.is_sure = True
        """Whether no other nodes can have been promoted out of sight of those: most nodes were seen."""
        self.unfinished = False
        """Whether a failover was begun and not brought to its end."""
        self.is_split = False
        """Whether streams were promoted one by one, on several nodes: then nobody has said where new ones belong."""
        self._needed = len(tree.nodes) - replicas
        self._has_fence: bool | None = None

    def sees_enough(self, reached: Sequence[str]) -> bool:
        """Whether one of these nodes has everything that was acknowledged as replicated, with any others away."""
        return len(reached) >= self._needed

    def fail_over(self, reached: Sequence[str]) -> str:
        """Promote the best of these nodes for each stream, and let the others follow it; returns a description.

        Raises Failed when too few of them answer, or a command fails. If `unfinished` is true then, it has to be done
        again: a node that was fenced acknowledges nothing until it learns of a new master.
        """
        answering = [name for name in reached if self.answers(name)]
        if not self.sees_enough(answering):
            raise Failed(f"too few nodes are reached: {answering}")
        self.unfinished = True
        heirs = {stream: self._fence(stream, answering) for stream in self.streams}
        first = heirs[self.streams[0]]
        for stream in self.deleted:
            known = [name for name in answering if self.look(name, stream) != NOTHING]
            known.sort(key=lambda name: name != first)  # of equal copies that one, so that all streams stay together
            heirs |= {stream: self._fence(stream, known)} if known else {}
        self.is_split = len(set(heirs.values())) > 1
        self.is_sure = 2 * len(answering) > len(self.tree.nodes)
        self.heirs |= dict.fromkeys(self.deleted, first) | heirs
        if not self.is_split:
            self._promote("*", first, answering)
        else:
            for stream, heir in heirs.items():
                self._promote(stream, heir, answering)
        self.unfinished = False
        return f"promoted {heirs}, seen {answering}"

    def _fence(self, stream: str, reached: Sequence[str]) -> str:
        """Let these nodes acknowledge nothing of an earlier term any more; the one that has most of the stream, and of
        those that have, most of the state of its consumers.
        """
        copies = {name: self.look(name, stream) for name in reached}
        if self.has_fence(reached[0]):
            epoch = max(copy.epoch for copy in copies.values()) + 1
            for name in reached:
                self._fence_at(name, stream, epoch)
            copies = {name: self.look(name, stream) for name in reached}
        best = most(copies)
        as_good = [name for name in reached if not copies[best].is_ahead_of(copies[name])]
        consumers = cursor_name(stream.encode()).decode()
        return most({name: self.look(name, consumers) for name in as_good})

    def _fence_at(self, name: str, stream: str, epoch: int) -> None:
        """Raises Failed, but not if the node's copy was deleted in this moment."""
        try:
            self.command(name, f"fence {stream} {epoch}")
        except Failed as error:
            if stream not in self.deleted or "err unknown" not in str(error):
                raise

    def _promote(self, stream: str, heir: str, reached: Sequence[str]) -> None:
        self.command(heir, f"promote {stream}")
        for name in reached:
            if name != heir:
                self.command(name, f"slave {self.tree.nodes[heir].host} {PORT} {stream} 0")

    def all_is_healed(self, master: str) -> None:
        """Every node follows the same master. "": they do not."""
        self.is_sure = bool(master)
        self.heirs = dict.fromkeys(self.heirs, master)

    def tell_returned(self, names: Sequence[str]) -> None:
        """Let every node follow the master for streams that are made later, too. Raises Failed."""
        master = next(name for name in names if self.look(name, self.streams[0]).role == "master")
        for name in names:
            if name != master:
                self.command(name, f"slave {self.tree.nodes[master].host} {PORT} * 0")

    def re_parent(self, name: str, parent: str, reached: Sequence[str]) -> bool:
        """Let a slave follow another node, unless that would be below it; whether it was done. Raises Failed."""
        if name not in reached or parent not in reached:
            return False
        for stream in self.streams:
            if self.look(name, stream).role != "slave" or not self._is_clear(stream, parent, name, reached):
                return False
        if any(self.look(name, stream).role == "master" for stream in self.deleted):
            return False
        self.command(name, f"slave {self.tree.nodes[parent].host} {PORT} * 0")
        return True

    def _is_clear(self, stream: str, start: str, name: str, reached: Sequence[str]) -> bool:
        """Whether the way up from `start` is seen up to a master, and does not come by `name`."""
        by_address = {node.address: each for each, node in self.tree.nodes.items()}
        for _ in range(PATH_MAX):
            if start == name or start not in reached:
                return False
            copy = self.look(start, stream)
            if copy.role == "master":
                return True
            start = by_address.get(copy.upstream, "")
        return False

    def look(self, name: str, stream: str) -> Copy:
        """The output of `stat`; NOTHING if the node does not know the stream."""
        answer = self._ask(name, f"stat {stream}")
        if answer[0].startswith("err unknown"):
            return NOTHING
        if answer[0].startswith("err "):
            raise Failed(f"{name}: stat {stream}: {answer[0]}")
        found = {field: value for field, _space, value in (line.partition(" ") for line in answer[1:-1])}
        epoch = int(found["epoch"])
        last_epoch = int(found.get("last_epoch", epoch))
        last_master = found.get("last_master", "")
        return Copy(last_epoch, last_master, int(found["next_seq"]), epoch, found["role"], found.get("upstream", ""))

    def answers(self, name: str) -> bool:
        """Whether the node serves."""
        try:
            return self._ask(name, "ping") == ["ok pong"]
        except Failed:
            return False

    def roles(self, name: str) -> dict[str, str]:
        """What the node is to each stream."""
        return {row["stream"]: row["role"] for row in rows(self._ask(name, "streams"))}

    def consumers(self, name: str, stream: str) -> set[str]:
        """The names of the stream's consumers; none if the node does not know the stream. Raises Failed."""
        answer = self._ask(name, f"consumers {stream}")
        if answer[0].startswith("err unknown"):
            return set()
        if answer[0].startswith("err "):
            raise Failed(f"{name}: consumers {stream}: {answer[0]}")
        return {row["consumer"] for row in rows(answer)}

    def has_fence(self, name: str) -> bool:
        if self._has_fence is None:
            self._has_fence = any(
                "`fence " in line or line.split()[:1] == ["fence"] for line in self._ask(name, "help")
            )
        return self._has_fence

    def publish(self, name: str, stream: str) -> None:
        """One message, by a client of this node. Raises Failed."""
        answer = self._ask(name, f"pub {stream} |from {name}", "ack on")[-1]
        if not answer.startswith(f"ok pub {stream} "):
            raise Failed(f"{name}: pub {stream}: {answer}")

    def command(self, name: str, line: str) -> str:
        """The answer to a command of one line. Raises Failed."""
        answer = self._ask(name, line)[0]
        if not answer.startswith("ok "):
            raise Failed(f"{name}: {line}: {answer}")
        return answer

    def _ask(self, name: str, line: str, before: str = "") -> list[str]:
        """All lines of the answer: a table ends in `.`, anything else is one line. `before`: a line to send first."""
        is_table = line.split()[0] in TABLES

        def asked() -> list[str]:
            with LineClient(PORT) as client:
                if before:
                    client.ask(before)
                    client.answers.clear()
                client.send(line)
                client.read_until(lambda: _is_whole(client.answers, is_table), PATIENCE_S)
                return client.answers

        try:
            return self.tree.nodes[name].machine.within(asked)
        except (OSError, AssertionError) as error:
            raise Failed(f"{name}: {line}: {error!r}") from None


def _is_whole(answers: list[str], is_table: bool) -> bool:
    return bool(answers) and (not is_table or answers[-1] == "." or answers[0].startswith("err "))
