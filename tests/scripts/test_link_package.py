"""The folder of links through which mypy and Cython see the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tidy import tree

SCRIPT = tree.ROOT / "scripts" / "link-package"
AT_ONCE = 6
ROUNDS = 3


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    shutil.copy(tree.ROOT / "pyproject.toml", tmp_path)
    for folder in tree.INSTALLED:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(checkout / "scripts" / "link-package")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def links(checkout: Path) -> set[str]:
    return {path.name for path in (checkout / "build" / "package" / "tailrace").iterdir()}


@pytest.mark.thorough
def test_several_at_once_from_nothing(checkout: Path) -> None:
    """`make --jobs lint setup` does that."""
    for _round in range(ROUNDS):
        shutil.rmtree(checkout / "build", ignore_errors=True)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = pool.map(run, [checkout] * AT_ONCE)
        assert [(done.stderr, done.returncode) for done in runs] == [("", 0)] * AT_ONCE
        assert links(checkout) == {*tree.INSTALLED, "deploy", "__init__.py"} - {"client"}


def test_what_is_gone_or_moved_is_linked_no_more(checkout: Path) -> None:
    (checkout / "client" / "old.py").touch()
    assert run(checkout).returncode == 0
    package = checkout / "build" / "package" / "tailrace"
    assert "old.py" in links(checkout)
    (checkout / "client" / "old.py").unlink()
    (package / "shard").unlink()
    (package / "shard").symlink_to(checkout / "client")
    assert run(checkout).returncode == 0
    assert "old.py" not in links(checkout)
    assert (package / "shard").readlink() == checkout / "shard"
