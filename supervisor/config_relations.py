"""Constraints between settings that are each in their own range."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.broker.access.users import NAME_RULE, name_valid
from tailrace.broker.process.settings import (
    ENVELOPE_OVERHEAD_MIN_BYTES,
    LINE_OVERHEAD_MIN_BYTES,
    ClientCertificates,
    Settings,
)
from tailrace.broker.replication.roles.peers import is_loopback
from tailrace.shard.names import REPLIES_PREFIX, name_bytes_valid, new_name_fault

Conflict = tuple[tuple[str, ...], str]  # the fields concerned, the fault and its remedy


def find_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Every relation that does not hold, in no particular order. The defaults hold all of them."""
    yield from _ports(settings)
    yield from _sizes(settings)
    yield from _space(settings)
    yield from _tokens(settings)
    yield from _node_login(settings)
    yield from _tls(settings)
    yield from _network(settings)
    yield from _udp(settings)


def _ports(settings: Settings) -> Iterator[Conflict]:
    if settings.port and settings.port == settings.metrics_port and settings.host == settings.metrics_host:
        text = f"[listen] and [metrics] are both {settings.host} port {settings.port}; give one of them another port"
        yield ("host", "port", "metrics_host", "metrics_port"), text


def _tokens(settings: Settings) -> Iterator[Conflict]:
    if settings.token and settings.token == settings.replication_token:
        text = (
            "[listen] and [replication] have the same token, so that every client could claim streams; choose another"
        )
        yield ("token", "replication_token"), text


def _node_login(settings: Settings) -> Iterator[Conflict]:
    user, path = settings.replication_user, settings.replication_password_file
    names = ("replication_user", "replication_password_file")
    if bool(user) != bool(path):
        missing = "password_file" if user else "user"
        text = f"[replication] {missing} is missing: a user and its password go together; a certificate needs neither"
        yield names, text
    elif user and not name_valid(user):
        yield names, f"[replication] user: the name of a user has {NAME_RULE}; anonymous is taken"


def _tls(settings: Settings) -> Iterator[Conflict]:
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        missing = "key" if settings.tls_certificate else "certificate"
        yield ("tls_certificate", "tls_key"), f"[tls] {missing} is missing: a certificate and its key go together"
    if settings.tls_required and not settings.tls_certificate:
        text = "[tls] required needs a certificate; without one nobody could connect from another machine"
        yield ("tls_required", "tls_certificate"), text
    if settings.tls_client_certificates != ClientCertificates.NONE and not settings.tls_client_ca:
        text = "[tls] client_certificates needs client_ca, the CAs that sign them"
        yield ("tls_client_certificates", "tls_client_ca"), text


def _network(settings: Settings) -> Iterator[Conflict]:
    """A name other than localhost counts as an address on a network, since names are not looked up here."""
    asks = settings.users is not None or settings.token or settings.allow_anonymous
    if not asks and settings.host != "localhost" and not is_loopback(settings.host):
        text = (
            f"[listen] host = {settings.host} is reached from the network, and no user is configured: everybody there"
            " could read and write every stream. Make users (tailrace user add NAME --group GROUP) and [[rule]]"
            " sections, or, if everybody may, write allow_anonymous = true in [access] (--allow-anonymous)"
        )
        yield ("host", "allow_anonymous"), text


def _udp(settings: Settings) -> Iterator[Conflict]:
    """No stream with a `$` is kept in memory, nor one of replies kept for long."""
    name = settings.udp_stream
    is_new = name_bytes_valid(name.encode()) and not new_name_fault(name)
    if settings.udp and (not is_new or "$" in name or name.startswith(REPLIES_PREFIX.decode())):
        text = f"it has no $, * + or #, does not begin with {REPLIES_PREFIX.decode()} and does not end in /"
        yield ("udp", "udp_stream"), f"[udp] stream: {name} is not the name of a new stream for topics; {text}"


def _sizes(settings: Settings) -> Iterator[Conflict]:
    line_bytes = settings.max_message_bytes + LINE_OVERHEAD_MIN_BYTES
    yield from _at_least(settings, "max_line_bytes", line_bytes, "max_message_bytes", "so that a line holds a message")
    yield from _at_least(
        settings,
        "link_window_bytes",
        settings.max_message_bytes,
        "max_message_bytes",
        "so that the largest message can be passed to its owner",
    )
    longest = "max_line_bytes" if settings.max_line_bytes > settings.max_envelope_bytes else "max_envelope_bytes"
    yield from _at_least(
        settings,
        "max_envelope_bytes",
        settings.max_message_bytes + ENVELOPE_OVERHEAD_MIN_BYTES,
        "max_message_bytes",
        "so that a request holds a message",
    )
    yield from _at_least(
        settings,
        "max_partial_bytes",
        getattr(settings, longest),
        longest,
        "so that one request can arrive at all",
    )
    yield from _at_least(
        settings, "chunk_cache_bytes", 2 * settings.chunk_bytes, "chunk_bytes", "so that it holds two chunks"
    )


def _space(settings: Settings) -> Iterator[Conflict]:
    """`max_bytes` of the node and settings that contradict it."""
    most = settings.node_max_bytes
    if not most:
        return
    if most < settings.max_envelope_bytes:
        text = (
            f"[node] max_bytes is {_bytes(most)} but max_envelope_bytes in [limits] is"
            f" {_bytes(settings.max_envelope_bytes)}: max_bytes must be at least that, so that one request fits"
        )
        yield ("node_max_bytes", "max_envelope_bytes"), text
    for policy in settings.streams:
        if policy.max_bytes >= most:
            text = (
                f"[node] max_bytes is {_bytes(most)} but [[stream]] {policy.pattern} keeps {_bytes(policy.max_bytes)}:"
                " the node would refuse publishes before a stream is trimmed; give the node more, or the stream less"
            )
            yield ("node_max_bytes",), text


def _at_least(settings: Settings, name: str, least_bytes: int, other: str, why: str) -> Iterator[Conflict]:
    actual_bytes: int = getattr(settings, name)
    if actual_bytes < least_bytes:
        other_bytes: int = getattr(settings, other)
        text = (
            f"[limits] {name} is {_bytes(actual_bytes)} but {other} is {_bytes(other_bytes)}: "
            f"{name} must be at least {_bytes(least_bytes)}, {why}"
        )
        yield (name, other), text


def _bytes(number: int) -> str:
    """Plain bytes: two numbers in different units are hard to compare."""
    return f"{number:,} bytes"
