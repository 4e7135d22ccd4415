"""What `GET /metrics` counts, for Prometheus: every metric's name, labels and buckets.

Labels are bounded and hold nothing of the user's: the route is a rule of ours, never a path. Each app has its own
registry. Where PROMETHEUS_MULTIPROC_DIR is set, several workers count together in that folder: see
`service.gunicorn_conf`, which empties it at the start. prometheus-client looks at the variable when it is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import exposition as text
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics import exposition as openmetrics

from service.problems import REASONS
from service.settings import MULTIPROC_DIR

if TYPE_CHECKING:
    from service.model import LoadedModel
    from service.observability import Exchange

LATENCIES = tuple(0.001 * 2**power for power in range(18))  # 1 ms to 131 s
TOKENS = tuple(2**power for power in range(17))  # 1 to 65,536
BYTES = tuple(4**power for power in range(4, 15))  # 256 bytes to 256 MiB

# By media type, the default first. (prometheus-client's own choice fails on an Accept header that is not quite right.)
EXPOSITIONS: Mapping[str, tuple[Callable[[CollectorRegistry], bytes], str]] = {
    "text/plain": (text.generate_latest, text.CONTENT_TYPE_PLAIN_0_0_4),
    "application/openmetrics-text": (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST),
}

# Several workers count together, without the time when each began to
prometheus_client.disable_created_metrics()


class Metrics:
    """The metrics of one app; what an engine calls its observer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._folder = os.environ.get(MULTIPROC_DIR)
        if self._folder:
            Path(self._folder).mkdir(parents=True, exist_ok=True)  # a start without gunicorn has not made it
        else:  # several processes cannot tell these together
            prometheus_client.ProcessCollector(registry=self.registry)
            prometheus_client.PlatformCollector(registry=self.registry)
            prometheus_client.GCCollector(registry=self.registry)

        self.labels: dict[str, tuple[str, ...]] = {}  # of each metric below, by its name

        def counter(name: str, help: str, *labels: str) -> Counter:
            self.labels[name] = labels
            return Counter(name, help, labels, registry=self.registry)

        def histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            self.labels[name] = labels
            return Histogram(name, help, labels, buckets=buckets, registry=self.registry)

        def gauge(
            name: str, help: str, *labels: str, together: Literal["livesum", "livemax"] = "livesum"
        ) -> Gauge:
            self.labels[name] = labels
            return Gauge(name, help, labels, multiprocess_mode=together, registry=self.registry)

        self._requests = counter(
            "attention_http_requests_total", "Requests answered.", "route", "method", "status"
        )
        self._duration = histogram(
            "attention_http_request_duration_seconds", "From request to answer.", LATENCIES, "route"
        )
        self._in_flight = gauge(
            "attention_requests_in_flight", "Requests accepted by the model and not yet answered."
        )
        self._queue_depth = gauge("attention_queue_depth", "Jobs that wait for the model.")
        self._queue_wait = histogram(
            "attention_queue_wait_seconds", "A request's wait for the model.", LATENCIES
        )
        self._tokenize = histogram("attention_tokenize_seconds", "Tokenising a request's texts.", LATENCIES)
        self._forward = histogram(
            "attention_forward_seconds", "The model's work on a request.", LATENCIES, "endpoint"
        )
        self._serialize = histogram(
            "attention_serialize_seconds", "Writing an answer.", LATENCIES, "media_type"
        )
        self._tokens = histogram("attention_input_tokens", "Tokens of all texts of a request.", TOKENS)
        self._bytes = histogram("attention_response_bytes", "Body of an answer as sent.", BYTES)
        self._rejected = counter(
            "attention_rejected_total", "Requests turned away at a limit, or not ready for.", "reason"
        )
        self._joined = counter(
            "attention_joined_requests_total", "Reads that went through the model together with others'."
        )
        self._dropped = counter(
            "attention_dropped_jobs_total", "Jobs given up: too late, or nobody waits.", "reason"
        )
        self._cache = counter(
            "attention_result_cache_total", "Questions put to the cache of answers.", "result"
        )
        self._cache_bytes = gauge(
            "attention_result_cache_bytes", "What the cache of answers takes, in bytes."
        )
        self._model_info = gauge(
            "attention_model_info",
            "1 once the model is loaded; the labels say which.",
            *("id", "revision", "dtype", "version"),
            together="livemax",
        )
        self._load_seconds = gauge(
            "attention_model_load_seconds", "How long loading the model took.", together="livemax"
        )
        for reason in REASONS:  # from the start at 0, so that the first shows as a rise
            self._rejected.labels(reason)
        for reason in ("deadline", "gone"):
            self._dropped.labels(reason)
        for result in ("hit", "miss"):
            self._cache.labels(result)

    def exposition(self, media_type: str) -> tuple[bytes, str]:
        """The metrics as one of EXPOSITIONS, and the whole Content-Type."""
        registry = self.registry
        if self._folder:  # a fresh one at every scrape: it reads what all processes wrote
            registry = CollectorRegistry()
            MultiProcessCollector(registry, self._folder)
        encode, content_type = EXPOSITIONS[media_type]
        return encode(registry), content_type

    # --- a request, once it is answered ---

    def answered(self, exchange: Exchange) -> None:
        """Count a request and where its time went."""
        route = exchange.route or "unmatched"
        self._requests.labels(route, exchange.method, str(exchange.status)).inc()
        self._duration.labels(route).observe(exchange.seconds)
        self._bytes.observe(exchange.sent)
        if exchange.rejected:
            self._rejected.labels(exchange.rejected).inc()
        if exchange.tokens:
            self._tokens.observe(exchange.tokens)
        parts = exchange.parts
        if "tok" in parts:
            self._tokenize.observe(parts["tok"])
        if "queue" in parts:
            self._queue_wait.observe(parts["queue"])
        if "fwd" in parts:
            endpoint = route.partition(".<")[0]  # whichever format the path ends in
            self._forward.labels(endpoint).observe(parts["fwd"])
        if "ser" in parts:
            self._serialize.labels(exchange.media_type).observe(parts["ser"])

    # --- the cache of answers ---

    def cache_asked(self, *, hit: bool) -> None:
        """Count a question put to the cache."""
        self._cache.labels("hit" if hit else "miss").inc()

    def cache_holds(self, size: int) -> None:
        """How many bytes the cache takes now."""
        self._cache_bytes.set(size)

    # --- the engine ---

    def loaded(self, model: LoadedModel, seconds: float) -> None:
        """The model is there."""
        known = model.provenance
        revision = known.get("revision") or known.get("sha256") or ""
        self._model_info.labels(
            str(known.get("id")), str(revision), str(known.get("dtype")), version("attention-service")
        ).set(1)
        self._load_seconds.set(seconds)

    def in_flight(self, requests: int) -> None:
        """So many have been accepted and not yet answered."""
        self._in_flight.set(requests)

    def waiting(self, jobs: int) -> None:
        """So many wait for the model."""
        self._queue_depth.set(jobs)

    def joined(self, requests: int) -> None:
        """So many go through the model together."""
        self._joined.inc(requests)

    def dropped(self, reason: Literal["deadline", "gone"]) -> None:
        """A job was given up."""
        self._dropped.labels(reason).inc()
