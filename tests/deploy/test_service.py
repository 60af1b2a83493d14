"""The systemd unit, read by systemd itself, and held to what the program does."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.supervisor import arbiter

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "tailrace.service"
EXPOSURE_MAX = 12  # tenths; systemd calls up to 2.0 "OK", and an unhardened unit gets 9.6


class Unit(configparser.ConfigParser):
    def __init__(self) -> None:
        super().__init__(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#", ";"))

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = Unit()
    unit.read(UNIT)
    return unit["Service"]


def analyze(*arguments: str | Path) -> str:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def help_of(command: str) -> str:
    """The output of `tailrace COMMAND --help`."""
    program = [sys.executable, "-m", "tailrace.cli.main", command, "--help"]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "min": 60}[unit]


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("tailrace")
    assert command.exists(), "the command is not installed: make setup"
    text = UNIT.read_text()
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^(Exec\w+)=/opt/\S+", rf"\1={command}", text, flags=re.MULTILINE))
    said = analyze("verify", "--man=no", unit)
    assert UNIT.name not in said, said


def test_exposure_stays_low(tmp_path: Path) -> None:
    said = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", UNIT)
    assert "Overall exposure level" in said


def test_flags_exist() -> None:
    said = help_of("serve")
    for flag in re.findall(r"--[a-z-]+", next(line for line in UNIT.read_text().splitlines() if "ExecStart" in line)):
        assert flag in said


def test_stop_outlasts_the_drain(service: configparser.SectionProxy) -> None:
    drain_s = Settings().drain_timeout_s + arbiter.DRAIN_SLACK_S + arbiter.LEAVE_GRACE_S
    assert seconds(service["TimeoutStopSec"]) > drain_s + 10


def test_watchdog_outlasts_the_loop(service: configparser.SectionProxy) -> None:
    assert seconds(service["WatchdogSec"]) > 20 * arbiter.TICK_S


def test_configuration_errors_are_final(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "3", "4", "5"]


def test_descriptors_suffice_for_the_default_limits(service: configparser.SectionProxy) -> None:
    settings = Settings()
    assert int(service["LimitNOFILE"]) > settings.max_connections + 8 * settings.max_open_streams


def test_the_user_is_declared(service: configparser.SectionProxy) -> None:
    declared = (ROOT / "deploy" / "sysusers.d" / "tailrace.conf").read_text()
    assert re.search(rf"^u {service['User']} ", declared, re.MULTILINE)


def test_memory_is_bounded(service: configparser.SectionProxy) -> None:
    assert 50 <= int(service["MemoryHigh"].removesuffix("%")) <= 90
