"""A broker in memory for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tailrace.model_server import ModelServer, running_model


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server
