"""A survey that still holds gives the same result as one made later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.lag import SOON, IdleCounts, LagPolicy, seen_us, survey
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.process.settings import StreamPolicy
from tests.broker.consumers.stream import Stream, asking

NOW_US = 10**15
MAX_US = 1_000_000_000


def made(stream: Stream, *ages_us: int) -> ConsumerTable:
    """Consumers of these ages; every second one has finished all, every third has some in flight."""
    consumers = ConsumerTable()
    for number, age_us in enumerate(ages_us):
        name, at_us = b"c%d" % number, NOW_US - age_us
        decide.create(consumers, name, stream.next_seq if number % 2 else 0, stream, at_us, 10_000_000)
        if number % 3 == 2:
            decide.get(consumers, asking(name, b"m", max_messages=2), stream, at_us)
    return consumers


AGES = st.lists(st.integers(0, 2 * MAX_US), max_size=6)
RULES = st.builds(LagPolicy, st.booleans(), st.sampled_from((0, MAX_US)))


@given(AGES, RULES, st.integers(0, 3), st.integers(0, 2 * MAX_US))
def test_what_holds_is_what_would_be_found(ages_us: list[int], rules: LagPolicy, grown: int, later_us: int) -> None:
    stream = Stream(5)
    consumers = made(stream, *ages_us)
    before = survey(consumers, 5, rules, NOW_US)
    now_us, next_seq = NOW_US + later_us, 5 + grown
    after = survey(consumers, next_seq, rules, now_us)
    if not before.holds(rules, now_us):
        return
    assert before.lag_at(next_seq) == after.lag_messages
    assert before.idle_at(next_seq) == after.behind
    assert (before.consumers, before.spared_seq, before.everyone) == (after.consumers, after.spared_seq, after.everyone)
    if ages_us:
        assert before.floor_seq == after.floor_seq


@given(AGES, RULES)
def test_it_holds_until_something_is_due(ages_us: list[int], rules: LagPolicy) -> None:
    """A moment before that nothing is; so a consumer that nobody asks for is looked at a few times, and no more."""
    stream = Stream(5)
    consumers = made(stream, *ages_us)
    found = survey(consumers, 5, rules, NOW_US)
    due = [run.deadline_us for each in consumers.by_name.values() for run in each.flight]
    seen = [seen_us(each) for each in consumers.by_name.values()]
    turns = [at_us + wait + 1 for at_us in seen for wait in (int(SOON * rules.max_us), rules.max_us) if rules.max_us]
    assert found.until_us == min([*due, *(turn for turn in turns if turn > NOW_US)], default=found.until_us)
    assert due or turns or found.until_us > 10**18


def test_other_rules_are_other_surveys() -> None:
    found = survey(made(Stream(5), 0), 5, LagPolicy.of(StreamPolicy()), NOW_US)
    assert found.holds(LagPolicy.of(StreamPolicy()), NOW_US)
    assert not found.holds(LagPolicy.of(StreamPolicy(spare_consumers=True)), NOW_US)


def test_who_is_behind_counts_and_all_are_when_the_stream_has_grown() -> None:
    old = survey(made(Stream(5), 2 * MAX_US, 2 * MAX_US), 5, LagPolicy(True, MAX_US), NOW_US)
    assert (old.idle_at(5), old.idle_at(6)) == (IdleCounts(0, 1), IdleCounts(0, 2))
    assert (old.lag_at(5), old.lag_at(7), old.spared_seq, old.floor_seq) == (5, 7, None, 0)
    nobody = survey(ConsumerTable(), 5, LagPolicy(True, MAX_US), NOW_US)
    assert (nobody.consumers, nobody.lag_at(9), nobody.spared_seq) == (0, 0, None)
