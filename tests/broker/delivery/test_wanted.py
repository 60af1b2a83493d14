"""What subscribers want, as rows for the owner: after any changes the owner has exactly the filters there are."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.delivery import wanted as module
from tailrace.broker.delivery.wanted import WantedTopics, any_message, envelopes, no_interest

FILTERS = (b"a", b"b/+", b"c/#", b"")
STEPS = st.lists(st.sampled_from([*FILTERS, *(b"-" + each for each in FILTERS), b"send", b"whole", b"away"]))


@given(steps=STEPS)
def test_the_owner_has_what_is_wanted_after_each_notice(steps: list[bytes]) -> None:
    wanted, counted, known, everything = WantedTopics(), Counter[bytes](), set[bytes](), False
    informed = True
    for step in [*steps, b"whole", b"send"]:
        if step in FILTERS:
            wanted.add(step)
            counted[step] += 1
        elif step == b"away":
            wanted.forget_changes()
            informed = False
        elif step in (b"send", b"whole"):
            if step == b"whole":
                known, informed = set(), True
            if not informed:
                continue
            rows = (wanted.whole if step == b"whole" else wanted.changes)(b"s", counted.total())
            for name, cursors, unfiltered, added, removed in rows:
                assert name == b"s" and cursors == counted.total()
                everything = unfiltered
                known = (known - set(removed)) | set(added) if cursors else set()
            assert known == {each for each, count in counted.items() if count and each}
            assert everything is (counted[b""] > 0)
        elif counted[step[1:]]:
            wanted.remove(step[1:])
            counted[step[1:]] -= 1


@given(sizes=st.lists(st.integers(1, 70_000), max_size=12))
def test_rows_and_envelopes_are_of_bounded_size(sizes: list[int]) -> None:
    wanted = WantedTopics()
    filters = [b"%d/" % place + b"x" * size for place, size in enumerate(sizes)]
    for each in filters:
        wanted.add(each)
    rows = list(wanted.changes(b"s", len(filters) or 1))
    assert [each for row in rows for each in row[3]] == filters
    for row in rows:
        assert len(row[3]) < 2 or sum(map(len, row[3])) <= module.ROW_BYTES
    groups = list(envelopes([*rows, no_interest(b"t"), any_message(b"u", 3)]))
    assert [row for group in groups for row in group] == [*rows, no_interest(b"t"), any_message(b"u", 3)]
    for group in groups:
        assert len(group) < 2 or sum(len(each) for row in group for each in row[3]) <= module.ENVELOPE_BYTES


def test_very_many_filters_come_in_several_rows() -> None:
    wanted, count = WantedTopics(), 3 * module.FILTERS_A_ROW + 1
    for number in range(count):
        wanted.add(b"%d" % number)
    assert [len(row[3]) for row in wanted.changes(b"s", count)] == [module.FILTERS_A_ROW] * 3 + [1]
    assert list(wanted.changes(b"s", count)) == [(b"s", count, False, [], [])]
