"""The package as a zip that Spark sends to the nodes of a cluster: what its tasks import, without the compiled leaves,
which cannot be loaded out of a zip and are different on another kind of machine."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

PACKAGES: Final = ("tailrace", "tailrace.protocol", "tailrace.shard", "tailrace.spark")
"""In a checkout the folders of the last three are not below that of the first."""
FINDER: Final = "pyspark_tailrace.py"
"""By this module Spark finds `format("tailrace")`."""
SUFFIXES: Final = (".py", ".html", ".typed")
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same sources


def write_zip(path: Path) -> int:
    """Write the zip, over a former one; return the number of its files. Raises OSError."""
    found = {FINDER: Path(import_module(FINDER.removesuffix(".py")).__file__ or "").read_bytes()}
    for package in PACKAGES:
        for name, file in _walk(files(package), package.replace(".", "/")):
            found[name] = file.read_bytes()
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name in sorted(found):
            info = ZipInfo(name, _DATE)
            info.compress_type = ZIP_DEFLATED
            archive.writestr(info, found[name])
    return len(found)


def _walk(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            yield from _walk(path, f"{name}/{path.name}")
        elif path.name.endswith(SUFFIXES):
            yield f"{name}/{path.name}", path
