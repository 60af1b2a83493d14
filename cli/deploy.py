"""`tailrace deploy`: show the files that an installation copies, such as the unit of systemd."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import click

from tailrace.cli.ending import OK, CommandError
from tailrace.cli.options import json_option
from tailrace.cli.tables import show_json
from tailrace.cli.values import FILLED

NOT_SHOWN = frozenset({"__init__.py", "__pycache__"})

EPILOG = """\b
Examples:
  tailrace deploy --list
  tailrace deploy --print tailrace.service | sudo tee /etc/systemd/system/tailrace.service

Exit codes: 0 done, 1 there is no such file, 2 wrong arguments.
"""


def _complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [each for each in sorted(_found()) if each.startswith(incomplete)]


@click.command("deploy", epilog=EPILOG)
@click.option("--list", "listing", is_flag=True, help="List the names of all files, one in a line.")
@click.option("--print", "name", type=FILLED, metavar="FILE", shell_complete=_complete, help="Print one file.")
@json_option
def command(listing: bool, name: str | None, as_json: bool) -> int:
    """Show the files of an installation: units, settings, alerts."""
    if listing == (name is not None):
        raise click.UsageError("give --list or --print FILE")
    if as_json and not listing:
        raise click.UsageError("--json goes with --list; --print shows a file as it is")
    found = _found()
    if as_json:
        show_json({"file": each} for each in sorted(found))
    elif name is None:
        for each in sorted(found):
            click.echo(each)
    elif name in found:
        click.echo(found[name].read_bytes(), nl=False)
    else:
        raise CommandError(f"no such file: {name!r}; `tailrace deploy --list` names all files")
    return OK


def _found() -> dict[str, Traversable]:
    """By name; one in a folder with that before it."""
    return dict(_walk(files("tailrace.deploy"), ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for path in folder.iterdir():
        if path.name in NOT_SHOWN:
            continue
        if path.is_dir():
            yield from _walk(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}", path
