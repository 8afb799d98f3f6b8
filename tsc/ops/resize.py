"""Resize (and Upsample before it): nearest, linear and cubic interpolation, one axis at a time.

The standard gives the source coordinate of an output position as a real number. Sizes and float scales are ratios of integers,
so here it is an exact quotient of integers: no rounding decides which element is the nearest, and where the scale is known
(2: a half of the position) the access is affine. Scales that are fed are ratios of a Dim, that the run tells, and STEPS. Only
the bounds of a crop (`roi`) are data; then it is a float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import STEPS, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.generate import converted, typed
from tsc.ops.samples import floats, ints, vector
from tsc.ops.shapes import NUMBERS, Shape, canonical, distinct, is_float, named, sizes_operand, tensor, where
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, ceildiv, product, sym_max, sym_min
from tsc.te.compute import SUM, Axis
from tsc.te.expr import BOOL, INDEX, Cast, Const, Expr, add, call, index, mul, select

_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
_CROP = "tf_crop_and_resize"
#: Scales beyond it would make more of one element than an axis can have.
_MOST_SCALED = 2.0**31


@dataclass(frozen=True, slots=True)
class _Scaled:
    """What happens to one axis: `length` elements after, and the exact scale `numerator / denominator`."""

    axis: int
    length: SymExpr
    numerator: SymExpr
    denominator: SymExpr


@dataclass(frozen=True, slots=True)
class _Quotient:
    """A coordinate as a quotient of two integer expressions, the divisor positive."""

    dividend: Expr
    divisor: Expr


@dataclass(frozen=True, slots=True)
class _Real:
    """A coordinate as a float64 expression."""

    value: Expr


_Place = _Quotient | _Real


# -- sizes and scales ------------------------------------------------------------------------------------------

def _resize_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = list(canonical(ctx, 0))
    for scaled in _scaled_axes(ctx):
        shape[scaled.axis] = scaled.length
    return tensor(ctx.type(0).dtype, shape)


def _scaled_axes(ctx: InferContext) -> tuple[_Scaled, ...]:
    _check_attributes(ctx)
    rank, shape = ctx.type(0).rank, canonical(ctx, 0)
    axes = distinct(ctx, [ctx.axis(int(a), rank) for a in ctx.attr("axes", range(rank))])
    extents = [shape[a] for a in axes]
    by_sizes = ctx.has(3) and canonical(ctx, 3) != (ZERO,)
    found = _by_sizes(ctx, extents) if by_sizes else _by_scales(ctx, extents)
    result = tuple(_Scaled(axis, *each) for axis, each in zip(axes, found))
    for extent, scaled in zip(extents, result if by_sizes else ()):
        ctx.env.assume_le(sym_min(scaled.length, 1), extent, f"{where(ctx)}: a dim without elements cannot be resized to some")
    if _crops(ctx):
        ctx.env.assume_eq(canonical(ctx, 1)[0], 2 * len(axes), f"{where(ctx)}: a crop has two bounds an axis")
    if _crops(ctx) and any(_blends(ctx, s) for s in result):
        raise UnsupportedError(f"{where(ctx)} has antialias=1, which is not supported where a crop may become smaller")
    return result


def _blends(ctx: InferContext, scaled: _Scaled) -> bool:
    """Whether an axis may become smaller and what lies between is to count: then as many elements do as the scale says."""
    return (bool(ctx.attr("antialias", 0)) and ctx.attr("mode", "nearest") != "nearest"
            and not ctx.env.prove_le(scaled.denominator, scaled.numerator))


def _check_attributes(ctx: InferContext) -> None:
    for name, default, known in (("mode", "nearest", ("nearest", "linear", "cubic")),
                                 ("nearest_mode", "round_prefer_floor", _NEAREST),
                                 ("coordinate_transformation_mode", "half_pixel", _COORDINATES),
                                 ("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))):
        if (given := ctx.attr(name, default)) not in known:
            raise ModelError(f"{where(ctx)} has {name} '{given}', expected {', '.join(known)}")
    if ctx.type(0).dtype == BOOL and ctx.attr("mode", "nearest") != "nearest":
        raise ModelError(f"{where(ctx)} interpolates bools, expected numbers; cast them")


def _by_sizes(ctx: InferContext, extents: list[SymExpr]) -> Iterator[tuple[SymExpr, SymExpr, SymExpr]]:
    sizes = sizes_operand(ctx, 3, "sizes", len(extents))
    if len(sizes) != len(extents):
        raise ModelError(f"{where(ctx)} has {len(sizes)} sizes for {len(extents)} axes, expected one an axis")
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        yield from ((size, size, extent) for size, extent in zip(sizes, extents))
        return
    # the least or greatest ratio over one denominator, so that no comparison has to be decided before the run
    other = product(extents)
    extreme = sym_min if policy == "not_larger" else sym_max
    one = extreme(*(size * product(extents[:k] + extents[k + 1:]) for k, size in enumerate(sizes)))
    for extent in extents:
        yield ctx.env.canon((extent * one * 2 + other) // (other * 2)), one, other


def _by_scales(ctx: InferContext, extents: Sequence[SymExpr]) -> Iterator[tuple[SymExpr, SymExpr, SymExpr]]:
    given = ctx.attr("scales")  # an attribute of Upsample up to opset 8
    at = 2 if ctx.opset >= 11 else 1
    if given is None and not ctx.has(at):
        raise ModelError(f"{where(ctx)} has neither scales nor sizes, expected one of them")
    scales = np.array(given) if given is not None else ctx.constants[at]
    if scales is None:
        yield from _by_told_scales(ctx, at, extents)
        return
    if scales.size != len(extents):
        raise ModelError(f"{where(ctx)} has {scales.size} scales for {len(extents)} axes, expected one an axis")
    for scale, extent in zip(scales.ravel(), extents):
        if not 1 / _MOST_SCALED < scale < _MOST_SCALED:
            raise ModelError(f"{where(ctx)} has the scale {scale}, expected a positive one that makes sizes of at most 2^31")
        one, other = map(SymExpr.of, Fraction(float(scale)).as_integer_ratio())
        yield ctx.env.canon(extent * one // other), one, other


def _by_told_scales(ctx: InferContext, at: int, extents: Sequence[SymExpr]) -> Iterator[tuple[SymExpr, SymExpr, SymExpr]]:
    """By scales that are an input of the model, or computed from sizes."""
    ctx.holds(at, len(extents))
    scales, whole = ctx.contents[at], 1
    if scales is None:
        scales, whole = ctx.steps(at, "scales"), STEPS
    if scales.size != len(extents):
        raise ModelError(f"{where(ctx)} has {scales.size} scales for {len(extents)} axes, expected one an axis")
    for k, (scale, extent) in enumerate(zip(map(ctx.env.canon, scales.ravel()), extents)):
        if ctx.opset >= 11:
            ctx.env.assume_le(1, scale, f"{where(ctx)}: a scale is positive")
        else:  # which element is the nearest where a dim becomes smaller was left open
            ctx.env.assume_le(whole, scale, f"{where(ctx)}: a scale that only the run knows is at least 1 before opset 11")
        yield named(ctx, f"scaled_{k}", extent * scale // whole), scale, SymExpr.of(whole)


def _old_attributes(scaled: _Scaled, env: ShapeEnv) -> dict[str, str]:
    """What Upsample and Resize of opset 10 left open and ONNX Runtime does: coordinates scale without a shift, the nearest is
    the next one below, but above where the dim becomes smaller."""
    shrinks = env.prove_lt(scaled.numerator, scaled.denominator)
    return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if shrinks else "floor"}


def _resize(builder: Builder) -> tuple[str, ...]:
    """A chain of nodes that each resize one axis; what interpolates does so in a float type that holds the values."""
    ctx = builder.infer
    value, dtype, attrs = ctx.node.inputs[0], ctx.type(0).dtype, dict(ctx.node.attrs)
    working = _working_type(dtype) if ctx.attr("mode", "nearest") != "nearest" else dtype
    if working != dtype:
        value = builder.emit("Cast", value, to=NUMBERS[working])
    scaled_axes = _scaled_axes(ctx)
    for k, scaled in enumerate(scaled_axes):
        if (_crops(ctx) and not _whole_crop(ctx, k, len(scaled_axes))) or scaled.numerator != scaled.denominator:
            bounds = (ctx.node.inputs[1],) if _crops(ctx) else ()
            older = {} if ctx.opset >= 11 else _old_attributes(scaled, ctx.env)
            given = {**attrs, **older, "axis": scaled.axis, "length": scaled.length,
                     "scale": (scaled.numerator, scaled.denominator), "bounds": (k, k + len(scaled_axes))}
            if _blends(ctx, scaled):
                given["reach"] = _reach(ctx, scaled)
                weights = builder.emit("BlendWeights", value, **given)
                value = builder.emit("Div", builder.emit("BlendAxis", value, **given), weights)
            else:
                value = builder.emit("ResizeAxis", value, *bounds, **given)
    if working != dtype:
        value = _narrowed(builder, value, working, dtype)
    return (value,)


def _crops(ctx: InferContext) -> bool:
    return bool(ctx.attr("coordinate_transformation_mode", "half_pixel") == _CROP)


def _working_type(dtype: str) -> str:
    if dtype in ("float32", "float64"):
        return dtype
    return "float32" if is_float(dtype) or dtype.endswith("int8") else "float64"


def _whole_crop(ctx: InferContext, k: int, count: int) -> bool:
    """Whether the crop is known to take the whole axis."""
    bounds = ctx.constants[1]
    return bounds is not None and bounds[k] == 0 and bounds[k + count] == 1


def _narrowed(builder: Builder, value: str, working: str, dtype: str) -> str:
    """`value` back in `dtype`: rounded and clamped into range where that is an integer type."""
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        low, high = (scalar_operand(builder, float(v), working) for v in (limits.min, limits.max))
        value = builder.emit("Max", builder.emit("Min", builder.emit("Round", value), high), low)
    return builder.emit("Cast", value, to=NUMBERS[dtype])


# -- one axis --------------------------------------------------------------------------------------------------

def _axis_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape, axis = canonical(ctx, 0), ctx.attr("axis")
    return tensor(ctx.type(0).dtype, (*shape[:axis], ctx.env.canon(ctx.attr("length")), *shape[axis + 1:]))


def _axis_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx, axis = lowering.infer, lowering.infer.attr("axis")
    extent = canonical(ctx, 0)[axis]
    place = _place(lowering, at[axis], extent)

    def read(position: Expr) -> Expr:
        return lowering.read(0, (*at[:axis], position, *at[axis + 1:]))

    if ctx.attr("mode", "nearest") == "nearest":
        value = read(_nearest(ctx, place, extent))
    else:
        value = _interpolated(ctx, place, extent, read)
    if isinstance(place, _Real):
        outside = call("or", call("lt", place.value, _double(0)), call("gt", place.value, _double(extent - 1)))
        value = select(outside, typed(ctx.attr("extrapolation_value", 0.0), value.dtype), value)
    return value


def _place(lowering: Lowering, position: Expr, extent: SymExpr) -> _Place:
    """The source coordinate of an output position (the formulas stand in the standard under the modes' names)."""
    ctx = lowering.infer
    length = ctx.env.canon(ctx.attr("length"))
    one, other = (ctx.env.canon(s) for s in ctx.attr("scale"))
    mode = ctx.attr("coordinate_transformation_mode", "half_pixel")
    match mode:
        case "asymmetric":
            return _quotient(ctx.env, position, other, ZERO, one)
        case "align_corners":
            return _quotient(ctx.env, position, (extent - 1) * other, ZERO, one * extent - other)
        case "half_pixel_symmetric":
            return _quotient(ctx.env, position, other * 2, (extent - 1) * one + (1 - length) * other, one * 2)
        case "tf_crop_and_resize":
            return _cropped(lowering, position, extent, one, other)
    place = _quotient(ctx.env, position, other * 2, other - one, one * 2)
    if mode == "pytorch_half_pixel" and not ctx.env.prove_lt(1, length):
        return _Quotient(select(call("gt", index(length), index(1)), place.dividend, index(0)), place.divisor)
    return place


def _quotient(env: ShapeEnv, position: Expr, slope: SymExpr, offset: SymExpr, divisor: SymExpr) -> _Quotient:
    """`(slope * position + offset) / divisor` without common factors; where the divisor may be 0 the dividend is 0 too."""
    slope, offset, divisor = _reduced(slope, offset, divisor)
    divisor = divisor if env.prove_le(1, divisor) else sym_max(divisor, 1)
    return _Quotient(add(mul(position, index(slope)), index(offset)), index(divisor))


def _reduced(*parts: SymExpr) -> Shape:
    """Integer expressions without the integers and Dims that divide all of them."""
    terms = [term for part in parts for term in part.terms]
    shared = SymExpr.of(math.gcd(*(c for _, c in terms)))
    left = [list(monomial) for monomial, _ in terms]
    for atom in left[0][:] if left else ():
        if all(atom in monomial for monomial in left):
            for monomial in left:
                monomial.remove(atom)
            shared = shared * SymExpr((((atom,), 1),))
    return parts if shared in (ZERO, ONE) else tuple(part // shared for part in parts)


def _cropped(lowering: Lowering, position: Expr, extent: SymExpr, one: SymExpr, other: SymExpr) -> _Real:
    start, end = (Cast(lowering.read(1, (index(k),)), "float64") for k in lowering.infer.attr("bounds"))
    last = _double(extent - 1)
    span, unit = _reduced(one * extent - other, other)  # the length after, which may be fractional, less 1
    # the quotient comes last: of bounds with few digits what is divided is exact, and so is a place that hits an element
    steps = call("mul", Cast(position, "float64"), call("mul", call("sub", end, start), _double(unit)))
    several = call("div", call("mul", call("add", call("mul", start, _double(span)), steps), last), _double(span))
    single = call("mul", call("mul", _double(0.5), call("add", start, end)), last)
    return _Real(select(call("gt", index(span), index(0)), several, single))


def _nearest(ctx: InferContext, place: _Place, extent: SymExpr) -> Expr:
    coordinates = ctx.attr("coordinate_transformation_mode", "half_pixel")
    match ctx.attr("nearest_mode", "round_prefer_floor"):
        case "floor":  # o / scale is less than the extent wherever o is less than floor(extent * scale)
            chosen = _floor(place, 0)
            return chosen if coordinates == "asymmetric" else clamped(chosen, extent)
        case "ceil":
            chosen = _ceil(place, 0)
        case "round_prefer_ceil":
            chosen = _floor(place, 1)
        case _:
            chosen = _ceil(place, -1)
    return clamped(chosen, extent)


def _floor(place: _Place, halves: int) -> Expr:
    """The integer part of `place + halves / 2`."""
    if isinstance(place, _Real):
        return Cast(call("floor", call("add", place.value, _double(halves / 2))), INDEX)
    dividend, divisor = place.dividend, place.divisor
    if halves:
        dividend, divisor = add(mul(dividend, index(2)), mul(divisor, index(halves))), mul(divisor, index(2))
    return call("floordiv", dividend, divisor)


def _ceil(place: _Place, halves: int) -> Expr:
    """The least integer not below `place + halves / 2`."""
    if isinstance(place, _Real):
        return Cast(call("ceil", call("add", place.value, _double(halves / 2))), INDEX)
    dividend, divisor = place.dividend, place.divisor
    if halves:
        dividend, divisor = add(mul(dividend, index(2)), mul(divisor, index(halves))), mul(divisor, index(2))
    return call("floordiv", add(dividend, call("sub", divisor, index(1))), divisor)


def clamped(position: Expr, extent: SymExpr) -> Expr:
    """The nearest element of an axis."""
    return call("min", call("max", position, index(0)), index(extent - 1))


def _interpolated(ctx: InferContext, place: _Place, extent: SymExpr, read: Any) -> Expr:
    """The neighbours' weighted sum. Outside the tensor its border goes on, or (`exclude_outside`) weighs nothing."""
    first = _floor(place, 0)
    dtype = ctx.type(0).dtype
    fraction = _fraction(place, first, dtype)
    cubic = ctx.attr("mode") == "cubic"
    weights = cubic_weights(fraction, float(ctx.attr("cubic_coeff_a", -0.75))) if cubic else linear_weights(fraction)
    positions = [call("add", first, index(k - (1 if cubic else 0))) for k in range(len(weights))]
    if ctx.attr("exclude_outside", 0):
        weights = [select(inside(p, extent), w, typed(0, dtype)) for p, w in zip(positions, weights)]
    value = total([call("mul", w, read(clamped(p, extent))) for p, w in zip(positions, weights)])
    return call("div", value, total(weights)) if ctx.attr("exclude_outside", 0) else value


def inside(position: Expr, extent: SymExpr) -> Expr:
    """Whether an axis has such an element."""
    return call("and", call("ge", position, index(0)), call("lt", position, index(extent)))


def total(terms: Sequence[Expr]) -> Expr:
    """The sum of some terms, in their order."""
    result = terms[0]
    for term in terms[1:]:
        result = add(result, term)
    return result


def _fraction(place: _Place, floor: Expr, dtype: str) -> Expr:
    if isinstance(place, _Real):
        return Cast(call("sub", place.value, Cast(floor, "float64")), dtype)
    rest = call("mod", place.dividend, place.divisor)
    return call("div", converted(rest, dtype), converted(place.divisor, dtype))


def linear_weights(fraction: Expr) -> list[Expr]:
    """Of the element before a place and of the one behind it."""
    return [call("sub", typed(1, fraction.dtype), fraction), fraction]


def cubic_weights(fraction: Expr, a: float) -> list[Expr]:
    """Keys' kernel at distances 1 + f, f, 1 - f and 2 - f, as products: its cubics, a (t - 1) (t - 2)^2 between 1 and 2 and
    (1 - t) (1 + t - (a + 2) t^2) below, lose their digits where they are written as sums."""
    rest = call("sub", typed(1, fraction.dtype), fraction)
    return [_far(fraction, rest, a), _near(fraction, rest, a), _near(rest, fraction, a), _far(rest, fraction, a)]


def _near(t: Expr, rest: Expr, a: float) -> Expr:
    """At a distance t of at most 1, `rest` less than that."""
    one = typed(1, t.dtype)
    return mul(rest, add(one, mul(t, call("sub", one, mul(typed(a + 2, t.dtype), t)))))


def _far(t: Expr, rest: Expr, a: float) -> Expr:
    """At a distance of 1 + t, `rest` less than 2."""
    return mul(mul(typed(a, t.dtype), t), mul(rest, rest))


# -- antialias -------------------------------------------------------------------------------------------------

def _blend_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    """The sum over the elements around a place, each times its weight."""
    axis = lowering.infer.attr("axis")
    extent = canonical(lowering.infer, 0)[axis]
    elements, position, weight = _blended(lowering, at[axis])
    value = lowering.read(0, (*at[:axis], clamped(position, extent), *at[axis + 1:]))
    return Reduction(SUM, (elements,), mul(weight, value))


def _weights_types(ctx: InferContext) -> tuple[TensorType, ...]:
    behind = ctx.type(0).rank - ctx.attr("axis") - 1
    return tensor(ctx.type(0).dtype, (ctx.env.canon(ctx.attr("length")), *(ONE,) * behind))


def _weights_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    elements, _, weight = _blended(lowering, at[0])
    return Reduction(SUM, (elements,), weight)


def _reach(ctx: InferContext, scaled: _Scaled) -> SymExpr:
    """How many elements on each side of a place may weigh something."""
    wide = 2 if ctx.attr("mode") == "cubic" else 1
    found = ctx.env.canon(sym_max(ceildiv(scaled.denominator * wide, scaled.numerator), wide))
    return found if found.as_int() is not None else named(ctx, f"reach_{scaled.axis}", found)


def _blended(lowering: Lowering, place: Expr) -> tuple[Axis, Expr, Expr]:
    """A reduce axis over the elements around a place that may weigh something, the position of one, and its weight: that of its
    distance, as the kernel has it which is as much wider as the axis becomes smaller."""
    ctx, dtype = lowering.infer, lowering.infer.type(0).dtype
    extent = canonical(ctx, 0)[ctx.attr("axis")]
    found = _place(lowering, place, extent)
    assert isinstance(found, _Quotient)
    one, other = (ctx.env.canon(s) for s in ctx.attr("scale"))
    cubic, reach = ctx.attr("mode") == "cubic", ctx.attr("reach")
    elements = lowering.axis("e", ctx.env.canon(2 * reach))
    position = call("sub", add(_floor(found, 0), lowering.var(elements)), index(reach - 1))
    apart = converted(call("abs", call("sub", mul(position, found.divisor), found.dividend)), dtype)
    narrowed, whole = (converted(index(s), dtype) for s in (sym_min(one, other), other))
    distance = call("div", mul(call("div", apart, converted(found.divisor, dtype)), narrowed), whole)
    weight = _keys(distance, float(ctx.attr("cubic_coeff_a", -0.75))) if cubic else call(
        "max", call("sub", typed(1, dtype), distance), typed(0, dtype))
    if ctx.attr("exclude_outside", 0):
        weight = select(call("eq", position, clamped(position, extent)), weight, typed(0, dtype))
    return elements, position, weight


def _keys(distance: Expr, a: float) -> Expr:
    """Keys' kernel at a distance, 0 from 2 on."""
    one, two = typed(1, distance.dtype), typed(2, distance.dtype)
    near = _near(distance, call("sub", one, distance), a)
    far = _far(call("sub", distance, one), call("sub", two, distance), a)
    return select(call("lt", distance, one), near, select(call("lt", distance, two), far, typed(0, distance.dtype)))


def _double(value: float | SymExpr) -> Expr:
    return converted(index(value), "float64") if isinstance(value, SymExpr) else Const(float(value), "float64")


# -- samples ---------------------------------------------------------------------------------------------------

def _resizes() -> Sequence[Sample]:
    x, wide = floats(1, 2, 4, 5), floats(1, 1, 3, 7)
    scales = np.array([1, 1, 2, 2], np.float32)
    uneven = np.array([1, 1, 0.7, 1.75], np.float32)
    crop = np.array([0, 0, 0.4, 0.6, 1, 1, 0.6, 1.3], np.float32)
    shared = [{"coordinate_transformation_mode": c} for c in _COORDINATES if c != _CROP]
    result = [Sample([x, None, None, vector(1, 2, 7, 3)], {"mode": m, **c}) for c in shared for m in ("linear", "cubic")]
    result += [Sample([x, None, None, vector(1, 2, 9, 10)], {"nearest_mode": n, **c}) for c in shared for n in _NEAREST]
    result += [Sample([wide, None, s], {"mode": m, **c})
               for s in (scales, uneven) for c in shared for m in ("nearest", "linear", "cubic")]
    result += [Sample([x, crop, None, vector(1, 2, 6, 5)],
                      {"mode": m, "coordinate_transformation_mode": _CROP, "extrapolation_value": 9.5})
               for m in ("nearest", "linear", "cubic")]
    result += [Sample([x, None, None, vector(1, 2, 7, 3)], {"mode": m, "exclude_outside": 1}) for m in ("linear", "cubic")]
    result += [Sample([x, None, None, vector(6, 6)], {"axes": (3, 2), "keep_aspect_ratio_policy": p, "mode": "linear"})
               for p in ("not_larger", "not_smaller")]
    result += [Sample([wide, None, None, vector(1, 1, *sizes)], {"mode": m, "antialias": 1, "exclude_outside": e})
               for m in ("linear", "cubic") for e in (0, 1) for sizes in ((2, 3), (3, 5))]
    return [*result, Sample([x, None, scales], {"mode": "linear", "antialias": 1}),
            Sample([ints(1, 1, 4, 4, low=-128, high=128, dtype="int8"), None, scales], {"mode": "cubic"}),
            Sample([ints(1, 1, 4, 4), None, scales])]


OPS: tuple[OpDef, ...] = (
    OpDef("Resize", PatternKind.REDUCE, _resize_types, decompose=_resize, samples=_resizes, static_inputs=(2, 3),
          reads=("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside",
                 "extrapolation_value", "keep_aspect_ratio_policy", "antialias", "axes")),
    OpDef("Upsample", PatternKind.INJECTIVE, _resize_types, decompose=_resize, samples=tuple, static_inputs=(1,),
          reads=("mode", "scales")),
    OpDef("ResizeAxis", PatternKind.INJECTIVE, _axis_types, te=_axis_te, domain="tsc"),
    OpDef("BlendAxis", PatternKind.REDUCE, _axis_types, te=_blend_te, domain="tsc"),
    OpDef("BlendWeights", PatternKind.REDUCE, _weights_types, te=_weights_te, domain="tsc"),
)
