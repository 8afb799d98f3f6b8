"""Unique, as the standard's text has it."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class Unique(OpRun):
    """What is not sorted stands as it came, along any axis; the reference sorts it where nothing else is asked for, and takes
    it from axis 0."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
        parts = x.ravel() if axis is None else np.moveaxis(x, axis, 0)
        keys = [tuple(np.ravel(part).tolist()) for part in parts]
        order = list(dict.fromkeys(keys))
        if sorted:
            order.sort()
        place = {key: k for k, key in enumerate(order)}
        first = np.array([keys.index(key) for key in order], np.int64)
        inverse = np.array([place[key] for key in keys], np.int64)
        made = parts[first] if axis is None else np.moveaxis(parts[first], 0, axis)
        counts = np.bincount(inverse, minlength=len(order)).astype(np.int64)
        return (made, first, inverse, counts)[:len(self.onnx_node.output)]
