"""The present build, and that the three ways of building do as their names promise."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tailrace.shard import leaves
from tests.tidy import building, tree

QUICK_COMPILER = """\
#!/bin/sh
for argument do
    shift
    case $argument in
        *.c) [ -e "$argument" ] && argument={empty} ;;
    esac
    set -- "$@" "$argument"
done
exec {compiler} "$@"
"""


@cache
def toolchain() -> str:
    """Why no leaf can be compiled here, "" when it can: Cython, a C compiler and Python's headers are needed."""
    try:
        import Cython  # noqa: F401
    except ImportError:
        return "Cython is not installed"
    if shutil.which(compiler()[0]) is None:
        return f"there is no C compiler {compiler()[0]}"
    command = [*compiler(), "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-x", "c", "-"]
    done = subprocess.run(command, input="#include <Python.h>\n", text=True, capture_output=True, check=False)
    return "" if done.returncode == 0 else f"a file with Python.h does not compile: {done.stderr.strip()}"


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def quick_compiler(folder: Path) -> Path:
    """The C compiler, which is given an empty file for each source: what a leaf is compiled to, `make leaves` shows."""
    path = folder / "quick-cc"
    path.write_text(QUICK_COMPILER.format(compiler=shlex.join(compiler()), empty=shlex.quote(str(folder / "empty.c"))))
    (folder / "empty.c").touch()
    path.chmod(0o755)
    return path


def leaf_files() -> set[str]:
    return {tree.module_name(path) for path in tree.modules() if path.stem.endswith("_cy")}


# --- the build that is loaded -----------------------------------------------------------------------------------------


def test_the_loaded_build_is_the_one_asked_for() -> None:
    """Compiled wherever it can be, interpreted when asked for; never some of each."""
    wanted = "interpreted" if leaves.interpreted_wanted() or toolchain() else "compiled"
    assert leaves.build() == wanted, f"make setup builds the leaves{f' ({toolchain()})' if toolchain() else ''}"


def test_the_compiled_leaves_are_those_of_these_sources() -> None:
    if leaves.build() != "compiled":
        pytest.skip("the interpreted leaves are loaded")
    for name in leaves.LEAF_MODULES:
        built = Path(leaves.load(name).__file__ or "").stat().st_mtime
        source = leaves.source_path(name)
        for path in (source, source.with_suffix(".pxd")):
            assert not path.exists() or path.stat().st_mtime <= built, f"{tree.shown(path)} has changed: make leaves"


def test_every_leaf_is_listed() -> None:
    assert set(leaves.LEAF_MODULES) == leaf_files()


# --- the ways of building ---------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the installed sources, without anything built."""
    if leaves.interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    root = tmp_path / "tailrace"
    root.mkdir()
    building.copy_sources(root)
    building.copy_translated(root)
    return root


def build(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run setup.py; output and errors together, as a person sees them."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "setup.py", *(arguments or ("--quiet", "build_ext", "--inplace"))],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=building.BUILD_TIMEOUT_S,
        check=False,
    )


def built(root: Path) -> list[str]:
    return [
        path.name
        for suffix in EXTENSION_SUFFIXES[:1]
        for path in root.glob(f"*/**/*{suffix}")
        if "build" not in path.parts
    ]


def loaded(root: Path) -> str:
    """Which build the copy at `root` is; it stands before the package that is installed."""
    subprocess.run([root / "scripts" / "link-package"], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", "from tailrace.shard.leaves import build; print(build())"],
        cwd=root,
        env={"PYTHONPATH": str(root / "build" / "package")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or done.stderr


def hide_cython(folder: Path) -> dict[str, str]:
    (folder / "Cython").mkdir()
    (folder / "Cython" / "__init__.py").write_text('raise ImportError("hidden by a test")\n')
    return {"PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_without_a_compiler_the_build_says_so_and_runs_interpreted(copy: Path) -> None:
    done = build(copy, CC="/bin/false")
    assert done.returncode == 0, done.stdout
    assert "building without compiled leaves; the broker works, more slowly" in done.stdout
    assert built(copy) == []
    assert loaded(copy) == "interpreted"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_demanded_build_fails_without_a_compiler(copy: Path) -> None:
    done = build(copy, CC="/bin/false", TAILRACE_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "TAILRACE_REQUIRE_COMPILED is set, but the C compiler failed" in done.stdout
    assert built(copy) == []


def test_a_demanded_build_fails_without_cython(copy: Path, tmp_path: Path) -> None:
    done = build(copy, TAILRACE_REQUIRE_COMPILED="1", **hide_cython(tmp_path))
    assert done.returncode != 0
    assert "TAILRACE_REQUIRE_COMPILED is set, but Cython is not installed: hidden by a test" in done.stdout


@pytest.mark.thorough
def test_without_cython_the_build_says_so_and_runs_interpreted(copy: Path, tmp_path: Path) -> None:
    done = build(copy, **hide_cython(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "Cython is not installed: hidden by a test" in done.stdout
    assert loaded(copy) == "interpreted"


@pytest.mark.thorough
def test_a_disabled_build_builds_nothing(copy: Path) -> None:
    done = build(copy, TAILRACE_DISABLE_COMPILED="1")
    assert done.returncode == 0, done.stdout
    assert built(copy) == []


@pytest.mark.thorough
def test_demanded_and_disabled_is_an_error(copy: Path) -> None:
    done = build(copy, TAILRACE_DISABLE_COMPILED="1", TAILRACE_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "TAILRACE_REQUIRE_COMPILED and TAILRACE_DISABLE_COMPILED are both set" in done.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_a_wheel_without_native_code_claims_no_platform(copy: Path) -> None:
    path = building.make_wheel(copy, CC="/bin/false")
    assert path.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(path).namelist() if name.endswith(".so")]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_wheel_with_native_code_holds_all_of_it(copy: Path, tmp_path: Path) -> None:
    if toolchain():
        pytest.skip(toolchain())
    path = building.make_wheel(copy, TAILRACE_REQUIRE_COMPILED="1", CC=str(quick_compiler(tmp_path)))
    assert "linux" in path.name
    names = zipfile.ZipFile(path).namelist()
    for leaf in leaves.LEAF_MODULES:
        stem = leaf.replace(".", "/")
        assert [name for name in names if name.startswith(f"{stem}.") and name.endswith(".so")]
        assert f"{stem}.py" in names
    others = {
        "shard/frame_cy.pxd",
        "protocol/topic_table.pxd",
        "shard/py.typed",
        "cli/main.py",
        "spark/rollup/report.html",
        "py.typed",
    }
    assert {f"tailrace/{name}" for name in others} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tailrace", "pyspark_tailrace.py"}
