"""What ends a command: its packages are missing."""

from __future__ import annotations

import pytest

from tailrace.cli.ending import CommandError, require


def test_what_is_installed_is_enough() -> None:
    require(["click", "msgpack"], "server")


def test_each_missing_package_is_named_with_the_extra_that_has_it() -> None:
    text = r"^this needs absent_one, absent_two, not installed here; install with: pip install 'tailrace\[server\]'$"
    with pytest.raises(CommandError, match=text):
        require(["absent_two", "click", "absent_one"], "server")
