"""How the consumers of one stream stand, in a few numbers that stay true for some time. Pure.

The state of consumers changes when somebody asks for them, when the stream grows, and as time passes. So that their log
need not be read for each measurement, a survey holds how the numbers go on by themselves, and until when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tailrace.broker.consumers.state.consumer import DurableConsumer
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.process.settings import StreamPolicy
from tailrace.shard.epochs import NEVER_SEQ

MICROSECONDS: Final = 1_000_000
SOON: Final = 0.75
"""Of `consumer_max_age_s`: who was idle for so long is about to be abandoned."""


class LagPolicy(NamedTuple):
    """The parts of a policy that a survey depends on. `max_us`: 0 if no consumer is ever abandoned."""

    spares: bool
    max_us: int

    @classmethod
    def of(cls, policy: StreamPolicy) -> LagPolicy:
        return cls(policy.spare_consumers, policy.consumer_max_age_s * MICROSECONDS)


class IdleCounts(NamedTuple):
    """How many of some consumers are about to be abandoned, and how many have been."""

    soon: int = 0
    abandoned: int = 0


class LagSnapshot(NamedTuple):
    """A survey of a stream that ended before `next_seq`; true until `until_us`, while nobody asks for its consumers.

    `lag_messages`: of the one furthest behind; `floor_seq`: the first message that is not finished by all; `behind`: of
    those with messages that they have not finished; `everyone`: of all. `spared_seq`: the first message that a consumer
    needs which is not abandoned, None if no consumer needs any.
    """

    rules: LagPolicy
    next_seq: int
    until_us: int
    consumers: int
    lag_messages: int
    floor_seq: int
    behind: IdleCounts
    everyone: IdleCounts
    spared_seq: int | None

    def holds(self, rules: LagPolicy, now_us: int) -> bool:
        return self.rules == rules and now_us < self.until_us

    def lag_at(self, next_seq: int) -> int:
        """That of the one furthest behind, where the stream ends there now."""
        return self.lag_messages + max(0, next_seq - self.next_seq) if self.consumers else 0

    def idle_at(self, next_seq: int) -> IdleCounts:
        """Counts of the consumers that are behind then: all, once there are messages that nobody was given."""
        return self.everyone if next_seq > self.next_seq else self.behind


def seen_us(consumer: DurableConsumer) -> int:
    """When it was made, or a member of it asked last."""
    return max(consumer.last_us, *(member.seen_us for member in consumer.members.values()), 0)


def survey(consumers: ConsumerTable, next_seq: int, rules: LagPolicy, now_us: int) -> LagSnapshot:
    """Measure all consumers of one stream, which ends before `next_seq`."""
    each = list(consumers.by_name.values())
    lags = [consumer.lag_messages(next_seq) for consumer in each]
    seen = [seen_us(consumer) for consumer in each]
    kept = [one.spare_seq for one, at_us in zip(each, seen, strict=True) if not 0 < rules.max_us < now_us - at_us]
    return LagSnapshot(
        rules,
        next_seq,
        min([consumers.next_alarm_us() or NEVER_SEQ, *_turns(seen, rules, now_us)]),
        len(each),
        max(lags, default=0),
        min((consumer.floor_seq for consumer in each), default=next_seq),
        _idle([at_us for at_us, lag in zip(seen, lags, strict=True) if lag], rules, now_us),
        _idle(seen, rules, now_us),
        min(kept, default=None),
    )


def _turns(seen: Iterable[int], rules: LagPolicy, now_us: int) -> list[int]:
    """When each that is not abandoned is next reported as soon abandoned, or abandoned."""
    waits = (int(SOON * rules.max_us), rules.max_us) if rules.max_us else ()
    return [at_us + wait + 1 for at_us in seen for wait in waits if at_us + wait >= now_us]


def _idle(seen: Sequence[int], rules: LagPolicy, now_us: int) -> IdleCounts:
    if not (rules.spares and rules.max_us):
        return IdleCounts()
    abandoned = sum(now_us - at_us > rules.max_us for at_us in seen)
    return IdleCounts(sum(now_us - at_us > SOON * rules.max_us for at_us in seen) - abandoned, abandoned)
