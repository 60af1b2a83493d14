"""The lines about logins, refusals and commands: their two forms, and their rate."""

from __future__ import annotations

import json
import logging

import pytest

from tailrace.broker.process.event_log import BURST_S, LINES_A_SECOND, VALUE_CHARACTERS_MAX, Event, EventLog


def test_logfmt_and_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for style in ("logfmt", "json"):
        EventLog(style, lambda: 0.0).write(Event.ADMIN, peer="[::1]:9", user="", uid=-1, command='a "b"\n\x1b=')
    first, second = caplog.messages
    assert first == 'event=admin peer=[::1]:9 user=- uid=- command="a \\"b\\"\\n\\u001b="'
    assert json.loads(second) == {"event": "admin", "peer": "[::1]:9", "command": 'a "b"\n\x1b='}


def test_lines_have_a_rate_and_those_that_are_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now_s = [0.0]
    events = EventLog("logfmt", lambda: now_s[0])
    burst = int(LINES_A_SECOND[Event.REFUSED] * BURST_S)
    for _ in range(burst + 7):
        events.write(Event.REFUSED, peer="x" * 1_000)
    events.write(Event.ADMIN, peer="another kind")
    assert len(caplog.messages) == burst + 1
    assert caplog.messages[0] == "event=refused peer=" + "x" * VALUE_CHARACTERS_MAX
    now_s[0] = 1.0
    events.write(Event.REFUSED, peer="later")
    events.write(Event.REFUSED, peer="later")
    assert caplog.messages[-2:] == ["event=refused peer=later dropped=7", "event=refused peer=later"]
