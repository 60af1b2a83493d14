"""What the tests of the broker share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.owning import release_all


@pytest.fixture(autouse=True)
def _owners_give_back() -> Iterator[None]:
    yield
    release_all()
