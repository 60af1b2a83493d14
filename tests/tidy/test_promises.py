"""The tests that docs/promises.md names are there, and some of each file run every time."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.tree import ROOT

FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs/promises.md").read_text())))


def test_promises_name_files() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES)
def test_a_part_of_it_runs_every_time(path: str) -> None:
    module = ast.parse((ROOT / path).read_text())
    tests = [each for each in module.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    classes = [each for each in module.body if isinstance(each, ast.ClassDef) and each.name.startswith("Test")]
    always = [each for each in tests if "pytest.mark.thorough" not in map(ast.unparse, each.decorator_list)]
    models = [each for each in module.body if isinstance(each, ast.Assign) and "TestCase" in ast.unparse(each.value)]
    assert always or classes or models or not tests
