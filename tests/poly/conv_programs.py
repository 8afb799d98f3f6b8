"""Windows over images as loose te.Programs, one to three spatial dims, all sizes symbolic, with their meaning in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tests.poly.programs import at, axis, buffer, f32, v
from tsc.sym import ShapeEnv, SymExpr, dim
from tsc.te.compute import MAX, SUM, Axis, Compute, Program
from tsc.te.expr import Buffer, Expr, Load, add, call, index, mul, select
from tsc.te.passes.transform import Canonical, lower

DIMS = ("H", "W", "D")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Window:
    """A window along each spatial dim. `out` 0 means a maximum over each channel, `groups` parts the channels of a convolution;
    `slack` is by how much the input is longer than the windows need; `rectified` reads max(x - 1/4, 0) for x, a prologue."""

    kernel: tuple[int, ...]
    channels: int = 3
    out: int = 5
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    groups: int = 1
    slack: int = 0
    rectified: bool = False

    def per_dim(self) -> list[tuple[int, int, int, int, int]]:
        """(kernel, stride, dilation, begin, end) of each spatial dim."""
        rank = len(self.kernel)
        ones, zeros = (1,) * rank, (0,) * rank
        return list(zip(self.kernel, self.strides or ones, self.dilations or ones, self.begins or zeros, self.ends or zeros))

    def input_extents(self) -> list[SymExpr]:
        """The input's spatial extents, in terms of the output's."""
        return [(dim(name) - 1) * s + (k - 1) * d + 1 - b - e + (self.slack if s > self.slack else 0)
                for name, (k, s, d, b, e) in zip(DIMS, self.per_dim())]

    def env(self) -> ShapeEnv:
        """The output's dims, large enough for the input to have elements."""
        made = ShapeEnv()
        made.declare("B")
        for name, (k, s, d, b, e) in zip(DIMS, self.per_dim()):
            made.declare(name, max(1, -(-(b + e - (k - 1) * d) // s) + 1))
        return made


def canonical(window: Window) -> Canonical:
    """relu(convolution + bias), or the maximum, as the pipeline would lower it."""
    spatial = window.input_extents()
    outer = axis("b", "B"), axis("o", window.out or window.channels)
    places = [axis(f"p{i}", DIMS[i]) for i in range(len(spatial))]
    members = window.channels // window.groups
    inner = [axis("c", members)] if window.out else []
    window_axes = [axis(f"k{i}", k) for i, k in enumerate(window.kernel)]
    x = buffer("x", "B", window.channels, *spatial)
    w = buffer("w", window.out, members, *window.kernel)
    shape = ("B", window.out or window.channels, *DIMS[:len(spatial)])
    acc, out, bias = buffer("acc", *shape), buffer("out", *shape), buffer("bias", window.out or window.channels)
    channel = _channel(window, outer[1], inner)
    positions = [call("sub", add(mul(v(p), index(s)), mul(v(k), index(d))), index(b))
                 for p, k, (_, s, d, b, _) in zip(places, window_axes, window.per_dim())]
    value: Expr = Load(x, (v(outer[0]), channel, *positions))
    if window.rectified:
        value = call("max", call("sub", value, f32(0.25)), f32(0.0))
    outside = f32(0.0 if window.out else float("-inf"))
    for position, extent, (_, _, _, begin, end) in zip(positions, spatial, window.per_dim()):
        if end:
            value = select(call("lt", position, index(extent)), value, outside)
        if begin:
            value = select(call("ge", position, index(0)), value, outside)
    body = mul(value, at(w, outer[1], *inner, *window_axes)) if window.out else value
    again = [axis(f"{a.name}_", a.extent) for a in (*outer, *places)]
    reduced = Compute(acc, (*outer, *places), body, (*inner, *window_axes), SUM if window.out else MAX)
    stored = call("max", add(at(acc, *again), at(bias, again[1])), f32(0.0))
    loose = Program((), (out,), (reduced, Compute(out, tuple(again), stored)), ())
    return lower(loose, window.env(), ("acc",))


def _channel(window: Window, out: Axis, inner: list[Axis]) -> Expr:
    if not window.out:
        return v(out)
    if window.groups == 1:
        return v(inner[0])
    group = call("floordiv", v(out), index(window.out // window.groups))
    return add(mul(group, index(window.channels // window.groups)), v(inner[0]))


def reference(window: Window, x: Array, w: Array | None, bias: Array) -> Array:
    """The same in NumPy, in float64, window element by window element over a padded image."""
    dims = window.per_dim()
    image = x.astype(np.float64)
    image = np.maximum(image - 0.25, 0.0) if window.rectified else image
    padded = np.pad(image, [(0, 0), (0, 0), *((b, e) for _, _, _, b, e in dims)],
                    constant_values=0.0 if window.out else -np.inf)
    counts = [(n - ((k - 1) * d + 1)) // s + 1 for n, (k, s, d, _, _) in zip(padded.shape[2:], dims)]
    total: Array | None = None
    for at_k in product(*(range(k) for k in window.kernel)):
        cut = tuple(slice(i * d, i * d + (n - 1) * s + 1, s) for i, n, (_, s, d, _, _) in zip(at_k, counts, dims))
        part = padded[(slice(None), slice(None), *cut)]
        if w is None:
            total = part if total is None else np.maximum(total, part)
            continue
        parts = np.split(part, window.groups, axis=1)
        weights = np.split(w.astype(np.float64)[(slice(None), slice(None), *at_k)], window.groups)
        term = np.concatenate([np.einsum("bc...,oc->bo...", p, q) for p, q in zip(parts, weights)], axis=1)
        total = term if total is None else total + term
    assert total is not None
    return np.asarray(np.maximum(total + bias.astype(np.float64).reshape(-1, *(1,) * len(dims)), 0.0))


def named(made: Canonical, sizes: dict[str, int]) -> dict[str, int]:
    """The Program's sizes for the output dims `sizes`."""
    return {name: expr.evaluate(sizes) for name, expr in made.sizes.items()}


def shape_of(target: Buffer, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(e.evaluate(sizes) for e in target.shape)


WINDOWS: dict[str, Window] = {
    "padded": Window((3, 3), begins=(1, 1), ends=(1, 1)),
    "uneven": Window((3, 2), 3, 9, strides=(2, 1), begins=(1, 0), ends=(2, 1)),
    "dilated": Window((3, 3), 2, 6, dilations=(2, 1), begins=(1, 2), ends=(1, 0)),
    "spaced": Window((3, 3), 4, 8, strides=(2, 2), begins=(1, 1), ends=(1, 1), slack=1),
    "row_1x7": Window((1, 7), 3, 5, begins=(0, 3), ends=(0, 3)),
    "column_7x1": Window((7, 1), 3, 5, begins=(3, 0), ends=(3, 0)),
    "prologue": Window((3, 3), begins=(1, 1), ends=(1, 1), rectified=True),
    "line": Window((3,), 4, 10, begins=(1,), ends=(1,)),
    "volume": Window((2, 2, 3), 2, 7, begins=(0, 1, 1), ends=(1, 0, 1)),
    "point": Window((1, 1), 6, 9),
    "grouped": Window((3, 3), 4, 6, groups=2, begins=(1, 1), ends=(1, 1)),
    "grouped_deep": Window((3, 3), 18, 10, groups=2, begins=(1, 1), ends=(1, 1)),
    "grouped_point": Window((1, 1), 6, 24, groups=2),
    "depthwise": Window((3, 3), 4, 4, groups=4, begins=(1, 1), ends=(1, 1)),
    "depthwise_spaced": Window((5, 3), 3, 3, groups=3, strides=(2, 2), begins=(2, 1), ends=(2, 1), slack=1),
    "depthwise_line": Window((3,), 3, 3, groups=3, dilations=(2,)),
    "depthwise_prologue": Window((3, 3), 3, 3, groups=3, begins=(1, 0), ends=(0, 1), rectified=True),
    "depthwise_wide": Window((7, 11), 2, 2, groups=2, begins=(3, 5), ends=(3, 5)),
    "pool": Window((3, 3), 3, 0, strides=(2, 2), begins=(1, 1), ends=(1, 1), slack=1),
    "pool_third": Window((2, 3), 2, 0, strides=(1, 3), ends=(1, 0)),
}
