"""Attention (opset 23 on): heads, grouped or not, caches, masks, causal and sliding windows, by primitives that chains fuse."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.movement import positions, reshape, shape_operand, size_operand
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import bools, floats
from tsc.ops.shapes import Shape, as_object, canonical, element_type, unify, where
from tsc.sym import ONE, ZERO, SymExpr
from tsc.te.expr import BOOL

Q, K, V, MASK, PAST_K, PAST_V, VALID = range(7)


def _heads(ctx: InferContext, i: int) -> SymExpr:
    """How many heads input `i` has."""
    given = ctx.attr("q_num_heads" if i == Q else "kv_num_heads")
    if ctx.type(i).rank == 4:
        own = canonical(ctx, i)[1]
        return own if given is None else unify(ctx.env, own, SymExpr.of(given), f"{where(ctx)}: input {i} has {given} heads")
    if ctx.type(i).rank != 3 or given is None or given < 1:
        raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected 4, or 3 with q_num_heads and "
                         "kv_num_heads")
    return SymExpr.of(given)


def _split(ctx: InferContext, i: int) -> Shape:
    """Batch, heads, length and size of a head of input `i`."""
    shape, heads = canonical(ctx, i), _heads(ctx, i)
    if len(shape) == 4:
        return shape[0], heads, shape[2], shape[3]
    ctx.env.assume_eq(shape[2] % heads, ZERO, f"{where(ctx)}: {heads} heads share the last axis of input {i}")
    return shape[0], heads, shape[1], ctx.env.canon(shape[2] // heads)


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    env, reason = ctx.env, where(ctx)
    if len({ctx.type(i).rank for i in (Q, K, V)}) > 1:
        raise ModelError(f"{reason} has operands of different ranks, expected all of rank 3 or 4")
    if ctx.has(PAST_K) != ctx.has(PAST_V) or (ctx.has(PAST_K) and ctx.has(VALID)):
        raise ModelError(f"{reason} has some of past_key, past_value and nonpad_kv_seqlen, expected both pasts, or lengths")
    q, k, v = (_split(ctx, i) for i in (Q, K, V))
    for part in (k, v):
        unify(env, q[0], part[0], f"{reason}: queries, keys and values have one batch")
    unify(env, k[1], v[1], f"{reason}: keys and values have as many heads")
    unify(env, k[2], v[2], f"{reason}: there is a value for each key")
    unify(env, q[3], k[3], f"{reason}: heads of queries and keys are multiplied")
    env.assume_eq(q[1] % k[1], ZERO, f"{reason}: heads of queries share those of keys evenly")
    if ctx.has(MASK) and ctx.type(MASK).rank < 1:
        raise ModelError(f"{reason} has a mask of rank 0, expected a place for each key at least")
    total = _total(ctx)
    dtype, kept = ctx.type(Q).dtype, canonical(ctx, Q)
    y = (*q[:3], v[3]) if len(kept) == 4 else (*kept[:2], q[1] * v[3])
    shapes: list[Shape] = [y, (*k[:2], total, k[3]), (*v[:2], total, v[3]), (*q[:3], total)]
    dtypes = dtype, ctx.type(K).dtype, ctx.type(V).dtype, dtype
    return tuple(TensorType(d, tuple(map(env.canon, shape))) for d, shape in zip(dtypes, shapes))[:len(ctx.node.outputs)]


def _offset(ctx: InferContext) -> SymExpr:
    """How many keys there are before the first of input K."""
    if not ctx.has(PAST_K):
        return ZERO
    key, value = canonical(ctx, PAST_K), canonical(ctx, PAST_V)
    return unify(ctx.env, key[2], value[2], f"{where(ctx)}: past keys and values are as many")


def _total(ctx: InferContext) -> SymExpr:
    """How many keys there are, past ones among them."""
    return ctx.env.canon(_split(ctx, K)[2] + _offset(ctx))


def _attention(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    q, k, v = (_by_heads(builder, i) for i in (Q, K, V))
    if ctx.has(PAST_K):
        k, v = (builder.emit("Concat", ctx.node.inputs[past], now, axis=2) for past, now in ((PAST_K, k), (PAST_V, v)))
    (batch, heads, rows, size), (_, groups, _, width) = _split(ctx, Q), _split(ctx, V)
    total, dtype = _total(ctx), ctx.type(Q).dtype
    keys, values = (shared_heads(builder, x, (batch, groups, total, d), heads) for x, d in ((k, size), (v, width)))
    values = cast(builder, values, ctx.type(V).dtype, dtype)
    raw = scores_of(builder, q, keys, ctx.attr("scale"), size, dtype)
    scores = capped = softly_capped(builder, raw, float(ctx.attr("softcap", 0.0)), dtype)
    bias = _bias(builder, rows, total, dtype)
    if bias is not None:
        scores = builder.emit("Add", capped, bias)
    biased = scores
    precision = ctx.attr("softmax_precision")
    working = dtype if precision is None else element_type(ctx, precision)
    if working not in ("float32", "float64"):
        working = dtype
    shares = cast(builder, builder.emit("Softmax", cast(builder, scores, dtype, working), axis=-1), working, dtype)
    if bias is not None and _may_hide_all(ctx):  # a row that sees no key is 0
        top = reduction(builder, "ReduceMax", bias, (-1,))
        hidden = builder.emit("Equal", top, scalar_operand(builder, -math.inf, dtype))
        shares = builder.emit("Where", hidden, scalar_operand(builder, 0.0, dtype), shares)
    y = builder.emit("MatMul", shares, values)
    if ctx.type(Q).rank == 3:
        y = together(builder, y, (batch, heads, rows, width))
    shown = {0: raw, 1: capped, 2: biased, 3: shares}.get(int(ctx.attr("qk_matmul_output_mode", 0)))
    if shown is None:
        raise ModelError(f"{where(ctx)} has qk_matmul_output_mode {ctx.attr('qk_matmul_output_mode')}, expected 0 to 3")
    return (y, k, v, shown)[:len(ctx.node.outputs)]


def scores_of(builder: Builder, q: str, k: str, scale: float | None, size: SymExpr, dtype: str) -> str:
    """Of each query and key their product, by a scale or, where none is given, one over the root of a head's size."""
    scaled = builder.emit("Mul", q, score_scale(builder, scale, size, dtype))
    return builder.emit("MatMul", scaled, builder.emit("Transpose", k, perm=(0, 1, 3, 2)))


