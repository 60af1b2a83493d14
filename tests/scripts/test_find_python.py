"""The choice of an interpreter, against a PATH of stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "find-python"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "bash").symlink_to(bash)
    return tmp_path


def python(folder: Path, name: str, *, recent: bool = True, venv: bool = True) -> None:
    """A stand-in that answers the two questions of the script."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase "$2" in *version*) exit {int(not recent)};; *venv*) exit {int(not venv)};; esac\n'
    )
    path.chmod(0o755)


def find(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "bash"), str(SCRIPT)],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_newest_wins(folder: Path) -> None:
    for name in ("python3", "python3.11", "python3.13"):
        python(folder, name)
    assert find(folder).stdout == f"{folder}/python3.13\n"


def test_a_shim_that_does_not_run_is_passed_over(folder: Path) -> None:
    python(folder, "python3.13", recent=False)
    python(folder, "python3")
    assert find(folder).stdout == f"{folder}/python3\n"


def test_one_without_venv_is_passed_over(folder: Path) -> None:
    python(folder, "python3.12", venv=False)
    python(folder, "python3.11")
    assert find(folder).stdout == f"{folder}/python3.11\n"


def test_a_missing_venv_is_explained(folder: Path) -> None:
    python(folder, "python3.12", venv=False)
    done = find(folder)
    assert done.returncode == 1
    assert f"{folder}/python3.12 cannot make a virtual environment" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_no_python_is_explained(folder: Path) -> None:
    python(folder, "python3", recent=False)
    done = find(folder)
    assert done.returncode == 1
    assert "no Python >= 3.11 on PATH" in done.stderr
