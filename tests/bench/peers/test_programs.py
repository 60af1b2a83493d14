from __future__ import annotations

import pytest

from bench.peers.base import Unavailable
from bench.peers.programs import find_program, program_version


def test_a_server_that_is_not_installed_is_told_apart() -> None:
    with pytest.raises(Unavailable, match="no-such-server-here is not installed"):
        find_program("no-such-server-here")
    with pytest.raises(Unavailable, match="is not installed"):
        program_version("no-such-server-here", "--version")


def test_a_version_is_one_line() -> None:
    assert program_version("python3", "--version").startswith("Python 3")


def test_a_server_that_says_nothing_has_no_version() -> None:
    with pytest.raises(Unavailable, match="true printed no version"):
        program_version("true")
