"""Operators of the reference evaluator (onnx 1.23) that do not do what the standard's text says, written anew from that text.

Only what the random cases ran into is here, each with what was wrong. The rest of the reference evaluator is used as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from tests.fuzz.operators.distinct import Unique
from tests.fuzz.operators.repeated import Loop
from tests.fuzz.operators.resizing import GridSample, Resize, Upsample
from tests.fuzz.operators.windows import AveragePool, LpPool, MaxPool, spatial

Array = np.ndarray[Any, Any]


class Mean(OpRun):
    """It broadcasts; the reference adds in place."""

    op_domain = ""

    def _run(self, *xs: Array) -> tuple[Array]:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return (np.asarray(total / np.asarray(len(xs), total.dtype), total.dtype),)


class Softsign(OpRun):
    """x / (1 + |x|), of scalars too."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class Softplus(OpRun):
    """ln(exp(x) + 1), which is x where the exponential is beyond all numbers."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.logaddexp(np.zeros((), x.dtype), x).astype(x.dtype),)


class PRelu(OpRun):
    """'f(x) = slope * x for x < 0, f(x) = x for x >= 0'; the reference multiplies 0 by the slope, which may be infinite."""

    op_domain = ""

    def _run(self, x: Array, slope: Array) -> tuple[Array]:
        return (np.where(x < 0, x * np.broadcast_to(slope, x.shape), x),)


class GlobalMaxPool(OpRun):
    """Over the spatial axes alone; the reference takes the channels along."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Shape(OpRun):
    """'axes will be clamped to the range [0, r] ... after adding r in the case of negative axis'; the reference does not."""

    op_domain = ""

    def _run(self, x: Array, start: int | None = None, end: int | None = None) -> tuple[Array]:
        low, high = (min(max(v + x.ndim if v < 0 else v, 0), x.ndim) for v in (start or 0, x.ndim if end is None else end))
        return (np.array(x.shape[low:high], np.int64),)


class Erf(OpRun):
    """In the type of its operand; the reference goes through float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype),)


class OneHot(OpRun):
    """Indices outside [-depth, depth) (opset 9: [0, depth)) give a row of off values; the reference takes remainders."""

    op_domain = ""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int = -1) -> tuple[Array]:
        count, indices = int(np.ravel(depth)[0]), np.asarray(indices)
        if count < 1:
            raise ValueError("a depth of 0")
        places = indices.astype(np.int64)
        if self.run_params["opsets"][""] >= 11:
            places = np.where(places < 0, places + count, places)
        hot = np.expand_dims(places, axis)
        across = np.arange(count).reshape(-1, *(1,) * (indices.ndim - axis % (indices.ndim + 1)))
        return (np.where(hot == across, values[1], values[0]),)


class Softmax(OpRun):
    """Up to opset 12 over all axes from `axis` (by default 1) on together; the reference knows the later form only."""

    op_domain = ""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        shifted, axes = _below_their_greatest(self, x)
        powers = np.exp(shifted)
        return (np.asarray(powers / powers.sum(axis=axes, keepdims=True), x.dtype),)


class LogSoftmax(OpRun):
    """As Softmax."""

    op_domain = ""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        shifted, axes = _below_their_greatest(self, x)
        return (np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axes, keepdims=True)), x.dtype),)


class Hardmax(OpRun):
    """As Softmax."""

    op_domain = ""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        axes = _normalised(self, x)
        flat = x.reshape(*x.shape[:axes[0]], -1, *x.shape[axes[-1] + 1:])
        found = np.zeros_like(flat)
        if x.size:
            np.put_along_axis(found, np.expand_dims(flat.argmax(axis=axes[0]), axes[0]), 1, axes[0])
        return (found.reshape(x.shape),)


def _below_their_greatest(op: OpRun, x: Array) -> tuple[Array, tuple[int, ...]]:
    """The input less its maximum over the axes that are normalised, and these axes."""
    axes = _normalised(op, x)
    return x - x.max(axis=axes, keepdims=True) if x.size else x, axes


def _normalised(op: OpRun, x: Array) -> tuple[int, ...]:
    """The axes that are normalised together."""
    new = op.run_params["opsets"][""] >= 13
    axis = next((a.i for a in op.onnx_node.attribute if a.name == "axis"), -1 if new else 1)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError("an axis that is not there")
    return (axis % x.ndim,) if new else tuple(range(axis % x.ndim, x.ndim))


class BatchNormalization(OpRun):
    """In inference mode; in opsets 9 to 13 the reference takes the statistics of the batch."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float = 1e-5,
             **_: Any) -> tuple[Array]:
        by_channel = (-1, *(1,) * (x.ndim - 2))
        scale, bias, mean, var = (v.reshape(by_channel) for v in (scale, bias, mean, var))
        return (np.asarray((x - mean) / np.sqrt(var + np.asarray(epsilon, var.dtype)) * scale + bias, x.dtype),)


