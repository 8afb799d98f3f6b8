"""Shape helpers shared by the operators: broadcasting, axes, static operands, symbolic contents, index maps of views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Contents, TensorType
from tsc.ops.base import InferContext, Lowering, symbolic
from tsc.sym import ONE, ShapeEnv, SymExpr, identifier, product
from tsc.te.expr import FARTHEST, INDEX, Cast, Expr, add, call, index, mul

Shape = tuple[SymExpr, ...]
Values = tuple[Contents | None, ...]

#: Contents are kept for tensors up to this many elements; larger ones are data.
CONTENTS_LIMIT = 1024

#: ONNX's element type numbers (onnx.proto, TensorProto.DataType) for the dtypes that `tsc` has.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}
NUMBERS = {name: number for number, name in DTYPES.items()}
#: Floats of 16 bits, which are only stored.
HALVES = frozenset({"float16", "bfloat16"})


def place_of(number: int | SymExpr) -> Expr:
    """A place that a model names (a diagonal, say), which may be any int64, as an index that sizes are added to: what lies
    beyond every array stays beyond it, and no sum overflows."""
    known = number.as_int() if isinstance(number, SymExpr) else number
    return index(number if known is None else max(-FARTHEST, min(known, FARTHEST)))


def as_index(value: Expr) -> Expr:
    """An integer as an index."""
    return value if value.dtype == INDEX else Cast(value, INDEX)


def is_float(dtype: str) -> bool:
    """Whether `dtype` is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def element_type(ctx: InferContext, number: int) -> str:
    """The dtype of an ONNX element type number. Raises UnsupportedError for one that `tsc` has not."""
    found = DTYPES.get(int(number))
    if found is None:
        raise UnsupportedError(f"{where(ctx)} has element type {number}, which is not supported")
    return found


def where(ctx: InferContext) -> str:
    """How errors and guards cite the node."""
    return f"node '{ctx.node.name}' ({ctx.node.op})"


def canonical(ctx: InferContext, i: int) -> Shape:
    """The shape of input `i`, canonical under the facts known by now."""
    return tuple(ctx.env.canon(d) for d in ctx.type(i).shape)


def broadcast(env: ShapeEnv, shapes: Sequence[Sequence[SymExpr]], reason: str) -> Shape:
    """The NumPy broadcast of `shapes`; two dims that are not provably equal (and neither is 1) are assumed equal."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[SymExpr] = []
    for position in range(rank):
        extent = ONE
        for shape in shapes:
            k = position - (rank - len(shape))
            other = env.canon(shape[k]) if k >= 0 else ONE
            if other in (ONE, extent):
                continue
            if extent == ONE:
                extent = other
            else:
                env.assume_eq(extent, other, f"{reason}: broadcast dims must be equal")
                extent = env.canon(other if extent.as_int() is None else extent)
        result.append(extent)
    return tuple(env.canon(d) for d in result)


def unify(env: ShapeEnv, a: SymExpr, b: SymExpr, reason: str) -> SymExpr:
    """The one size of two dims that must be equal."""
    env.assume_eq(a, b, reason)
    return env.canon(b if env.canon(a).as_int() is None else a)


def broadcast_read(lowering: Lowering, i: int, at: tuple[Expr, ...]) -> Expr:
    """Element of input `i` that belongs to the output's index `at`: index 0 wherever the input's extent is 1."""
    shape = canonical(lowering.infer, i)
    offset = len(at) - len(shape)
    return lowering.read(i, tuple(index(0) if d == ONE else at[offset + k] for k, d in enumerate(shape)))


# -- operands that must be known -------------------------------------------------------------------------------

def known_ints(ctx: InferContext, i: int, what: str, scalar: bool = False) -> tuple[int, ...]:
    """Input `i` as integers, a list or, where that is allowed, a `scalar`. Raises ModelError when it is neither,
    UnsupportedError when they depend on data or on a Dim."""
    found = ctx.known(i, what)
    if found.ndim != 1 and not (scalar and found.ndim == 0):
        raise ModelError(f"{where(ctx)} has {what} of rank {found.ndim}, expected a list")
    values = [v.as_int() for v in found.ravel()]
    if any(v is None for v in values):
        raise UnsupportedError(f"{where(ctx)} has {what} that depend on a dim, not supported yet; make them constant")
    return tuple(v for v in values if v is not None)


def axes_operand(ctx: InferContext, i: int, rank: int) -> tuple[int, ...] | None:
    """Normalised axes from input `i` (newer opsets) or the attribute `axes` (older ones); None when neither is given. Raises as
    `known_ints`."""
    if ctx.has(i):
        given: Sequence[int] = known_ints(ctx, i, "axes")
    elif ctx.attr("axes") is not None:
        given = ctx.attr("axes")
    else:
        return None
    return tuple(ctx.axis(int(a), rank) for a in given)


def distinct(ctx: InferContext, axes: Sequence[int]) -> Sequence[int]:
    """Normalised axes of which none may stand twice. Raises ModelError."""
    if len(set(axes)) < len(axes):
        raise ModelError(f"{where(ctx)} has axes {tuple(axes)}, expected each once")
    return axes


def named(ctx: InferContext, what: str, value: SymExpr, signed: bool = False) -> SymExpr:
    """A Dim of the node's own for a size that a run computes, which is never negative unless it is `signed`."""
    return ctx.env.define(identifier(f"{ctx.node.name}_{what}"), value, signed)


