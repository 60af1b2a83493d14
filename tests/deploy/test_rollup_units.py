"""The units of the nightly rollup, read by systemd itself, and held to what the program does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings
from tests.deploy.test_service import ROOT, Unit, analyze, help_of

DEPLOY = ROOT / "deploy"
UNITS = ("tailrace-rollup.service", "tailrace-rollup.timer", "tailrace-rollup-failed.service")
EXPOSURE_MAX = {"tailrace-rollup.service": 16, "tailrace-rollup-failed.service": 16}  # tenths


def parsed(name: str) -> Unit:
    unit = Unit()
    unit.read(DEPLOY / name)
    return unit


def arguments() -> list[str]:
    """What the service runs, without the program."""
    text = parsed("tailrace-rollup.service")["Service"]["ExecStart"]
    return text.replace("\\\n", " ").split()[1:]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_no_fault(tmp_path: Path, name: str) -> None:
    command = Path(sys.executable).with_name("tailrace")
    assert command.exists(), "the command is not installed: make setup"
    for each in UNITS:
        text = re.sub(r"^ExecStart=/opt\S+", f"ExecStart={command}", (DEPLOY / each).read_text(), flags=re.MULTILINE)
        (tmp_path / each).write_text(text)
    said = analyze("verify", "--man=no", tmp_path / name)
    assert "tailrace" not in said, said


@pytest.mark.parametrize("name", EXPOSURE_MAX)
def test_exposure_stays_low(name: str) -> None:
    said = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX[name]}", DEPLOY / name)
    assert "Overall exposure level" in said


def test_the_timer_has_a_time_that_systemd_understands() -> None:
    said = analyze("calendar", parsed("tailrace-rollup.timer")["Timer"]["OnCalendar"])
    assert "Next elapse" in said


def test_flags_exist() -> None:
    said = help_of("rollup")
    assert arguments()[0] == "rollup"
    assert "--catch-up" in arguments(), "a night that failed, or was slept through, is made up for"
    for flag in (each for each in arguments() if each.startswith("--")):
        assert flag in said


def test_the_rollup_writes_only_to_a_directory_of_its_own() -> None:
    service = parsed("tailrace-rollup.service")["Service"]
    broker = parsed("tailrace.service")["Service"]
    assert service["User"] != broker["User"]
    assert service["Group"] == broker["Group"], "or it could not read the data directory"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "tailrace-rollup"
    assert arguments()[1:3] == ["%H=/var/lib/tailrace", "/var/lib/tailrace-rollup"]
    assert int(broker["StateDirectoryMode"], 8) & 0o070 == 0o050
    assert int(service["StateDirectoryMode"], 8) & 0o070 == 0o050, "the broker reads the metrics there"


def test_its_metrics_are_where_the_broker_looks() -> None:
    path = arguments()[arguments().index("--metrics") + 1]
    assert Path(path) == Settings().metrics_textfile


def test_a_failure_is_told() -> None:
    assert parsed("tailrace-rollup.service")["Unit"]["OnFailure"] == "tailrace-rollup-failed.service"


def test_its_memory_is_bounded() -> None:
    service = parsed("tailrace-rollup.service")["Service"]
    assert service["MemoryMax"] == "6G"
    assert service["MemoryHigh"] == "4G"


def test_the_user_is_declared() -> None:
    declared = (DEPLOY / "sysusers.d" / "tailrace.conf").read_text()
    assert re.search(r"^u tailrace-rollup ", declared, re.MULTILINE)
