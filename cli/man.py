"""`tailrace man`: manual pages, made from the texts that --help shows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click

from tailrace.cli.ending import OK, USAGE, CommandError
from tailrace.version import VERSION

EPILOG = """\b
Examples:
  tailrace man tail | man -l -
  tailrace man --install /usr/local/share/man/man1

Without COMMAND it is the page of tailrace itself.

Exit codes: 0 done, 1 the pages cannot be written, 2 wrong arguments.
"""
SECTION = 1
HEADING = re.compile(r"^(Examples|Environment|Exit codes):$")


@click.command("man", epilog=EPILOG)
@click.argument("name", required=False, metavar="[COMMAND]")
@click.option(
    "--install", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write all pages to this folder."
)
def command(name: str | None, folder: Path | None) -> int:
    """Print the manual page of COMMAND."""
    if folder is None:
        click.echo(page_of(name), nl=False)
        return OK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in (None, *root().list_commands(click.Context(root()))):
            file = folder / f"{_title(each)}.{SECTION}"
            file.write_text(page_of(each))
            click.echo(file)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from None
    return OK


def root() -> click.Group:
    found = importlib.import_module("tailrace.cli.main").cli  # which imports this module
    assert isinstance(found, click.Group)
    return found


def page_of(name: str | None) -> str:
    """The page in roff. Raises CommandError."""
    group = root()
    top = click.Context(group, info_name="tailrace")
    if name is None:
        return "\n".join(_page(group, top)) + "\n"
    found = group.get_command(top, name)
    if found is None:
        raise CommandError(f"there is no command {name!r}", USAGE)
    return "\n".join(_page(found, click.Context(found, top, info_name=name))) + "\n"


def _title(name: str | None) -> str:
    return "tailrace" if name is None else f"tailrace-{name}"


def _page(command: click.Command, ctx: click.Context) -> Iterator[str]:
    title = ctx.command_path.replace(" ", "-")
    yield f'.TH "{title.upper()}" "{SECTION}" "" "tailrace {VERSION}" "tailrace"'
    yield ".SH NAME"
    yield f"{_roff(title)} \\- {_roff(command.get_short_help_str(limit=200).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {_roff(ctx.command_path)}"
    yield _roff(" ".join(command.collect_usage_pieces(ctx)))
    yield ".SH DESCRIPTION"
    yield _roff(command.help or "")
    yield ".SH OPTIONS"
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            yield from (".TP", f".B {_roff(record[0])}", _roff(record[1]))
    if isinstance(command, click.Group):
        yield from _commands(command, ctx)
    yield from _epilog(command.epilog or "")


def _commands(group: click.Group, ctx: click.Context) -> Iterator[str]:
    yield ".SH COMMANDS"
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        if found is not None:
            yield from (".TP", f".B {_roff(name)}", _roff(found.get_short_help_str(limit=200)))


def _epilog(text: str) -> Iterator[str]:
    """Lines as they are written; a heading that stands alone begins a section."""
    yield from (".SH NOTES", ".nf")
    for line in text.replace("\b\n", "").strip().splitlines():
        heading = HEADING.match(line)
        if heading is None:
            yield _roff(line)
        else:
            yield from (".fi", f".SH {heading[1].upper()}", ".nf")
    yield ".fi"


def _roff(text: str) -> str:
    """Text in which roff sees no commands."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.splitlines())
