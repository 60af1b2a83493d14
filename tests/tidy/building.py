"""A copy of the installed sources, and wheels and sdists of it, made as pip does it, but without pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.tidy import tree

BUILD_TIMEOUT_S = 300
TRANSLATED = tree.ROOT / "build" / "cython"
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, f'build_{sys.argv[1]}')('dist'))"
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "pyspark_tailrace.py")


def copy_sources(root: Path) -> None:
    """Makes `root` a checkout of the installed sources, without anything built."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    for folder in (*tree.INSTALLED, "deploy", "scripts"):
        shutil.copytree(tree.ROOT / folder, root / folder, ignore=ignore)
    for name in FILES:
        shutil.copy(tree.ROOT / name, root)


def copy_translated(root: Path) -> None:
    """What Cython has made of these very sources: it sees by their times that they are as they were."""
    if TRANSLATED.is_dir():
        shutil.copytree(TRANSLATED, root / TRANSLATED.relative_to(tree.ROOT))


def make_wheel(root: Path, **variables: str) -> Path:
    """The wheel of the checkout at `root`, made with these environment variables."""
    return build_distribution(root, "wheel", variables)


def make_sdist(root: Path) -> Path:
    """Build the sdist, without compiled files in it."""
    return build_distribution(root, "sdist", {"TAILRACE_DISABLE_COMPILED": "1"})


def build_distribution(root: Path, kind: str, variables: Mapping[str, str]) -> Path:
    """By the build backend's own function, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind],
        cwd=root,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "dist" / done.stdout.splitlines()[-1]