def softly_capped(builder: Builder, scores: str, cap: float, dtype: str) -> str:
    """Scores between -cap and cap; as they are where it is not above 0."""
    if cap <= 0:
        return scores
    limit = scalar_operand(builder, cap, dtype)
    return builder.emit("Mul", builder.emit("Tanh", builder.emit("Div", scores, limit)), limit)


def score_scale(builder: Builder, given: float | None, size: SymExpr, dtype: str) -> str:
    """The factor of scores: what is `given`, or one over the root of a head's size."""
    if given is not None:
        return scalar_operand(builder, float(given), dtype)
    known = size.as_int()
    if known is not None:
        return scalar_operand(builder, 1 / math.sqrt(known) if known else 1.0, dtype)
    return builder.emit("Reciprocal", builder.emit("Sqrt", size_operand(builder, as_object(size), dtype)))


def _by_heads(builder: Builder, i: int) -> str:
    """Input `i` as batch, heads, length and size of a head."""
    ctx = builder.infer
    if ctx.type(i).rank == 4:
        return ctx.node.inputs[i]
    return apart(builder, ctx.node.inputs[i], _split(ctx, i))


def apart(builder: Builder, value: str, shape: Shape) -> str:
    """Rows with all heads side by side, in `shape`: batch, heads, rows and size of a head."""
    batch, heads, length, size = shape
    return builder.emit("Transpose", reshape(builder, value, (batch, length, heads, size)), perm=(0, 2, 1, 3))


def together(builder: Builder, value: str, shape: Shape) -> str:
    """What is of `shape`, batch, heads, rows and size of a head, as rows with all heads side by side."""
    batch, heads, length, size = shape
    rows = builder.emit("Transpose", value, perm=(0, 2, 1, 3))
    return reshape(builder, rows, (batch, length, builder.infer.env.canon(heads * size)))


