"""The settings of the UDP door (`broker.udp`). `Settings` inherits them (`broker.process.settings`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.broker.process.fair_limits import FairLimits
from tailrace.broker.process.setting_specs import DAY_S, MEMORY_BYTES, Durability, Kind, setting
from tailrace.broker.process.stream_policies import StreamPolicy

UDP_POLICY: Final = StreamPolicy(durability=Durability.MEMORY, max_bytes=MEMORY_BYTES)
"""Of the stream in which topics of UDP lie that no rule places."""


@dataclass(frozen=True, slots=True)
class UdpPeer:
    """What datagrams from some addresses may do (one [[udp_peer]] section): topic filters for each right."""

    addresses: tuple[str, ...]
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UdpSettings(FairLimits):
    udp: bool = setting(
        "listen", "udp", Kind.FLAG, False, "whether datagrams are served, on the UDP port of the same number"
    )
    udp_stream: str = setting(
        "udp",
        "stream",
        Kind.NAME,
        "udp",
        "the stream of the topics that no [[topics]] section places; it is in memory, unless a [[stream]] section has"
        " its very name as pattern",
    )
    udp_lease_s: int = setting(
        "udp",
        "lease_s",
        Kind.SECONDS,
        120,
        "end the subscriptions of an address that has sent nothing for this long",
        low=1,
        high=DAY_S,
    )
    udp_cookies: bool = setting(
        "udp",
        "cookies",
        Kind.FLAG,
        True,
        "whether the first SUB of an address from another machine must show that the address is not forged",
    )
    udp_receive_bytes: int = setting(
        "udp",
        "receive_bytes",
        Kind.BYTES,
        4 << 20,
        "buffer of the kernel for datagrams that a worker has not read; net.core.rmem_max bounds it",
        low=64 << 10,
        high=1 << 30,
    )
    max_udp_subscriptions: int = setting(
        "limits",
        "max_udp_subscriptions",
        Kind.COUNT,
        1_000_000,
        "subscriptions by UDP of a worker; they take about 200 bytes each",
        low=16,
        high=10_000_000,
    )
