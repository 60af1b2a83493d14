"""`tailrace completion`, and what shells get when they ask."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tailrace.cli import main
from tailrace.cli.completion import SHELLS, script
from tailrace.cli.ending import OK, USAGE
from tests.cli.process import ROOT

WAIT_S: Final = 60.0
PROMPT: Final = "% "
# How each shell is started without files of its user, and what makes it ready for the script.
INTERACTIVE: Final = {
    "bash": (["bash", "--norc", "--noprofile"], ""),
    "zsh": (["zsh", "-f"], "autoload -Uz compinit && compinit -u -D; "),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_of_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == OK
    shown = capsys.readouterr().out
    assert f"{shell}_complete" in shown and "_TAILRACE_COMPLETE" in shown
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=shown.encode(), check=True)


def test_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "csh"]) == USAGE
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tailrace con", {"consume", "consumers", "conformance"}),
        ("tailrace pub --qu", {"--quiet"}),
        ("tailrace consumers re", {"reset"}),
        ("tailrace help con", {"consume", "consumers", "conformance"}),
        ("tailrace help consumers re", {"reset"}),
        ("tailrace tial --qu", set()),
    ],
)
def test_what_may_follow(typed: str, expected: set[str]) -> None:
    words = typed.split()
    environment = {
        **os.environ,
        "_TAILRACE_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run([sys.executable, "-m", "tailrace.cli.main"], env=environment, cwd=ROOT, capture_output=True)
    assert {line.partition(b",")[2].decode() for line in done.stdout.splitlines() if line} == expected
    assert done.stderr == b"", "it would stand in the line that is typed"


def test_the_script_is_for_this_program() -> None:
    assert "complete -o nosort -F _tailrace_completion tailrace" in script("bash")


def environment_with_command(folder: Path) -> dict[str, str]:
    """An environment in which `tailrace` is this checkout's, and nobody's shell has files of its own."""
    command = folder / "tailrace"
    command.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "tailrace.cli.main"])} "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}


class Terminal:
    """A shell at a terminal of its own, into which a test types."""

    def __init__(self, words: list[str], folder: Path) -> None:
        environment = {**environment_with_command(folder), "TERM": "xterm", "PS1": PROMPT}
        self._end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(self._end, False)
        self._shown = b""

    def type(self, text: str) -> None:
        self._shown = b""
        os.write(self._end, text.encode())

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while text.encode() not in self._shown:
            assert time.monotonic() < deadline_s, self._shown.decode(errors="replace")
            try:
                self._shown += os.read(self._end, 1 << 16)
            except BlockingIOError:
                time.sleep(0.02)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.mark.thorough
@pytest.mark.system
@pytest.mark.parametrize("shell", INTERACTIVE)
def test_a_word_is_completed_at_a_prompt(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words, before = INTERACTIVE[shell]
    terminal = Terminal(words, tmp_path)
    try:
        terminal.type(f"{before}source <(tailrace completion {shell}); echo rea''dy\n")
        terminal.wait_for("ready")
        terminal.type("tailrace consumers cre\t")
        terminal.wait_for("tailrace consumers create")
    finally:
        terminal.close()


@pytest.mark.system
def test_fish_knows_what_may_follow(tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    environment = environment_with_command(tmp_path)
    script = "tailrace completion fish | source; complete -C 'tailrace consumers cre'"
    done = subprocess.run([fish, "-N", "-c", script], cwd=ROOT, env=environment, capture_output=True, timeout=WAIT_S)
    assert done.stdout.split()[:1] == [b"create"], done
