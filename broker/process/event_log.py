"""One line for each login, refusal and administrative command, for people and for programs that read logs.

A line is logfmt (`event=admin peer=127.0.0.1:40312 user=- ...`) or JSON. Peers cause these lines, so each kind has a
rate; beyond it lines are dropped, and the next one has their number.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

from tailrace.broker.connection.token_bucket import TokenBucket

log = logging.getLogger(__name__)

VALUE_CHARACTERS_MAX: Final = 200
"""Of one value; the rest is cut off."""
_BARE = re.compile(r"[!#-<>-~]+")


class EventFormat(StrEnum):
    LOGFMT = "logfmt"
    JSON = "json"


class Event(StrEnum):
    LOGIN = "login"
    LOGIN_FAILED = "login-failed"
    REFUSED = "refused"
    ADMIN = "admin"


class EventSource(Protocol):
    """A connection, to the log."""

    def event_fields(self) -> dict[str, str | int]:
        """Who it is."""


LINES_A_SECOND: Final = {Event.LOGIN: 20.0, Event.LOGIN_FAILED: 5.0, Event.REFUSED: 5.0, Event.ADMIN: 50.0}
BURST_S: Final = 10.0


class EventLog:
    """The events of one worker."""

    def __init__(self, style: str, clock: Callable[[], float]) -> None:
        self._json = style == EventFormat.JSON
        self._clock = clock
        self._rates = {event: TokenBucket(rate, rate * BURST_S, clock()) for event, rate in LINES_A_SECOND.items()}
        self._dropped = dict.fromkeys(Event, 0)

    def write(self, event: Event, who: EventSource | None = None, **fields: str | int) -> None:
        """One line, unless there were too many. Fields that are empty, or -1, are shown as `-`, or left out in JSON.
        `who`: its fields come first, and are made only for a line that is written.
        """
        rate, now_s = self._rates[event], self._clock()
        if rate.level(now_s) < 1:
            self._dropped[event] += 1
            return
        rate.take(1, now_s)
        dropped, self._dropped[event] = self._dropped[event], 0
        known = {} if who is None else who.event_fields()
        log.info(
            "%s", self._line({"event": event.value, **known, **fields, **({"dropped": dropped} if dropped else {})})
        )

    def _line(self, fields: dict[str, str | int]) -> str:
        cut = {key: value[:VALUE_CHARACTERS_MAX] if isinstance(value, str) else value for key, value in fields.items()}
        if self._json:
            return json.dumps({key: value for key, value in cut.items() if value not in ("", -1)})
        return " ".join(f"{key}={_logfmt(value)}" for key, value in cut.items())


def _logfmt(value: str | int) -> str:
    if value in ("", -1):
        return "-"
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
