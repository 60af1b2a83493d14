"""Builds the leaves: the few hot modules named `*_cy.py`, listed in shard/leaves.py. All else is in pyproject.toml.

Three ways to build, chosen by environment variables:

- neither is set: try. Without Cython or a working C compiler the install is a plain Python one, with a message.
- TAILRACE_REQUIRE_COMPILED=1: demand. Any failure of the compiled build ends the install.
- TAILRACE_DISABLE_COMPILED=1: build nothing.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).resolve().parent
REQUIRE = "TAILRACE_REQUIRE_COMPILED"
DISABLE = "TAILRACE_DISABLE_COMPILED"
# A .pxd's C functions are static in each leaf that includes it, whether or not it calls them all. What a debugger reads
# would be six sevenths of a leaf's file, and a fifth of the compiler's time. With -O3 it would take a third longer, and
# the leaves would be just as fast.
COMPILE_ARGUMENTS = ["-O2", "-g0", "-Wno-unused-function"]
LINKED = "build/package"  # the leaves as modules of the package: Cython goes by paths
LEAF_MODULES: tuple[str, ...] = runpy.run_path(str(ROOT / "shard" / "leaves.py"))["LEAF_MODULES"]


class LeafBuildError(Exception):
    """A leaf could not be translated or compiled; the text has its name and the reason."""


class LeafBuild(build_ext):
    """Every failure of the tool chain comes out as one kind of error, so that the caller can choose."""

    def run(self) -> None:
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:  # the compiler's, the linker's and a missing compiler
            raise LeafBuildError(f"the C compiler failed: {error}") from error


def wanted(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")


def leaf_source(module: str) -> str:
    return f"{LINKED}/{module.replace('.', '/')}.py"


def leaf_extensions() -> list[Extension]:
    """Translate the leaves to C, under build/. Raises LeafBuildError when Cython is missing or refuses a source."""
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError as error:
        raise LeafBuildError(f"Cython is not installed: {error}") from error
    runpy.run_path(str(ROOT / "scripts" / "link-package"), run_name="__main__")
    declarations = [
        str(path.relative_to(ROOT))
        for pattern in ("*.pxd", "*.h")
        for path in ROOT.glob(f"*/**/{pattern}")
        if not {".venv", "build"} & set(path.parts)
    ]
    extensions = [
        Extension(
            module,
            [leaf_source(module)],
            include_dirs=["."],
            depends=declarations,
            extra_compile_args=COMPILE_ARGUMENTS,
        )
        for module in LEAF_MODULES
        if (ROOT / leaf_source(module)).exists()
    ]
    try:
        return list(cythonize(extensions, build_dir="build/cython", include_path=[LINKED], language_level=3))
    except CompileError as error:
        raise LeafBuildError(f"Cython refused a leaf: {error}") from error


def build(*, compiled: bool) -> None:
    """One run of setuptools. Without extensions the wheel carries no platform tag, as it holds no native code."""
    extensions = leaf_extensions() if compiled else []
    setup(ext_modules=extensions, cmdclass={"build_ext": LeafBuild})


def main() -> None:
    if wanted(REQUIRE) and wanted(DISABLE):
        raise SystemExit(f"tailrace: {REQUIRE} and {DISABLE} are both set: unset one of them")
    if wanted(DISABLE):
        build(compiled=False)
        return
    try:
        build(compiled=True)
    except LeafBuildError as error:
        if wanted(REQUIRE):
            raise SystemExit(f"tailrace: {REQUIRE} is set, but {error}") from error
        print(
            f"tailrace: {error}\ntailrace: building without compiled leaves; the broker works, more slowly. "
            "For the compiled build install a C compiler and Python's headers (Debian: gcc python3-dev).",
            file=sys.stderr,
        )
        build(compiled=False)


main()
