"""What the tests of the broker share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.broker.owning import release_all


@pytest.fixture(autouse=True)
def _owners_give_back() -> Iterator[None]:
    yield
    release_all()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
