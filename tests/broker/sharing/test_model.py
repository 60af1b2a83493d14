from __future__ import annotations

import pytest

from tailrace.broker.sharing import peer_wants
from tests.broker.sharing import model
from tests.thorough import THOROUGH

RUNS = 10_000 if THOROUGH else 150


def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    assert model.run(1, RUNS) > RUNS


def test_messages_that_go_on_from_node_to_node_would_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_wants, "FLAG_RELAYED", 0)
    with pytest.raises(AssertionError, match="twice"):
        model.run(1, 50)
