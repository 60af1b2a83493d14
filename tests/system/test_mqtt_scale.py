"""A short part of `mqtt_scale`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.mqtt_scale import CONFIG, replay, retained, sessions
from tests.system.node import running

pytestmark = [pytest.mark.thorough, pytest.mark.system]


def test_sessions_that_are_away_come_back_also_after_kills(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        sessions(node, 200)


def test_a_client_with_a_small_window_replays_while_others_publish(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        replay(node, 2_000, 0.2)


def test_retained_messages_for_a_wildcard(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        retained(node, 200)
