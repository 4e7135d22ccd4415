"""OpenTelemetry: a span for each request, where the extra `otel` is installed and told where spans go.

The standard variables say how: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on. Spans
hold what the access log holds, and nothing of the user's text.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from service.observability import Exchange

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PARTS = {  # of a request's time, in the order in which they come
    "tok": "tokenize",
    "queue": "queue",
    "fwd": "forward",
    "calc": "calculate",
    "ser": "serialize",
}


def start() -> None:
    """Make the process's provider, whose exporter has a thread of its own: after the fork. Without a variable: none."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return
    if (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "%s is set, but OpenTelemetry is not installed: nothing is traced; "
            "pip install 'attention-service[otel]' brings it",
            next(name for name in ENDPOINTS if os.environ.get(name)),
        )
        return
    own = {"service.version": version("attention-service")}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        own["service.name"] = "attention-service"
    provider = TracerProvider(resource=Resource.create(own))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class Tracing:
    """Makes the spans of an app's requests."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("attention-service", version("attention-service"))

    @classmethod
    def by(cls, provider: TracerProvider | None = None) -> Tracing | None:
        """With that provider, or with the process's; None where there is none."""
        if provider is None:
            try:
                from opentelemetry import trace
            except ImportError:
                return None
            provider = trace.get_tracer_provider()
            if isinstance(provider, trace.ProxyTracerProvider):  # nobody has made one
                return None
        return cls(provider)

    def begin(self, method: str, headers: Mapping[str, str]) -> Span:
        """A request's span; a child of what its `traceparent` header names (W3C Trace Context)."""
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        carrier = {name.lower(): value for name, value in headers.items()}
        return self._tracer.start_span(method, propagate.extract(carrier), SpanKind.SERVER)

    def end(self, span: Span, exchange: Exchange, request_id: str) -> None:
        """The request is answered.

        Of its parts only the durations are known, each summed over all batches: they stand one behind the other, the
        last ending now.
        """
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        span.set_attribute("http.request.method", exchange.method if exchange.method != "other" else "_OTHER")
        span.set_attribute("http.response.status_code", exchange.status)
        span.set_attribute("http.response.body.size", exchange.sent)
        span.set_attribute("attention.request_id", request_id)
        if exchange.route:
            span.update_name(f"{exchange.method} {exchange.route}")
            span.set_attribute("http.route", exchange.route)
        if exchange.tokens:
            span.set_attribute("attention.input_tokens", exchange.tokens)
        if exchange.rejected:
            span.set_attribute("attention.rejected", exchange.rejected)
        if exchange.status >= 500:
            span.set_attribute("error.type", str(exchange.status))
            span.set_status(Status(StatusCode.ERROR))
        end = time.time_ns()
        at = end - sum(_nanoseconds(exchange.parts.get(part, 0)) for part in PARTS)
        for part, name in PARTS.items():
            if part in exchange.parts:
                child = self._tracer.start_span(name, set_span_in_context(span), start_time=at)
                at += _nanoseconds(exchange.parts[part])
                child.end(at)
        span.end(end)


def trace_id(span: Span) -> str:
    """As W3C Trace Context writes it."""
    return f"{span.get_span_context().trace_id:032x}"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
