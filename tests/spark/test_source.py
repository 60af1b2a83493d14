from __future__ import annotations

import pickle
from pathlib import Path

from tailrace.core.address import Address
from tailrace.spark.broker_connection import BrokerLogin
from tailrace.spark.broker_source import BrokerSource
from tailrace.spark.directory_source import DirectorySource
from tailrace.spark.source import SourceOptions, open_source
from tests.spark.data import make_directory


def test_options_say_which_source(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {})
    assert isinstance(open_source(SourceOptions(str(tmp_path / "data"))), DirectorySource)
    assert isinstance(open_source(SourceOptions(brokers=(Address("127.0.0.1", 1),))), BrokerSource)


def test_options_go_to_the_tasks() -> None:
    options = SourceOptions("/data", (Address("a", 1),), BrokerLogin("secret"), True)
    assert pickle.loads(pickle.dumps(options)) == options
