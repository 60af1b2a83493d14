"""The settings table: defaults in their own ranges, every field described, policies by first match."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from tailrace.broker.process.setting_specs import Kind, spec_of
from tailrace.broker.process.settings import (
    DEFAULT_POLICY,
    Durability,
    Settings,
    SlaveRule,
    StreamPolicy,
    described_fields,
)

ALL = [*described_fields(), *fields(StreamPolicy), *fields(SlaveRule)]


@pytest.mark.parametrize("field", ALL, ids=lambda field: field.name)
def test_defaults_are_in_their_own_range(field: object) -> None:
    spec = spec_of(field)  # type: ignore[arg-type]
    default = field.default  # type: ignore[attr-defined]
    if spec.kind in (Kind.COUNT, Kind.BYTES, Kind.SECONDS, Kind.MILLISECONDS):
        assert spec.low < spec.high
        assert spec.low <= default <= spec.high or (default == 0 and spec.zero)
    elif spec.kind is Kind.CHOICE:
        assert default in spec.choices


def test_units_stand_at_the_end_of_the_name() -> None:
    ends = {Kind.BYTES: "_bytes", Kind.SECONDS: "_s", Kind.MILLISECONDS: "_ms"}
    for field in ALL:
        end = ends.get(spec_of(field).kind)
        if end:
            assert field.name.endswith(end), field.name


def test_only_the_repeated_sections_are_no_key() -> None:
    names = {field.name for field in fields(Settings)} - {field.name for field in described_fields()}
    kept = {"streams", "slaves", "users", "rules", "topics", "udp_peers"}
    assert names == kept | {"replication_password", "own_levels"}


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


def test_the_first_policy_that_matches_wins() -> None:
    orders, logs, rest = (
        StreamPolicy("orders.*"),
        StreamPolicy("*.log", max_age_s=5),
        StreamPolicy("*", max_bytes=9_999),
    )
    settings = Settings(streams=(orders, logs, rest))
    assert settings.policy("orders.log") is orders
    assert settings.policy("web.log") is logs
    assert settings.policy("WEB.LOG") is rest
    assert Settings(streams=(logs,)).policy("other") is DEFAULT_POLICY


def test_the_log_of_a_streams_consumers_is_kept_as_safely_and_trims_itself() -> None:
    orders = StreamPolicy("orders*", Durability.ALWAYS, max_age_s=60, max_bytes=1 << 20)
    settings = Settings(streams=(orders, StreamPolicy("$*", Durability.INTERVAL)))
    assert settings.policy("$cursor/orders") == StreamPolicy("orders*", Durability.ALWAYS)
    assert settings.policy("orders/$dead") is orders
    assert settings.policy("$cursor/other") == DEFAULT_POLICY


def test_names_with_a_dollar_are_on_the_disk_as_those_of_other_streams_are() -> None:
    settings = Settings(streams=(StreamPolicy("*", Durability.MEMORY, max_bytes=1 << 20),))
    for name in ("a$b", "a/$dead", "$cursor/a", "$last/a"):
        assert settings.policy(name).durability is Durability.ASYNC, name
    assert settings.policy("a").durability is Durability.MEMORY


def test_the_logs_of_sessions_are_on_the_disk_and_not_cut() -> None:
    """Also if all streams are in memory: sessions outlive the node."""
    for durability, wanted in ((Durability.MEMORY, Durability.ASYNC), (Durability.ALWAYS, Durability.ALWAYS)):
        settings = Settings(streams=(StreamPolicy("*", durability, max_age_s=60, max_bytes=1 << 20),))
        found = settings.policy("$sessions/3")
        assert (found.durability, found.max_age_s, found.max_bytes) == (wanted, 0, 0)
