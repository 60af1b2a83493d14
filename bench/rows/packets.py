"""Rows of messages that each have a packet of their own: datagrams, and one `send` a message over TCP."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.load.base import Stop
from bench.load.limits import LoadError
from bench.load.packets import pour, spread
from bench.rows.base import STREAM, BenchRow, Measurement, RowRun

SUBSCRIBERS: Final = 10


def packets_in_row() -> BenchRow:
    """One publisher sends as fast as the system takes it. The messages that the server took count."""
    return BenchRow("packets-in", "ingest, 1 publisher, one message a packet", "packets", "msg/s", _measure_in)


def _measure_in(run: RowRun) -> Measurement:
    pushed = run.generate(pour, STREAM, Stop(seconds=run.scale.seconds))
    if not pushed.messages:
        raise LoadError("the server took no message")
    return run.measured(pushed.messages / pushed.spent.wall_s, pushed.spent, pushed.messages)


def packets_out_row() -> BenchRow:
    """The same to a few subscribers of one topic, at the pace at which they get their messages."""
    measure = partial(_measure_out, subscribers=SUBSCRIBERS)
    title = f"fan-out, 1 to {SUBSCRIBERS}, one message a packet"
    return BenchRow("packets-out", title, "packets", "deliveries/s", measure, "delivery")


def _measure_out(run: RowRun, subscribers: int) -> Measurement:
    done = run.generate(spread, STREAM, subscribers, Stop(seconds=run.scale.seconds))
    if not done.deliveries:
        raise LoadError("no message was delivered")
    extras = {
        "published_per_s": done.published / done.spent.wall_s,
        "lost_percent": 100 * done.lost / (done.published * subscribers),
    }
    return run.measured(done.deliveries / done.spent.wall_s, done.spent, done.deliveries, extras)
