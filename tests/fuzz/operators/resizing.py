"""Resize of the reference evaluator, anew from the standard's text: exact coordinates, one axis at a time, in float64; and
GridSample by the names that its modes had before opset 20.

The reference evaluator computes coordinates in float64 and so takes, now and then, the element beside the nearest one; it is
slow as well. Here a coordinate is a fraction, so that only weights are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_grid_sample import GridSample as NamedGridSample

Array = np.ndarray[Any, Any]
#: An output beyond it takes too long; then ONNX Runtime answers alone.
_MOST_ELEMENTS = 2**22
_HALF = Fraction(1, 2)


class Resize(OpRun):
    """Before opset 11 the standard left the coordinates open: there they are those of Upsample, the quotient by the scale."""

    op_domain = ""

    def _run(self, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None,
             axes: Sequence[int] | None = None, keep_aspect_ratio_policy: str | None = None, mode: str | None = None,
             antialias: int | None = None, coordinate_transformation_mode: str | None = None,
             cubic_coeff_a: float | None = None, exclude_outside: int | None = None, extrapolation_value: float | None = None,
             nearest_mode: str | None = None) -> tuple[Array]:
        first = self.run_params["opsets"][""] < 11
        if first:  # its second operand are the scales; attributes that it has not come with a later opset's defaults
            roi, scales, coordinate_transformation_mode, nearest_mode = None, roi, "asymmetric", "floor"
        chosen = list(range(x.ndim)) if axes is None else [_axis(int(a), x.ndim) for a in axes]
        ways = _ways([x.shape[a] for a in chosen], scales, sizes, keep_aspect_ratio_policy or "stretch")
        if first and mode == "nearest" and any(w.scale < 1 for w in ways):
            raise NotImplementedError("which element is the nearest of fewer, before opset 11")
        if len(ways) != len(chosen) or len(set(chosen)) != len(chosen):
            raise ValueError("one scale or size an axis is expected, and each axis once")
        if any(w.after < 0 for w in ways):
            raise ValueError("a size below 0")
        places = max((w.after for w in ways), default=0)
        elements = math.prod(x.shape[a] for a in range(x.ndim) if a not in chosen) * math.prod(w.after for w in ways)
        if max(places, elements) > _MOST_ELEMENTS:
            raise NotImplementedError("a large output")
        transform = coordinate_transformation_mode or "half_pixel"
        crops = transform == "tf_crop_and_resize"
        blends = bool(antialias) and mode != "nearest"
        if crops and blends and any(w.scale < 1 for w in ways):
            raise NotImplementedError("crops that are filtered against aliases")
        if crops and (roi is None or roi.size != 2 * len(chosen)):
            raise ValueError("a crop has two bounds an axis")
        made, outside = x if mode == "nearest" else x.astype(np.float64), np.zeros((1,) * x.ndim, bool)
        kernel = _Kernel(mode or "nearest", nearest_mode or "round_prefer_floor",
                         float(-0.75 if cubic_coeff_a is None else cubic_coeff_a), bool(exclude_outside))
        for k, (axis, way) in enumerate(zip(chosen, ways)):
            if way.after and not way.before:
                raise ValueError("some elements of none")
            bounds = [Fraction(float(b)) for b in (roi[k], roi[k + len(chosen)])] if crops and roi is not None else []
            found = [way.place(o, transform, bounds) for o in range(way.after)]
            made = kernel.along(made, axis, found, min(way.scale, Fraction(1)) if blends else Fraction(1))
            if crops:
                beyond = np.array([not 0 <= p <= way.before - 1 for p in found], bool)
                outside = outside | beyond.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        filled = np.asarray(extrapolation_value or 0.0).astype(made.dtype)
        return (_cast(np.where(outside, filled, made) if crops else made, x.dtype),)


class Upsample(Resize):
    """Which the reference evaluator lacks: as Resize before opset 11; the scales were an attribute up to opset 8."""

    def _run(self, x: Array, given: Array | None = None, mode: str | None = None,  # type: ignore[override]
             scales: Sequence[float] | None = None) -> tuple[Array]:
        return super()._run(x, np.asarray(scales, np.float32) if given is None else given, mode=mode)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError("an axis that is not there")
    return axis % rank


def _cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """The nearest value of `dtype`."""
    if dtype.kind in "iu" and x.dtype.kind == "f":
        limits = np.iinfo(dtype)
        x = np.clip(np.rint(x), limits.min, limits.max)
    return np.asarray(x.astype(dtype))


# -- coordinates -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class _Way:
    """How one axis changes: its lengths, and the exact scale, of which the length after may be a rounding."""

    before: int
    after: int
    scale: Fraction

    def place(self, o: int, transform: str, bounds: Sequence[Fraction]) -> Fraction:
        """'x_original' of the output position `o`."""
        n, width = self.before, self.before * self.scale
        match transform:
            case "half_pixel":
                return (o + _HALF) / self.scale - _HALF
            case "half_pixel_symmetric":
                return Fraction(n, 2) * (1 - self.after / width) + (o + _HALF) / self.scale - _HALF
            case "pytorch_half_pixel":
                return (o + _HALF) / self.scale - _HALF if self.after > 1 else Fraction(0)
            case "align_corners":
                return Fraction(0) if width == 1 else o * (n - 1) / (width - 1)
            case "asymmetric":
                return o / self.scale
            case "tf_crop_and_resize":
                start, end = bounds
                if width > 1:
                    return start * (n - 1) + o * (end - start) * (n - 1) / (width - 1)
                return _HALF * (start + end) * (n - 1)
        raise ValueError(f"coordinates {transform}")


def _ways(extents: Sequence[int], scales: Array | None, sizes: Array | None, policy: str) -> list[_Way]:
    if sizes is None or not sizes.size:
        exact = [Fraction(float(s)) for s in np.ravel(scales if scales is not None else [])]
        if any(s <= 0 for s in exact):
            raise ValueError("a scale that is not positive")
        return [_Way(n, math.floor(n * s), s) for n, s in zip(extents, exact, strict=True)]
    wanted = [int(s) for s in sizes]
    ratios = [Fraction(s, n) if n else Fraction(1) for s, n in zip(wanted, extents, strict=True)]
    if policy == "stretch":
        return [_Way(n, s, r) for n, s, r in zip(extents, wanted, ratios)]
    shared = {"not_larger": min, "not_smaller": max}[policy](ratios)
    return [_Way(n, math.floor(shared * n + _HALF), shared) for n in extents]


# -- weights ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class _Kernel:
    """What is made of the elements around a place."""

    mode: str
    nearest: str
    a: float
    exclude_outside: bool

    def along(self, x: Array, axis: int, places: Sequence[Fraction], narrowed: Fraction) -> Array:
        """The values at `places` of an axis, with distances `narrowed` to count more elements."""
        n = x.shape[axis]
        if self.mode == "nearest":
            chosen = np.array([self._chosen(p) for p in places], np.int64)
            return np.take(x, np.clip(chosen, 0, max(n - 1, 0)), axis=axis)
        first = np.array([math.floor(p) for p in places], np.int64)
        rest = np.array([float(p - math.floor(p)) for p in places], np.float64)
        at, weights = self._weights(first, rest) if narrowed == 1 else self._blended(first, rest, narrowed)
        if self.exclude_outside:
            weights = np.where((at >= 0) & (at < n), weights, 0.0)
            weights = weights / weights.sum(axis=0)
        made = np.zeros((*x.shape[:axis], len(places), *x.shape[axis + 1:]))
        for position, weight in zip(np.clip(at, 0, max(n - 1, 0)), weights):
            made = made + np.take(x, position, axis=axis) * weight.reshape(-1, *(1,) * (x.ndim - 1 - axis))
        return made

    def _chosen(self, place: Fraction) -> int:
        match self.nearest:
            case "floor":
                return math.floor(place)
            case "ceil":
                return math.ceil(place)
            case "round_prefer_floor":
                return math.ceil(place - _HALF)
            case "round_prefer_ceil":
                return math.floor(place + _HALF)
        raise ValueError(f"nearest {self.nearest}")

    def _weights(self, first: Array, rest: Array) -> tuple[Array, Array]:
        """Positions and weights, one row a neighbour."""
        if self.mode == "linear":
            return np.stack([first, first + 1]), np.stack([1 - rest, rest])
        if self.mode != "cubic":
            raise ValueError(f"mode {self.mode}")
        apart = np.stack([rest + 1, rest, 1 - rest, 2 - rest])
        a, near = self.a, apart <= 1
        inner = ((a + 2) * apart - (a + 3)) * apart * apart + 1
        outer = ((a * apart - 5 * a) * apart + 8 * a) * apart - 4 * a
        return np.stack([first - 1, first, first + 1, first + 2]), np.where(near, inner, outer)


    def _blended(self, first: Array, rest: Array, narrowed: Fraction) -> tuple[Array, Array]:
        """The same of a kernel that is wider, of sum 1."""
        reach = math.ceil((1 if self.mode == "linear" else 2) / narrowed)
        steps = np.arange(1 - reach, reach + 1)[:, None]
        apart, a = np.abs(steps - rest) * float(narrowed), self.a
        if self.mode == "linear":
            weights = np.maximum(1 - apart, 0)
        else:
            outer = np.where(apart < 2, ((a * apart - 5 * a) * apart + 8 * a) * apart - 4 * a, 0)
            weights = np.where(apart <= 1, ((a + 2) * apart - (a + 3)) * apart * apart + 1, outer)
        return first + steps, weights / weights.sum(axis=0)


class GridSample(NamedGridSample):  # type: ignore[misc]  # onnx says nothing of its types
    """By its older modes, too."""

    op_domain = ""

    def _run(self, x: Array, grid: Array, mode: str | None = None, padding_mode: str | None = None,
             align_corners: int | None = None) -> tuple[Array]:
        named = {"bilinear": "linear", "bicubic": "cubic"}.get(str(mode), mode)
        return tuple(super()._run(x, grid, named, padding_mode, align_corners))
