"""Topics in their order, against a dictionary."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.last import index as module
from tailrace.broker.last.index import ENTRY_BYTES, LastEntry, TopicIndex


def order_all(index: TopicIndex) -> None:
    while index.order():
        assert not index.is_ordered
    assert index.is_ordered


@pytest.mark.parametrize("seed", range(10))
def test_as_a_dictionary(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(module, "BLOCK_TOPICS", 4)
    monkeypatch.setattr(module, "ORDER_TOPICS", 3)
    monkeypatch.setattr(module, "RUN_TOPICS", 5)
    chance = random.Random(seed)
    index, model = TopicIndex(), dict[bytes, tuple[int, int]]()
    for number in range(2_000):
        topic = b"%d/%d" % (chance.randrange(9), chance.randrange(20))
        if chance.random() < (0.3 if number < 1_000 else 0.6):
            assert index.remove(topic) is (model.pop(topic, None) is not None)
        else:
            assert index.set(topic, number, -number & 0xFF) is (topic not in model)
            model[topic] = number, -number & 0xFF
        entry = index.get(topic)
        assert entry == (LastEntry(topic, *model[topic]) if topic in model else None)
        if chance.random() < 0.02:
            index.order()
        if number % 50 == 0:
            order_all(index)
            wanted = [LastEntry(each, *model[each]) for each in sorted(model)]
            assert list(index.after(b"")) == wanted and len(index) == len(model)
            assert index.nbytes == sum(len(each) + ENTRY_BYTES for each in model)
            after, prefix = b"%d/%d" % (chance.randrange(9), chance.randrange(20)), b"%d" % chance.randrange(9)
            assert list(index.after(after)) == [each for each in wanted if each.topic > after]
            assert list(index.after(after, prefix)) == [
                each for each in wanted if each.topic > after and each.topic.startswith(prefix)
            ]


def test_topics_that_change_while_those_of_a_start_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ORDER_TOPICS", 3)
    monkeypatch.setattr(module, "RUN_TOPICS", 5)
    chance = random.Random(1)
    for _ in range(200):
        index, model = TopicIndex(), set[bytes]()
        for number in range(chance.randint(6, 60)):
            index.set(b"%d" % chance.randrange(100), number, 0)
        model = {b"%d" % number for number in range(100) if index.get(b"%d" % number)}
        while index.order():
            topic = b"%d" % chance.randrange(100)
            if chance.random() < 0.5:
                assert index.remove(topic) is (topic in model)
                model.discard(topic)
            if chance.random() < 0.5:
                assert index.set(topic, 0, 0) is (topic not in model)
                model.add(topic)
        assert [entry.topic for entry in index.after(b"")] == sorted(model)


def test_a_piece_of_ordering_looks_at_a_bounded_number_of_topics() -> None:
    index, pieces = TopicIndex(), 0
    for number in range(3 * module.RUN_TOPICS):
        index.set(b"%d" % (number * 7_919 % 10_007), number, 0)
    while index.order():
        pieces += 1
    assert pieces >= 3 + 3 * module.RUN_TOPICS // module.ORDER_TOPICS
