"""`tailrace serve`: reads the configuration and runs a node until it is stopped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from tailrace.broker.process.setting_specs import Kind, spec_of
from tailrace.broker.process.settings import described_fields
from tailrace.cli.ending import OK, SERVER_PACKAGES, USAGE, complain, require
from tailrace.cli.logs import LEVELS, set_up_logging
from tailrace.cli.values import FilePath
from tailrace.supervisor.config import ConfigError, flag_name, load
from tailrace.supervisor.config_values import format_number
from tailrace.supervisor.signals import hold_reloads

EPILOG = """\b
Examples:
  tailrace serve
  tailrace serve --data /var/lib/tailrace --host 0.0.0.0 --users-file users.toml
  tailrace serve --config /etc/tailrace/tailrace.toml
  tailrace serve --config tailrace.toml --check-config

\b
Signals:
  TERM, INT  finish what has begun, close the files, end
  HUP        read the configuration again and replace the workers one by one

Sizes may be written as "8 MiB", times as "30 s" or "7 d". Flags win over the file.
"""


def setting_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for every setting, in the order of the configuration file."""
    for each in reversed(described_fields()):
        function = _option(each)(function)
    return function


def _option(field: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    spec = spec_of(field)
    text = f"{spec.doc[0].upper()}{spec.doc[1:]} [default: {_default(field)}]."
    if spec.kind is Kind.FLAG:
        name = flag_name(field.name)
        return click.option(f"{name}/--no-{name[2:]}", field.name, default=None, help=text)
    return click.option(flag_name(field.name), field.name, metavar=spec.kind.upper(), help=text)


def _default(field: Field[Any]) -> str:
    spec = spec_of(field)
    default: Any = field.default
    if default == 0 and spec.zero:
        return f"0, {spec.zero}"
    if spec.kind in (Kind.BYTES, Kind.SECONDS):
        return format_number(spec.kind, default)
    return "yes" if default is True else str(default)


@click.command("serve", epilog=EPILOG)
@click.option("--config", type=FilePath(), metavar="FILE", help="Configuration, a TOML file.")
@click.option("--check-config", is_flag=True, help="Check the configuration without starting anything.")
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="The lowest level that is logged."
)
@setting_options
def command(config: Path | None, check_config: bool, log_level: str, **flags: object) -> int:
    """Run a node: the broker, its workers and its metrics."""
    hold_reloads()
    try:
        settings = load(config, flags)
    except ConfigError as error:
        for fault in error.faults:
            complain(str(fault))
        return USAGE
    if check_config:
        click.echo(f"{config or 'the configuration'}: valid")
        return OK
    set_up_logging(log_level)
    require(SERVER_PACKAGES, "server")
    gc.disable()  # while some 400 modules are loaded nothing becomes garbage: a twentieth of the start
    from tailrace.supervisor.main import serve

    gc.enable()
    return serve(settings, lambda: load(config, flags))
