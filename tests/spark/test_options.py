from __future__ import annotations

import pytest

from tailrace.core.address import Address
from tailrace.spark.broker_connection import BrokerLogin
from tailrace.spark.options import InvalidOption, Options, parse_options
from tailrace.spark.places import EVERYTHING, Place, Range
from tailrace.spark.source import SourceOptions


def test_defaults() -> None:
    options = parse_options({"path": "/data"})
    assert options == Options(SourceOptions("/data"))
    assert options.range == EVERYTHING
    assert options.rows_per_task is None


def test_all_of_them_whatever_their_case() -> None:
    options = parse_options(
        {
            "brokers": "a:1, b:2",
            "TOKEN": "secret",
            "Streams": "orders.* news",
            "from": "#5",
            "to": "2026-11-21",
            "checkcrc": "True",
            "badStreams": "skip",
            "payload": "JSON",
            "payloadSchema": "a int",
            "rowsPerTask": "10",
            "maxRowsPerBatch": "20",
            "failOnDataLoss": "false",
        }
    )
    brokers = (Address("a", 1), Address("b", 2))
    assert options.source == SourceOptions("", brokers, BrokerLogin("secret"), True)
    assert options.streams == ("orders.*", "news")
    assert options.range == Range(Place("seq", 5), Place("time", 1_795_219_200_000_000))
    assert options.skip_bad
    assert (options.payload, options.payload_schema) == ("json", "a int")
    assert (options.rows_per_task, options.max_rows_per_batch) == (10, 20)
    assert not options.fail_on_data_loss


def test_new_is_a_place_to_begin() -> None:
    assert parse_options({"path": "/data", "from": "new"}).from_new
    assert parse_options({"path": "/data", "from": "new"}).range == EVERYTHING


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "one of them"),
        ({"path": "/data", "brokers": "a:1"}, "not both"),
        ({"brokers": "a:b"}, "brokers: 'a:b' is not HOST:PORT"),
        ({"path": "/data", "form": "1"}, "unknown option 'form'; the options are path, brokers"),
        ({"path": "/data", "from": "soon"}, "the option from: 'soon' is not a time"),
        ({"path": "/data", "to": "new"}, "the option to: 'new'"),
        ({"path": "/data", "badStreams": "maybe"}, "badStreams is 'maybe'; it is one of fail, skip"),
        ({"path": "/data", "rowsPerTask": "0"}, "rowsPerTask is '0'; it is a number of rows"),
        ({"path": "/data", "maxRowsPerBatch": "-1"}, "maxRowsPerBatch is '-1'"),
        ({"path": "/data", "payloadSchema": "a int"}, "payloadSchema goes with the option payload"),
    ],
)
def test_what_is_wrong_is_said(said: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(said)
    assert text in str(caught.value)
