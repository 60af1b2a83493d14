"""What several subcommands share: how a broker is named, and a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from shard.names import InvalidName, is_reserved, validate_name
from tailrace.connection import DEFAULT_HOST, DEFAULT_PORT, SERVER_VARIABLE

F = TypeVar("F", bound=Callable[..., Any])

SERVER_HELP = f"The broker [env: {SERVER_VARIABLE}; default: {DEFAULT_HOST}:{DEFAULT_PORT}]."


def server_options(function: F) -> F:
    """--server, --host and --port."""
    function = click.option("--port", "-p", type=click.IntRange(1, 65_535), help="Its port, over that of --server.")(
        function
    )
    function = click.option("--host", help="Its host, over that of --server.")(function)
    return click.option("--server", "-s", metavar="HOST:PORT", help=SERVER_HELP)(function)


def stream_argument(function: F) -> F:
    """STREAM, a valid name that is not the broker's own."""
    return click.argument("stream", callback=_check_stream)(function)


def _check_stream(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        validate_name(value)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None
    if is_reserved(value):
        raise click.BadParameter(f"the stream name {value!r} begins with $ as the broker's own do")
    return value
