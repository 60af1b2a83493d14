"""What ends a command: its packages are missing; and what it says then."""

from __future__ import annotations

import re
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


def test_all_that_a_command_says_on_standard_error_comes_that_way() -> None:
    sources = Path(ending.__file__).parent.glob("*.py")
    assert [file.name for file in sources if re.search(r"click\.echo\(.*\berr=", file.read_text())] == ["ending.py"]
