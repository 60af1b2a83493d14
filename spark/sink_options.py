"""The options of the sink, `df.write.format("tailrace")`: names, meanings, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.core.address import Address, parse_addresses
from tailrace.core.arguments import REPLICAS_MAX, checked_stream
from tailrace.errors import InvalidArgument, InvalidStreamName
from tailrace.protocol.messages import Ack
from tailrace.spark.broker_connection import NO_LOGIN, BrokerLogin
from tailrace.spark.options import InvalidOption, checked_login

KNOWN: Final = ("brokers", "token", "user", "password", "stream", "ack", "replicas", "producer")
CHECKPOINT: Final = "checkpointLocation"
"""Spark's own, which it passes on."""
_ACKS: Final = {"appended": Ack.APPENDED, "synced": Ack.SYNCED, "replicated": Ack.REPLICATED}
_KNOWN: Final = frozenset({CHECKPOINT.lower(), *KNOWN})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`stream`: of all rows; empty if the column of that name says it. `producer`: see docs/spark.md. Picklable."""

    brokers: tuple[Address, ...]
    login: BrokerLogin = NO_LOGIN
    stream: str = ""
    ack: Ack = Ack.SYNCED
    replicas: int = 0
    producer: str = ""


def parse_sink_options(said: Mapping[str, str]) -> SinkOptions:
    """Parses the names and texts that Spark passes; case of names is ignored. Raises InvalidOption."""
    found = {name.lower(): value for name, value in said.items()}
    if found.get("path"):
        raise InvalidOption('a path cannot be written to: give option("brokers", "HOST:PORT,…"), and save() without it')
    unknown = [name for name in said if name.lower() not in _KNOWN]
    if unknown:
        raise InvalidOption(f"unknown option {unknown[0]!r}; the options of the sink are {', '.join(KNOWN)}")
    ack = found.get("ack", "synced").lower()
    if ack not in _ACKS:
        raise InvalidOption(f"the option ack is {ack!r}; it is one of {', '.join(_ACKS)}")
    return SinkOptions(
        _brokers(found),
        checked_login(found),
        _stream(found),
        _ACKS[ack],
        _replicas(found, ack),
        found.get("producer", ""),
    )


def _brokers(found: Mapping[str, str]) -> tuple[Address, ...]:
    if not found.get("brokers"):
        raise InvalidOption('give the brokers to publish to: option("brokers", "HOST:PORT,…")')
    try:
        return tuple(parse_addresses(found["brokers"].replace(",", " ").split()))
    except (InvalidArgument, ValueError) as error:
        raise InvalidOption(f"the option brokers: {error}") from None


def _stream(found: Mapping[str, str]) -> str:
    try:
        return checked_stream(found["stream"]) if found.get("stream") else ""
    except InvalidStreamName as error:
        raise InvalidOption(f"the option stream: {error}") from None


def _replicas(found: Mapping[str, str], ack: str) -> int:
    text = found.get("replicas", "1" if ack == "replicated" else "0")
    if not (text.isascii() and text.isdigit() and int(text) <= REPLICAS_MAX):
        raise InvalidOption(f"the option replicas is {text!r}; it is a number of nodes, from 1 to {REPLICAS_MAX}")
    if bool(int(text)) != (ack == "replicated"):
        raise InvalidOption(f"replicas={text} does not go with ack={ack}; it goes with ack=replicated, from 1 on")
    return int(text)
