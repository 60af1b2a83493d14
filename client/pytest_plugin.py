"""The pytest fixture `tailrace_server`: a broker of its own for each test that names it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tailrace.testing import Server


@pytest.fixture
def tailrace_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A broker with an empty data directory (`tailrace.testing.Server`); after a failed test its log is shown."""
    from tailrace.testing import Server

    with Server() as server:
        yield server
        request.node.add_report_section("teardown", "tailrace log", server.log)  # it is shown if the test fails
