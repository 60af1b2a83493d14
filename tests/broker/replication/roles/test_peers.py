"""The list of machines whose nodes are believed: its syntax, and which addresses it admits."""

from __future__ import annotations

import pytest

from tailrace.broker.replication.roles.peers import Peers, parse_peer

PEERS = Peers(["10.0.0.1:5050", "10.1.0.0/16", "192.0.2.7", "[2001:db8::1]:5051", "fd00::/8"])


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("10.1.255.3", True),
        ("10.2.0.0", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("2001:db8::1", True),
        ("2001:db8::2", False),
        ("fd12::9%eth0", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.2", False),
        ("127.0.0.1", False),
        ("node-1", False),
        ("", False),
    ],
)
def test_who_is_admitted(host: str, admitted: bool) -> None:
    assert PEERS.admit(host) is admitted
    assert not Peers().admit(host)


def test_entries_with_a_port_are_nodes_to_ask() -> None:
    assert PEERS.nodes == (("10.0.0.1", 5050), ("2001:db8::1", 5051))


@pytest.mark.parametrize("entry", ["", "node-1", "node-1:5050", "10.0.0.1/24", "10.0.0.1:0", "10.0.0.1:x", "1.2.3"])
def test_what_is_no_peer(entry: str) -> None:
    with pytest.raises(ValueError):
        parse_peer(entry)


@pytest.mark.parametrize("entry", ["::ffff:10.0.0.0/120", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]:5050"])
def test_mapped_networks_would_admit_nobody(entry: str) -> None:
    with pytest.raises(ValueError, match=r"admits nobody; write it as IPv4, from 10\.0\.0\.[01] on"):
        parse_peer(entry)