def at_least_zero(ctx: InferContext, extent: SymExpr, what: str) -> SymExpr:
    """`extent`, assumed not negative where that is not provable."""
    ctx.env.assume_le(0, extent, f"{where(ctx)}: {what} must not be negative")
    return extent


# -- symbolic contents -----------------------------------------------------------------------------------------

def contents_map(fn: Callable[..., SymExpr | None], *arrays: Contents) -> Contents | None:
    """`fn` over broadcast contents; None when it cannot decide an element or the result is too large."""
    lifted = np.broadcast_arrays(*arrays)
    if lifted[0].size > CONTENTS_LIMIT:
        return None
    result = np.empty(lifted[0].shape, dtype=object)
    for at in np.ndindex(result.shape):
        value = fn(*(a[at] for a in lifted))
        if value is None:
            return None
        result[at] = value
    return result


def constant_contents(array: NDArray[Any]) -> Contents | None:
    """Symbolic contents of a small constant of integer or bool dtype, else None."""
    return symbolic(array) if array.dtype.kind in "iub" and array.size <= CONTENTS_LIMIT else None


def all_contents(ctx: InferContext) -> list[Contents] | None:
    """The contents of all inputs, or None when one is unknown."""
    found = [c for c in ctx.contents if c is not None]
    return found if len(found) == len(ctx.contents) else None


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """`shape` as integers when it is static and small enough for contents, else None."""
    sizes = [d.as_int() for d in shape]
    if any(s is None for s in sizes):
        return None
    result = tuple(s for s in sizes if s is not None)
    return result if int(np.prod(result)) <= CONTENTS_LIMIT else None


def moved(fn: Callable[[Contents], Contents]) -> Callable[[InferContext], Values]:
    """A value rule that rearranges the contents of input 0."""
    def rule(ctx: InferContext) -> Values:
        source = ctx.contents[0]
        return (None if source is None else fn(source),)
    return rule


def as_object(value: Any) -> Contents:
    """An object array even where NumPy would hand out the bare element."""
    if isinstance(value, np.ndarray):
        return value
    result = np.empty((), dtype=object)
    result[()] = value
    return result


# -- index maps ------------------------------------------------------------------------------------------------

def linear_index(at: Sequence[Expr], shape: Sequence[SymExpr]) -> Expr:
    """Row-major position of index `at` in `shape`."""
    total = index(0)
    for k, (position, extent) in enumerate(zip(at, shape)):
        if extent == ONE:
            continue
        total = add(total, mul(position, index(product(shape[k + 1:]))))
    return total


def delinearised(position: Expr, shape: Sequence[SymExpr]) -> tuple[Expr, ...]:
    """The index in `shape` of row-major `position`, with floor division and remainder only where needed."""
    result: list[Expr] = []
    significant = [k for k, extent in enumerate(shape) if extent != ONE]
    for k, extent in enumerate(shape):
        if extent == ONE:
            result.append(index(0))
            continue
        quotient = call("floordiv", position, index(product(shape[k + 1:])))
        result.append(quotient if k == significant[0] else call("mod", quotient, index(extent)))
    return tuple(result)


