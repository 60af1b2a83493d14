"""`tailrace user`: a node accepts its output, and secrets come from no argument."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from tailrace.broker.access.users import UserLimits
from tailrace.cli.main import run
from tailrace.protocol.scram import password_matches
from tailrace.supervisor.user_file import hash_token, read_users


def test_users_come_change_and_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ["--file", str(tmp_path / "users.toml")]
    monkeypatch.setenv("TAILRACE_PASSWORD", "correct horse")
    assert run(["user", "add", "ann", "--group", "ops", *file]) == 0
    assert run(["user", "add", "sensor", "--token", *file]) == 0
    token = capsys.readouterr().out.strip()
    assert run(["user", "add", "n2", "--certificate", "CN=n2", "--address", "10.0.0.2:5050", *file]) == 0
    ann, sensor, node = read_users(tmp_path / "users.toml")
    assert ann.groups == {"ops"} and ann.scram is not None and password_matches(ann.scram, "correct horse")
    assert sensor.token_hashes == (hash_token(token),) and sensor.scram is None
    assert (node.certificates, node.addresses) == (("CN=n2",), ("10.0.0.2:5050",))
    assert run(["user", "ls", *file]) == 0
    assert capsys.readouterr().out == "ann\tops\tpassword\t-\nsensor\t-\ttoken\t-\nn2\t-\tcertificate\t-\n"
    assert run(["user", "ls", "--json", *file]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {
        "name": "ann",
        "groups": ["ops"],
        "ways": ["password"],
        "limits": {},
    }
    assert run(["user", "passwd", "sensor", "--token", *file]) == 0
    assert capsys.readouterr().out.strip() != token
    assert run(["user", "passwd", "sensor", "--token", "--json", *file]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["changed"]) == ("sensor", True) and len(shown["token"]) > 20
    assert run(["user", "limit", "sensor", "--max-streams", "3", *file]) == 0
    assert capsys.readouterr().out == ""
    assert run(["user", "add", "bob", "--certificate", "CN=bob", "--json", *file]) == 0
    assert run(["user", "rm", "bob", "--json", *file]) == 0
    assert capsys.readouterr().out == '{"name": "bob", "added": true}\n{"name": "bob", "removed": true}\n'
    assert run(["user", "rm", "ann", *file]) == 0
    assert [user.name for user in read_users(tmp_path / "users.toml")] == ["sensor", "n2"]


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["add", "a b"], 2, "the name of a user"),
        (["add", "ann"], 2, "8 to 512 characters"),
        (["add", "ann", "--password-file", "none"], 2, "cannot be read"),
        (["add", "ann", "--password-file", "/dev/zero"], 2, "is not a regular file"),
        (["add", "ann", "--token", "--address", "10.0.0.2"], 2, "10.0.0.2"),
        (["add", "ann", "--certificate", ""], 2, "must not be empty"),
        (["passwd", "ann", "--token", "--password-file", "p"], 2, "pass one of them"),
        (["add", "ann", "--certificate", "\udcff"], 2, "certificates"),
        (["rm", "ann"], 1, "there is no user ann"),
        (["passwd", "ann", "--token"], 1, "there is no user ann"),
        (["limit", "ann", "--max-streams", "1"], 1, "there is no user ann"),
        (["limit", "ann"], 2, "which limit?"),
        (["limit", "ann", "--max-streams", "-1"], 2, "not in the range"),
        (["ls"], 1, "cannot be read"),
    ],
)
def test_faults(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    fault: str,
) -> None:
    monkeypatch.setenv("TAILRACE_PASSWORD", "short")
    assert run(["user", *arguments, "--file", str(tmp_path / "users.toml")]) == code
    assert fault in capsys.readouterr().err


def test_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "users.toml")]
    limits = [f"--{each.name.replace('_', '-')}={number}" for number, each in enumerate(fields(UserLimits), start=1)]
    assert run(["user", "add", "s", "--token", *limits, *file]) == 0
    assert run(["user", "limit", "s", "--max-connections=0", "--max-streams=9", *file]) == 0
    [user] = read_users(tmp_path / "users.toml")
    assert user.limits == UserLimits(0, 9, *range(3, 1 + len(limits)))
    capsys.readouterr()
    assert run(["user", "ls", *file]) == 0
    assert "\tmax_streams=9,max_consumers=3" in capsys.readouterr().out


def test_a_user_is_added_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "users.toml")]
    assert run(["user", "add", "ann", "--token", *file]) == 0
    assert run(["user", "add", "ann", "--token", *file]) == 1
    assert "is there already" in capsys.readouterr().err
