"""What a filter has matched ahead of a consumer's cursor, and decisions by it."""

from __future__ import annotations

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide_get import PASSED_MAX
from tailrace.broker.consumers.state.lookahead import MATCHES_MAX, Lookahead
from tailrace.broker.consumers.state.records import ConsumerCreated, Progress, pack, unpack
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tests.broker.consumers.stream import Stream, asking

NAME, MEMBER = b"billing", b"m"
NOW_US = 1_000


def alternating(messages: int) -> Stream:
    """Each other message, from the second on, has the topic a/b; the others have none."""
    stream = Stream()
    for number in range(messages):
        stream.publish([None], topic=b"a/b" if number % 2 else b"s")
    return stream


def consuming(stream: Stream) -> ConsumerTable:
    consumers = ConsumerTable()
    *_line, record = decide.create(consumers, NAME, 0, stream, NOW_US, topics=b"a/+").records
    assert isinstance(record, ConsumerCreated) and record.topics == b"a/+"
    assert unpack(pack(record)) == record
    return consumers


def test_it_looks_no_further_than_it_wants() -> None:
    stream, ahead = alternating(40), Lookahead(0)
    ahead.look(stream, b"a/+", 4)
    assert (ahead.ranges, ahead.end_seq, ahead.is_short) == ([(1, 1), (3, 3), (5, 5)], 7, True)
    ahead.look(stream, b"a/+", 4)
    assert (ahead.count, ahead.end_seq, ahead.is_short) == (7, 14, False)
    ahead.look(stream, b"a/+", 4)
    assert stream.looks == 2
    assert ahead.next_match(4) == 5 and ahead.next_match(14) == 14
    assert ahead.between(0, 6) == [(0, 0), (2, 2), (4, 4)]
    ahead.drop_before(6)
    assert (ahead.first_seq, ahead.count, ahead.matches_before(9)) == (7, 4, 1)


def test_neighbours_are_one_range_also_over_two_pieces() -> None:
    stream, ahead = Stream(20), Lookahead(0)
    for _ in range(3):
        ahead.look(stream, b"s", 20)
    assert ahead.ranges == [(0, 19)] and not ahead.is_short
    ahead.drop_before(5)
    assert (ahead.ranges, ahead.count) == ([(5, 19)], 15)


def test_matches_that_nobody_takes_are_bounded() -> None:
    stream, ahead = alternating(4 * MATCHES_MAX), Lookahead(0)
    stream.piece = 4 * MATCHES_MAX
    for _ in range(3):
        ahead.look(stream, b"a/+", 10 * MATCHES_MAX)
    assert len(ahead.ranges) == MATCHES_MAX and stream.looks == 1 and not ahead.is_short


def test_the_lag_is_exact_once_the_rest_was_counted() -> None:
    stream, ahead = alternating(40), Lookahead(0)
    ahead.look(stream, b"a/+", 1)
    assert ahead.lag_messages(stream.next_seq) == 3 + 33
    while ahead.count_on(stream, b"a/+"):
        assert ahead.lag_messages(stream.next_seq) >= 20
    assert (ahead.lag_messages(stream.next_seq), ahead.tail_end_seq) == (20, 40)
    looks = stream.looks
    assert not ahead.count_on(stream, b"a/+") and stream.looks == looks, "nothing is read twice"
    ahead.look(stream, b"a/+", 8)
    assert (ahead.count, ahead.tail_count, ahead.lag_messages(stream.next_seq)) == (7, 13, 20)
    ahead.drop_before(9)
    assert ahead.lag_messages(stream.next_seq) == 16
    ahead.drop_before(31)  # beyond `end_seq`: the rest is not known
    assert ahead.lag_messages(stream.next_seq) == 9
    assert ahead.count_on(stream, b"a/+") and ahead.lag_messages(stream.next_seq) == 4 + 2
    assert not ahead.count_on(stream, b"a/+") and ahead.lag_messages(stream.next_seq) == 5
    stream.first_seq = 34
    ahead.look(stream, b"a/+", 8)
    assert (ahead.ranges[0], ahead.lag_messages(stream.next_seq)) == ((35, 35), 3)


def test_what_is_passed_over_is_logged_with_what_is_given() -> None:
    stream = alternating(6)
    consumers = consuming(stream)
    given = decide.get(consumers, asking(NAME, MEMBER, max_messages=2), stream, NOW_US)
    assert given.records == (Progress(NAME, MEMBER, NOW_US, 0, (0, 1, 2, 1, 4, 1), (), (), (1, 1, 3, 1)),)
    assert [run[:2] for run in given.value.runs] == [(1, 1), (3, 1)]
    shadow = ConsumerTable()
    decide.create(shadow, NAME, 0, stream, NOW_US, topics=b"a/+")
    for record in given.records:
        shadow.apply(unpack(pack(record)))
    assert shadow.by_name[NAME].next_seq == consumers.by_name[NAME].next_seq == 5
    assert list(map(repr, shadow.by_name[NAME].flight)) == list(map(repr, consumers.by_name[NAME].flight))


def test_without_a_match_a_record_comes_seldom() -> None:
    stream = Stream(PASSED_MAX + 100)
    stream.piece = 100
    consumers = consuming(stream)
    records = 0
    while consumers.by_name[NAME].look_ahead().end_seq < stream.next_seq:
        got = decide.get(consumers, asking(NAME, MEMBER, max_messages=1), stream, NOW_US)
        assert not got.value.runs
        records += len(got.records)
    assert records == 1 and consumers.by_name[NAME].next_seq >= PASSED_MAX
    (row,) = decide.listing(consumers, stream, NOW_US)
    assert (row.next_seq, row.lag_messages, row.topics) == (stream.next_seq, 0, b"a/+")


def test_another_history_is_looked_at_anew() -> None:
    stream = alternating(20)
    consumers = consuming(stream)
    decide.get(consumers, asking(NAME, MEMBER, max_messages=1), stream, NOW_US)
    stream.promote(4)
    for _ in range(6):
        stream.publish([None], topic=b"a/c")
    got = decide.get(consumers, asking(NAME, MEMBER, max_messages=9, fresh=True), stream, NOW_US)
    assert [run[:2] for run in got.value.runs] == [(3, 1), (4, 6)]


def test_an_acknowledgement_beyond_lost_records_passes_over_what_does_not_match() -> None:
    stream = alternating(12)
    consumers = consuming(stream)
    stream.promote(12)  # the last owner gave messages of which nothing is known here
    got = decide.get(consumers, asking(NAME, MEMBER, finished=[(5, 5, 1)]), stream, NOW_US)
    assert not got.value.stale
    rest = decide.get(consumers, asking(NAME, MEMBER, max_messages=9), stream, NOW_US)
    assert [run[:2] for run in rest.value.runs][:2] == [(1, 1), (3, 1)]
    assert all(run[0] != 5 for run in rest.value.runs)


def test_trimmed_messages_that_were_passed_over_are_not_lost() -> None:
    stream = alternating(10)
    stream.piece = 100
    consumers = consuming(stream)
    decide.get(consumers, asking(NAME, MEMBER, finished=[], max_messages=1), stream, NOW_US)
    stream.first_seq = 3
    got = decide.get(consumers, asking(NAME, MEMBER, max_messages=9, fresh=True), stream, NOW_US)
    assert got.value.trimmed == 0
    stream.first_seq = 10
    stream.publish([None])
    assert decide.get(consumers, asking(NAME, MEMBER, max_messages=9, fresh=True), stream, NOW_US).value.trimmed == 0
