"""The page: self-contained, safe for any names of streams, and whole in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tailrace.shard.leaves import interpreted_wanted
from tailrace.spark.rollup.forecast import Removal
from tailrace.spark.rollup.report import NOTES_SHOWN, Told, render, show_size
from tailrace.spark.rollup.store import Store
from tailrace.spark.rollup.summary import summarize
from tests.spark.rollup.directories import DAY
from tests.spark.rollup.made import row, write

HOSTILE = "<script>alert(1)</script>&\"'"
CHROMIUM_TIMEOUT_S = 120
PNG_BYTES_MIN = 20_000  # an empty page of this size is about 5 kB


def page(tmp_path: Path) -> str:
    write(
        tmp_path,
        "minutes",
        [row(HOSTILE, i, messages=i % 60 + 1, gap_max_us=i * 9_000 or None) for i in range(0, 1_440, 3)],
    )
    write(tmp_path, "days", [row(HOSTILE, bytes=10**9), row("ключ", bytes=5 * 10**8)])
    removals = [Removal(HOSTILE, 12_345, 10**6, 10**7, "age")]
    return render(summarize(Store(tmp_path), DAY), removals, [Told("a", "b"), Told(HOSTILE, HOSTILE)], "now", "/data")


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    HTMLParser().feed(text)


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert not re.findall(r"<(?:link|img|iframe|object|script)\b", text)
    assert not re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"", text)
    assert not re.findall(r"url\((?!#)", text)


def test_the_numbers_are_there(tmp_path: Path) -> None:
    text = page(tmp_path)
    for wanted in ("Friday, 20 November 2026", "1.5 GB", "12,345", "ключ", "Needs attention", "because of"):
        assert wanted in text
    assert text.count("<svg") == 5


def test_a_day_without_messages_has_a_page(tmp_path: Path) -> None:
    text = render(summarize(Store(tmp_path), DAY), None, [], "now")
    assert "No messages came on this day" in text
    assert "was not told the broker's configuration" in text or "was not told the broker&#39;s configuration" in text


def test_many_notes_are_cut_short(tmp_path: Path) -> None:
    text = render(summarize(Store(tmp_path), DAY), [], [Told(f"s{i}", "x") for i in range(NOTES_SHOWN + 7)], "now")
    assert f"<td>s{NOTES_SHOWN - 1}</td>" in text
    assert f"<td>s{NOTES_SHOWN}</td>" not in text
    assert "And 7 more." in text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (999_700, "1 MB"), (5e17, "500 PB")]
)
def test_sizes(nbytes: float, text: str) -> None:
    assert show_size(nbytes) == text


@pytest.mark.thorough
@pytest.mark.slow
def test_a_browser_shows_it(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    report, picture = tmp_path / "report.html", tmp_path / "picture.png"
    report.write_text(page(tmp_path))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *flags, f"--screenshot={picture}", "--window-size=1000,2600", report.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=CHROMIUM_TIMEOUT_S)
    assert picture.stat().st_size > PNG_BYTES_MIN
