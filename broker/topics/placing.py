"""Places the messages of one read in the streams in which their names lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rules import Placed, TopicRules
from tailrace.broker.topics.stamping import UnstampableFrame, each_frame, in_order, with_topic
from tailrace.protocol.commands import Staged
from tailrace.protocol.errors import Code


class _ReadGroup(NamedTuple):
    """One group of the read: the group of the outcome that it goes to, its messages and their frames."""

    target: int
    messages: int
    frames: bytearray


def place_staged(
    rules: TopicRules, staged: Staged, refusal: Callable[[Placed], Refused | None]
) -> tuple[Staged, dict[int, Refused]]:
    """The same messages with a group for each stream and one for each name that is refused, and the refusals by group.

    `staged.order` is needed: the messages of a stream keep their order.
    """
    names: list[bytes] = []
    targets: dict[bytes, int] = {}
    denied: dict[int, Refused] = {}
    sources: list[_ReadGroup] = []
    for name, count, frames in staged.groups:
        placed = rules.place(name)
        refused = refusal(placed)
        if refused is None and placed.topic:
            try:
                frames = with_topic(frames, placed.topic)
            except UnstampableFrame as error:
                if count > 1:  # the others of the name need not be refused
                    return place_staged(rules, _apart(staged), refusal)
                refused = Refused(Code.TOPIC, str(error))
        if refused is not None:
            denied[len(names)] = refused
            sources.append(_ReadGroup(len(names), count, frames))
            names.append(name)
            continue
        target = targets.setdefault(placed.stream, len(names))
        if target == len(names):
            names.append(placed.stream)
        sources.append(_ReadGroup(target, count, frames))
    groups = _gathered(names, sources, staged.order)
    return Staged(groups, [sources[index].target for index in staged.order]), denied


def _apart(staged: Staged) -> Staged:
    """The same with a group for each message."""
    rests = [each_frame(frames) for _name, _count, frames in staged.groups]
    groups = [(staged.groups[key][0], 1, bytearray(next(rests[key]))) for key in staged.order]
    return Staged(groups, list(range(len(groups))))


def _gathered(names: list[bytes], sources: list[_ReadGroup], order: list[int]) -> list[tuple[bytes, int, bytearray]]:
    """The sources by target; those of one target in the order of their messages."""
    by_target: list[list[int]] = [[] for _name in names]
    for index, source in enumerate(sources):
        by_target[source.target].append(index)
    orders: dict[int, list[int]] = {target: [] for target, several in enumerate(by_target) if len(several) > 1}
    places = {index: place for several in by_target for place, index in enumerate(several)}
    for index in order if orders else ():
        if (wanted := orders.get(sources[index].target)) is not None:
            wanted.append(places[index])
    groups = []
    for target, several in enumerate(by_target):
        frames = [sources[index].frames for index in several]
        joined = in_order(frames, orders[target]) if target in orders else frames[0]
        groups.append((names[target], sum(sources[index].messages for index in several), joined))
    return groups
