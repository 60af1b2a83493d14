from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.replication.nodes import Tree
from tests.broker.replication.slaving import Slave


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    slave = Slave(tmp_path)
    yield slave
    slave.original.log.close()
    slave.owner.release()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with contextlib.ExitStack() as stack:
        yield Tree(tmp_path, stack)
