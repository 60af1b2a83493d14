"""Which messages a durable session has under way: runs of seqs, one after the other, as they were given identifiers.

With their identifiers they are known again when another connection goes on with the session, and are read from their
streams to be sent again ([MQTT-4.4.0-1]).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tailrace.broker.connection.mqtt.window import IDS
from tailrace.protocol.mqtt.publishes import PublishForm
from tailrace.shard.epochs import NEVER_SEQ
from tailrace.shard.replacing import replaceable

QOS_STEPWISE: Final = 2
RUNS_KEPT: Final = 1_024
"""From more than these on, runs of acknowledged messages between others are looked for: they take room in a record."""


@replaceable
class SentRun(NamedTuple):
    """Messages of a stream with the identifiers from `first_id` on, in the form of one subscription."""

    first_id: int
    stream: bytes
    qos: int
    subscription_id: int
    retain: int
    seqs: Sequence[int]

    def form(self, version: int, packet_bytes_max: int) -> PublishForm:
        return PublishForm(version, self.qos, self.subscription_id, b"", packet_bytes_max, self.retain)

    def id_at(self, place: int) -> int:
        return (self.first_id + place - 1) % IDS + 1


class InFlight:
    """`runs`: those with a message that is not acknowledged, and those between them."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: deque[SentRun] = deque()

    def add(self, first_id: int, stream: bytes, form: PublishForm, seqs: array[int]) -> None:
        """These messages have been sent, with the identifiers from `first_id` on."""
        is_even = seqs[-1] - seqs[0] == len(seqs) - 1
        made = SentRun(first_id, stream, form.qos, form.subscription_id, form.retain, seqs)
        if is_even:
            made = made._replace(seqs=range(seqs[0], seqs[-1] + 1))
        last = self.runs[-1] if self.runs else None
        if last is not None and is_even and last[1:5] == made[1:5] and _follows(last, made):
            self.runs[-1] = last._replace(seqs=range(last.seqs[0], seqs[-1] + 1))
        else:
            self.runs.append(made)

    def forget_before(self, first_id: int) -> None:
        """All messages before the one with this identifier are acknowledged."""
        while self.runs and (first_id - self.runs[0].first_id) % IDS >= len(self.runs[0].seqs):
            self.runs.popleft()

    def forget_acknowledged(self, holds: Callable[[int], bool]) -> None:
        """Forget runs without a message that `holds` names by its identifier, if there are many."""
        if len(self.runs) > RUNS_KEPT:
            kept = (run for run in self.runs if any(holds(run.id_at(place)) for place in range(len(run.seqs))))
            self.runs = deque(kept)

    def export_state(self) -> list[Any]:
        return [[*run[:5], _packed(run.seqs)] for run in self.runs]

    def restore_state(self, state: list[Any]) -> None:
        self.runs = deque(
            SentRun(first_id, stream, qos, subscription_id, retain, _unpacked(seqs))
            for first_id, stream, qos, subscription_id, retain, seqs in state
        )


def _follows(last: SentRun, made: SentRun) -> bool:
    is_range = isinstance(last.seqs, range)
    return is_range and last.seqs[-1] + 1 == made.seqs[0] and last.id_at(len(last.seqs)) == made.first_id


def _packed(seqs: Sequence[int]) -> list[int]:
    """[first seq, how many] of a range, else the first seq, -1, and the steps from each to the next."""
    if isinstance(seqs, range):
        return [seqs[0], len(seqs)]
    return [seqs[0], -1, *(after - before for before, after in pairwise(seqs))]


def _unpacked(fields: Sequence[int]) -> Sequence[int]:
    first, count, *steps = fields
    if count >= 0:
        return range(first, first + count)
    seqs = array("Q", [first])
    for step in steps:
        seqs.append(seqs[-1] + step)
    return seqs


def sent_again(runs: Iterable[SentRun], partings: Mapping[bytes, int]) -> dict[bytes, int]:
    """By stream, the seq behind the last message of QoS 2 that is sent again: those from a parting on are not."""
    ends: dict[bytes, int] = {}
    for run in runs:
        parting = partings.get(run.stream, NEVER_SEQ)
        if run.qos == QOS_STEPWISE and run.seqs[0] < parting:
            ends[run.stream] = max(min(run.seqs[-1] + 1, parting), ends.get(run.stream, 0))
    return ends
