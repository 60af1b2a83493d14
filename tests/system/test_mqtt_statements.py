"""The table of the normative statements of MQTT is whole, and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy import tree

TABLE = Path(__file__).with_name("mqtt_statements.txt")
# By section, the number of its last statement, as in Appendix B of each standard.
LAST = {
    "3.1.1": "1.5.3 3, 2.2.2 2, 2.3.1 7, 3.1.0 2, 3.1.2 24, 3.1.3 11, 3.1.4 5, 3.2.0 1, 3.2.2 6, 3.3.1 12, 3.3.2 3, "
    "3.3.4 1, 3.3.5 2, 3.6.1 1, 3.8.1 1, 3.8.3 4, 3.8.4 6, 3.9.3 2, 3.10.1 1, 3.10.3 2, 3.10.4 6, 3.12.4 1, 3.14.1 1, "
    "3.14.4 3, 4.1.0 2, 4.3.1 1, 4.3.2 2, 4.3.3 2, 4.4.0 1, 4.5.0 2, 4.6.0 6, 4.7.1 3, 4.7.2 1, 4.7.3 4, 4.8.0 2, "
    "6.0.0 4",
    "5": "1.5.4 3, 1.5.5 1, 1.5.7 1, 2.1.3 1, 2.2.1 6, 2.2.2 1, 3.1.0 2, 3.1.2 30, 3.1.3 12, 3.1.4 6, 3.2.0 2, "
    "3.2.2 22, 3.3.1 13, 3.3.2 20, 3.3.4 10, 3.4.2 3, 3.5.2 3, 3.6.1 1, 3.6.2 3, 3.7.2 3, 3.8.1 1, 3.8.3 5, 3.8.4 8, "
    "3.9.2 2, 3.9.3 2, 3.10.1 1, 3.10.3 2, 3.10.4 6, 3.11.2 2, 3.11.3 2, 3.12.4 1, 3.14.0 1, 3.14.1 1, 3.14.2 4, "
    "3.14.4 3, 3.15.1 1, 3.15.2 3, 4.1.0 2, 4.2 1, 4.3.1 1, 4.3.2 5, 4.3.3 13, 4.4.0 2, 4.5.0 2, 4.6.0 6, 4.7.0 1, "
    "4.7.1 2, 4.7.2 1, 4.7.3 4, 4.8.2 6, 4.9.0 3, 4.12.0 7, 4.12.1 2, 4.13.1 1, 4.13.2 1, 6.0.0 4",
}
MISSING = {("5", "2.2.1-1")}  # that the standard itself does not have
REASONS = {"client": {"client", "not offered"}, "server": {"not offered", "never"}, "both": {"not offered", "never"}}
REASON = re.compile(r"(client|not offered|never|allowed): \S.*")
TEST = re.compile(r"([a-z0-9_/]+\.py)::(test_\w+)")


class Statement(NamedTuple):
    """One line. `standard`: the version. `shown_by`: a test, or the reason why there is none."""

    standard: str
    number: str
    binds: str
    short: str
    shown_by: str


def statements() -> list[Statement]:
    standard, found = "", []
    for line in TABLE.read_text().splitlines():
        if line.startswith("== "):
            standard = line[3:]
        elif line and not line.startswith("#"):
            found.append(Statement(standard, *line.split(" | ")))
    return found


@lru_cache
def functions_of(path: Path) -> frozenset[str]:
    """The functions of a test file."""
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("standard", LAST)
def test_no_statement_is_missing(standard: str) -> None:
    wanted = []
    for section, last in (each.split() for each in LAST[standard].split(", ")):
        numbers = (f"{section}-{number}" for number in range(1, int(last) + 1))
        wanted += [number for number in numbers if (standard, number) not in MISSING]
    assert [each.number for each in statements() if each.standard == standard] == wanted


def test_each_has_a_test_that_exists_or_a_reason() -> None:
    for standard, number, binds, short, shown_by in statements():
        where = f"MQTT {standard}, {number}"
        assert binds in REASONS and short, where
        test = TEST.fullmatch(shown_by)
        if test:
            assert test[2] in functions_of(tree.ROOT / "tests" / test[1]), f"{where}: there is no {shown_by}"
        else:
            reason = REASON.fullmatch(shown_by)
            assert reason and reason[1] in REASONS[binds] | {"allowed"}, f"{where}: {shown_by}"


def test_most_that_bind_a_server_have_a_test() -> None:
    """The number of those without one only falls."""
    without = [each for each in statements() if each.binds != "client" and not TEST.fullmatch(each.shown_by)]
    assert len(without) <= 28, without
