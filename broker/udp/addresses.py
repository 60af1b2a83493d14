"""Addresses of UDP as the leaves have them, 28 bytes, and their rights."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.replication.roles.peers import Network, is_loopback
from tailrace.broker.topics.rules import is_covered
from tailrace.protocol.address import join_address

NAME_BYTES: Final = 28
HOSTS_KEPT: Final = 4_096
"""Addresses of which their section is remembered."""

_IPV4, _IPV6 = Struct("=H2s4s20x"), Struct("=H2sI16sI")


def pack_name(address: tuple[Any, ...]) -> bytes:
    """An address of the socket module, with a numeric host."""
    port = int(address[1]).to_bytes(2, "big")
    if len(address) == 2:
        return _IPV4.pack(socket.AF_INET, port, socket.inet_pton(socket.AF_INET, address[0]))
    host = socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])
    return _IPV6.pack(socket.AF_INET6, port, 0, host, address[3])


def host_of(name: bytes) -> str:
    """The IP address; that of IPv4 also if it came mapped into IPv6."""
    if int.from_bytes(name[:2], "little") == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, name[4:8])
    return socket.inet_ntop(socket.AF_INET6, name[8:24])


def shown_name(name: bytes) -> str:
    """As in `127.0.0.1:5050` or `[::1]:5050`."""
    return join_address(host_of(name), int.from_bytes(name[2:4], "big"))


def is_of_this_machine(name: bytes) -> bool:
    """Whether a datagram has not come over a network: the kernel drops those that pretend to be from loopback."""
    return is_loopback(host_of(name))


class PeerRights:
    """What the [[udp_peer]] sections give to an address. The first section with the address holds."""

    def __init__(self, sections: Iterable[UdpPeer]) -> None:
        self._sections = [(each, [ipaddress.ip_network(one) for one in each.addresses]) for each in sections]
        self._section = lru_cache(HOSTS_KEPT)(self._find)

    def may_publish(self, name: bytes, topic: bytes) -> bool:
        section = self._section(host_of(name))
        return section is not None and any(is_covered(each.encode(), topic) for each in section.publish)

    def may_subscribe(self, name: bytes, topic_filter: bytes) -> bool:
        """Whether it has the right to every topic that the filter matches."""
        section = self._section(host_of(name))
        return section is not None and any(is_covered(each.encode(), topic_filter) for each in section.subscribe)

    def _find(self, host: str) -> UdpPeer | None:
        address = ipaddress.ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        for section, networks in self._sections:
            if any(_is_in(mapped or address, network) for network in networks):
                return section
        return None


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: Network) -> bool:
    return address.version == network.version and address in network
