"""The two engines of the rollup, Spark's with the session of tests/spark; an object store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # without the extra they cannot be imported
    from tailrace.spark.rollup.engine import ChooseEngine


@pytest.fixture(scope="session")
def spark_engine(session: Any) -> ChooseEngine:
    from tailrace.spark.rollup.spark_engine import SparkEngine

    return lambda _messages: SparkEngine(lambda: session.sparkContext)


@pytest.fixture(scope="session")
def local_engine() -> ChooseEngine:
    from tailrace.spark.rollup.local import LocalEngine

    return lambda _messages: LocalEngine(2)


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> ChooseEngine:
    """Each of them."""
    chosen: ChooseEngine = request.getfixturevalue(f"{request.param}_engine")
    return chosen


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """What follows `?` in a URL."""
    moto = pytest.importorskip("moto.server", reason="needs moto")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        host, port = running.get_host_and_port()
        yield f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        running.stop()


@pytest.fixture
def url(server: str) -> str:
    """A folder in a bucket of its own."""
    bucket = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    from pyarrow import fs

    system, _ = fs.FileSystem.from_uri(f"s3://{bucket}?{server}&allow_bucket_creation=true")
    system.create_dir(bucket)
    return f"s3://{bucket}/tailrace?{server}"
