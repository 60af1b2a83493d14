"""`scripts/build-manylinux`: its calls of Docker. A stand-in takes Docker's place."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from tests.tidy import tree

SCRIPT = tree.ROOT / "scripts" / "build-manylinux"
DOCKER = '#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n'


def asked(folder: Path, *tags: str) -> list[str]:
    """The words of the command that Docker gets; the script is that of a copy of the checkout."""
    (folder / "bin").mkdir()
    (folder / "bin" / "docker").write_text(DOCKER)
    (folder / "bin" / "docker").chmod(0o755)
    (folder / "scripts").mkdir()
    script = folder / "scripts" / SCRIPT.name
    script.write_text(SCRIPT.read_text())
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", str(script), *tags], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_a_wheel_for_each_supported_python(tmp_path: Path) -> None:
    words = asked(tmp_path)
    assert f"quay.io/pypa/manylinux_2_28_{platform.machine()}" in words
    assert words[-3:] == ["cp311-cp311", "cp312-cp312", "cp313-cp313"]
    assert f"{tmp_path}:/src:ro" in words and f"{tmp_path}/dist:/dist" in words and (tmp_path / "dist").is_dir()
    assert "TAILRACE_REQUIRE_COMPILED=1" in words  # or a compiler that fails would go unnoticed


def test_what_runs_in_the_container(tmp_path: Path) -> None:
    """Each tag is built by its own Python, and the wheels belong to the user of the script."""
    words = asked(tmp_path, "cp312-cp312")
    body, owner, tag = words[words.index("-euc") + 1 :]
    assert (owner, tag) == (f"{os.getuid()}:{os.getgid()}", "cp312-cp312")
    subprocess.run(["sh", "-n"], input=body.encode(), check=True)
    assert '"/opt/python/$tag/bin/pip" wheel' in body and "auditwheel repair" in body and 'chown "$0"' in body
