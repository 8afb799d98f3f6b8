"""What a session's runs took, as the file that ONNX Runtime's profiler writes: a list of Chrome's trace events."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsc.runtime.files import write_atomically
from tsc.runtime.plan import Launch


@dataclass(slots=True)
class Recorded:
    """The events of a session since it began, "complete" ones of the Trace Event Format; times in microseconds."""

    launches: Sequence[Launch]
    begin: float = field(default_factory=time.perf_counter)
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, start: float) -> None:
        """What took from `start` (of time.perf_counter) until now."""
        self._event("Session", name, (start - self.begin) * 1e6, (time.perf_counter() - start) * 1e6, {})

    def add_run(self, start: float, seconds: Sequence[float]) -> None:
        """A run that began at `start`, and what each launch took, one after the other."""
        self.add("model_run", start)
        now = (start - self.begin) * 1e6
        for launch, taken in zip(self.launches, seconds, strict=True):
            nodes = list(launch.nodes or (launch.node,))
            self._event("Node", f"{nodes[0]}_kernel_time", now, taken * 1e6,
                        {"op_name": launch.kernel, "nodes": nodes, "provider": "CPUExecutionProvider"})
            now += taken * 1e6

    def _event(self, kind: str, name: str, start: float, duration: float, args: dict[str, Any]) -> None:
        self.events.append({"cat": kind, "pid": os.getpid(), "tid": threading.get_native_id(), "ph": "X", "name": name,
                            "ts": start, "dur": duration, "args": args})

    def write(self, prefix: str) -> str:
        """Write them to a file that is called after the time, whole or not at all; its name. Raises as `write_atomically`."""
        name = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        write_atomically(Path(name), [json.dumps(self.events).encode()], durable=False)
        return name
