"""The crash matrix of durable consumers: who dies, when, during which call. Nothing here touches a process."""

from __future__ import annotations

import random
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from tailrace.protocol.messages import Op

DELAY_MOST_S = 0.02
"""From when a call is at its point to the fall, where that is at random: about as long as a call takes."""


class Victim(Enum):
    """CUT: connections are closed at both ends; SILENT: they pass nothing either way, without notice."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    WORKER = "worker"
    NODE = "node"
    CUT = "network cut"
    SILENT = "network silent"
    MASTER = "master"


class Point(Enum):
    BEFORE = "before the request"
    SENT = "after it is sent"
    LOGGED = "after it is logged and before the answer"
    ANSWERED = "after the answer"


class Call(Enum):
    PUT = "put"
    GET = "get"
    ACK = "ack"
    CREATE = "create"
    DELETE = "delete"

    @property
    def request(self) -> Op:
        return _REQUESTS[self]

    @property
    def caller(self) -> Victim:
        """Who makes it."""
        return Victim.PUBLISHER if self is Call.PUT else Victim.SUBSCRIBER


_REQUESTS = {
    Call.PUT: Op.PUBLISH,
    Call.GET: Op.GET,
    Call.ACK: Op.GET,
    Call.CREATE: Op.CONSUME,
    Call.DELETE: Op.CONSUME,
}
ON_NODE = (Victim.WORKER, Victim.NODE, Victim.MASTER)
"""Whose fall comes over all cells at once."""


class Cell(NamedTuple):
    """`delay_s`: time from the point to the fall. `part`: the share of the bytes held at the point that goes on before
    the fall.
    """

    victim: Victim
    point: Point
    call: Call
    delay_s: float = 0.0
    part: float = 1.0

    def __str__(self) -> str:
        return f"{self.victim.value}, {self.point.value}, {self.call.value}"

    @property
    def kills_caller(self) -> bool:
        return self.victim is self.call.caller


def matrix(victims: Iterable[Victim] = Victim) -> list[Cell]:
    """Every cell of these victims, once."""
    return [Cell(victim, point, call) for victim in victims for point in Point for call in Call]


def at_random(dice: random.Random, victim: Victim, count: int) -> list[Cell]:
    """Cells of this victim in the middle of anything: parts of requests and answers, and moments in between."""
    return [
        Cell(
            victim,
            dice.choice([Point.SENT, Point.SENT, Point.LOGGED]),
            dice.choice(list(Call)),
            round(dice.uniform(0, DELAY_MOST_S), 4),
            dice.choice([1.0, 1.0, round(dice.random(), 3)]),
        )
        for _ in range(count)
    ]
