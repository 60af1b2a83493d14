"""Options that several subcommands share: the broker's address and a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tailrace.cli.credentials import login_options
from tailrace.cli.server import RECONNECT_S, SERVER_VARIABLE
from tailrace.cli.start import FORMS, BadStart, parse_start
from tailrace.cli.values import FILLED, Seconds
from tailrace.core.address import DEFAULT_HOST, DEFAULT_PORT
from tailrace.core.places import StartPlace
from tailrace.errors import InvalidArgument
from tailrace.shard.names import InvalidName, is_reserved, validate_name

F = TypeVar("F", bound=Callable[..., Any])

SERVER_HELP = f"The broker [env: {SERVER_VARIABLE}; default: {DEFAULT_HOST}:{DEFAULT_PORT}]."

TLS_HELP = {
    "tls": "Use TLS, as for a broker whose address begins with tails://.",
    "ca": "CAs of the broker's certificate, PEM, instead of the system's; implies --tls [env: TAILRACE_CA].",
    "cert": "Certificate to show to the broker, PEM; implies --tls [env: TAILRACE_CERT].",
    "cert-key": "Its private key, if it is not in the same file [env: TAILRACE_KEY].",
}


def server_options(function: F) -> F:
    """--server, --host and --port, and how to log in: all of them are found by `cli.server`."""
    port = click.IntRange(1, 65_535)
    function = _kept("--port", "-p", type=port, help="The broker's port; overrides that of --server.")(function)
    function = _kept("--host", type=FILLED, help="The broker's host; overrides that of --server.")(function)
    function = login_options(tls_options(function))
    return _kept("--server", "-s", type=FILLED, metavar="HOST:PORT", help=SERVER_HELP)(function)


def tls_options(function: F) -> F:
    """--tls, --ca, --cert and --cert-key, which `cli.server` finds."""
    for name, text in reversed(TLS_HELP.items()):
        flags: dict[str, Any] = {"is_flag": True} if name == "tls" else {"metavar": "FILE", "type": FILLED}
        function = _kept(f"--{name}", help=text, **flags)(function)
    return function


def _kept(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that is no parameter of the command: `_keep` stores it for `cli.server`."""
    return click.option(*names, expose_value=False, callback=_keep, **settings)


def _keep(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    ctx.meta[f"tailrace.{parameter.name}"] = value


def reconnect_option(function: F) -> F:
    """--reconnect, in seconds."""
    text = "Try to reconnect for this many seconds."
    return click.option(
        "--reconnect", "reconnect_s", type=Seconds(0), default=RECONNECT_S, show_default=True, help=text
    )(function)


def stream_argument(function: F) -> F:
    """STREAM, the valid name of a stream or a topic that is not the broker's own."""
    return click.argument("stream", callback=check_stream)(function)


def check_stream(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks the name of a stream or a topic for click; None is allowed for optional parameters."""
    if value is None:
        return None
    try:
        validate_name(value)
    except InvalidName as error:
        from tailrace.protocol.topics import leveled_fault  # not for commands that have no topics

        fault = leveled_fault(os.fsencode(value))
        if fault != "":
            raise click.BadParameter(fault or str(error)) from None
    if is_reserved(value):
        raise click.BadParameter(f"the stream name {value!r} begins with $, which is reserved for the broker")
    return value


def start_option(default: str | None) -> Callable[[F], F]:
    """--from, where reading begins."""
    return click.option(
        "--from",
        "start",
        default=default,
        show_default=default is not None,
        callback=_check_start,
        metavar="FROM",
        help=f"{FORMS}.",
    )


def _check_start(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> StartPlace | None:
    try:
        return None if value is None else parse_start(value)
    except BadStart as error:
        raise click.BadParameter(str(error)) from None


def consumer_argument(function: F) -> F:
    """GROUP, the name of a durable consumer."""
    return click.argument("group", callback=check_consumer)(function)


def check_filter(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks a topic filter for click."""
    from tailrace.protocol.topics import filter_fault  # not for commands that have no topics

    fault = "" if value is None else filter_fault(os.fsencode(value))
    if fault:
        raise click.BadParameter(fault)
    return value


def check_consumer(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Checks the name of a consumer or a member for click; None is allowed for optional parameters."""
    if value is None:
        return None
    from tailrace.core.consumer_calls import checked_name  # not for commands that have no consumers

    try:
        return checked_name(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None


def json_option(function: F) -> F:
    """--json, one object in a line."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each, in a line.")(function)
