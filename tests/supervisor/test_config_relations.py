"""Relations between settings, and the place at which a broken one is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings, StreamPolicy
from tailrace.supervisor.config import ConfigError, load
from tailrace.supervisor.config_relations import find_conflicts


def test_the_defaults_agree_with_each_other() -> None:
    assert list(find_conflicts(Settings())) == []


@pytest.mark.parametrize(
    ("settings", "fields", "expected"),
    [
        (
            Settings(max_message_bytes=9 << 20, max_line_bytes=16 << 20, max_envelope_bytes=9 << 20),
            ("max_envelope_bytes", "max_message_bytes"),
            "at least 9,441,280 bytes",
        ),
        (Settings(max_message_bytes=9 << 20), ("max_line_bytes", "max_message_bytes"), "at least 9,437,440 bytes"),
        (Settings(max_partial_bytes=1 << 20), ("max_partial_bytes", "max_envelope_bytes"), "at least 16,777,216 bytes"),
        (Settings(link_window_bytes=1 << 20), ("link_window_bytes", "max_message_bytes"), "at least 8,388,608 bytes"),
        (Settings(chunk_bytes=64 << 20), ("chunk_cache_bytes", "chunk_bytes"), "at least 134,217,728 bytes"),
        (Settings(node_max_bytes=8 << 20), ("node_max_bytes", "max_envelope_bytes"), "at least that"),
        (
            Settings(node_max_bytes=1 << 30, streams=(StreamPolicy(pattern="log.*", max_bytes=2 << 30),)),
            ("node_max_bytes",),
            "but [[stream]] log.* keeps 2,147,483,648 bytes",
        ),
        (Settings(metrics_port=5_050), ("host", "port", "metrics_host", "metrics_port"), "both 127.0.0.1 port 5050"),
    ],
)
def test_one_broken_relation_each(settings: Settings, fields: tuple[str, ...], expected: str) -> None:
    ((names, text),) = find_conflicts(settings)
    assert names == fields
    assert expected in text


def test_the_same_port_on_another_address_is_fine() -> None:
    assert not list(find_conflicts(Settings(metrics_port=5_050, metrics_host="127.0.0.2")))
    assert not list(find_conflicts(Settings(metrics_port=0, port=0)))


def test_it_is_told_at_the_last_key_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[limits]\nmax_line_bytes = '9 MiB'\nmax_message_bytes = '9 MiB'\n")
    with pytest.raises(ConfigError, match=r"t\.toml:3: \[limits\] max_line_bytes is 9,437,184 bytes"):
        load(file)


def test_a_relation_broken_by_a_flag_names_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"^--metrics-port: .*are both"):
        load(None, {"metrics_port": "5050"})
    assert load(None, {"metrics_port": "5050", "port": "5051"}).port == 5_051


OPEN_TEXT = r"no user is configured: everybody there could read and write every stream.*allow_anonymous = true"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.2", "fe80::1%eth0", "::ffff:10.0.0.2", "broker.example"])
def test_a_network_is_not_listened_to_without_users(tmp_path: Path, host: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'[listen]\nport = 0\nhost = "{host}"\n')
    with pytest.raises(ConfigError, match=r"t\.toml:3: \[listen\] host = .*" + OPEN_TEXT):
        load(file)
    with pytest.raises(ConfigError, match=f"^--host: .*{OPEN_TEXT}"):
        load(None, {"host": host})
    file.write_text(f'[listen]\nhost = "{host}"\n[access]\nallow_anonymous = true\n')
    assert load(file).allow_anonymous
    assert load(None, {"host": host, "allow_anonymous": True}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_needs_no_users(host: str) -> None:
    assert load(None, {"host": host}).users is None


def test_users_or_a_token_let_a_node_listen_to_a_network(tmp_path: Path) -> None:
    assert not list(find_conflicts(Settings(host="::", users=())))
    assert not list(find_conflicts(Settings(host="::", token="t")))
    assert list(find_conflicts(Settings(host="::", replication_token="t", replication_peers=("10.0.0.0/8",))))
