"""Streams that went silent, in the report that the command writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tailrace.cli import main
from tailrace.cli.ending import OK
from tailrace.spark.rollup.silence import find_silent
from tailrace.spark.rollup.store import Store
from tests.spark.data import Sent, make_directory
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.made import row, write

ONE = timedelta(days=1)
NOON_US = DAY_START_US + 12 * HOUR_US
HOSTILE = "<b>&quiet"


def every(step_us: int, first_us: int, end_us: int) -> list[Sent]:
    return [Sent(at_us, b"x") for at_us in range(first_us, end_us, step_us)]


def test_a_night_with_silent_streams(tmp_path: Path) -> None:
    """Yesterday and today; the command is given both, and knows nothing of the week before."""
    yesterday_us, end_us = DAY_START_US - 24 * HOUR_US, DAY_START_US + 24 * HOUR_US
    streams = {
        "steady": every(20 * MINUTE_US, yesterday_us, end_us),
        "stopped": every(20 * MINUTE_US, yesterday_us, NOON_US + MINUTE_US),
        HOSTILE: every(HOUR_US, yesterday_us, DAY_START_US - 5 * HOUR_US),
        "started": every(MINUTE_US, end_us - 3 * HOUR_US, end_us),
        "burst": every(1_000, NOON_US, NOON_US + 300_000),
        "slow": every(7 * HOUR_US, yesterday_us, end_us),
        "once": every(1, NOON_US, NOON_US + 1),
    }
    make_directory(tmp_path / "data", streams)
    words = ["--from", str(DAY - ONE), "--to", str(DAY)]
    assert main.run(["rollup", f"north={tmp_path}/data", str(tmp_path / "out"), *words]) == OK
    found, count = find_silent(Store(tmp_path / "out").snapshot(), DAY, None, 10)
    assert count == 2
    stopped, absent = sorted(found, key=lambda each: each.stream, reverse=True)
    twelve_hours_us = 12 * HOUR_US - MINUTE_US
    noon = datetime.fromtimestamp(NOON_US / 1e6, UTC)
    assert stopped == ("stopped", noon, twelve_hours_us, 20 * MINUTE_US, 37, 72, 0)
    assert absent == (HOSTILE, None, 24 * HOUR_US, HOUR_US, 0, 19, 0)

    text = (tmp_path / "out" / "reports" / f"{DAY}.html").read_text()
    assert f"<h1>north: {DAY:%A, %-d %B %Y}</h1>" in text
    assert "593 messages in 6 streams, between 00:00 and 24:00. The busiest minute was 12:00 with 303." in text
    assert "<td>stopped</td><td>12:00</td>" in text.replace("\n", "")
    assert "<td>&lt;b&gt;&amp;quiet</td><td>before this day</td>" in text.replace("\n", "")
    for part in (re.sub("<table>.*?</table>", "", text, flags=re.DOTALL), *text.split("<table>")[1:]):
        headings = re.findall(r"<(?:h[12]|th[^>]*)>(.*?)</", part.partition("</table>")[0])
        assert len(headings) == len(set(headings))
    compared = text[text.index("Compared with") :]
    assert "<td>messages</td><td>593</td><td>167 (+255 %)</td><td>–</td>" in compared.replace("\n", "")


def test_a_day_that_is_not_over_is_silent_until_now(tmp_path: Path) -> None:
    store = write(tmp_path, "days", [row("a", gap_max_us=MINUTE_US, messages=100)])
    write(tmp_path, "minutes", [row("a", 0), row("a", 90)])
    last = datetime.fromtimestamp(DAY_START_US / 1e6, UTC) + timedelta(minutes=90)
    for minutes, expected in ((60, 0), (62, 1)):
        assert find_silent(store.snapshot(), DAY, last + timedelta(minutes=minutes), 10)[1] == expected
    assert (
        find_silent(store.snapshot(), DAY, last + timedelta(days=3), 10)[0][0].silent_us == (22 * 60 + 29) * MINUTE_US
    )


def test_those_of_the_same_weekday_come_first(tmp_path: Path) -> None:
    store = write(tmp_path, "days", [row(f"s{i}", messages=i) for i in range(30)], DAY - ONE)
    write(tmp_path, "days", [row("s3", messages=7), row("weekly", messages=5)], DAY - 7 * ONE)
    found, count = find_silent(store.snapshot(), DAY, None, 4)
    assert count == 30  # s0 had no messages either
    assert [each.stream for each in found] == ["s3", "weekly", "s29", "s28"]
    assert find_silent(store.snapshot(), DAY + 3 * ONE, None, 4) == ([], 0)
