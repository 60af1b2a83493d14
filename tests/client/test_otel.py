"""OpenTelemetry's context in headers."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry import baggage, context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import tailrace
from tailrace import NOW, Message, otel
from tailrace.core.headers import pack_headers
from tests.client.model_server import ModelServer

SPAN = SpanContext(0x1234, 0x5678, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
TRACEPARENT = f"00-{0x1234:032x}-{0x5678:016x}-01"


def test_a_trace_goes_on_at_the_reader(server: ModelServer) -> None:
    publishing = baggage.set_baggage("shop", "7", trace.set_span_in_context(NonRecordingSpan(SPAN)))
    with tailrace.connect(server.address) as client:
        token = context.attach(publishing)
        client.publish("orders", b"one", headers=otel.inject({"mine": b"\xff"}))
        context.detach(token)
        client.publish("orders", b"two", headers=otel.inject())
        first, second = client.subscribe("orders", end=NOW)
    assert first.headers == {"mine": b"\xff", "traceparent": TRACEPARENT, "baggage": "shop=7"}
    assert second.headers == {}
    before = trace.get_current_span()
    with otel.attached(first) as found:
        span = trace.get_current_span().get_span_context()
        assert (span.trace_id, span.span_id, span.is_remote) == (0x1234, 0x5678, True)
        assert baggage.get_baggage("shop", found) == "7"
        with otel.attached(second):
            assert not trace.get_current_span().get_span_context().is_valid, "another message is of another trace"
    assert trace.get_current_span() is before


def test_headers_that_are_no_context() -> None:
    message = Message("s", 0, 0, b"", pack_headers({"traceparent": "nonsense", "tracestate": b"\xff"}))
    assert not trace.get_current_span(otel.extract(message)).get_span_context().is_valid


def test_without_the_package() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import tailrace.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'tailrace[otel]'" in done.stderr


def test_nothing_else_loads_it() -> None:
    program = "import sys, tailrace; tailrace.connect; assert not any(m.startswith('opentel') for m in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
