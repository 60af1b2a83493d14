"""`tailrace serve`: configuration in, a supervisor's exit code out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings, described_fields
from tailrace.cli import main, serve
from tailrace.cli.ending import OK, REFUSED, USAGE
from tailrace.supervisor import main as supervisor_main
from tailrace.supervisor.config import ConfigError, flag_name

Reload = Callable[[], Settings]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Settings, Reload]]]:
    """What the supervisor was given instead of being started."""
    calls: list[tuple[Settings, Reload]] = []

    def fake_serve(settings: Settings, reload: Reload) -> int:
        calls.append((settings, reload))
        return 5

    monkeypatch.setattr(supervisor_main, "serve", fake_serve)
    monkeypatch.setattr(serve, "hold_reloads", lambda: None)  # this process is not a supervisor
    monkeypatch.setattr(serve, "set_up_logging", lambda _level: None)
    yield calls


def test_flags_over_the_file_and_the_exit_code(served: list[tuple[Settings, Reload]], tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[listen]\nport = 7\n[node]\nworkers = 2\n")
    code = main.run(["serve", "--config", str(file), "--port", "8", "--data", "/d", "--no-auto-master"])
    assert code == 5
    ((settings, reload),) = served
    assert settings == Settings(data=Path("/d"), port=8, workers=2, auto_master=False)
    file.write_text("[listen]\nport = 7\n[limits]\nmax_streams = 9\n")
    assert reload() == Settings(data=Path("/d"), port=8, max_streams=9, auto_master=False)
    file.write_text("[listen]\nprt = 7\n")
    with pytest.raises(ConfigError):
        reload()


def test_every_setting_is_a_flag() -> None:
    names = {option for parameter in serve.command.params for option in parameter.opts}
    assert names == {flag_name(field.name) for field in described_fields()} | {
        "--config",
        "--check-config",
        "--log-level",
    }


def test_a_network_without_users_is_refused(served: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--check-config"]):
        assert main.run(["serve", "--host", "0.0.0.0", *flags]) == USAGE
        assert "--host: [listen] host = 0.0.0.0 is reached from the network" in capsys.readouterr().err
    assert served == []
    assert main.run(["serve", "--host", "0.0.0.0", "--allow-anonymous", "--check-config"]) == OK


def test_every_fault_is_a_line(served: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[listen]\nprt = 7\n[limits]\nmax_streams = 0\n")
    assert main.run(["serve", "--config", str(file), "--workers", "many"]) == USAGE
    assert capsys.readouterr().err.splitlines() == [
        '--workers: must be a whole number, not "many"',
        f"{file}:2: [listen] prt: no such key; did you mean port?",
        f"{file}:4: [limits] max_streams: must be from 1 to 100,000,000, not 0",
    ]
    assert served == []


def test_checking_starts_nothing(served: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[listen]\nport = 7\n")
    assert main.run(["serve", "--config", str(file), "--check-config"]) == OK
    assert capsys.readouterr().out == f"{file}: valid\n"
    file.write_text("[listen]\nport = -7\n")
    assert main.run(["serve", "--config", str(file), "--check-config"]) == USAGE
    assert served == []


def test_checking_names_each_wrong_rule_of_topics(
    served: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rule = tmp_path / "t.toml", '[[topics]]\nfilter = "{}"\nstream = "{}"\n'
    file.write_text("".join(rule.format(*each) for each in (("a/#/b", "x"), ("a/+", "{3}"), ("#", "x"), ("b", "y"))))
    assert main.run(["serve", "--config", str(file), "--check-config"]) == USAGE
    assert capsys.readouterr().err.splitlines() == [
        f"{file}:1: [[topics]] filter: # must be the last level of a topic filter: 'a/#/b'",
        f"{file}:4: [[topics]] stream: {{3}} is a level that no topic of a/+ has",
        f'{file}:10: [[topics]] is never used: an earlier section, "#", matches first',
    ]
    assert served == []


def test_the_log_level(served: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(serve, "set_up_logging", levels.append)
    main.run(["serve", "--log-level", "debug"])
    main.run(["serve"])
    assert levels == ["debug", "info"]
    assert logging.getLevelName("DEBUG") == logging.DEBUG


def test_a_library_that_only_a_node_needs_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "set_up_logging", lambda _level: None)
    monkeypatch.setitem(sys.modules, "setproctitle", None)
    assert main.run(["serve"]) == REFUSED
    text = "this needs setproctitle, not installed here; install with: pip install 'tailrace[server]'"
    assert capsys.readouterr().err == f"tailrace: {text}\n"
