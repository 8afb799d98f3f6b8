"""Tensors made from sizes and constants: Shape, Size, Range, ConstantOfShape, SymbolicConstant, EyeLike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Contents, Node, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample, symbolic
from tsc.ops.samples import floats, ints, scalar, vector
from tsc.ops.shapes import (
    Values,
    as_object,
    canonical,
    element_type,
    is_float,
    named,
    place_of,
    scalar_contents,
    sizes_operand,
    static_shape,
    tensor,
    where,
)
from tsc.sym import ZERO, SymExpr, ceildiv, product, sym_max, sym_min
from tsc.te.expr import BOOL, INDEX, Cast, Const, Expr, add, call, index, mul, select


def typed(value: Any, dtype: str) -> Const:
    """A literal of `dtype`."""
    return Const(bool(value) if dtype == BOOL else float(value) if is_float(dtype) else int(value), dtype)


def converted(value: Expr, dtype: str) -> Expr:
    """An int64 index expression in `dtype`."""
    if isinstance(value, Const):
        return typed(value.value, dtype)
    return value if dtype == INDEX else Cast(value, dtype)


# -- symbolic contents as data ---------------------------------------------------------------------------------

def _contents_te(values: Contents, at: Sequence[Expr]) -> Expr:
    """The element of symbolic contents at an index: affine where they are evenly spaced, else a choice by position."""
    if values.size == 0:
        return index(0)
    flat = values.ravel()
    steps = [_step(values, axis) for axis in range(values.ndim)]
    evenly: Expr = index(flat[0])
    for i, step in zip(at, steps):
        evenly = add(evenly, mul(i, index(step)))
    if all(values[p] == sum((s * k for s, k in zip(steps, p)), flat[0]) for p in np.ndindex(values.shape)):
        return evenly
    head, tail = _contents_te(as_object(values[0]), at[1:]), values[1:]
    if not len(tail):
        return head
    return select(call("lt", at[0], index(1)), head, _contents_te(tail, (call("sub", at[0], index(1)), *at[1:])))


def _step(values: Contents, axis: int) -> SymExpr:
    if values.shape[axis] < 2:
        return ZERO
    origin = [0] * values.ndim
    following = [int(k == axis) for k in range(values.ndim)]
    step: SymExpr = values[tuple(following)] - values[tuple(origin)]
    return step


def _symbolic_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.attr("dtype"), [SymExpr.of(n) for n in ctx.attr("value").shape])


def _symbolic_contents(ctx: InferContext) -> Values:
    if is_float(ctx.attr("dtype")):
        return (None,)
    return (symbolic([ctx.env.canon(v) for v in ctx.attr("value").ravel()], ctx.attr("value").shape),)


def _symbolic_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    values = lowering.infer.attr("value")
    canonical_values = symbolic([lowering.infer.env.canon(v) for v in values.ravel()], values.shape)
    return converted(_contents_te(canonical_values, at), lowering.infer.attr("dtype"))


def sizes_node(contents: Contents, dtype: str, output: str, name: str) -> Node:
    """A node that makes symbolic contents data of `dtype`."""
    return Node("SymbolicConstant", (), (output,), {"value": contents, "dtype": dtype}, name)


# -- Shape, Size -----------------------------------------------------------------------------------------------

def _shape_dims(ctx: InferContext) -> tuple[SymExpr, ...]:
    return canonical(ctx, 0)[slice(ctx.attr("start", 0), ctx.attr("end"))]


def _shape_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(INDEX, (SymExpr.of(len(_shape_dims(ctx))),))


def _shape_values(ctx: InferContext) -> Contents:
    dims = _shape_dims(ctx)
    return symbolic(list(dims), (len(dims),))


def _shape_contents(ctx: InferContext) -> Values:
    return (_shape_values(ctx),)


def _shape_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return _contents_te(_shape_values(lowering.infer), at)


def _size_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(INDEX, ())


def _size_contents(ctx: InferContext) -> Values:
    return (as_object(product(canonical(ctx, 0))),)


def _size_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return index(product(canonical(lowering.infer, 0)))


# -- ConstantOfShape, EyeLike ----------------------------------------------------------------------------------

def _fill(ctx: InferContext) -> np.ndarray[Any, Any]:
    value = np.zeros(1, np.float32) if ctx.attr("value") is None else np.asarray(ctx.attr("value"))
    if value.size != 1:
        raise ModelError(f"{where(ctx)} has a value of shape {value.shape}, expected one element")
    return value


def _filled_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(_fill(ctx).dtype.name, sizes_operand(ctx, 0, "dims"))


def _filled_contents(ctx: InferContext) -> Values:
    sizes, value = static_shape(_filled_types(ctx)[0].shape), _fill(ctx)
    if sizes is None or is_float(value.dtype.name):
        return (None,)
    return (symbolic(np.full(sizes, int(value.ravel()[0]), dtype=object)),)


def _filled_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    value = _fill(lowering.infer)
    return typed(value.ravel()[0], value.dtype.name)


def _eye_types(ctx: InferContext) -> tuple[TensorType, ...]:
    number = ctx.attr("dtype")
    if ctx.type(0).rank != 2:
        raise ModelError(f"{where(ctx)} has an input of rank {ctx.type(0).rank}, expected a matrix")
    return tensor(ctx.type(0).dtype if number is None else element_type(ctx, number), canonical(ctx, 0))


def _eye_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    dtype = lowering.out[0].dtype
    on_diagonal = call("eq", at[1], add(at[0], place_of(int(lowering.infer.attr("k", 0)))))
    return select(on_diagonal, typed(1, dtype), typed(0, dtype))


# -- Range -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Number:
    """A number known at compile time: an integer expression over a positive integer (a float is such a fraction)."""

    numerator: SymExpr
    denominator: int = 1

    def expression(self, dtype: str) -> Expr:
        whole = self.numerator.as_int()
        if whole is not None:
            return typed(whole / self.denominator if is_float(dtype) else whole, dtype)
        return converted(index(self.numerator), dtype)


#: Integers up to this are exact in a type; a size beyond it would be rounded on its way to a float. float64 holds every size.
_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}
#: Fractions with more are left to data: their products with sizes would not fit an int64.
_MOST_DENOMINATOR = 2**31


def _range_operands(ctx: InferContext) -> tuple[_Number, _Number, _Number]:
    """Start, limit and step."""
    start, limit, step = (_number(ctx, i, what) for i, what in enumerate(("start", "limit", "step")))
    if step.numerator == ZERO:
        raise ModelError(f"{where(ctx)} has a step of 0, expected any other")
    ctx.env.assume_le(1, sym_max(step.numerator, -step.numerator), f"{where(ctx)}: its step must not be 0")
    return start, limit, step


def _number(ctx: InferContext, i: int, what: str) -> _Number:
    dtype, constant = ctx.type(i).dtype, ctx.constants[i]
    if not is_float(dtype) or constant is None:
        found = scalar_contents(ctx, i, what)
        if dtype in _EXACT:
            for a, b in ((found, _EXACT[dtype]), (-_EXACT[dtype], found)):
                ctx.env.assume_le(a, b, f"{where(ctx)}: its {what} must be exact in {dtype}")
        return _Number(found)
    if constant.size != 1:
        raise ModelError(f"{where(ctx)} has a {what} of shape {constant.shape}, expected one number")
    if not np.isfinite(constant).all():
        raise ModelError(f"{where(ctx)} has the {what} {constant.item()}, expected a finite number")
    numerator, denominator = float(constant.ravel()[0]).as_integer_ratio()
    return _Number(SymExpr.of(numerator), denominator)


def _range_extent(ctx: InferContext) -> SymExpr:
    """ceil((limit - start) / step), none below 0."""
    start, limit, step = _range_operands(ctx)
    distance = (limit.numerator * start.denominator - start.numerator * limit.denominator) * step.denominator
    known = step.numerator.as_int()
    if known is None:
        forward = sym_min(sym_max(step.numerator, 0), 1)  # 1 where it is stepped up, or else 0
        length = sym_max(step.numerator, -step.numerator, 1) * (start.denominator * limit.denominator)
        return named(ctx, "count", ceildiv(sym_max(distance * (2 * forward - 1), 0), length))
    divisor = known * start.denominator * limit.denominator
    distance, divisor = (distance, divisor) if divisor > 0 else (-distance, -divisor)
    shared = gcd(divisor, *(c for _, c in distance.terms))
    distance, divisor = distance // shared, divisor // shared
    if distance.as_int() is None and max(divisor, *(abs(c) for _, c in distance.terms)) > _MOST_DENOMINATOR:
        raise UnsupportedError(f"{where(ctx)} has bounds or a step too fine for the sizes they depend on; make them coarser")
    if ctx.env.prove_le(distance, 0):
        return ZERO
    extent = ctx.env.canon(ceildiv(distance, divisor))
    return extent if ctx.env.prove_le(0, distance) else ctx.env.canon(sym_max(extent, 0))


def _range_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(ctx.type(0).dtype, (_range_extent(ctx),))


def _range_contents(ctx: InferContext) -> Values:
    (start, _, step), sizes = _range_operands(ctx), static_shape((_range_extent(ctx),))
    if sizes is None or is_float(ctx.type(0).dtype):
        return (None,)
    return (symbolic([start.numerator + step.numerator * i for i in range(sizes[0])], sizes),)


def _range_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    (start, _, step), dtype = _range_operands(lowering.infer), lowering.out[0].dtype
    if is_float(dtype):
        working = "float32" if dtype == "float16" else dtype  # nothing computes with halves
        value = add(start.expression(working), mul(Cast(at[0], working), step.expression(working)))
        return value if working == dtype else Cast(value, dtype)
    return converted(add(mul(at[0], index(step.numerator)), index(start.numerator)), dtype)


# -- Constant --------------------------------------------------------------------------------------------------

def _literal(attrs: Mapping[str, Any], cited: str) -> NDArray[Any]:
    """The array of the one value attribute. Raises ModelError without one."""
    if isinstance(attrs.get("value"), np.ndarray):
        value: NDArray[Any] = attrs["value"]
        return value
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if attrs.get(name) is not None:
            return np.array(attrs[name], INDEX if "int" in name else "float32")
    raise ModelError(f"{cited} has no numeric value; give it a 'value'")


def _literal_types(ctx: InferContext) -> tuple[TensorType, ...]:
    value = _literal(ctx.node.attrs, where(ctx))
    return tensor(value.dtype.name, [SymExpr.of(n) for n in value.shape])


def _literal_constant(builder: Builder) -> tuple[str, ...]:
    return (builder.constant(_literal(builder.infer.node.attrs, where(builder.infer))),)


# -- samples ---------------------------------------------------------------------------------------------------

def _shapes() -> Sequence[Sample]:
    return [Sample([floats(2, 1, 5)], a) for a in ({}, {"start": 1}, {"start": -2, "end": -1}, {"end": 2})]


def _ranges() -> Sequence[Sample]:
    triples = ((0, 7, 1), (2, 11, 3), (9, -2, -4), (3, 3, 1))
    integers = [Sample([scalar(v, "int64") for v in t]) for t in triples]
    return [*integers, Sample([scalar(v) for v in (0.5, 3.0, 0.25)])]


def _fills() -> Sequence[Sample]:
    return [Sample([vector(2, 3)]), Sample([vector(4)], {"value": np.array([-1], np.int64)}),
            Sample([vector(1, 3)], {"value": np.array([True])})]


OPS: tuple[OpDef, ...] = (
    OpDef("Shape", PatternKind.INJECTIVE, _shape_types, contents=_shape_contents, te=_shape_te, samples=_shapes,
          static_inputs=(0,), reads=("start", "end")),
    OpDef("Size", PatternKind.ELEMENTWISE, _size_types, contents=_size_contents, te=_size_te, static_inputs=(0,),
          samples=lambda: [Sample([floats(2, 1, 5)])]),
    OpDef("Range", PatternKind.INJECTIVE, _range_types, contents=_range_contents, te=_range_te, samples=_ranges,
          static_inputs=(0, 1, 2)),
    OpDef("ConstantOfShape", PatternKind.ELEMENTWISE, _filled_types, contents=_filled_contents, te=_filled_te, samples=_fills,
          static_inputs=(0,), reads=("value",)),
    OpDef("EyeLike", PatternKind.INJECTIVE, _eye_types, te=_eye_te, static_inputs=(0,),
          samples=lambda: [Sample([floats(3, 5)]), Sample([ints(4, 3)], {"k": -1, "dtype": 1})], reads=("dtype", "k")),
    OpDef("Constant", PatternKind.INJECTIVE, _literal_types, decompose=_literal_constant, literal=_literal,
          samples=lambda: [Sample([], {"value": floats(2, 3)}), Sample([], {"value_int": 5})],
          reads=("value", "value_int", "value_ints", "value_float", "value_floats")),
    OpDef("SymbolicConstant", PatternKind.INJECTIVE, _symbolic_types, contents=_symbolic_contents, te=_symbolic_te,
          domain="tsc"),
)
