"""Kernel: one compiled FusionGroup as the plan sees it, with a JSON form so that it can be kept in the build cache."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tsc.sym import SymExpr, parse


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's source and what calling it takes: `buffers` and `sizes` name its arguments in order; `blocks` and `scratch`
    (bytes a worker) are expressions of its sizes; `messages[i]` is the data error of status code i+1; `schedule` is the final
    schedule tree and `log` what was decided on the way; `panels` are the layouts (axis, width) of the buffers it reads packed."""

    symbol: str
    source: str
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    blocks: SymExpr
    scratch: SymExpr
    messages: tuple[str, ...]
    schedule: str
    log: tuple[str, ...]
    panels: tuple[tuple[str, tuple[int, int]], ...] = ()


def kernel_to_bytes(kernel: Kernel) -> bytes:
    """Deterministic JSON."""
    return json.dumps({
        "symbol": kernel.symbol, "source": kernel.source, "buffers": kernel.buffers, "sizes": kernel.sizes,
        "blocks": str(kernel.blocks), "scratch": str(kernel.scratch), "messages": kernel.messages,
        "schedule": kernel.schedule, "log": kernel.log, "panels": kernel.panels}, sort_keys=True).encode()


def kernel_from_bytes(data: bytes) -> Kernel:
    """What `kernel_to_bytes` wrote. Raises ValueError or KeyError on anything else."""
    x = json.loads(data)
    return Kernel(x["symbol"], x["source"], tuple(x["buffers"]), tuple(x["sizes"]), parse(x["blocks"]), parse(x["scratch"]),
                  tuple(x["messages"]), x["schedule"], tuple(x["log"]),
                  tuple((name, (axis, width)) for name, (axis, width) in x["panels"]))
