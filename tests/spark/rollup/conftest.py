"""The session of tests/spark with the rollup's source in it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def rollup_session(session: Any) -> Any:
    from spark.rollup.source import RollupDataSource

    session.dataSource.register(RollupDataSource)
    return session
