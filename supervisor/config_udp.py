"""The [[udp_peer]] sections of the configuration: what datagrams from which addresses may do, in order."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.replication.roles.peers import mapped_start
from tailrace.protocol.topics import filter_fault
from tailrace.supervisor.config_values import WrongValue, show, suggest

UDP_PEER_SECTION: Final = "udp_peer"
UDP_PEERS_MAX: Final = 256
"""They are tried in turn, once for each address of the latest ones that a worker has looked up."""
WORDS_MAX: Final = 256
KEYS: Final = ("addresses", "publish", "subscribe")
EXAMPLE: Final = 'addresses = ["10.0.1.0/24"] and publish = ["sensors/#"]'


def parse_udp_peer(table: dict[str, Any]) -> UdpPeer:
    """One section. Raises WrongValue."""
    for key in table:
        if key not in KEYS:
            near = suggest(key, list(KEYS))
            hint = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
            raise WrongValue(f"{show(key)}: no such key; {hint}")
    if "addresses" not in table:
        raise WrongValue(f"addresses is missing; {EXAMPLE} are an example")
    addresses = _words("addresses", table["addresses"])
    if not addresses:
        raise WrongValue(f"addresses: the list is empty, so the section holds for nobody; {EXAMPLE} are an example")
    for each in addresses:
        _check_network(each)
    publish, subscribe = (_words(key, table.get(key, [])) for key in ("publish", "subscribe"))
    for key, filters in (("publish", publish), ("subscribe", subscribe)):
        for each in filters:
            if fault := filter_fault(each.encode("utf-8", "surrogatepass")):
                raise WrongValue(f"{key}: {fault}")
    return UdpPeer(addresses, publish, subscribe)


def _words(key: str, value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > WORDS_MAX or not all(isinstance(each, str) for each in words):
        raise WrongValue(f"{key}: write a text or a list of at most {WORDS_MAX} texts, not {show(value)}")
    return tuple(words)


def _check_network(text: str) -> None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise WrongValue(
            f"addresses: {show(text)} is neither an IP address nor a network such as 10.0.1.0/24"
        ) from None
    if first := mapped_start(network):
        raise WrongValue(f"addresses: {show(text)} holds for nobody; write it as IPv4, from {first} on")
