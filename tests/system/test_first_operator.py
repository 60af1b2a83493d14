"""The commands of the README that lead to a node with TLS, users and rules, run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.system.networks import in_namespace

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
SECTION = "## A node on a network"
COMMANDS_MAX = 9
# Between the two blocks: a person waits for the node to log that it is serving.
READY = """
until {python} -c 'import socket; socket.create_connection(("127.0.0.1", 5050), 1)' 2>/dev/null; do sleep 0.2; done
"""
ENDING = """
export TAILRACE_CA=tls/certificate.pem
if {tailrace} tail sensors/hall --no-follow --user hall --token-file hall.token; then exit 71; fi
if {tailrace} pub other x --user hall --token-file hall.token; then exit 72; fi
if {tailrace} pub sensors/hall x; then exit 73; fi
kill %1
wait %1
"""
IN_NAMESPACE = """
import subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
sys.exit(subprocess.run(["bash", "-ec", {script!r}], cwd={folder!r}).returncode)
"""


def commands_of(text: str) -> tuple[str, str]:
    """The blocks of commands of the section: up to the node's start, and behind it."""
    section = text[text.index(SECTION) :]
    first, second = re.findall(r"```sh\n(.*?)```", section[: section.index("\n## ", 1)], re.DOTALL)
    return first, second


@pytest.mark.thorough
def test_a_first_operator_gets_to_a_node_with_tls_users_and_rules(tmp_path: Path) -> None:
    blocks = commands_of((ROOT / "README.md").read_text())
    assert blocks[0].endswith(" &\n"), "nothing is asked of a node that may not be listening yet"
    without_texts = re.sub(r"<<'END'\n.*?\nEND\n", "\n", "".join(blocks), flags=re.DOTALL)
    assert 0 < len(without_texts.splitlines()) <= COMMANDS_MAX
    tailrace = f"{sys.executable} -m tailrace.cli.main"
    begun, ended = (each.replace(".venv/bin/tailrace", tailrace) for each in blocks)
    ready, ending = READY.format(python=sys.executable), ENDING.format(tailrace=tailrace)
    script = "set -m\n" + begun + ready + ended + ending
    done = in_namespace(IN_NAMESPACE.format(script=script, folder=str(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "21.5" in done.stdout.splitlines()
    assert done.stderr.count("denied") >= 3, "the rules hold"
    for name in ("users.toml", "ann.password", "hall.token", "tls/key.pem"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0, name
