"""The poller: which descriptor is whose, level-triggered."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from tailrace.broker.process.poller import Poller


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_an_event_comes_again_until_it_is_dealt_with(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    poller = Poller()
    seen: list[int] = []
    poller.register(reader, select.EPOLLIN, seen.append)
    assert poller.poll(0) == []
    os.write(writer, b"x")
    for _ in range(2):
        ((fd, mask),) = poller.poll(0)
        poller.handlers[fd](mask)
    assert seen == [select.EPOLLIN] * 2
    os.read(reader, 1)
    assert poller.poll(0) == []
    poller.close()


def test_interest_can_change_and_end(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    poller = Poller()
    poller.register(reader, select.EPOLLIN, lambda _mask: None)
    os.write(writer, b"x")
    poller.modify(reader, 0)
    assert poller.poll(0) == []
    poller.modify(reader, 0)
    poller.modify(reader, select.EPOLLIN)
    assert poller.poll(0) == [(reader, select.EPOLLIN)]
    poller.unregister(reader)
    assert poller.poll(0) == [] and reader not in poller.handlers
    poller.register(reader, select.EPOLLIN, lambda _mask: None)
    assert poller.poll(0) == [(reader, select.EPOLLIN)], "the number can be used again"
    poller.close()
    assert poller.handlers == {}
