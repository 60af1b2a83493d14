"""The [[udp_peer]] sections, and the settings of UDP, as the configuration reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import Durability
from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.supervisor.config import ConfigError, load
from tailrace.supervisor.config_udp import UDP_PEERS_MAX, parse_udp_peer
from tailrace.supervisor.config_values import WrongValue


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({}, "addresses is missing"),
        ({"addresses": "10.0.0.0/8", "publsh": "#"}, "did you mean publish"),
        ({"addresses": "10.0.0.1/8"}, "neither an IP address nor a network"),
        ({"addresses": ["host.example"]}, "neither an IP address nor a network"),
        ({"addresses": "::ffff:10.0.1.0/120"}, "write it as IPv4, from 10.0.1.0 on"),
        ({"addresses": []}, "addresses: the list is empty, so the section holds for nobody"),
        ({"addresses": 7}, "addresses: write a text or a list"),
        ({"addresses": "::/0", "publish": "a#"}, "publish: # must be a whole level"),
        ({"addresses": "::/0", "subscribe": ["#/a"]}, "subscribe: # must be the last level"),
    ],
)
def test_faults_are_named(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(WrongValue, match=fault):
        parse_udp_peer(table)


def test_sections_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    text = '[[udp_peer]]\naddresses = "10.0.0.0/8"\npublish = ["a/#", "b"]\n[[udp_peer]]\naddresses = ["::1"]\n'
    path.write_text(f'[listen]\nudp = true\n[udp]\nstream = "live"\nlease_s = "1 min"\n{text}')
    settings = load(path)
    assert settings.udp and settings.udp_lease_s == 60 and settings.udp_cookies
    assert settings.udp_peers == (UdpPeer(("10.0.0.0/8",), ("a/#", "b")), UdpPeer(("::1",)))
    assert settings.policy("live").durability is Durability.MEMORY
    assert settings.policy("udp").durability is Durability.ASYNC


def test_too_many_sections_and_a_wrong_name(tmp_path: Path) -> None:
    path = tmp_path / "tailrace.toml"
    path.write_text('[[udp_peer]]\naddresses = "::1"\n' * (UDP_PEERS_MAX + 1))
    with pytest.raises(ConfigError, match="at most 256 are allowed"):
        load(path)
    for name in ("$udp", "a$dead", "a/$dead", "reply-to/udp", "a/"):
        path.write_text(f'[listen]\nudp = true\n[udp]\nstream = "{name}"\n')
        with pytest.raises(ConfigError, match=rf"\[udp\] stream: {re.escape(name)} is not the name of a new stream"):
            load(path)
