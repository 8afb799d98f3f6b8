"""What a server is doing, for the page that shows it."""

from __future__ import annotations

from typing import Any

from tsc.runtime.bind import format_spec
from tsc.serve.model import Served
from tsc.serve.service import Service


def report(service: Service) -> dict[str, Any]:
    """JSON-ready: the models with their shapes, how many requests they had and what these took, and the processes."""
    return {
        "ready": service.ready,
        "models": [_model(model) for _, model in sorted(service.models.items())],
        "not_served": [{"name": name, "version": version, "reason": reason}
                       for (name, version), reason in sorted(service.reasons.items())],
        "workers": [{"number": worker.number, "pid": worker.pid, "restarts": worker.restarts, "models": len(worker.loaded)}
                    for worker in service.workers]}


def _model(model: Served) -> dict[str, Any]:
    times = sorted(model.times)
    return {
        "name": model.entry.model, "version": model.entry.version,
        "inputs": [format_spec(spec) for spec in model.plan.inputs],
        "outputs": [format_spec(spec) for spec in model.plan.outputs],
        "dims": {name: str(known) for name, known in model.plan.ranges.items()},
        "together": 1 if model.together is None else model.together.requests,
        "requests": model.requests, "pending": model.pending, "shapes": model.shapes, "coverage": model.coverage is not None,
        "milliseconds": {share: round(1e3 * times[min(len(times) - 1, int(len(times) * share / 100))], 3)
                         for share in (50, 99)} if times else {}}
