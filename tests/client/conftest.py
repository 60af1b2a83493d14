"""A broker in memory for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.member import NAME, STREAM
from tests.client.model import Model
from tests.client.model_consumers import Group, Groups
from tests.client.model_server import ModelServer, running_model


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server


@pytest.fixture
def groups() -> Groups:
    """A consumer of a stream of 20 messages."""
    groups = Groups(Model())
    groups.groups[STREAM, NAME] = Group(0)
    groups.model.publish(STREAM, *[b"%d" % number for number in range(20)])
    return groups


@pytest.fixture
def group(groups: Groups) -> Group:
    return groups.group(STREAM, NAME)
