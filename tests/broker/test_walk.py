"""The way of one message through a worker gets no longer."""

from __future__ import annotations

import pytest

from tests.broker import walk

# files and calls, the most allowed: the present counts. A change that needs fewer lowers them.
MOST = {"publish-line": (15, 43), "publish": (16, 44), "get": (48, 198), "ack": (41, 165)}


@pytest.fixture(scope="module")
def walks() -> dict[str, walk.Walk]:
    return walk.measure(list(walk.WALKS))


@pytest.mark.parametrize("name", walk.WALKS)
def test_no_walk_gets_longer(walks: dict[str, walk.Walk], name: str) -> None:
    found = walks[name]
    files, calls = MOST[name]
    shown = f"`python -m tests.broker.walk {name} --tree` shows it"
    assert 5 < found.files <= files and 20 < len(found.calls) <= calls, shown


def test_an_idle_turn_is_left_out_once() -> None:
    def outer() -> None: ...

    call = walk.Call(0, outer.__code__)
    assert walk.Walk([call, call, call]).without(walk.Walk([call])).calls == [call, call]
