"""Circles of imports may only shrink, and nobody below the supervisor knows the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import circles, tree

FILES_MAX = 4  # of the largest circle
WORKER = "tailrace.broker.worker"


def product() -> list[Path]:
    return tree.modules(*tree.INSTALLED)


def test_no_circle_of_imports_is_larger_than_before() -> None:
    found = circles.circles(circles.import_graph(product()))
    sizes = [len(circle) for circle in found]
    print(f"circles of {sizes} files; the largest:", *(found[0] if found else ()), sep="\n  ")
    assert max(sizes, default=0) <= FILES_MAX, found[0]
    assert max(sizes, default=0) == FILES_MAX, f"the largest has {max(sizes, default=0)} files now: lower FILES_MAX"


def test_nobody_but_the_supervisor_imports_the_worker() -> None:
    graph = circles.import_graph(tree.modules())
    found = [name for name, imported in graph.items() if WORKER in imported]
    assert found and all(name.startswith("tailrace.supervisor.") for name in found), found


def test_types_count_as_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    (tmp_path / "shard").mkdir()
    texts = {
        "a": "if TYPE_CHECKING:\n    from tailrace.shard.b import B\n",
        "b": "def late():\n    from tailrace.shard import c\n",
        "c": "import tailrace.shard.a\n",
        "d": "from tailrace.shard import a, e\n",
        "e": "import os\n",
    }
    for name, text in texts.items():
        (tmp_path / "shard" / f"{name}.py").write_text(text)
    graph = circles.import_graph(sorted((tmp_path / "shard").iterdir()))
    assert circles.circles(graph) == [["tailrace.shard.a", "tailrace.shard.b", "tailrace.shard.c"]]
    assert graph["tailrace.shard.d"] == {"tailrace.shard.a", "tailrace.shard.e"}
