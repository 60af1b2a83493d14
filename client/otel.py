"""OpenTelemetry's context in the headers of messages, so that a trace goes on at their readers.

It needs `pip install 'tailrace[otel]'`. The propagators are those of the program (`OTEL_PROPAGATORS`), by default W3C's
trace context and baggage: the headers `traceparent`, `tracestate` and `baggage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

try:
    from opentelemetry import context, propagate
    from opentelemetry.context import Context
except ImportError as error:
    raise ImportError("tailrace.otel needs opentelemetry-api; install with: pip install 'tailrace[otel]'") from error

from tailrace.core.message import Message


def inject(headers: Mapping[str, str | bytes] | None = None) -> dict[str, str | bytes]:
    """The headers, with those of the present context: `client.publish(stream, payload, headers=inject())`."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {**(headers or {}), **carrier}


def extract(message: Message) -> Context:
    """The context in which a message was published; an empty one if it has no such headers."""
    headers = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    return propagate.extract(headers, context=Context())


@contextmanager
def attached(message: Message) -> Iterator[Context]:
    """Makes a message's context the present one for a block: spans that begin in it belong to its publisher's trace."""
    found = extract(message)
    token = context.attach(found)
    try:
        yield found
    finally:
        context.detach(token)
