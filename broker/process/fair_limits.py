"""The settings that keep one peer from taking the share of the others: deadlines, and bounds for each address.

`Settings` inherits them (`broker.process.settings`).
"""

# ruff: noqa: RUF009 - `setting` is dataclasses.field with a description

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.broker.process.setting_specs import DAY_S, GIB, KIB, MIB, Kind, setting


@dataclass(frozen=True, slots=True)
class FairLimits:
    admin: str = setting(
        "listen",
        "admin",
        Kind.CHOICE,
        "loopback",
        "who administers without a login: unix (by the socket admin_socket alone), loopback (also lines from this"
        " machine while no user is configured; it is then trusted, and so are tunnels and proxies on it), or none",
        choices=("unix", "loopback", "none"),
    )
    admin_socket: Path = setting(
        "listen",
        "admin_socket",
        Kind.PATH,
        Path("admin.sock"),
        "the socket of administration; a relative path is in the runtime directory of the service, or else in"
        " the data directory",
    )
    proxies: tuple[str, ...] = setting(
        "listen",
        "proxies",
        Kind.PEERS,
        (),
        "addresses and networks of proxies that begin each connection with a PROXY preamble, v1 or v2; from others"
        " it is refused",
    )
    events: str = setting(
        "log",
        "events",
        Kind.CHOICE,
        "logfmt",
        "form of the lines about logins, refusals and administrative commands: logfmt or json",
        choices=("logfmt", "json"),
    )
    max_address_connections: int = setting(
        "limits",
        "max_address_connections",
        Kind.COUNT,
        16_384,
        "connections of one address; for IPv6 of its network of 64 bits",
        low=1,
        high=1_000_000,
        zero="no bound",
    )
    max_address_accepts: int = setting(
        "limits",
        "max_address_accepts",
        Kind.COUNT,
        500,
        "connections that one address may make in a second, at each worker; those beyond wait for their turn",
        low=1,
        high=1_000_000,
        zero="no bound",
    )
    max_address_streams: int = setting(
        "limits",
        "max_address_streams",
        Kind.COUNT,
        100_000,
        "streams that the connections of one address may create in an hour, at each worker",
        low=1,
        high=100_000_000,
        zero="no bound",
    )
    max_address_consumers: int = setting(
        "limits",
        "max_address_consumers",
        Kind.COUNT,
        100_000,
        "durable consumers that the connections of one address may create in an hour, at each worker",
        low=1,
        high=100_000_000,
        zero="no bound",
    )
    max_address_handles: int = setting(
        "limits",
        "max_address_handles",
        Kind.COUNT,
        262_144,
        "handles of all binary connections of one address, at each worker",
        low=1,
        high=100_000_000,
        zero="no bound",
    )
    max_address_rate_bytes: int = setting(
        "limits",
        "max_address_rate_bytes",
        Kind.BYTES,
        0,
        "bytes that one address may send in a second, to each worker; it is read more slowly above that",
        low=4 * KIB,
        high=64 * GIB,
        zero="no bound",
    )
    reserved_descriptors: int = setting(
        "limits",
        "reserved_descriptors",
        Kind.COUNT,
        0,
        "descriptors of a worker that are kept for files and administration; at most half of all",
        low=16,
        high=1_000_000,
        zero="five for each of max_open_streams",
    )
    max_upstreams: int = setting(
        "limits",
        "max_upstreams",
        Kind.COUNT,
        64,
        "other nodes that a worker keeps connections to, of those that it follows or that must know of a claim",
        low=1,
        high=10_000,
    )
    notsent_bytes: int = setting(
        "limits",
        "notsent_bytes",
        Kind.BYTES,
        1 * MIB,  # with 256 KiB a replay takes a third more of the broker's processor time
        "kernel memory for data of one connection that was not sent yet (TCP_NOTSENT_LOWAT)",
        low=4 * KIB,
        high=64 * MIB,
    )
    first_byte_timeout_s: float = setting(
        "timing",
        "first_byte_timeout_s",
        Kind.SECONDS,
        30.0,
        "close a connection that has sent nothing for this long since it was made",
        low=0.1,
        high=DAY_S,
    )
    login_timeout_s: float = setting(
        "timing",
        "login_timeout_s",
        Kind.SECONDS,
        30.0,
        "close a binary connection whose HELLO has not come for this long",
        low=0.1,
        high=DAY_S,
    )
    request_timeout_s: float = setting(
        "timing",
        "request_timeout_s",
        Kind.SECONDS,
        30.0,
        "close a connection whose request, or line, is incomplete for this long",
        low=0.1,
        high=DAY_S,
    )
