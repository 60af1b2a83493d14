"""Every command that connects logs in with the same options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.users import PASSWORD, token_of, with_users

pytestmark = pytest.mark.system

COMMANDS = (
    ("pub", "s", "hello"),
    ("tail", "s", "--count", "1"),
    ("admin", "stat", "s"),
    ("tree",),
    ("consumers", "ls", "s"),
)


def run(node: Node, command: tuple[str, ...], *flags: str) -> subprocess.CompletedProcess[str]:
    where = () if command[0] == "tree" else ("-p", str(node.port))
    behind = (f"127.0.0.1:{node.port}",) if command[0] == "tree" else ()
    line = [sys.executable, "-m", "tailrace.cli.main", command[0], *where, *flags, *command[1:], *behind]
    if command[0] == "consumers":
        line = [*line[:3], *command[:2], *where, *flags, *command[2:]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
    return subprocess.run(
        line, capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL, env=environment
    )


@pytest.mark.thorough
def test_each_command_logs_in_with_a_password_or_a_token(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("password", "token", "wrong")}
    for file, secret in zip(files.values(), ("no blanks", token_of("ann"), "wrong"), strict=True):
        file.write_text(secret)
    files["password"].write_text(PASSWORD)
    with running(tmp_path / "data", workers=1, config=with_users(tmp_path / "users", "ann")) as node:
        for command in COMMANDS:
            way = "token" if command[0] in ("admin", "consumers") else "password"
            done = run(node, command, "--user", "ann", f"--{way}-file", str(files[way]))
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            refused = run(node, command)
            assert refused.returncode in (1, 4) and "denied" in refused.stderr, (command, refused.stderr)
        wrong = run(node, ("admin", "stat", "s"), "--user", "ann", "--token-file", str(files["wrong"]))
        assert wrong.returncode == 1 and "denied: the login failed" in wrong.stderr
        wait_for(lambda: 'reason="secret"' in node.get("/metrics")[1], "it is counted")
