"""Addresses of UDP as the leaves have them, 28 bytes, their rights, and those that send too much that is refused."""

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
REFUSED_A_SECOND: Final = 64
"""Of one address; what else it sends is then ignored, unless a leaf handles it."""
REFUSED_ADDRESSES_MAX: Final = 1_024
"""Whose refusals are counted at a time."""

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


class RefusedAddresses:
    """Ignores addresses of which more than REFUSED_A_SECOND requests are refused in a second.

    One that is ignored stays so until a second in which it sends no more than that. Otherwise the requests of others,
    which wait in the same socket, would wait until each of its own is refused, or find the socket full. `refused`: all;
    `ignored`: of this second.
    """

    def __init__(self) -> None:
        self.refused = self.ignored = 0
        self._counts: dict[bytes, int] = {}  # of this second
        self._ignored: set[bytes] = set()
        self._second = 0

    def add(self, name: bytes) -> None:
        """A request from there was refused."""
        self.refused += 1
        if name in self._counts or len(self._counts) < REFUSED_ADDRESSES_MAX:
            self._count(name)

    def ignores(self, name: bytes) -> bool:
        """Whether a datagram that has come from there is to be ignored."""
        if name not in self._ignored:
            return False
        self.ignored += 1
        self._count(name)
        return True

    def _count(self, name: bytes) -> None:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if count > REFUSED_A_SECOND:
            self._ignored.add(name)

    def tick(self, now_s: float) -> None:
        """In each turn in which datagrams are read."""
        second, before = int(now_s), self._second
        if second != before:
            self._second, self.ignored = second, 0
            sent_much = [name for name, count in self._counts.items() if count > REFUSED_A_SECOND]
            self._ignored = set(sent_much if second == before + 1 else ())
            self._counts.clear()


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
