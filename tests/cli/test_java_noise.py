"""What a started process writes to standard error."""

from __future__ import annotations

import subprocess

import pytest

from tailrace.cli.java_noise import start_quietly

NOISE = ["sh", "-c", "echo noise >&2; cat; echo noise >&2"]


def test_what_is_started_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    process = start_quietly(lambda: subprocess.Popen(NOISE, stdin=subprocess.PIPE))
    subprocess.run(["sh", "-c", "echo heard >&2"], check=True)
    process.communicate()
    assert capfd.readouterr().err == "heard\n"


def test_a_failure_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        subprocess.run(["sh", "-c", "echo there is no room >&2"], check=True)
        raise RuntimeError("it did not start")

    with pytest.raises(RuntimeError, match="it did not start"):
        start_quietly(start)
    assert capfd.readouterr().err == "there is no room\n"
