"""What the tests of the broker share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tailrace.broker.streams.refused import Refused
from tests.broker.owning import release_all


@pytest.fixture(autouse=True)
def _owners_give_back() -> Iterator[None]:
    yield
    release_all()


@pytest.fixture(autouse=True)
def _no_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test sets it otherwise, a turn does all pending work, however slow the machine is, and then no more than
    that, however little else there is to do.
    """
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", float("inf"))
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_MAX_S", 0.0)


@pytest.fixture
def refusals_left() -> Iterator[Callable[[], list[Refused]]]:
    """Those made in the test that are still there; the collector of cycles takes none away."""
    gc.collect()
    gc.disable()
    before = _refusals()
    yield lambda: [each for each in _refusals() if not any(each is other for other in before)]
    gc.enable()


def _refusals() -> list[Refused]:
    return [each for each in gc.get_objects() if isinstance(each, Refused)]
