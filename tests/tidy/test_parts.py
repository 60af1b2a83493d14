"""The parts that the suite is run in: every file is in one, and what a list names is there."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.conftest import BOTH, COMPILED, ONCE, TWICE, part_of
from tests.tidy.tree import ROOT


@pytest.mark.parametrize("path", [*chain(*ONCE.values()), *BOTH, *COMPILED])
def test_what_a_list_names_is_there(path: str) -> None:
    """A file that was renamed would be run twice more, unseen."""
    assert list(ROOT.glob(f"{path.removesuffix('/')}*"))


def test_every_part_is_run() -> None:
    script = (ROOT / "scripts/test-both-builds").read_text()
    tests = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert {part_of(path) for path in tests} == {"both", *TWICE.values(), *ONCE}
    assert "begin interpreted both 1 " in script and "PART=both " in script
    for part in TWICE.values():
        assert f"begin {part}-interpreted {part} 1 " in script and f'begin {part} {part} "" ' in script
        assert f"{part} {part}-interpreted" in script.partition("twice=(")[2]
    assert f"once=({' '.join(ONCE)})\n" in script
