"""The options of the sink."""

from __future__ import annotations

import pytest

from tailrace.core.address import Address
from tailrace.protocol.messages import Ack
from tailrace.spark.broker_connection import BrokerLogin
from tailrace.spark.options import InvalidOption
from tailrace.spark.sink_options import SinkOptions, parse_sink_options

BROKERS = (Address("a", 1), Address("b", 2))


def test_what_is_said() -> None:
    assert parse_sink_options({"brokers": "a:1,b:2", "checkpointlocation": "/x"}) == SinkOptions(BROKERS)
    found = parse_sink_options(
        {"Brokers": "a:1, b:2", "token": "t", "stream": "s", "ack": "Replicated", "replicas": "2", "producer": "p"}
    )
    assert found == SinkOptions(BROKERS, BrokerLogin("t"), "s", Ack.REPLICATED, 2, "p")
    assert parse_sink_options({"brokers": "a:1", "ack": "replicated"}).replicas == 1
    found = parse_sink_options({"brokers": "a:1", "User": "ann", "password": "p"})
    assert found.login == BrokerLogin(None, "ann", "p")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "give the brokers"),
        ({"path": "./data", "brokers": "a:1"}, "a path cannot be written to"),
        ({"brokers": "a:x"}, "the option brokers"),
        ({"brokers": "a:1", "streams": "s"}, "unknown option 'streams'"),
        ({"brokers": "a:1", "stream": "a b"}, "the option stream"),
        ({"brokers": "a:1", "user": "ann"}, "the option user goes with"),
        ({"brokers": "a:1", "password": "p"}, "a password goes with the option user"),
        ({"brokers": "a:1", "user": "ann", "password": "p", "token": "t"}, "and not with a token"),
        ({"brokers": "a:1", "ack": "none"}, "appended, synced, replicated"),
        ({"brokers": "a:1", "replicas": "2"}, "goes with ack=replicated"),
        ({"brokers": "a:1", "ack": "replicated", "replicas": "0"}, "from 1 on"),
        ({"brokers": "a:1", "ack": "replicated", "replicas": "many"}, "is a number of nodes"),
    ],
)
def test_what_cannot_be(said: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        parse_sink_options(said)
