"""The parts that the suite is run in: every file is in one, and what a list names is there."""

from __future__ import annotations

import pytest

from tests.conftest import BOUND_TO_BUILD, ONE_HALF, OTHER_HALF, part_of
from tests.tidy.tree import ROOT


@pytest.mark.parametrize("path", [*ONE_HALF, *OTHER_HALF, BOUND_TO_BUILD])
def test_what_a_list_names_is_there(path: str) -> None:
    """A file that was renamed would be run twice more, unseen."""
    assert (ROOT / path).exists()


def test_every_part_is_run() -> None:
    script = (ROOT / "scripts/test-both-builds").read_text()
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert {part_of(path) for path in tests} == {"both", "one", "other"}
    assert all(f" {part} " in script for part in ("both 1", "one", "other")) and "PART=both " in script
