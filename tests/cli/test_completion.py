"""`tailrace completion`, and what shells get when they ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tailrace.cli import main
from tailrace.cli.completion import SHELLS, script
from tailrace.cli.ending import OK, USAGE
from tests.cli.process import ROOT


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


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tailrace con", {"consume", "consumers", "conformance"}),
        ("tailrace pub --qu", {"--quiet"}),
        ("tailrace consumers re", {"reset"}),
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
    assert {line.partition(b",")[2].decode() for line in done.stdout.splitlines()} == expected


def test_the_script_is_for_this_program() -> None:
    assert "complete -o nosort -F _tailrace_completion tailrace" in script("bash")
