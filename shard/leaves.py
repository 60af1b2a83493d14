"""The only access to the leaves: the stateless hot modules named `*_cy.py`, compiled if possible.

`load` returns the compiled module if there is one and the Python source otherwise. With TAILRACE_INTERPRETED=1 it
always returns the source. `load_source` returns a private interpreted copy, for tests and benches that compare the two
in one process.

Run as a program (`python -m tailrace.shard.leaves`) it prints which build this is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Literal

LEAF_MODULES = (
    "tailrace.shard.frame_cy",
    "tailrace.shard.run_cy",
    "tailrace.shard.topic_blocks_cy",
    "tailrace.shard.window_cy",
    "tailrace.protocol.line_cy",
    "tailrace.protocol.mqtt.render_cy",
    "tailrace.protocol.mqtt.stage_cy",
    "tailrace.protocol.publish_cy",
    "tailrace.protocol.text_cy",
    "tailrace.broker.connection.singles_cy",
    "tailrace.broker.delivery.copies_cy",
    "tailrace.broker.last.last_cy",
    "tailrace.broker.topics.match_cy",
    "tailrace.broker.topics.pick_cy",
    "tailrace.broker.udp.packets_cy",
    "tailrace.broker.udp.runs_cy",
    "tailrace.broker.udp.table_cy",
)
INTERPRETED_VARIABLE = "TAILRACE_INTERPRETED"


def interpreted_wanted() -> bool:
    """Whether the environment requests the sources even if there are compiled modules."""
    return os.environ.get(INTERPRETED_VARIABLE, "") not in ("", "0")


def load(name: str) -> ModuleType:
    """The leaf `name`, the same module for every caller. ValueError for a name that is not in LEAF_MODULES."""
    _require_leaf(name)
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    if not interpreted_wanted():
        return importlib.import_module(name)
    return _register(name, load_source(name))


def load_source(name: str) -> ModuleType:
    """A fresh interpreted copy of the leaf `name`, not entered in `sys.modules`. ValueError as for `load`.

    It sees the shim in the place of `cython` even where Cython is installed, so that what runs here is what runs on a
    machine without it.
    """
    _require_leaf(name)
    path = source_path(name)
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceFileLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"the leaf {name} cannot be loaded from {path}", name=name, path=str(path))
    module = importlib.util.module_from_spec(spec)
    shim = importlib.import_module("tailrace.shard._cython_shim")
    before = sys.modules.get("cython")
    sys.modules["cython"] = shim
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["cython"]
        if before is not None:
            sys.modules["cython"] = before
    return module


def source_path(name: str) -> Path:
    package, _, leaf = name.rpartition(".")
    return Path(importlib.import_module(package).__path__[0], f"{leaf}.py")


def build() -> Literal["compiled", "interpreted", "mixed"]:
    """Which leaves this process runs: all compiled, all interpreted, or some of each. Loads them."""
    compiled = {bool(load(name).is_compiled()) for name in LEAF_MODULES}
    if len(compiled) > 1:
        return "mixed"
    return "compiled" if compiled.pop() else "interpreted"


def _require_leaf(name: str) -> None:
    if name not in LEAF_MODULES:
        raise ValueError(f"{name!r} is not a leaf; the leaves are {', '.join(LEAF_MODULES)}")


def _register(name: str, module: ModuleType) -> ModuleType:
    """Do what an import does, so that a later `import` of the leaf finds this very module."""
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(importlib.import_module(parent), child, module)
    return module


if __name__ == "__main__":
    for leaf in LEAF_MODULES:
        print(f"{leaf}: {'compiled' if load(leaf).is_compiled() else 'interpreted'}")