def view_index(at: Sequence[Expr], out: Sequence[SymExpr], source: Sequence[SymExpr]) -> tuple[Expr, ...]:
    """The index in `source` of the element that a row-major view of shape `out` has at `at`.

    Dims are matched left to right in the smallest groups of equal product, so that an untouched dim keeps its index and a
    merged one gets an affine index; only dims that are really split need division.
    """
    result: list[Expr] = []
    for outs, sources in _groups(out, source):
        own, theirs = out[outs], source[sources]
        result.extend(delinearised(linear_index(at[outs], own), theirs))
    return tuple(result)


def _groups(out: Sequence[SymExpr], source: Sequence[SymExpr]) -> Iterator[tuple[slice, slice]]:
    i = j = 0
    while i < len(out) or j < len(source):
        p, q = _smallest_group(out[i:], source[j:])
        yield slice(i, i + p), slice(j, j + q)
        i, j = i + p, j + q


def _smallest_group(out: Sequence[SymExpr], source: Sequence[SymExpr]) -> tuple[int, int]:
    if out and out[0] == ONE:
        return 1, 0
    if source and source[0] == ONE:
        return 0, 1
    for total in range(2, len(out) + len(source)):
        for p in range(max(1, total - len(source)), min(len(out), total - 1) + 1):
            if product(out[:p]) == product(source[:total - p]):
                return p, total - p
    return len(out), len(source)


def tensor(dtype: str, shape: Sequence[SymExpr]) -> tuple[TensorType]:
    """The types of a node with one output."""
    return (TensorType(dtype, tuple(shape)),)


def same_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """The type of a node whose output is as its first input."""
    return tensor(ctx.type(0).dtype, canonical(ctx, 0))


def expect_within(ctx: InferContext, i: int, shape: Shape) -> None:
    """Input `i` must broadcast to `shape` without enlarging it (what the standard calls unidirectional).

    Raises ModelError for more dims, ShapeError for other sizes; sizes that are not known to fit are assumed to.
    """
    own = canonical(ctx, i)
    if len(own) > len(shape):
        raise ModelError(f"{where(ctx)} has an input {i} of rank {len(own)}, expected at most {len(shape)}")
    for d, extent in zip(own, shape[len(shape) - len(own):]):
        if d != ONE:
            ctx.env.assume_eq(d, extent, f"{where(ctx)}: input {i} must broadcast to the shape of the result")


def expect_list(ctx: InferContext, i: int, extent: SymExpr) -> None:
    """Raise ModelError or ShapeError where input `i` is no list of `extent` values; a size not known to fit is assumed to."""
    if ctx.type(i).rank != 1:
        raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected a list")
    unify(ctx.env, canonical(ctx, i)[0], extent, f"{where(ctx)}: input {i} must have {extent} elements")


def scalar_contents(ctx: InferContext, i: int, what: str) -> SymExpr:
    """The one element of input `i`, which must be known at compile time. Raises ModelError for none or several."""
    found = ctx.known(i, what)
    if found.size != 1:
        raise ModelError(f"{where(ctx)} has a {what} of shape {found.shape}, expected a scalar")
    return ctx.env.canon(found.ravel()[0])


def sizes_operand(ctx: InferContext, i: int, what: str, count: int | None = None) -> list[SymExpr]:
    """The elements of input `i`, a list of sizes: known at compile time, and assumed not negative; `count` as for `known`.
    Raises ModelError for any other rank than 1 and for negative ones."""
    found = ctx.known(i, what, count)
    if found.ndim != 1:
        raise ModelError(f"{where(ctx)} has {what} of rank {found.ndim}, expected a list")
    sizes = [ctx.env.canon(d) for d in found]
    for d in sizes:
        if ctx.env.prove_lt(d, 0):
            raise ModelError(f"{where(ctx)} has {d} among its {what}, expected none below 0")
        ctx.env.assume_le(0, d, f"{where(ctx)}: none of its {what} may be negative")
    return sizes


def expect_rank(ctx: InferContext, i: int, least: int) -> None:
    """Raise ModelError when input `i` has fewer than `least` dims."""
    if ctx.type(i).rank < least:
        raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected at least {least}")
