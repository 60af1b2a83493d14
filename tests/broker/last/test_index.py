"""Topics in their order, against a dictionary."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.last import index as module
from tailrace.broker.last.index import ENTRY_BYTES, LastEntry, TopicIndex


@pytest.mark.parametrize("seed", range(10))
def test_as_a_dictionary(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(module, "BLOCK_TOPICS", 4)
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
        if number % 50 == 0:
            wanted = [LastEntry(each, *model[each]) for each in sorted(model)]
            assert list(index.after(b"")) == wanted and len(index) == len(model)
            assert index.nbytes == sum(len(each) + ENTRY_BYTES for each in model)
            after, prefix = b"%d/%d" % (chance.randrange(9), chance.randrange(20)), b"%d" % chance.randrange(9)
            assert list(index.after(after)) == [each for each in wanted if each.topic > after]
            assert list(index.after(after, prefix)) == [
                each for each in wanted if each.topic > after and each.topic.startswith(prefix)
            ]
