"""Pools of the reference evaluator, anew from the standard's text, and what their windows cover."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class MaxPool(OpRun):
    """Shapes by the text ('SAME: ceil(input / stride)', whatever the dilations); the reference and ONNX Runtime both differ."""

    op_domain = ""

    def _run(self, x: Array, storage_order: int = 0, **attributes: Any) -> tuple[Array, ...]:
        least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        made = pooled(x, attributes, np.asarray(least, x.dtype), lambda windows: windows.max(axis=-1, initial=least))[0]
        if len(self.onnx_node.output) < 2:
            return (made,)
        return made, _first_places(x, made, storage_order, attributes)


class AveragePool(OpRun):
    """The sum of a window over its elements inside the image, or (count_include_pad) inside the padded image."""

    op_domain = ""

    def _run(self, x: Array, count_include_pad: int = 0, **attributes: Any) -> tuple[Array]:
        total, inside, padded = pooled(x, attributes, np.asarray(0, x.dtype), lambda w: w.sum(axis=-1, dtype=x.dtype))
        return (total / (padded if count_include_pad else inside).astype(x.dtype),)


class LpPool(OpRun):
    """The root of a sum of powers; the reference averages what is inside and multiplies by the size of the window."""

    op_domain = ""

    def _run(self, x: Array, p: int = 2, **attributes: Any) -> tuple[Array]:
        sums, _, _ = pooled(np.abs(x) ** p, attributes, np.asarray(0, x.dtype), lambda w: w.sum(axis=-1, dtype=x.dtype))
        return (np.asarray(sums ** (1 / p)).astype(x.dtype),)


def _first_places(x: Array, made: Array, storage_order: int, attributes: dict[str, Any]) -> Array:
    """Where the first element of each window lies that is the greatest, or no number, window by window."""
    axes, found = spatial(x.shape[2:], attributes), np.zeros(made.shape, np.int64)
    for at in np.ndindex(made.shape):
        spans = [[p for p in o * stride - before + dilation * np.arange(kernel) if 0 <= p < n]
                 for o, (n, kernel, stride, dilation, before, _, _) in zip(at[2:], axes)]
        places = [p for p in itertools.product(*spans) if x[at[:2]][p] == made[at] or x[at[:2]][p] != x[at[:2]][p]]
        own = places[0] if places else tuple(n - 1 for n in x.shape[2:])
        found[at] = np.ravel_multi_index(own, x.shape[2:], order="F" if storage_order else "C") + math.prod(
            x.shape[2:]) * (at[0] * x.shape[1] + at[1])
    return found


def pooled(x: Array, attributes: dict[str, Any], neutral: Array,
            reduce: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
    """The windows reduced over one axis after another, with `neutral` in the place of what lies outside the image; and how many
    elements each has inside the image and inside the padded image."""
    inside = padded = np.ones((), np.int64)
    for k, (n, kernel, stride, dilation, before, after, count) in enumerate(spatial(x.shape[2:], attributes)):
        places = (np.arange(count) * stride - before)[:, None] + dilation * np.arange(kernel)
        within = (places >= 0) & (places < n)
        further = (1,) * (x.ndim - 3 - k)
        taken = np.take(x, np.clip(places, 0, n - 1), axis=2 + k) if n else np.full(
            (*x.shape[:2 + k], *places.shape, *x.shape[3 + k:]), neutral)
        x = reduce(np.moveaxis(np.where(within.reshape(*places.shape, *further), taken, neutral), 3 + k, -1))
        inside = inside * within.sum(axis=1).reshape(-1, *further)
        padded = padded * ((places >= -before) & (places < n + after)).sum(axis=1).reshape(-1, *further)
    return x, inside, padded


def spatial(shape: Sequence[int], a: dict[str, Any], pools: bool = True) -> list[tuple[int, int, int, int, int, int, int]]:
    """Size, window, stride, dilation, padding before and after, and number of windows of each axis."""
    rank, kernel = len(shape), a["kernel_shape"]
    strides, dilations = a.get("strides") or [1] * rank, a.get("dilations") or [1] * rank
    pads, mode = a.get("pads") or [0] * (2 * rank), a.get("auto_pad") or "NOTSET"
    if not len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == rank or min(*kernel, *strides, *dilations) < 1:
        raise ValueError("a window needs one positive size, stride and dilation an axis")
    found = []
    for k, n in enumerate(shape):
        span = (kernel[k] - 1) * dilations[k] + 1
        before, after = (pads[k], pads[k + rank]) if mode == "NOTSET" else (0, 0)
        if mode.startswith("SAME"):
            count = -(-n // strides[k])
            total = max((count - 1) * strides[k] + span - n, 0)
            before, after = (total // 2, total - total // 2) if mode == "SAME_UPPER" else (total - total // 2, total // 2)
        else:
            room = n + before + after - span
            if room < 0:
                raise ValueError("the window is larger than the padded image")
            up = a.get("ceil_mode") and mode == "NOTSET"  # 'VALID: ceil((input - span + 1) / stride)' is as without ceil_mode
            count = (-(-room // strides[k]) if up else room // strides[k]) + 1
            # 'if ceil_mode ... that would start in the right padded region are ignored'; onnx infers shapes so, too
            if pools and up and (count - 1) * strides[k] >= n + before:
                count -= 1
        found.append((n, kernel[k], strides[k], dilations[k], before, after, count))
    return found
