from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.replication.slaving import Slave


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[Slave]:
    slave = Slave(tmp_path)
    yield slave
    slave.original.log.close()
    slave.owner.release()
