"""The `tailrace` command: its subcommands, and how every one of them ends.

Subcommands are imported only when used, so that `tailrace pub` does not load a broker. A subcommand returns its exit
code; its exceptions become one line on standard error here and nowhere else.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tailrace.cli.ending import INTERRUPTED, OK, REFUSED, USAGE, CommandError, complain, did_you_mean

COMMANDS = (
    *(
        "serve",
        "pub",
        "tail",
        "consume",
        "get",
        "last",
        "consumers",
        "sessions",
        "dead",
        "delete",
        "streams",
        "stat",
        "top",
        "udp",
        "bench",
        "admin",
        "user",
    ),
    *("tree", "check", "dump", "republish", "rollup", "spark-zip", "deploy", "conformance", "cert", "completion"),
    "agent",
    "cluster",
    "man",
)

OTHER_WORDS = {
    **dict.fromkeys(("publish", "produce", "send", "put", "write"), "pub"),
    **dict.fromkeys(("sub", "subscribe", "read", "cat", "follow"), "tail"),
    **dict.fromkeys(("server", "start", "run", "broker"), "serve"),
    **dict.fromkeys(("list", "ls", "topics"), "streams"),
    **dict.fromkeys(("info", "describe", "show"), "stat"),
    **dict.fromkeys(("groups", "group"), "consumers"),
    **dict.fromkeys(("dlq", "deadletters", "letters"), "dead"),
    **dict.fromkeys(("users", "passwd"), "user"),
    "version": "--version",
}
"""What other systems call a command."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing, of standard output if no file is named."""
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click raises, from 8.2 on, for a group of commands without a command."""

EPILOG = """\b
Examples:
  tailrace serve --data ./data
  tailrace pub access-log < access.log
  tailrace tail access-log --from "10m ago" --count 5
  tailrace pub greetings 'hello world'
  tailrace consume orders billing -- ./bill-one-order
  tailrace get orders billing
  tailrace last 'sensors/+/temp'
  tailrace consumers orders
  tailrace sessions ls
  tailrace dead orders
  tailrace streams 'orders.*'
  tailrace stat orders
  tailrace top
  tailrace bench
  tailrace completion bash
  tailrace man tail
  tailrace admin streams
  tailrace user add ann --group ops
  tailrace tree 10.0.0.1:5050
  tailrace check ./data
  tailrace dump ./data access-log --format json
  tailrace rollup ./data ./rollups
  tailrace spark-zip
  tailrace deploy --list
  tailrace cert --self-signed ./tls
  tailrace conformance -- ./my-client
  tailrace agent --cluster NAME --etcd 10.0.0.9:2379 --address 10.0.0.1:5050 --data ./data
  tailrace cluster status --cluster NAME --etcd 10.0.0.9:2379

\b
Environment:
  TAILRACE_SERVER  the broker, if no option names one
  TAILRACE_TOKEN   the token that a broker requires from other machines, or of the user
  TAILRACE_USER    who logs in, with TAILRACE_TOKEN or TAILRACE_PASSWORD
  TAILRACE_CA      the CAs of a broker under TLS; also TAILRACE_CERT and TAILRACE_KEY, for a certificate of the client

\b
Exit codes:
  0    done
  1    refused by the broker, faults found by a check, or any other failure
  2    wrong arguments or configuration
  3    the data directory is in use
  4    cannot listen, cannot connect, or the connection was lost
  5    the data directory is unusable
  130  interrupted by ^C
"""


class Interrupted(Exception):
    """^C. Not KeyboardInterrupt, which click would answer with an empty line."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"tailrace.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`help COMMAND` is `COMMAND --help`. Raises UsageError, which names the commands that may have been meant."""
        name = args[0]
        if ctx.resilient_parsing:  # what is typed is being completed
            return super().resolve_command(ctx, args[1:] or [""] if name == "help" else args)
        if name == "help":
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            return self.resolve_command(ctx, [*args[1:], "--help"])
        if name not in COMMANDS and not name.startswith("-"):
            text = f"No such command {name!r}{did_you_mean(name, COMMANDS, OTHER_WORDS)}"
            raise click.UsageError(text, ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Prints what --help and --version ask for."""
        try:
            return super().make_context(*arguments, **extra)
        except BrokenPipeError:
            _forget_stdout()
            raise click.exceptions.Exit(OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:  # the reader of our output has closed it
            _forget_stdout()
            return OK


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tailrace", prog_name="tailrace", message="%(prog)s %(version)s")
def cli() -> None:
    """tailrace: a persistent publish/subscribe broker for streams of messages."""


class ClosedOutput(io.RawIOBase):
    """Standard output that a shell has closed: Python has none then, and results would be lost without an error."""

    def writable(self) -> bool:
        return True

    def write(self, _data: object) -> NoReturn:
        raise CommandError(f"cannot write the output: {os.strerror(errno.EBADF)}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave the process with its exit code."""
    _hold_standard_files()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code. Errors are one line on standard error, without a traceback."""
    try:
        code = cli.main(arguments, prog_name="tailrace", standalone_mode=False)
    except NO_ARGUMENTS as error:
        complain(error.format_message())
        return USAGE
    except click.UsageError as error:
        return _fail(_with_help(error), USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), REFUSED)
    except CommandError as error:
        return _fail(error.text, error.exit_code)
    except UnicodeEncodeError as error:  # Python has read bytes that are not UTF-8 as lone surrogates
        return _fail(f"not UTF-8: {error.object[max(error.start - 20, 0) : error.end + 20]!a}", USAGE)
    except OSError as error:
        if error.errno not in (*NO_ROOM, errno.EBADF) or error.filename is not None:
            raise
        _forget_stdout()
        what = "write the output" if error.errno in NO_ROOM else "use standard input"
        return _fail(f"cannot {what}: {error.strerror}", REFUSED)
    except (Interrupted, click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else OK


def _fail(text: str, exit_code: int) -> int:
    complain(f"tailrace: {text}")
    return exit_code


def _with_help(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx is not None else "tailrace"
    return f"{' '.join(error.format_message().split()).rstrip('.')} (see {where} --help)"


def _hold_standard_files() -> None:
    """Without it a connection could get the number of standard output, if a shell has closed that (`>&-`), and messages
    would be written to it. Reading and writing still fail.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if fd else os.O_WRONLY)  # gets the lowest free number
            if fd == 1:
                sys.stdout = io.TextIOWrapper(ClosedOutput(), write_through=True)


def _forget_stdout() -> None:
    """Let what Python still has in its buffer go nowhere; flushing it at exit would complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    main()
