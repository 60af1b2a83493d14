"""What retention will remove within a day."""

from __future__ import annotations

from pathlib import Path

from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.retention import RetentionPolicy
from tailrace.spark.rollup.forecast import Removal, forecast
from tests.spark.data import DAY_US, START_US, Sent, make_directory, trim

FRAME = HEADER_BYTES + 100
NOW_US = START_US + 10 * DAY_US


def hourly(count: int) -> list[Sent]:
    """The last of them comes now."""
    return [Sent(NOW_US - (count - 1 - i) * DAY_US // 24, bytes(100)) for i in range(count)]


def look(path: Path, policy: RetentionPolicy, grown_bytes: int = 0) -> list[Removal]:
    data = make_directory(path / "data", {"a": hourly(100), "$own": hourly(100), "empty": []})
    trim(path / "data", "a", 10)
    return list(forecast(data, lambda _name: policy, {"a": grown_bytes}, NOW_US))


def test_without_limits_nothing(tmp_path: Path) -> None:
    assert look(tmp_path, RetentionPolicy()) == []


def test_by_age(tmp_path: Path) -> None:
    """In 24 hours, all but the last hour's 25 messages will be older than two days."""
    assert look(tmp_path, RetentionPolicy(max_age_s=2 * 86_400)) == [Removal("a", 65, 65 * FRAME, 25 * FRAME, "age")]


def test_by_size(tmp_path: Path) -> None:
    assert look(tmp_path, RetentionPolicy(max_bytes=80 * FRAME)) == [Removal("a", 10, 10 * FRAME, 80 * FRAME, "size")]


def test_by_size_with_what_will_come(tmp_path: Path) -> None:
    found = look(tmp_path, RetentionPolicy(max_bytes=80 * FRAME), grown_bytes=30 * FRAME)
    assert found == [Removal("a", 40, 40 * FRAME, 50 * FRAME, "size")]


def test_more_than_there_is(tmp_path: Path) -> None:
    found = look(tmp_path, RetentionPolicy(max_bytes=FRAME), grown_bytes=500 * FRAME)
    assert found == [Removal("a", 90, 90 * FRAME, 0, "size")]


def test_the_stricter_limit_counts(tmp_path: Path) -> None:
    policy = RetentionPolicy(max_age_s=2 * 86_400, max_bytes=80 * FRAME)
    assert [(each.messages, each.reason) for each in look(tmp_path, policy)] == [(65, "age")]
