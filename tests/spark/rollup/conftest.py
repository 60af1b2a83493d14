"""The two engines of the rollup. Spark's has the session of tests/spark with the rollup's source in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # without the extra they cannot be imported
    from tailrace.spark.rollup.engine import ChooseEngine


@pytest.fixture(scope="session")
def rollup_session(session: Any) -> Any:
    from tailrace.spark.rollup.source import RollupDataSource

    session.dataSource.register(RollupDataSource)
    return session


@pytest.fixture(scope="session")
def spark_engine(rollup_session: Any) -> ChooseEngine:
    from tailrace.spark.rollup.spark_engine import SparkEngine

    return lambda _messages: SparkEngine(lambda: rollup_session)


@pytest.fixture(scope="session")
def local_engine() -> ChooseEngine:
    from tailrace.spark.rollup.local import LocalEngine

    return lambda _messages: LocalEngine(2)


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> ChooseEngine:
    """Each of them."""
    chosen: ChooseEngine = request.getfixturevalue(f"{request.param}_engine")
    return chosen