def shared_heads(builder: Builder, value: str, shape: Shape, heads: SymExpr) -> str:
    """Keys or values of `shape`, those of a group for each of its `heads`."""
    batch, groups, length, size = shape
    if groups == heads:
        return value
    members = builder.infer.env.canon(heads // groups)
    apart = reshape(builder, value, (batch, groups, ONE, length, size))
    spread = builder.emit("Expand", apart, shape_operand(builder, (batch, groups, members, length, size)))
    return reshape(builder, spread, (batch, heads, length, size))


# -- what a row sees -------------------------------------------------------------------------------------------

def _windows(ctx: InferContext) -> tuple[int, int]:
    """How many keys a row sees before and behind its own place, -1 for all."""
    found = int(ctx.attr("left_window_size", -1)), int(ctx.attr("right_window_size", -1))
    if min(found) < -1:
        raise ModelError(f"{where(ctx)} has windows of {found} keys, expected none below -1")
    return found


def _may_hide_all(ctx: InferContext) -> bool:
    """Whether a row may see no key."""
    return ctx.has(MASK) or ctx.has(VALID) or max(_windows(ctx)) >= 0


def _bias(builder: Builder, rows: SymExpr, total: SymExpr, dtype: str) -> str | None:
    """What is added to the scores: the mask, and minus infinity where a row sees no key."""
    ctx = builder.infer
    conditions = _conditions(builder, rows, total)
    mask = _padded_mask(builder, total) if ctx.has(MASK) else None
    if mask is not None and ctx.type(MASK).dtype == BOOL:
        conditions, mask = [mask, *conditions], None
    elif mask is not None:
        mask = cast(builder, mask, ctx.type(MASK).dtype, dtype)
    if not conditions:
        return mask
    seen = conditions[0]
    for condition in conditions[1:]:
        seen = builder.emit("And", seen, condition)
    shown = scalar_operand(builder, 0.0, dtype) if mask is None else mask
    return builder.emit("Where", seen, shown, scalar_operand(builder, -math.inf, dtype))


def _conditions(builder: Builder, rows: SymExpr, total: SymExpr) -> list[str]:
    """Of each row and key whether the row sees it, for all reasons but the mask."""
    ctx, (left, right) = builder.infer, _windows(builder.infer)
    found = []
    key = positions(builder, total)
    valid = None
    if ctx.has(VALID):
        valid = cast(builder, ctx.node.inputs[VALID], ctx.type(VALID).dtype, "int64")
        valid = reshape(builder, valid, (*canonical(ctx, VALID), ONE, ONE, ONE))
        found.append(builder.emit("Less", key, valid))
    if not ctx.attr("is_causal", 0) and max(left, right) < 0:
        return found
    place = positions(builder, rows, 1)
    before = size_operand(builder, as_object(_offset(ctx)), "int64")
    if valid is not None:
        before = builder.emit("Sub", valid, size_operand(builder, as_object(rows), "int64"))
    place = builder.emit("Add", place, before)
    if ctx.attr("is_causal", 0):
        found.append(builder.emit("LessOrEqual", key, place))
    for most, less, more in ((left, place, key), (right, key, place)):
        if most >= 0:
            found.append(builder.emit("LessOrEqual", builder.emit("Sub", less, more), builder.constant(np.array(most))))
    return found


def _padded_mask(builder: Builder, total: SymExpr) -> str:
    """The mask for all keys: those behind its end are not seen."""
    ctx, name = builder.infer, builder.infer.node.inputs[MASK]
    shape, dtype = canonical(ctx, MASK), ctx.type(MASK).dtype
    if not shape or shape[-1] == total:
        return name
    ctx.env.assume_le(shape[-1], total, f"{where(ctx)}: a mask has no more places than there are keys")
    pads = (ZERO,) * (2 * len(shape) - 1)
    fill = builder.constant(np.array(False)) if dtype == BOOL else scalar_operand(builder, -math.inf, dtype)
    return builder.emit("Pad", name, shape_operand(builder, (*pads, ctx.env.canon(total - shape[-1]))), fill)


# -- samples ---------------------------------------------------------------------------------------------------

def _samples() -> Sequence[Sample]:
    q, k, v = floats(2, 4, 3, 8), floats(2, 2, 5, 8), floats(2, 2, 5, 6)
    same = floats(2, 4, 5, 8), floats(2, 4, 5, 6)
    flat = floats(2, 3, 32), floats(2, 5, 16), floats(2, 5, 12)
    past = floats(2, 2, 3, 8), floats(2, 2, 3, 6)
    return [Sample([q, *same], outputs=4), Sample([q, k, v, floats(3, 5)], outputs=1),
            Sample([q, k, v, bools(2, 1, 3, 5), *past][:4], {"is_causal": 1, "softcap": 2.0, "qk_matmul_output_mode": 1}, 4),
            Sample([*flat], {"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.5}),
            Sample([q, k, v, None, *past], {"is_causal": 1, "qk_matmul_output_mode": 3}, 4)]


OPS: tuple[OpDef, ...] = (
    OpDef("Attention", PatternKind.CONTRACTION, _types, decompose=_attention, samples=_samples,
          grows=lambda _, k: 2 if k in (PAST_K, PAST_V) else None,
          reads=("is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode", "right_window_size",
                 "scale", "softcap", "softmax_precision")),
)
