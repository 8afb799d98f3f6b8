"""Kernel: one compiled FusionGroup as the plan sees it, with a JSON form so that it can be kept in the build cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from tsc.sym import SymExpr, parse


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's source and what calling it takes.

    `buffers` and `sizes` name its arguments in order, `outputs` the buffers it writes; `blocks` and `scratch` (bytes a worker)
    are expressions of its sizes; `messages[i]` is the data error of status code i+1; `panels` are the layouts
    of the buffers (axis and width, None for plain); `schedule` is the final schedule tree and `log` what was decided.
    """

    symbol: str
    source: str
    buffers: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    blocks: SymExpr
    scratch: SymExpr
    messages: tuple[str, ...]
    panels: tuple[tuple[int, int] | None, ...]
    schedule: str
    log: tuple[str, ...]


def kernel_to_bytes(kernel: Kernel) -> bytes:
    """Deterministic JSON."""
    plain = {f.name: getattr(kernel, f.name) for f in fields(kernel)}
    return json.dumps(plain | {"blocks": str(kernel.blocks), "scratch": str(kernel.scratch)}, sort_keys=True).encode()


def kernel_from_bytes(data: bytes) -> Kernel:
    """What `kernel_to_bytes` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    x = json.loads(data)
    panels = tuple(None if p is None else (p[0], p[1]) for p in x.pop("panels"))
    texts: dict[str, Any] = {name: x.pop(name) for name in ("symbol", "source", "schedule")}
    blocks, scratch = parse(x.pop("blocks")), parse(x.pop("scratch"))
    lists: dict[str, Any] = {name: tuple(values) for name, values in x.items()}
    return Kernel(**texts, panels=panels, blocks=blocks, scratch=scratch, **lists)
