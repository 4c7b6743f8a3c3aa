"""Counters and times of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from ffn.serve.web.service import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What a service did since its start; the names of the metrics are in ``docs/serve.md``."""

    def __init__(self) -> None:
        own = {"registry": CollectorRegistry()}
        self._registry = own["registry"]
        ProcessCollector(**own)  # memory, processor time and open files
        self._requests = Counter("ffn_requests", "Requests by HTTP status", ["status"], **own)
        self.active = Gauge("ffn_active_requests", "Requests that are being answered", **own)
        labels = ["model", "frames"]
        self._clips = Counter("ffn_clips", "Clips by model and number of frames", labels, **own)
        own["buckets"] = SECONDS
        self._total = Histogram("ffn_request_seconds", "Time of an answered request", **own)
        self._reading = Histogram("ffn_reading_seconds", "Time to read a clip", **own)
        self._network = Histogram("ffn_network_seconds", "Time of the network for a clip", **own)

    def answered(self, model: str, answers: Iterable[Answer], seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels("200").inc()
        self._total.observe(seconds)
        for answer in answers:
            prediction = answer.prediction
            self._clips.labels(model, str(prediction.frames)).inc()
            self._reading.observe(prediction.decode_ms / 1000)
            self._network.observe(prediction.model_ms / 1000)

    def refused(self, status: int) -> None:
        """Count a request that was not answered."""
        self._requests.labels(str(status)).inc()

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
