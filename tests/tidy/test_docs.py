"""The documents speak of files, make targets and commands that exist, and of nothing that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli.main import COMMANDS
from tests.tidy import tree

FOLDERS = "|".join((*tree.PACKAGES, "deploy", "docs", "scripts", "tests", r"\.ci"))
PATH = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*-]*[\w*/])")
PLACEHOLDER = re.compile(r"/[A-Z]{2,}[A-Z.a-z]*$")  # bench/results/BUILD.json stands for several files
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PLANS = re.compile(
    r"\b(?:coming soon|in the future|(?:is|are) planned|will be (?:added|supported)|to be done|TBD)\b", re.I
)


def exists(name: str) -> bool:
    if PLACEHOLDER.search(name) and not (tree.ROOT / name).exists():
        return (tree.ROOT / name).parent.exists()
    return any(tree.ROOT.glob(name.rstrip("/"))) if "*" in name else (tree.ROOT / name).exists()


@pytest.mark.parametrize("path", tree.documents(), ids=tree.shown)
def test_named_files_exist(path: Path) -> None:
    missing = [name for name in PATH.findall(path.read_text()) if not exists(name)]
    assert not missing


@pytest.mark.parametrize("path", tree.documents(), ids=tree.shown)
def test_links_lead_somewhere(path: Path) -> None:
    assert not [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", tree.documents(), ids=tree.shown)
def test_named_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (tree.ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", path.read_text())) <= targets


@pytest.mark.parametrize("path", tree.documents(), ids=tree.shown)
def test_named_commands_exist(path: Path) -> None:
    named = set(re.findall(r"(?:`|^\$ |/)tailrace ([a-z]+)\b", path.read_text(), re.MULTILINE))
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("path", tree.documents(), ids=tree.shown)
def test_documents_say_what_is(path: Path) -> None:
    assert not PLANS.findall(path.read_text())


def test_the_index_is_complete() -> None:
    index = (tree.ROOT / "docs" / "README.md").read_text()
    assert not [path.name for path in tree.documents() if path.name != "README.md" and f"({path.name})" not in index]
