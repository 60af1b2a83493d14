"""What a program asks of a subscription."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.core.places import NOW, START, Seq, Time
from tailrace.core.subscribe_options import SubscribeOptions, subscribe_options
from tailrace.errors import InvalidArgument, InvalidStreamName
from tailrace.protocol.places import From

GOOD: dict[str, Any] = {
    "stream": "s",
    "start": Time(5),
    "end": NOW,
    "skip": 2,
    "credit_bytes": 10,
    "check_crc": True,
    "on_trimmed": "skip",
    "timeout_s": 3.0,
}


def test_options() -> None:
    assert subscribe_options(**GOOD) == SubscribeOptions("s", From("time", 5), 2, ("now", 0), 10, True, False, 3.0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"on_trimmed": "ignore"}, 'it is "raise" or "skip"'),
        ({"start": Seq(1)}, "skip goes with a start that is a time"),
        ({"skip": -1}, "skip is -1"),
        ({"credit_bytes": 0}, "credit_bytes is 0"),
        ({"credit_bytes": None}, "credit_bytes is None"),
        ({"end": START}, "is not an end"),
        ({"topics": None}, "topics is None; it is a topic filter"),
        ({"topics": "a/#/b"}, "# must be the last level"),
    ],
)
def test_what_is_none(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        subscribe_options(**GOOD | changed)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidStreamName):
        subscribe_options(**GOOD | {"stream": ""})
