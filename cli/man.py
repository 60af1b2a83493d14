"""`tailrace man`: manual pages, made from the texts that --help shows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tailrace.cli.ending import OK, USAGE, CommandError, did_you_mean
from tailrace.cli.values import FilePath
from tailrace.version import VERSION

EPILOG = """\b
Examples:
  tailrace man tail | man -l -
  tailrace man consumers create | man -l -
  tailrace man --install /usr/local/share/man/man1

Without COMMAND it is the page of tailrace itself.

Exit codes: 0 done, 1 the pages cannot be written, 2 wrong arguments.
"""
SECTION = 1
HEADING = re.compile(r"^(Examples|Environment|Exit codes):$")


def _complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    before = tuple(ctx.params.get("words") or ())
    follow = (words[-1] for words in all_commands() if words and words[:-1] == before)
    return [word for word in follow if word.startswith(incomplete)]


@click.command("man", epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[COMMAND...]", shell_complete=_complete)
@click.option("--install", "folder", type=FilePath(file_okay=False), help="Write all pages to this folder.")
def command(words: tuple[str, ...], folder: Path | None) -> int:
    """Print the manual page of COMMAND."""
    if folder is None:
        click.echo(page_of(words), nl=False)
        return OK
    if words:
        raise click.UsageError("--install writes the pages of all commands; it goes without COMMAND")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in all_commands():
            file = folder / f"{'-'.join(('tailrace', *each))}.{SECTION}"
            file.write_text(page_of(each))
            click.echo(file)
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from None
    return OK


def root() -> click.Group:
    found = importlib.import_module("tailrace.cli.main").cli  # which imports this module
    assert isinstance(found, click.Group)
    return found


def all_commands() -> Iterator[tuple[str, ...]]:
    """The words of each command, those of groups and of their commands too; () is tailrace itself."""
    yield ()
    top = click.Context(root())
    for name in root().list_commands(top):
        yield (name,)
        found = root().get_command(top, name)
        if isinstance(found, click.Group):
            yield from ((name, each) for each in found.list_commands(top))


def page_of(words: Sequence[str]) -> str:
    """The page in roff of a command, such as ("consumers", "create"). Raises CommandError."""
    command: click.Command = root()
    ctx = click.Context(command, info_name="tailrace")
    for word in words:
        found = command.get_command(ctx, word) if isinstance(command, click.Group) else None
        if found is None:
            names = command.list_commands(ctx) if isinstance(command, click.Group) else []
            raise CommandError(f"there is no command {' '.join(words)!r}{did_you_mean(word, names, {})}", USAGE)
        command, ctx = found, click.Context(found, ctx, info_name=word)
    return "\n".join(_page(command, ctx)) + "\n"


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
