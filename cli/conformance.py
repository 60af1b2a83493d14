"""`tailrace conformance`: check a client of the binary protocol, in any language."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import click

from tailrace.cli.conformance_checks import CHECKS, SETTINGS, Check, CheckFailed
from tailrace.cli.ending import OK, REFUSED, SERVER_PACKAGES, CommandError, require
from tailrace.cli.options import json_option
from tailrace.cli.tables import show_json
from tailrace.testing import Server

ANSWER_TIMEOUT_S = 30.0
ANSWER_MAX_BYTES = 64 << 20

EPILOG = """\b
Examples:
  tailrace conformance -- node examples/clients/conformance.mjs
  tailrace conformance --only resuming -- ./client
  tailrace conformance --json -- ./client | jq 'select(.passed | not)'

\b
The program gets one command as JSON on each line of its standard input, and answers each with one line of JSON.
docs/conformance.md describes them.

Exit codes: 0 all checks passed, 1 some failed, 2 wrong arguments.
"""


@click.command("conformance", epilog=EPILOG)
@click.option("--only", type=click.Choice([check.__name__ for check in CHECKS]), help="Run this check alone.")
@json_option
@click.argument("program", nargs=-1, required=True)
def command(only: str | None, program: tuple[str, ...], as_json: bool) -> int:
    """Check a client that somebody has written from docs/binary-protocol.md."""
    require(SERVER_PACKAGES, "server")
    failed = 0
    with Server(**SETTINGS) as server:
        for check in CHECKS:
            if only in (None, check.__name__):
                fault = outcome(program, check, server)
                failed += fault is not None
                _report(check, fault, as_json)
    return REFUSED if failed else OK


def _report(check: Check, fault: str | None, as_json: bool) -> None:
    if as_json:
        show_json([{"check": check.__name__, "passed": fault is None, "meaning": check.__doc__, "fault": fault}])
    else:
        click.echo(f"{'passed' if fault is None else 'FAILED'}  {check.__name__:18} {fault or check.__doc__}")


def outcome(program: Sequence[str], check: Check, server: Server) -> str | None:
    """Returns what went wrong, or None."""
    with Program(program) as client:
        try:
            client.ask("connect", address=server.address)
            check(client, server)
            client.ask("close")
        except CheckFailed as error:
            return str(error)
    return None


class Program:
    """A client program in a child process."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise CommandError(f"cannot run {command[0]}: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._received = bytearray()

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        answer = self._ask(do, fields)
        if "error" in answer:
            raise CheckFailed(f"{do}: the error {answer['error']!r} ({answer.get('text', 'without a text')})")
        return answer

    def refused(self, do: str, **fields: object) -> str:
        answer = self._ask(do, fields)
        if "error" not in answer:
            raise CheckFailed(f"{do}: no error, although the broker refuses this")
        return str(answer["error"])

    def _ask(self, do: str, fields: dict[str, object]) -> dict[str, Any]:
        line = json.dumps({"do": do, **{name: value for name, value in fields.items() if value is not None}})
        try:
            answer = json.loads(self._exchange(do, line.encode() + b"\n"))
        except (ValueError, RecursionError) as error:
            raise CheckFailed(f"{do}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise CheckFailed(f"{do}: the answer is not a JSON object")
        return answer

    def _exchange(self, do: str, line: bytes) -> bytes:
        """Writes a line and returns that of the answer. Reads meanwhile: the program may answer before it has read all.
        Raises CheckFailed."""
        stdin, stdout = self._stdin.fileno(), self._stdout.fileno()
        deadline_s, unsent = time.monotonic() + ANSWER_TIMEOUT_S, memoryview(line)
        while unsent or b"\n" not in self._received:
            left_s = max(0.0, deadline_s - time.monotonic())
            readable, writable, _ = select.select([stdout], [stdin] if unsent else [], [], left_s)
            if not (readable or writable):
                raise CheckFailed(f"{do}: no answer within {ANSWER_TIMEOUT_S:g} s")
            if readable:
                self._receive(do)
            if writable:
                try:
                    unsent = unsent[os.write(stdin, unsent) :]
                except BrokenPipeError:
                    raise CheckFailed(f"{do}: the program has ended") from None
        answer, _, rest = bytes(self._received).partition(b"\n")
        self._received[:] = rest
        return answer

    def _receive(self, do: str) -> None:
        data = os.read(self._stdout.fileno(), 1 << 16)
        if not data:
            raise CheckFailed(f"{do}: the program has ended")
        self._received += data
        if len(self._received) > ANSWER_MAX_BYTES:
            raise CheckFailed(f"{do}: a line of more than {ANSWER_MAX_BYTES:,} bytes")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # the program has ended before it has read all
            self._stdin.close()
        self._stdout.close()
