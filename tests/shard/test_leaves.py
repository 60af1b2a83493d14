"""The door to the leaves: which module comes out of it, in each of the two builds and without Cython."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest

from tailrace.shard import _cython_shim as shim
from tailrace.shard import leaves

ROOT = Path(leaves.__file__).resolve().parents[1]


def compiled_path(name: str) -> Path | None:
    stem = leaves.source_path(name).with_suffix("")
    found = [path for suffix in EXTENSION_SUFFIXES if (path := stem.with_suffix(suffix)).exists()]
    return found[0] if found else None


def run_python(code: str, *, interpreted: bool) -> str:
    """What a fresh Python prints; it sees no other environment variable."""
    environment = {leaves.INTERPRETED_VARIABLE: "1"} if interpreted else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_load_gives_everybody_the_same_module(name: str) -> None:
    assert leaves.load(name) is leaves.load(name) is sys.modules[name]


@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_load_source_gives_a_private_interpreted_copy(name: str) -> None:
    before = sys.modules.get(name)
    copy = leaves.load_source(name)
    assert not copy.is_compiled()
    assert copy is not leaves.load_source(name)
    assert sys.modules.get(name) is before


@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_a_source_sees_the_shim(name: str) -> None:
    before = sys.modules.get("cython")
    assert leaves.load_source(name).cython is shim
    assert sys.modules.get("cython") is before


def test_a_name_that_is_no_leaf_is_refused() -> None:
    for load in (leaves.load, leaves.load_source):
        with pytest.raises(
            ValueError, match=r"'tailrace\.shard\.log' is not a leaf; the leaves are tailrace\.shard\.frame_cy"
        ):
            load("tailrace.shard.log")


@pytest.mark.few(8)
@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
@pytest.mark.parametrize("interpreted", [False, True])
def test_the_environment_decides(name: str, interpreted: bool) -> None:
    code = (
        f"from tailrace.shard.leaves import load; leaf = load({name!r});"
        f"import {name} as same; print(leaf is same, leaf.is_compiled())"
    )
    expected = compiled_path(name) is not None and not interpreted
    assert run_python(code, interpreted=interpreted) == f"True {expected}"


@pytest.mark.few(4)
@pytest.mark.parametrize("name", leaves.LEAF_MODULES)
def test_a_leaf_imports_without_cython(name: str) -> None:
    code = (
        "import sys, importlib.util as util; sys.modules['cython'] = None;"
        f"spec = util.spec_from_file_location({name!r}, {str(leaves.source_path(name))!r});"
        "leaf = util.module_from_spec(spec); spec.loader.exec_module(leaf);"
        "print(leaf.is_compiled(), leaf.cython.__name__)"
    )
    assert run_python(code, interpreted=True) == "False tailrace.shard._cython_shim"


def test_build_names_what_is_loaded() -> None:
    compiled = [bool(leaves.load(name).is_compiled()) for name in leaves.LEAF_MODULES]
    expected = "compiled" if all(compiled) else "mixed" if any(compiled) else "interpreted"
    assert leaves.build() == expected
    assert run_python("from tailrace.shard.leaves import build; print(build())", interpreted=True) == "interpreted"


def test_mixed_builds_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {name: ModuleType(name) for name in leaves.LEAF_MODULES}
    for number, copy in enumerate(copies.values()):
        copy.is_compiled = lambda number=number: number == 0  # type: ignore[attr-defined]
    monkeypatch.setattr(leaves, "load", copies.__getitem__)
    assert leaves.build() == "mixed"


def test_the_program_says_which_build_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.shard.leaves"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    words = {True: "compiled", False: "interpreted"}
    assert done.stdout.splitlines() == [
        f"{name}: {words[leaves.load(name).is_compiled()]}" for name in leaves.LEAF_MODULES
    ]
