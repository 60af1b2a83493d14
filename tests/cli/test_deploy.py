"""`tailrace deploy`: every file is listed, and comes out as it is."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tests.tidy import tree

FOLDER = tree.ROOT / "deploy"


def test_every_file_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["deploy", "--list"]) == OK
    there = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.*") if path.is_file()}
    expected = {name for name in there if not name.endswith((".py", ".pyc"))}
    assert set(capsys.readouterr().out.split()) == expected and "prometheus/scrape.yml" in expected


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["deploy", "--list", "--json"]) == OK
    assert {"file": "tailrace.service"} in [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main.run(["deploy", "--print", "tailrace.service", "--json"]) == USAGE


@pytest.mark.parametrize("name", ["tailrace.service", "sysctl.d/90-tailrace.conf"])
def test_a_file_comes_out_as_it_is(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main.run(["deploy", "--print", name]) == OK
    assert capfdbinary.readouterr().out == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", ["nothing", "../pyproject.toml", "__init__.py", "prometheus"])
def test_what_is_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["deploy", "--print", name]) == REFUSED
    assert f"no such file: {name!r}; `tailrace deploy --list` names" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--list", "--print", "tailrace.service"]])
def test_one_of_the_two(arguments: list[str]) -> None:
    assert main.run(["deploy", *arguments]) == USAGE
