"""The options of a client."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tailrace.core.options import ClientOptions
from tailrace.errors import InvalidArgument


def test_what_is_taken() -> None:
    assert ClientOptions().timeout_s == 30.0
    assert ClientOptions(timeout_s=math.inf, max_in_flight=1, token="secret").timeout_s == math.inf


@pytest.mark.parametrize(
    "options",
    [{"timeout_s": 0}, {"timeout_s": None}, {"reconnect_s": -1.0}, {"max_in_flight": "9"}, {"heartbeat_s": True}],
)
def test_what_is_not(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="it is a number more than 0"):
        ClientOptions(**options)
