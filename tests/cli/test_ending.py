"""What ends a command: its packages are missing; and what it says then."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tailrace.cli import ending
from tailrace.cli.ending import CommandError, complain, require


def test_what_is_installed_is_enough() -> None:
    require(["click", "msgpack"], "server")


def test_each_missing_package_is_named_with_the_extra_that_has_it() -> None:
    text = r"^this needs absent_one, absent_two, not installed here; install with: pip install 'tailrace\[server\]'$"
    with pytest.raises(CommandError, match=text):
        require(["absent_two", "click", "absent_one"], "server")


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    complain("tailrace: a\N{RIGHT-TO-LEFT OVERRIDE}b\x1b[2J is unknown\n\tnaïve 数")
    assert capsys.readouterr().err == "tailrace: a\\u202eb\\x1b[2J is unknown\n\tnaïve 数\n"


def says_errors(file: Path) -> bool:
    """Whether a module calls `click.echo`, or its like, for standard error; over several lines, too."""
    calls = [each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Call)]
    said = [each for each in calls if ast.unparse(each.func).endswith(("echo", "print"))]
    return any(keyword.arg in ("err", "file") for each in said for keyword in each.keywords)


def test_all_that_a_command_says_on_standard_error_comes_that_way(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text('click.echo(\n    "text",\n    err=True,\n)\n')
    assert says_errors(tmp_path / "long.py")
    assert [file.name for file in Path(ending.__file__).parent.glob("*.py") if says_errors(file)] == ["ending.py"]
