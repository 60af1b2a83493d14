"""How a command ends: one line for the operator and an exit code for scripts.

Light on purpose: imported by every subcommand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TextIO

from tailrace.protocol.names import printable

OK = 0
REFUSED = 1  # the broker refused, a check found faults, or anything without a code of its own
USAGE = 2  # wrong arguments, wrong configuration
IN_USE = 3  # the data directory is in use
NO_CONNECTION = 4  # cannot listen, cannot connect, or the connection was lost
NO_DIRECTORY = 5  # the data directory is unusable
INTERRUPTED = 130  # by ^C, as a shell reports it
SERVER_PACKAGES = ("h11", "prometheus_client", "psutil", "setproctitle")
"""The extra `server`: what a node needs beyond the client and the command."""
SIMILAR = 0.6
"""From 0 to 1: how similar a name must be to be proposed."""


def is_somebody_there() -> bool:
    """Whether standard input is a terminal. Python has none if it was closed when the process began."""
    standard_input: TextIO | None = sys.stdin
    return standard_input is not None and standard_input.isatty()


class CommandError(Exception):
    """The command cannot go on. `text` is printed, then the process leaves with `exit_code`."""

    def __init__(self, text: str, exit_code: int = REFUSED) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def complain(text: str) -> None:
    """Prints a text for people on standard error. All of the command's come this way."""
    import click  # here, as each command has it already

    click.echo(printable(text), err=True)


def require(names: Iterable[str], extra: str) -> None:
    """Raises CommandError if one of these packages is not installed; `extra` has them."""
    missing = ", ".join(name for name in sorted(names) if find_spec(name) is None)
    if missing:
        raise CommandError(f"this needs {missing}, not installed here; install with: pip install 'tailrace[{extra}]'")


def topic_hint(name: str) -> str:
    """A hint for an unknown stream whose name has a `/`: it is that of a topic. Nothing for others."""
    first, slash, _rest = name.partition("/")
    return f"; {name} is a topic of the stream {first}, unless the node places it" if slash and first else ""


def did_you_mean(name: str, possible: Sequence[str], other_words: Mapping[str, str]) -> str:
    """`; did you mean tail?`, or nothing if no name is similar. `other_words`: what other systems call a command."""
    also = other_words.get(name)
    found = [also] if also else get_close_matches(name, possible, 3, SIMILAR)
    return f"; did you mean {', '.join(found)}?" if found else ""
