"""Which machines may speak to this one as nodes do: the list `[replication] peers`. Pure; asks no name server.

An entry is an address, a network, or the address and port of a node. Names are not taken: who answers for a name is
not for this node to know, and looking one up would have to wait. Nodes that move between addresses use a token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from tailrace.protocol.address import split_address

PEERS_MAX: Final = 256
"""Entries of the list."""
UPSTREAMS_MAX: Final = 16
"""Nodes in one [[slave]] upstream."""

HOSTS_KEPT: Final = 4_096
"""Addresses of which is remembered whether they are loopback's: each new connection asks."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
NodeAddress: TypeAlias = tuple[str, int]
"""Host and port of a node that can be asked."""
NodeAddresses: TypeAlias = tuple[NodeAddress, ...]
"""Those of which one is followed, in the order in which they are tried."""


class Peers:
    """`nodes`: the entries with a port, in the order of the list."""

    __slots__ = ("_networks", "nodes")

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Raises ValueError for what `parse_peer` does not take."""
        parsed = [parse_peer(entry) for entry in entries]
        self._networks = tuple([network for network, _node in parsed])
        self.nodes: tuple[NodeAddress, ...] = tuple([node for _network, node in parsed if node is not None])

    def admit(self, host: str) -> bool:
        """Whether this IP address is in the list. False for anything else, such as a name."""
        address = _address(host)
        return address is not None and any(address in network for network in self._networks)


def may_lead(peers: Peers, teller: str, host: str) -> bool:
    """Whether a node at `teller`, which is believed, may name `host` as the place of another one."""
    return host == teller or peers.admit(host) or (is_loopback(teller) and is_loopback(host))


def parse_peer(entry: str) -> tuple[Network, NodeAddress | None]:
    """The machines that an entry stands for, and the node that it names, if it has a port. Raises ValueError."""
    network, node = _parse_peer(entry)
    if first := mapped_start(network):
        raise ValueError(f"this admits nobody; write it as IPv4, from {first} on")
    return network, node


def mapped_start(network: Network) -> ipaddress.IPv4Address | None:
    """The first address of a network of IPv4 that is written as IPv6. No host is in it: all are compared as IPv4."""
    first = network.network_address
    return first.ipv4_mapped if isinstance(first, ipaddress.IPv6Address) else None


def _parse_peer(entry: str) -> tuple[Network, NodeAddress | None]:
    try:
        return ipaddress.ip_network(entry), None
    except ValueError as error:
        if "host bits" in str(error):
            raise ValueError(
                f"{entry} has bits set behind its prefix; write the first address of the network"
            ) from None
    try:
        host, port = split_address(entry)
        return ipaddress.ip_network(host), (host, port)
    except ValueError:
        text = "write an IP address, a network such as 10.0.0.0/24, or IP:PORT of a node; names need a token instead"
        raise ValueError(text) from None


@lru_cache(maxsize=HOSTS_KEPT)
def is_loopback(host: str) -> bool:
    """Whether an IP address is of this machine's loopback: 127.0.0.0/8, ::1, and the former mapped into IPv6."""
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
