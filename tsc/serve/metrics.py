"""What Prometheus is told of a server (https://prometheus.io/docs/concepts/metric_types/)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MODEL = ("model", "version")


class Metrics:
    """Counts and times of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("tsc_requests", "Requests, by how they ended (an HTTP status).", (*_MODEL, "status"),
                                registry=self._registry)
        self.seconds = Histogram("tsc_request_seconds", "From a request to its result.", _MODEL, buckets=_SECONDS,
                                 registry=self._registry)
        self.batches = Histogram("tsc_batch_requests", "Requests that ran as one.", _MODEL, buckets=_ROWS,
                                 registry=self._registry)
        self.waiting = Gauge("tsc_waiting_requests", "Requests that wait or run.", _MODEL, registry=self._registry)
        self.shapes = Gauge("tsc_shapes", "Different shapes that were asked for.", _MODEL, registry=self._registry)
        self.memory = Gauge("tsc_worker_bytes", "Memory that a process which runs models has to itself.", ("worker",),
                            registry=self._registry)
        self.restarts = Gauge("tsc_worker_restarts", "How often such a process was replaced.", ("worker",),
                              registry=self._registry)

    def text(self) -> bytes:
        """All of them, in Prometheus's text format."""
        found: bytes = generate_latest(self._registry)
        return found

    def forget(self, model: str, version: str) -> None:
        """A model is served no more: what was counted of it stays, what it is like now does not."""
        for gauge in (self.waiting, self.shapes):
            gauge.remove(model, version)
