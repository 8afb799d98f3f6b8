"""ConvTranspose: by phases, each an ordinary convolution of the image with some of the weights.

An output element at `s * q + r` along an axis of stride s, its phase r, takes the weights k with (r + pad - k * dilation) % s
equal to 0, each of the image's element at (r + pad - k * dilation) / s + q: a convolution of stride 1 with some of the weights,
evenly apart and backwards. No zeros between elements are multiplied, as they are in the textbook's way (Dumoulin and Visin, "A
guide to convolution arithmetic for deep learning", section 4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.contraction import convolved, expect_window, group_of, positives, with_bias
from tsc.ops.generate import typed
from tsc.ops.movement import reshape, shape_operand
from tsc.ops.samples import floats
from tsc.ops.shapes import at_least_zero, canonical, expect_list, tensor, unify, where
from tsc.sym import ZERO, SymExpr
from tsc.te.compute import SUM
from tsc.te.expr import Expr, add, call, index, mul, select

#: All phases of a node are kernels of their own.
_MOST_PHASES = 64


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial axis: its sizes before and after, weights along it, and how they lie."""

    extent: SymExpr
    result: SymExpr
    kernel: SymExpr
    stride: int
    dilation: int
    before: SymExpr


def _axes(ctx: InferContext) -> list[Axis]:
    """The spatial axes, as the standard's text gives their sizes. Raises ModelError for attributes that do not fit."""
    extents, kernel = canonical(ctx, 0)[2:], canonical(ctx, 1)[2:]
    rank = len(extents)
    strides, dilations = positives(ctx, "strides", rank), positives(ctx, "dilations", rank)
    more = _numbers(ctx, "output_padding", (0,) * rank, rank)
    pads = _numbers(ctx, "pads", (0,) * (2 * rank), 2 * rank)
    mode, given = ctx.attr("auto_pad", "NOTSET") or "NOTSET", ctx.attr("output_shape")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UnsupportedError(f"{where(ctx)} has auto_pad '{mode}', expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if given is not None:
        given = [SymExpr.of(int(n)) for n in given][-rank:]  # older files give all axes
        if len(given) != rank or any(ctx.env.prove_lt(n, 1) for n in given):
            raise ModelError(f"{where(ctx)} has output_shape {ctx.attr('output_shape')}, expected {rank} sizes of at least 1")
    found = []
    for k, (extent, taps, stride, dilation) in enumerate(zip(extents, kernel, strides, dilations)):
        whole = (extent - 1) * stride + more[k] + (taps - 1) * dilation + 1
        if given is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
            result = given[k] if given is not None else extent * stride
            less = ctx.env.canon(whole - result)
            half = less // 2
            before = half if mode == "SAME_UPPER" else less - half
        else:
            before = SymExpr.of(0 if mode == "VALID" else pads[k])
            result = whole - before - (0 if mode == "VALID" else pads[rank + k])
        found.append(Axis(extent, ctx.env.canon(result), taps, stride, dilation, ctx.env.canon(before)))
    return found


def _numbers(ctx: InferContext, name: str, default: tuple[int, ...], count: int) -> tuple[int, ...]:
    given = tuple(int(v) for v in ctx.attr(name, default))
    if len(given) != count or any(v < 0 for v in given):
        raise ModelError(f"{where(ctx)} has {name} {', '.join(map(str, given))}, expected {count} numbers of at least 0")
    return given


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    x, w, group = convolved(ctx)
    unify(ctx.env, x[1], w[0], f"{where(ctx)}: input channels must be those of the kernel")
    ctx.env.assume_eq(w[0] % group, ZERO, f"{where(ctx)}: group must divide the input channels")
    expect_window(ctx, w)
    if ctx.has(2):
        expect_list(ctx, 2, w[1] * group)
    sizes = [at_least_zero(ctx, axis.result, "the size of the output") for axis in _axes(ctx)]
    return tensor(ctx.type(0).dtype, [ctx.env.canon(d) for d in (canonical(ctx, 0)[0], w[1] * group, *sizes)])


# -- phases ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Taps:
    """The weights of one phase along an axis: `count` of them, from number `first` on, `step` apart; and how they are applied
    to the image: `dilation` apart, with so many zeros `before` and `after` it (less than none: elements left out)."""

    first: int
    step: int
    count: int
    dilation: int
    before: int
    after: int


def _taps(axis: Axis, kernel: int, before: int, longer: int, phase: int) -> Taps:
    """The weights of a phase. Its output is `longer` than the image."""
    own = [k for k in range(kernel) if (phase + before - k * axis.dilation) % axis.stride == 0]
    common = math.gcd(axis.stride, axis.dilation)
    step, dilation = axis.stride // common, axis.dilation // common
    if not own:
        return Taps(0, step, 0, dilation, 0, 0)
    first = (phase + before - own[0] * axis.dilation) // axis.stride
    span = (len(own) - 1) * dilation
    return Taps(own[0], step, len(own), dilation, span - first, longer + first)


def _conv_transpose(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    axes = _axes(ctx)

    def static(*values: SymExpr) -> list[int] | None:
        numbers = [number for value in values if (number := ctx.env.canon(value).as_int()) is not None]
        return numbers if len(numbers) == len(values) else None

    kernels, befores = static(*(axis.kernel for axis in axes)), static(*(axis.before for axis in axes))
    rests = static(*(axis.result - axis.extent * axis.stride for axis in axes))
    few = math.prod(axis.stride for axis in axes) <= _MOST_PHASES
    if few and kernels is not None and befores is not None and rests is not None:
        return (with_bias(builder, _by_phases(builder, axes, kernels, befores, rests)),)
    return (with_bias(builder, builder.emit("ConvolveTransposed", *ctx.node.inputs[:2], **ctx.node.attrs)),)


def _by_phases(builder: Builder, axes: Sequence[Axis], kernels: Sequence[int], befores: Sequence[int],
               rests: Sequence[int]) -> str:
    """All phases beside one another, then each element where it belongs. The output is as long as the image times the stride,
    and one of the `rests`."""
    ctx, group = builder.infer, group_of(builder.infer)
    x, w = ctx.node.inputs[:2]
    weights = _turned(builder, w, group)
    strides = [axis.stride for axis in axes]
    longer = [-(-rest // s) for rest, s in zip(rests, strides)]
    every = [[_taps(axis, k, b, more, phase) for phase in range(axis.stride)]
             for axis, k, b, more in zip(axes, kernels, befores, longer)]
    batch, channels = canonical(ctx, 0)[0], canonical(ctx, 1)[1] * group
    extents = [ctx.env.canon(axis.extent + more) for axis, more in zip(axes, longer)]
    phases = [_phase(builder, x, weights, taps, (batch, channels, *extents), group) for taps in itertools.product(*every)]
    if len(phases) == 1:
        return phases[0]
    result = _interleaved(builder, phases, (batch, channels), extents, strides)
    cut = [k for k, (rest, more, s) in enumerate(zip(rests, longer, strides)) if rest != more * s]
    if cut:
        ends = [rests[k] - longer[k] * strides[k] for k in cut]
        result = _sliced(builder, result, [0] * len(cut), ends, [k + 2 for k in cut], [1] * len(cut))
    return result


def _turned(builder: Builder, w: str, group: int) -> str:
    """The weights with output channels first, as Conv has them."""
    shape = canonical(builder.infer, 1)
    rank = len(shape) - 2
    if group == 1:
        return builder.emit("Transpose", w, perm=(1, 0, *range(2, rank + 2)))
    parts = reshape(builder, w, (SymExpr.of(group), shape[0] // group, *shape[1:]))
    return reshape(builder, builder.emit("Transpose", parts, perm=(0, 2, 1, *range(3, rank + 3))),
                   (shape[1] * group, shape[0] // group, *shape[2:]))


def _phase(builder: Builder, x: str, weights: str, taps: Sequence[Taps], shape: Sequence[SymExpr], group: int) -> str:
    """One phase, of `shape`; where no weight falls into it, zeros."""
    if any(not own.count for own in taps):
        zero = builder.constant(np.zeros((), builder.infer.type(0).dtype))
        return builder.emit("Expand", zero, shape_operand(builder, shape))
    rank = len(taps)
    spatial = list(range(2, rank + 2))
    kernel = canonical(builder.infer, 1)[2:]
    last = [own.first + (own.count - 1) * own.step for own in taps]
    begins = [-1 - int(k.as_int() or 0) for k in kernel]  # from the end: before the first weight
    own_weights = _sliced(builder, weights, last, begins, spatial, [-own.step for own in taps])
    cut = [k for k, own in enumerate(taps) if own.before < 0 or own.after < 0]
    if cut:
        ends = [taps[k].after if taps[k].after < 0 else np.iinfo(np.int64).max for k in cut]
        x = _sliced(builder, x, [max(0, -taps[k].before) for k in cut], ends, [k + 2 for k in cut], [1] * len(cut))
    pads = [max(0, own.before) for own in taps] + [max(0, own.after) for own in taps]
    return builder.emit("Convolve", x, own_weights, pads=tuple(pads), strides=(1,) * rank, group=group,
                        dilations=tuple(own.dilation for own in taps))


def _interleaved(builder: Builder, phases: Sequence[str], outer: tuple[SymExpr, SymExpr], extents: Sequence[SymExpr],
                 strides: Sequence[int]) -> str:
    """The elements of phases in turns along each axis."""
    rank = len(extents)
    apart = builder.emit("Concat", *(builder.emit("Unsqueeze", phase, axes=(2,)) for phase in phases), axis=2)
    parts = reshape(builder, apart, (*outer, *map(SymExpr.of, strides), *extents))
    perm = (0, 1, *(2 + k + rank * half for k in range(rank) for half in (1, 0)))
    moved = builder.emit("Transpose", parts, perm=perm)
    return reshape(builder, moved, (*outer, *(e * s for e, s in zip(extents, strides))))


def _sliced(builder: Builder, value: str, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int],
            steps: Sequence[int]) -> str:
    operands = (builder.constant(np.array(numbers, np.int64)) for numbers in (starts, ends, axes, steps))
    return builder.emit("Slice", value, *operands)


# -- where sizes are not known ------------------------------------------------------------------------------------

def _convolve_transposed_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """sum over channels and window of x[n, c, (o + p - d*k) / s] * w[c, m, k], where the quotient is whole and inside of x."""
    ctx = lowering.infer
    w, group, spatial = canonical(ctx, 1), group_of(ctx), _axes(ctx)
    inner, members = ctx.env.canon(w[0] // group), w[1]
    axes = tuple(lowering.axis(name, extent) for name, extent in zip(("c", *"hwdefg"), (inner, *w[2:])))
    channel, *window = (lowering.var(a) for a in axes)
    row: Expr = channel
    column = at[1]
    if group > 1:
        row = add(mul(call("floordiv", at[1], index(members)), index(inner)), channel)
        column = call("mod", at[1], index(members))
    spots = [call("sub", add(o, index(axis.before)), mul(k, index(axis.dilation)))
             for axis, o, k in zip(spatial, at[2:], window)]
    places = [call("floordiv", spot, index(axis.stride)) for axis, spot in zip(spatial, spots)]
    value = mul(lowering.read(0, (at[0], row, *places)), lowering.read(1, (row, column, *window)))
    zero = typed(0, value.dtype)
    for axis, spot, place in zip(spatial, spots, places):
        inside = call("and", call("ge", spot, index(0)), call("lt", place, index(axis.extent)))
        whole = call("eq", call("mod", spot, index(axis.stride)), index(0))
        value = select(call("and", inside, whole), value, zero)
    return Reduction(SUM, axes, value)


def _samples() -> Sequence[Sample]:
    return [
        Sample([floats(2, 3, 4, 5), floats(3, 2, 2, 2), floats(2)], {"strides": (2, 2)}),
        Sample([floats(1, 3, 4, 5), floats(3, 2, 3, 4)], {"strides": (2, 3), "pads": (1, 0, 1, 2), "output_padding": (1, 0)}),
        Sample([floats(1, 2, 5), floats(2, 1, 3)], {"group": 2, "strides": (2,), "dilations": (2,)}),
        Sample([floats(1, 2, 4, 3), floats(2, 1, 3, 3)]),
        Sample([floats(1, 2, 4, 3), floats(2, 3, 1, 2)], {"strides": (3, 2)}),
        Sample([floats(1, 2, 4, 3), floats(2, 1, 3, 3)], {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
        Sample([floats(1, 2, 4, 3), floats(2, 1, 3, 3)], {"strides": (2, 2), "auto_pad": "SAME_LOWER"}),
        Sample([floats(1, 1, 2, 3, 2), floats(1, 2, 2, 3, 2)], {"strides": (1, 2, 2), "pads": (0, 1, 0, 1, 1, 0)})]


OPS: tuple[OpDef, ...] = (
    OpDef("ConvTranspose", PatternKind.CONTRACTION, _types, decompose=_conv_transpose, samples=_samples,
          reads=("kernel_shape", "strides", "dilations", "pads", "output_padding", "output_shape", "auto_pad", "group")),
    OpDef("ConvolveTransposed", PatternKind.REDUCE, _types, te=_convolve_transposed_te, domain="tsc"),
)
