"""The sets of calls: they agree with each other, and with the calls that there are."""

from __future__ import annotations

from tailrace.broker.routing import verbs
from tailrace.broker.streams.owner_calls import CALLS


def test_long_calls_are_of_a_stream() -> None:
    assert verbs.LONG < verbs.OF_A_STREAM


def test_calls_that_change_a_stream_wait_for_no_copy() -> None:
    changes = {"master", "promote", "unmaster", "slave", "unslave", "claim", "fence", "trim", "consume", "stat"}
    assert not verbs.OF_A_COPY & changes
    assert verbs.OF_A_COPY & CALLS.keys() == {"end", "copied", "follow", "list_stream"}