class GroupNormalization(OpRun):
    """Of images without elements too, which the standard's body would reshape to -1 elements a group."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, epsilon: float = 1e-5, num_groups: int = 0,
             **_: Any) -> tuple[Array]:
        wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
        groups = wide.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, int(np.prod(x.shape[2:])))
        centred = groups - groups.mean(axis=(2, 3), keepdims=True) if x.size else groups
        variance = np.square(centred).mean(axis=(2, 3), keepdims=True) if x.size else np.zeros((), wide.dtype)
        normal = centred / np.sqrt(variance + np.asarray(epsilon, wide.dtype))
        by_channel = (1, num_groups, -1 if self.run_params["opsets"][""] >= 21 and x.shape[1] else 1, 1)
        return ((normal.astype(x.dtype) * scale.reshape(by_channel) + bias.reshape(by_channel)).reshape(x.shape),)


class Slice(OpRun):
    """'For negative stepping it is clamped to [0, dims[axes[i]]-1]'; the reference lets NumPy clamp a start to -1."""

    op_domain = ""

    def _run(self, data: Array, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> tuple[Array]:
        starts, ends = (np.atleast_1d(v).tolist() for v in (starts, ends))
        axes = list(range(len(starts))) if axes is None else np.atleast_1d(axes).tolist()
        steps = [1] * len(starts) if steps is None else np.atleast_1d(steps).tolist()
        if not len(starts) == len(ends) == len(axes) == len(steps) or len({a % data.ndim for a in axes}) != len(axes):
            raise ValueError("starts, ends, axes and steps must have one entry an axis, and each axis once")
        for start, end, axis, step in zip(starts, ends, axes, steps):
            data = np.take(data, _range(start, end, step, data.shape[axis]), axis=axis)
        return (data,)


def _range(start: int, end: int, step: int, size: int) -> Array:
    if step == 0:
        raise ValueError("a step of 0")
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return np.arange(min(max(start, 0), size), min(max(end, 0), size), step)
    return np.arange(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


class Pad(OpRun):
    """Negative pads take away ('pads can be negative'); `axes` may name some; the older forms had attributes."""

    op_domain = ""

    def _run(self, data: Array, pads: Any = None, constant_value: Any = None, axes: Any = None, mode: str | None = None,
             value: float | None = None) -> tuple[Array]:
        axes = list(range(data.ndim)) if axes is None else [int(a) % data.ndim for a in axes]
        pads = [int(p) for p in pads]
        if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
            raise ValueError("two pads an axis are expected, and each axis once")
        fill = value if constant_value is None else constant_value
        for k, axis in enumerate(axes):
            data = _padded(data, axis, pads[k], pads[k + len(axes)], mode or "constant", 0 if fill is None else fill)
        return (data,)


def _padded(data: Array, axis: int, before: int, after: int, mode: str, fill: Any) -> Array:
    size = data.shape[axis]
    places = np.arange(-before, size + after)
    if before + after + size < 0:
        raise ValueError("pads take more away than there is")
    if mode == "constant":
        taken = np.take(data, np.clip(places, 0, max(size - 1, 0)), axis=axis) if size else np.zeros(
            (*data.shape[:axis], len(places), *data.shape[axis + 1:]), data.dtype)
        outside = ((places < 0) | (places >= size)).reshape(-1, *(1,) * (data.ndim - 1 - axis))
        return np.where(outside, np.asarray(fill).astype(data.dtype).reshape(()), taken)
    if len(places) and size == 0:
        raise ValueError("nothing to pad with")
    if mode == "reflect":
        if max(before, after) >= size and max(before, after) > 0:
            raise ValueError("reflects more than there is")
        places = np.abs(places)
        places = (size - 1) - np.abs(size - 1 - places)
    elif mode == "edge":
        places = np.clip(places, 0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        raise ValueError(f"mode {mode}")
    return np.take(data, places, axis=axis)


# -- windows ---------------------------------------------------------------------------------------------------

class Conv(OpRun):
    """Windows of the image alone: the reference fills gaps of dilated weights and the border with zeros, which times an
    infinity are no numbers."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, group: int = 1, kernel_shape: Any = None,
             **attributes: Any) -> tuple[Array]:
        group = group or 1
        if x.shape[1] != w.shape[1] * group or w.shape[0] % group or tuple(kernel_shape or w.shape[2:]) != w.shape[2:]:
            raise ValueError("weights of another shape than the image and the attributes say")
        axes = spatial(x.shape[2:], {**attributes, "kernel_shape": w.shape[2:]}, False)
        counts = [axis[-1] for axis in axes]
        image = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        weights = w.reshape(group, -1, *w.shape[1:])
        out = np.zeros((x.shape[0], group, weights.shape[1], *counts), x.dtype)
        strides, firsts = [axis[2] for axis in axes], [-axis[4] for axis in axes]
        for tap in np.ndindex(*w.shape[2:]):
            inside, target = image, out
            for k, t in enumerate(tap):
                first = firsts[k] + t * (attributes.get("dilations") or [1] * len(tap))[k]
                low = max(-(first // strides[k]), 0)
                high = max(min((x.shape[2 + k] - 1 - first) // strides[k] + 1, counts[k]), low)
                inside = np.take(inside, first + strides[k] * np.arange(low, high), axis=3 + k)
                target = target[(slice(None),) * (3 + k) + (slice(low, high),)]
            target += np.einsum("ngc...,gmc->ngm...", inside, weights[(..., *tap)])
        made = out.reshape(x.shape[0], w.shape[0], *counts)
        return (made if b is None else made + b.reshape(-1, *(1,) * (x.ndim - 2)),)


class ConvTranspose(OpRun):
    """Each element of the image, times all weights, added where it belongs; the reference has one channel of a group."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, group: int = 1, kernel_shape: Any = None,
             auto_pad: str = "NOTSET", strides: Any = None, dilations: Any = None, pads: Any = None,
             output_padding: Any = None, output_shape: Any = None) -> tuple[Array]:
        rank, group = x.ndim - 2, group or 1
        if x.shape[1] != w.shape[0] or w.shape[0] % group or tuple(kernel_shape or w.shape[2:]) != w.shape[2:]:
            raise ValueError("weights of another shape than the image and the attributes say")
        strides, dilations, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
        whole = [(n - 1) * s + (k - 1) * r + 1 for n, s, k, r in zip(x.shape[2:], strides, w.shape[2:], dilations)]
        same = (auto_pad or "NOTSET").startswith("SAME")
        wanted = output_shape or ([n * s for n, s in zip(x.shape[2:], strides)] if same else None)
        if wanted is not None:
            less = [n + p - o for n, p, o in zip(whole, more, wanted)]
            begins = [n // 2 if auto_pad == "SAME_UPPER" else n - n // 2 for n in less]
        else:
            given = (pads or [0] * (2 * rank)) if auto_pad in (None, "", "NOTSET") else [0] * (2 * rank)
            begins, wanted = given[:rank], [n + p - a - z for n, p, a, z in zip(whole, more, given[:rank], given[rank:])]
        image, weights = x.reshape(x.shape[0], group, -1, *x.shape[2:]), w.reshape(group, -1, *w.shape[1:])
        low, high = [max(-a, 0) for a in begins], [max(a + o - n, 0) for a, o, n in zip(begins, wanted, whole)]
        room = np.zeros((x.shape[0], group, w.shape[1], *(n + a + z for n, a, z in zip(whole, low, high))), x.dtype)
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(slice(a + t * r, a + t * r + (n - 1) * s + 1, s)
                       for a, t, r, n, s in zip(low, tap, dilations, x.shape[2:], strides))
            room[(..., *at)] += np.einsum("ngc...,gcm->ngm...", image, weights[(..., *tap)])
        inside = tuple(slice(a + lead, a + lead + o) for a, lead, o in zip(begins, low, wanted))
        made = room[(..., *inside)].reshape(x.shape[0], group * w.shape[1], *wanted)
        return (made if b is None else made + b.reshape(-1, *(1,) * rank),)


class LpNormalization(OpRun):
    """Of magnitudes; the reference adds the numbers themselves where p is 1."""

    op_domain = ""

    def _run(self, x: Array, axis: int = -1, p: int = 2) -> tuple[Array]:
        norm = (np.abs(x) if p == 1 else np.square(x)).sum(axis=axis, keepdims=True)
        norm = norm if p == 1 else np.sqrt(norm)
        return (np.asarray(np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))).astype(x.dtype),)


class LRN(OpRun):
    """Of all channels; the reference computes as many of them as there are images, and takes images of two axes alone."""

    op_domain = ""

    def _run(self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Array]:
        less = (size - 1) // 2
        sums = np.stack([np.square(x[:, max(0, c - less):c - less + size]).sum(axis=1) for c in range(x.shape[1])], axis=1)
        return (np.asarray(x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


class Gemm(OpRun):
    """Of integers in their own type, where alpha and beta are whole; the reference goes through float64."""

    op_domain = ""

    def _run(self, a: Array, b: Array, c: Array | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
             transB: int = 0) -> tuple[Array]:
        product = np.matmul(a.T if transA else a, b.T if transB else b)
        whole = a.dtype.kind in "iu" and float(alpha).is_integer() and float(beta).is_integer()
        first, second = (np.asarray(int(v)).astype(a.dtype) if whole else v for v in (alpha, beta))
        scaled = product * first
        return (np.asarray(scaled if c is None or beta == 0 else scaled + c * second).astype(a.dtype),)


class CastLike(OpRun):
    """With the attributes of opset 24 on, which matter to 8-bit floats only and which the reference does not know."""

    op_domain = ""

    def _run(self, x: Array, like: Array, saturate: int | None = None, round_mode: str | None = None) -> tuple[Array]:
        return (np.asarray(x).astype(like.dtype),)


class Unsqueeze(OpRun):
    """Axes of the output, in any order; up to opset 12 the reference inserts one after the other."""

    op_domain = ""

    def _run(self, x: Array, axes: Any = None) -> tuple[Array]:
        return (np.expand_dims(x, tuple(int(a) for a in np.ravel(axes))),)


class ReduceSumSquare(OpRun):
    """In the type of its operand; the reference lets NumPy take a wider one."""

    op_domain = ""

    def _run(self, x: Array, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Array]:
        given = None if axes is None else tuple(int(a) for a in _distinct(axes, x.ndim))
        if not given:
            given = () if noop_with_empty_axes else None
        return (np.asarray(np.square(x).sum(axis=given, keepdims=bool(keepdims), dtype=x.dtype)),)


class ReduceLogSumExp(OpRun):
    """The logarithm of a sum of exponentials, of infinite ones too; the reference takes an infinite maximum from itself."""

    op_domain = ""

    def _run(self, x: Array, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> tuple[Array]:
        if x.dtype.kind != "f":
            raise TypeError("exponentials of integers are not defined")
        given = None if axes is None else tuple(int(a) for a in _distinct(axes, x.ndim))
        if not given:
            given = () if noop_with_empty_axes else None
        top = np.where(np.isfinite(x), x, -np.inf).max(axis=given, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
        total = np.exp(x - top).sum(axis=given, keepdims=True, dtype=x.dtype)
        made = np.log(total) + top
        return (np.asarray(made if keepdims else made.reshape(np.sum(x, axis=given).shape), x.dtype),)


class LinearRegressor(OpRun):
    """Without intercepts as with zeros; the reference adds an array of None."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, coefficients: Any = None, intercepts: Any = None, targets: int = 1,
             post_transform: str = "NONE") -> tuple[Array]:
        rows = np.reshape(np.asarray(coefficients, x.dtype), (targets, -1))
        return (np.asarray(x @ rows.T + np.asarray(0 if intercepts is None else intercepts, x.dtype), x.dtype),)


class Normalizer(OpRun):
    """Divided by the maximum, as the text says, where the reference divides by the largest magnitude."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, norm: str = "MAX") -> tuple[Array]:
        by = {"MAX": lambda: x.max(axis=-1, keepdims=True), "L1": lambda: np.abs(x).sum(axis=-1, keepdims=True),
              "L2": lambda: np.sqrt(np.square(x).sum(axis=-1, keepdims=True))}[norm]()
        return (np.asarray(x / np.where(by == 0, 1, by), x.dtype),)


class _OfDistinctAxes:
    """A reduction over an axis that is named twice is one over that axis; NumPy refuses it. It wraps the reference's own."""

    op_domain = ""

    def _run(self, x: Array, axes: Any = None, **attributes: Any) -> tuple[Array]:
        return super()._run(x, None if axes is None else _distinct(axes, x.ndim), **attributes)  # type: ignore[misc, no-any-return]


def _distinct(axes: Any, rank: int) -> Array:
    return np.array(sorted({a + rank if -rank <= a < 0 else a for a in np.ravel(axes).tolist()}), np.int64)


def _of_distinct_axes(name: str) -> type[OpRun]:
    return type(name, (_OfDistinctAxes, load_op("", name, 18)), {})


MENDED: list[type[OpRun]] = [
    Unique, Loop, Mean, PRelu, Softplus, Softsign, Shape, Erf, OneHot, Softmax, LogSoftmax, Hardmax, GlobalMaxPool,
    BatchNormalization,
    GroupNormalization, Slice, Pad, MaxPool, AveragePool, LpPool, Conv, ConvTranspose, LpNormalization, LRN, Gemm,
    CastLike, Unsqueeze, ReduceSumSquare, ReduceLogSumExp, Resize, Upsample, GridSample, LinearRegressor, Normalizer,
    *map(_of_distinct_axes, ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                             "ReduceLogSum"))]
