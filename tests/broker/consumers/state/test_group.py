"""Who gets what."""

from __future__ import annotations

import random
from collections import Counter

from tailrace.broker.consumers.state import decide, group
from tailrace.broker.consumers.state.consumer import FLIGHT_MAX
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tests.broker.consumers.stream import Stream, asking

BILLING = b"billing"


def made(stream: Stream, deliveries_max: int = 0) -> ConsumerTable:
    consumers = ConsumerTable()
    decide.create(consumers, BILLING, 0, stream, 1, deliveries_max=deliveries_max, retry_us=0)
    return consumers


def keyed(text: str) -> Stream:
    stream = Stream()
    stream.publish(None if letter == "." else letter.encode() for letter in text)
    return stream


def get(
    consumers: ConsumerTable,
    stream: Stream,
    member: bytes,
    most: int = 0,
    finished: tuple[tuple[int, int], ...] = (),
    failed: tuple[int, ...] = (),
    max_bytes: int = 1 << 20,
) -> list[int]:
    ask = asking(
        BILLING, member, [(*each, 1) for each in finished], [(seq, 1, "no") for seq in failed], most, max_bytes, True
    )
    runs = decide.get(consumers, ask, stream, 10).value.runs
    return [seq for first, count, *_ in runs for seq in range(first, first + count)]


def test_one_member_gets_the_log_in_order_with_one_look_and_no_keys() -> None:
    stream = keyed("ab" * 500)
    consumers = made(stream)
    for first in range(0, 1_000, 100):
        finished = ((first - 100, first - 1),) if first else ()
        assert get(consumers, stream, b"m", 100, finished) == list(range(first, first + 100))
    assert (stream.fits, stream.asked) == (10, 0)
    billing = consumers.by_name[BILLING]
    assert (len(billing.flight), len(billing.waiting)) == (1, 0)


def test_bytes_bound_an_answer_but_for_one_message() -> None:
    stream = Stream(10)
    consumers = made(stream)
    assert get(consumers, stream, b"m", 10, max_bytes=1) == [0]
    assert get(consumers, stream, b"m", 10, max_bytes=350) == [1, 2, 3]
    assert get(consumers, stream, b"m", 10, failed=(0, 3), max_bytes=350) == [0, 3, 4]


def test_a_key_stays_with_its_member() -> None:
    stream = keyed("aab.ab.a")
    consumers = made(stream)
    assert get(consumers, stream, b"m", 1) == [0]
    assert get(consumers, stream, b"n", 8) == [2, 3, 5, 6]
    assert get(consumers, stream, b"m", 8, failed=()) == [1, 4, 7]
    assert get(consumers, stream, b"n", 8) == []


def test_a_key_that_failed_comes_again_in_order_and_to_anybody() -> None:
    stream = keyed("aaxaa")
    consumers = made(stream)
    assert get(consumers, stream, b"m", 5) == [0, 1, 2, 3, 4]
    assert get(consumers, stream, b"n", 5) == []
    assert get(consumers, stream, b"m", failed=(1,)) == []
    assert get(consumers, stream, b"n", 5) == []  # message 0 is still at the other one
    assert get(consumers, stream, b"m", finished=((0, 0),)) == []
    assert get(consumers, stream, b"n", 1) == [1]
    assert get(consumers, stream, b"m", 5) == []
    assert get(consumers, stream, b"n", 5) == [3]  # its share
    assert get(consumers, stream, b"n", 5) == [4]


def test_what_is_dead_holds_nothing_up() -> None:
    stream = keyed("aaa")
    consumers = made(stream, deliveries_max=1)
    assert get(consumers, stream, b"m", 3) == [0, 1, 2]
    get(consumers, stream, b"m", failed=(0,))
    assert consumers.by_name[BILLING].flight.count == 2


def test_no_more_than_so_many_are_in_flight() -> None:
    stream, consumers = Stream(), ConsumerTable()
    stream.messages = Stream(1).messages * (FLIGHT_MAX + 10)
    decide.create(consumers, BILLING, 0, stream, 1)
    given = sum(len(get(consumers, stream, b"m", 10_000)) for _ in range(8))
    assert given == FLIGHT_MAX
    assert get(consumers, stream, b"m", 10, ((0, 1),)) == [FLIGHT_MAX, FLIGHT_MAX + 1]


def test_only_so_many_are_looked_at() -> None:
    stream = keyed("a" * group.WINDOW + "b")
    consumers = made(stream)
    get(consumers, stream, b"n", 1)
    assert get(consumers, stream, b"m", 1) == [group.WINDOW]
    stream = keyed("a" * (group.WINDOW + 1) + "b")
    consumers = made(stream)
    get(consumers, stream, b"n", 1)
    assert get(consumers, stream, b"m", 1) == []
    assert stream.asked == group.WINDOW + 1


def test_keys_that_were_looked_at_are_known() -> None:
    stream = keyed("a" * 1_000)
    consumers = made(stream)
    get(consumers, stream, b"n", 1)
    for _ in range(5):
        assert get(consumers, stream, b"m", 1) == []
    assert stream.asked == 1_000


def test_a_small_backlog_is_shared() -> None:
    stream = Stream()
    consumers = made(stream)
    members = [f"m{number}".encode() for number in range(10)]
    for member in members:
        assert get(consumers, stream, member, 100) == []
    stream.publish([None] * 100)
    assert [len(get(consumers, stream, member, 100)) for member in members] == [10] * 10


def test_equal_members_do_equally_much() -> None:
    """Each comes as often as the others, at random; keys are many."""
    seed = random.Random(6)
    stream = Stream()
    consumers = made(stream)
    members = [f"m{number}".encode() for number in range(4)]
    hands: dict[bytes, list[int]] = {member: [] for member in members}
    done: Counter[bytes] = Counter()
    for _ in range(2_000):
        stream.publish(seed.choice([None, b"k%d" % seed.randrange(50)]) for _ in range(seed.randrange(20)))
        member = seed.choice(members)
        finished = tuple((seq, seq) for seq in hands[member])
        done[member] += len(finished)
        hands[member] = get(consumers, stream, member, 64, finished)
    assert min(done.values()) > 0.8 * max(done.values())
    assert sum(done.values()) > 15_000


def test_a_member_that_takes_nothing_is_none() -> None:
    stream = keyed("ab" * 10)
    consumers = made(stream)
    get(consumers, stream, b"m", 20)
    assert get(consumers, stream, b"admin", 0, ((0, 3),)) == []
    assert list(consumers.by_name[BILLING].members) == [b"m"]
