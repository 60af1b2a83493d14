"""Which process a member of a shared subscription is in."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.coordinator.shared_members import member_name, process_of
from tailrace.broker.sessions.record import HolderProcess

HERE = HolderProcess(123_456_789, 4_242)


def test_a_name_says_the_process() -> None:
    name = member_name("0123456789abcdef", HERE, 1 << 47)
    assert process_of(name, "0123456789abcdef") == HERE
    assert len(name) <= 100


@pytest.mark.parametrize("name", [b"m", b"mqtt:n:1:2", b"mqtt:n:x:2:3", b"mqtt:other:1:2:3", b"else:n:1:2:3"])
def test_other_members_are_in_no_process_of_this_node(name: bytes) -> None:
    assert process_of(name, "n") is None
