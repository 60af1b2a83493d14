"""`tailrace bench`: a quick load on one's own node, and a line of figures."""

from __future__ import annotations

import json
import statistics
import threading
import time
from dataclasses import asdict, dataclass

import click

from tailrace import NEW, Ack, Client, OperationTimeout, TailraceError
from tailrace.cli.ending import OK, REFUSED, CommandError
from tailrace.cli.options import check_stream, server_options
from tailrace.cli.server import broker_errors, choose_server, connect
from tailrace.cli.tables import counted, size
from tailrace.core.address import Address

EPILOG = """\b
Examples:
  tailrace bench
  tailrace bench --messages 1000000 --size 1000 --subscribers 4
  tailrace bench --ack synced --json --server broker.example:5050

One publisher sends messages in batches while the subscribers read them; then it sends some one by one and waits for
each answer, which gives the times. Everything runs in this one process, so a fast node is not the limit: start several
for more load, and `make bench` of a checkout compares nodes. The messages stay in the stream.

Exit codes: 0 done, 1 refused by the broker, or a subscriber lacks messages, 2 wrong arguments, 4 no connection or lost.
"""
ACKS = {ack.name.lower(): ack for ack in Ack if ack is not Ack.NONE}
ROUND_TRIPS = 300
DELIVERY_S = 60.0
"""How long the subscribers may take to receive what is published."""


@dataclass(frozen=True, slots=True)
class BenchFigures:
    """One run. Rates are messages in a second, times seconds; `delivered_per_s` counts each subscriber's messages."""

    messages: int
    message_bytes: int
    subscribers: int
    ack: str
    published_per_s: float
    delivered_per_s: float
    delivered: int
    round_trip_median_s: float
    round_trip_p99_s: float

    @property
    def is_complete(self) -> bool:
        return self.delivered == self.messages * self.subscribers

    def shown(self) -> str:
        published = f"{self.published_per_s:,.0f} messages/s ({size(self.published_per_s * self.message_bytes)}/s)"
        delivered = f"delivered {self.delivered_per_s:,.0f}/s to {counted(self.subscribers, 'subscriber')}, "
        lost = "" if self.is_complete else f"{self.messages * self.subscribers - self.delivered:,} NOT DELIVERED, "
        times = f"{self.round_trip_median_s * 1e3:.2f} ms, 99 % within {self.round_trip_p99_s * 1e3:.2f} ms"
        return (
            f"{counted(self.messages, 'message')} of {counted(self.message_bytes, 'byte')}: published {published}, "
            f"{delivered if self.subscribers else ''}{lost}one by one ({self.ack}) {times}"
        )


class Reader:
    """A subscriber in a thread of its own, with its own connection."""

    def __init__(self, server: Address, stream: str, expected: int) -> None:
        self.count = 0
        self.done_s = 0.0
        self.error: TailraceError | None = None
        self._expected = expected
        self._client = connect(server)
        self._subscription = self._client.subscribe(stream, NEW, wait=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while self.count < self._expected:
                self.count += len(self._subscription.receive_batch(DELIVERY_S))
        except OperationTimeout:
            pass  # the figures show what is missing
        except TailraceError as error:
            self.error = error
        self.done_s = time.monotonic()

    def join(self) -> None:
        self._thread.join()
        self._subscription.cancel()
        self._client.close()
        if self.error is not None:
            raise self.error


@click.command("bench", epilog=EPILOG)
@click.option("--stream", default="bench", show_default=True, callback=check_stream)
@click.option("--messages", "-n", type=click.IntRange(1), default=200_000, show_default=True, metavar="N")
@click.option("--size", "nbytes", type=click.IntRange(0), default=100, show_default=True, help="Bytes of a message.")
@click.option("--subscribers", type=click.IntRange(0, 64), default=1, show_default=True, metavar="N")
@click.option("--ack", type=click.Choice(list(ACKS)), default="appended", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@server_options
def command(
    stream: str,
    messages: int,
    nbytes: int,
    subscribers: int,
    ack: str,
    as_json: bool,
) -> int:
    """Measure a node with a load of one publisher and some subscribers."""
    chosen = choose_server()
    with broker_errors(chosen), connect(chosen) as client:
        limit = client.limits["max_message_bytes"]
        if nbytes > limit:
            raise CommandError(f"--size {nbytes:,}: the broker's limit is {limit:,} bytes")
        client.publish(stream, b"bench")  # makes the stream
        figures = measure(client, chosen, stream, messages, bytes(nbytes), subscribers, ACKS[ack])
    click.echo(json.dumps(asdict(figures)) if as_json else figures.shown())
    return OK if figures.is_complete else REFUSED


def measure(
    client: Client, server: Address, stream: str, messages: int, payload: bytes, subscribers: int, ack: Ack
) -> BenchFigures:
    """Raises TailraceError, CommandError."""
    readers = [Reader(server, stream, messages) for _ in range(subscribers)]
    began_s = time.monotonic()
    with client.batcher(stream, ack=ack) as batcher:
        for done in range(0, messages, 1_000):
            batcher.extend([payload] * min(1_000, messages - done))
    published_s = time.monotonic() - began_s
    for reader in readers:
        reader.join()
    delivered_s = max((reader.done_s - began_s for reader in readers), default=0.0)
    delivered = sum(min(reader.count, messages) for reader in readers)
    times = sorted(_round_trip_s(client, stream, payload, ack) for _ in range(min(ROUND_TRIPS, messages)))
    return BenchFigures(
        messages,
        len(payload),
        subscribers,
        ack.name.lower(),
        messages / published_s,
        delivered / delivered_s if delivered_s else 0.0,
        delivered,
        statistics.median(times),
        times[int(len(times) * 0.99)],
    )


def _round_trip_s(client: Client, stream: str, payload: bytes, ack: Ack) -> float:
    began_s = time.monotonic()
    client.publish(stream, payload, ack=ack)
    return time.monotonic() - began_s
