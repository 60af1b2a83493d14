"""`tailrace bench`, against a broker in memory."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.bench import BenchFigures
from tailrace.cli.ending import OK, REFUSED
from tests.client.model_server import ModelServer


def test_every_message_is_published_and_delivered(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "-n", "2500", "--size", "10", "--subscribers", "2", "--json", "--server", server.address]
    assert main.run(words) == OK
    figures = json.loads(capfd.readouterr().out)
    assert (figures["messages"], figures["delivered"], figures["message_bytes"]) == (2_500, 5_000, 10)
    assert figures["published_per_s"] > 0 < figures["round_trip_median_s"] <= figures["round_trip_p99_s"]
    assert len(server.payloads(b"bench")) == 1 + 2_500 + 300


def test_messages_that_are_too_large(server: ModelServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["bench", "--size", "99999999", "--server", server.address]) == REFUSED
    assert "the broker's limit is" in capfd.readouterr().err


def test_the_line_says_what_is_missing() -> None:
    figures = BenchFigures(100, 10, 2, "appended", 1e6, 2e6, 190, 0.001, 0.0025)
    assert figures.shown() == (
        "100 messages of 10 bytes: published 1,000,000 messages/s (9.5 MiB/s), delivered 2,000,000/s to 2 subscribers, "
        "10 NOT DELIVERED, one by one (appended) 1.00 ms, 99 % within 2.50 ms"
    )
    assert "B/s), one by one (appended)" in BenchFigures(9, 10, 0, "appended", 1e6, 0, 0, 0.001, 0.0025).shown()
