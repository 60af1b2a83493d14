"""`tailrace completion`: a script that lets a shell complete commands, options and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tailrace.cli.ending import OK

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "tailrace"
COMPLETE_VARIABLE = "_TAILRACE_COMPLETE"

EPILOG = """\b
Examples:
  source <(tailrace completion bash)
  tailrace completion bash > /etc/bash_completion.d/tailrace
  tailrace completion zsh > "${fpath[1]}/_tailrace"
  tailrace completion fish > ~/.config/fish/completions/tailrace.fish

The script asks this command for what may follow, so it need not be made again after an upgrade.

Exit codes: 0 done, 2 wrong arguments.
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script for SHELL."""
    click.echo(script(shell))
    return OK


def script(shell: str) -> str:
    """The script of one of SHELLS. It does not look for the shell's version, which click would run the shell for."""
    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(click.Group(), {}, PROGRAM, COMPLETE_VARIABLE)
    return completer.source_template % completer.source_vars()
