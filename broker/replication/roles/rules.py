"""Which streams this node follows at another one, by name: the rules of `slave *`, `slave log.*` and of [[slave]].

A pattern is `*`, a prefix and `*`, a group of streams, or one stream's name. Of two patterns without a group one covers
the other or no stream has both: so the rules of commands, each put in front of those that it does not replace, stand
with the narrower first; of a group and a prefix the later one counts. A command counts before the configuration, and a
stream's own .meta before both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple

from tailrace.broker.process.settings import SlaveRule
from tailrace.broker.replication.roles.peers import NodeAddress
from tailrace.protocol.address import split_address
from tailrace.protocol.grammar import place
from tailrace.protocol.names import may_share, stream_group
from tailrace.shard.meta import Upstream
from tailrace.shard.names import group_key, is_never_copied

RULES_MAX: Final = 1_000
"""Rules of commands that a node keeps; each is tried in turn when a stream's role is asked for."""


class Rule(NamedTuple):
    """Streams that match follow `upstream`, or none if it is None: those are this node's own.

    `others`: the nodes to follow if that one is lost, in the order in which they are tried. `on_demand`: a stream is
    copied only while it is read here.
    """

    pattern: bytes
    upstream: Upstream | None
    others: tuple[NodeAddress, ...] = ()
    on_demand: bool = False

    @property
    def addresses(self) -> tuple[NodeAddress, ...]:
        return () if self.upstream is None else (self.upstream[:2], *self.others)


class TooManyRules(Exception):
    """The node has RULES_MAX rules, and this would be another one; the text gives the cure."""


def is_pattern(name: bytes) -> bool:
    """Whether a command that names this is for all streams that begin so, or of a group, not for one."""
    return name.endswith(b"*") or stream_group(name) is not None


def prefix_of(pattern: bytes) -> bytes:
    """What the names of all streams of a pattern begin with."""
    return b"" if stream_group(pattern) is not None else pattern.removesuffix(b"*")


def covers(pattern: bytes, other: bytes) -> bool:
    """Whether every stream of `other`, a name or a pattern too, is one of `pattern`."""
    group = stream_group(pattern)
    if group is not None:
        return other == pattern or (not is_pattern(other) and group_key(other) % group.groups == group.number)
    if is_pattern(pattern):
        return prefix_of(other).startswith(pattern[:-1])
    return pattern == other


def _may_share(pattern: bytes, other: bytes) -> bool:
    """Whether a stream can be of both."""
    group, another = stream_group(pattern), stream_group(other)
    if group is None and another is None:
        return may_share(pattern, other)
    return group is None or another is None or group.groups != another.groups or group == another


def configured(sections: Iterable[SlaveRule]) -> tuple[Rule, ...]:
    """The [[slave]] sections as rules. ValueError or PeerError for what `supervisor.config` would not have taken."""
    return tuple([_rule(each) for each in sections])


@dataclass(frozen=True, slots=True)
class Rules:
    """Those of commands, which are kept in the data directory, and those of the configuration.

    `former`: patterns of sections that the configuration had once. Their streams follow nobody now, but do not
    become masters by that: another node is, and only a command can declare that this has changed.
    """

    commands: tuple[Rule, ...] = ()
    configured: tuple[Rule, ...] = ()
    former: tuple[bytes, ...] = ()

    def match(self, name: bytes) -> Rule | None:
        """The rule for the stream `name`, or None. The broker's own streams have none, but for the logs of sessions."""
        if is_never_copied(name):
            return None
        for rule in self.commands:
            if covers(rule.pattern, name):
                return rule
        for rule in self.configured:
            if covers(rule.pattern, name):
                return rule
        return None

    def addresses(self, name: bytes, upstream: Upstream | None) -> tuple[NodeAddress, ...]:
        """The nodes of which a stream with this upstream follows one: that first, then those listed with it."""
        if upstream is None:
            return ()
        rule = self.match(name)
        first, listed = upstream[:2], () if rule is None else rule.addresses
        return (first, *(each for each in listed if each != first)) if first in listed else (first,)

    @property
    def has_on_demand(self) -> bool:
        """Whether some streams are copied only while they are read here."""
        return any(rule.on_demand for rule in self.commands)

    def on_demand_test(self) -> Callable[[bytes], bool]:
        """Whether a stream is, if it follows another node. Fast for very many names if all rules are of groups."""
        if not self.has_on_demand:
            return lambda _name: False
        of_group = {
            group: rule.on_demand for rule in self.commands if (group := stream_group(rule.pattern)) is not None
        }
        counts = {group.groups for group in of_group}
        if len(of_group) < len(self.commands) or len(counts) > 1 or self.configured:
            return self._is_on_demand
        (count,), by_number = counts, {group.number: on_demand for group, on_demand in of_group.items()}
        return lambda name: by_number.get(group_key(name) % count, False) and not is_never_copied(name)

    def groups_on_demand(self) -> Iterator[int]:
        """The numbers of the groups whose streams are; 0 if all are."""
        for rule in self.commands:
            group = stream_group(rule.pattern) if rule.on_demand else None
            if rule.on_demand and (group is not None or rule.pattern == b"*"):
                yield 0 if group is None else group.number

    def _is_on_demand(self, name: bytes) -> bool:
        rule = self.match(name)
        return rule is not None and rule.on_demand

    @property
    def listed(self) -> Iterator[NodeAddress]:
        """Nodes that streams follow by the configuration, or may follow."""
        return chain.from_iterable(rule.addresses for rule in self.configured)

    def is_orphan(self, name: bytes) -> bool:
        """Whether the stream `name` followed another node by a section of the configuration that is gone."""
        return any(covers(pattern, name) for pattern in self.former) and self.match(name) is None

    def with_rule(self, rule: Rule) -> Rules:
        """These with one more, in front; those that it covers are gone. Raises TooManyRules.

        One without an upstream is left out if no other rule gives one: a rule that is taken back leaves no trace.
        """
        kept = tuple([each for each in self.commands if not covers(rule.pattern, each.pattern)])
        if rule.upstream is not None or self._is_changed_by(kept, rule.pattern):
            kept = (rule, *kept)
        if len(kept) > RULES_MAX:
            raise TooManyRules(f"this node has {RULES_MAX} rules for slaves; take some back, or give a shorter prefix")
        former = tuple([pattern for pattern in self.former if not covers(rule.pattern, pattern)])
        return replace(self, commands=kept, former=former)

    def _is_changed_by(self, kept: tuple[Rule, ...], pattern: bytes) -> bool:
        """Whether some stream of `pattern` would follow another node by the remaining rules."""
        for rule in (*kept, *self.configured):
            if covers(rule.pattern, pattern):
                return rule.upstream is not None
            if rule.upstream is not None and _may_share(pattern, rule.pattern):
                return True
        return False


def _rule(section: SlaveRule) -> Rule:
    pattern, nodes = section.streams.encode(), [split_address(each) for each in section.upstream]
    return (
        Rule(pattern, Upstream(*nodes[0], *place(section.start.encode())), tuple(nodes[1:]))
        if nodes
        else Rule(pattern, None)
    )
