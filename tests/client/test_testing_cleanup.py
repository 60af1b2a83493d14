"""The remains of a broker of tests, which are removed: `test_testing.py` kills whole processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace import testing_cleanup


@pytest.mark.parametrize("node", ["", "{", '{"shards": 1}', '{"node_id": "../elsewhere"}', '{"node_id": ".."}'])
def test_only_the_folders_of_this_broker_are_removed(
    tmp_path: Path, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, memory = tmp_path / "base", tmp_path / "memory"
    (base / "data").mkdir(parents=True)
    (base / "data" / "node.json").write_text(node)
    memory.mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(testing_cleanup, "FOLDER_OF_MEMORY", f"{memory}{os.sep}tailrace-")
    testing_cleanup.remove(str(base))
    assert not base.exists() and memory.exists() and (tmp_path / "elsewhere").exists()
    testing_cleanup.remove(str(base))
