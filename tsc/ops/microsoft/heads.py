"""What the attentions of ONNX Runtime share: heads, their scores, masks, and turns by position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ops.attention import scores_of, shared_heads, softly_capped, together
from tsc.ops.base import Builder, InferContext
from tsc.ops.contraction import scalar_operand
from tsc.ops.movement import positions, reshape, shape_operand, size_operand
from tsc.ops.shapes import Shape, as_object, canonical, unify, where
from tsc.sym import ONE, ZERO, SymExpr


@dataclass(frozen=True, slots=True)
class Heads:
    """Batch, heads, length and size of a head: the shape of queries, keys or values once they are apart."""

    batch: SymExpr
    count: SymExpr
    length: SymExpr
    size: SymExpr

    @property
    def shape(self) -> Shape:
        return self.batch, self.count, self.length, self.size


def evenly(ctx: InferContext, whole: SymExpr, heads: SymExpr, what: str) -> SymExpr:
    """The size of one of several heads. Raises ShapeError where they do not share `whole`."""
    ctx.env.assume_eq(whole % heads, ZERO, f"{where(ctx)}: {heads} heads share {what}")
    return ctx.env.canon(whole // heads)


def attend(builder: Builder, q: str, k: str, v: str, of: tuple[Heads, Heads, Heads], dtype: str, bias: str | None,
           softcap: float = 0.0) -> tuple[str, str]:
    """softmax(scale * q @ k.T + bias) @ v, rows with all heads side by side, and the scores that the softmax is of. A group of
    queries' heads shares one of keys and values."""
    ctx, (queries, keys, values) = builder.infer, of
    k, v = (shared_heads(builder, x, own.shape, queries.count) for x, own in ((k, keys), (v, values)))
    scores = softly_capped(builder, scores_of(builder, q, k, ctx.attr("scale") or None, queries.size, dtype), softcap, dtype)
    if bias is not None:
        scores = builder.emit("Add", scores, bias)
    y = builder.emit("MatMul", builder.emit("Softmax", scores, axis=-1), v)
    return together(builder, y, (*queries.shape[:3], values.size)), scores


# -- masks -------------------------------------------------------------------------------------------------------

def mask_bias(builder: Builder, mask: int, queries: Heads, total: SymExpr, past: SymExpr, dtype: str) -> str | None:
    """What is added to scores of `total` keys: the attribute mask_filter_value where input `mask` hides a key, the least number
    behind a row's own place where attention is unidirectional. None where all is seen."""
    ctx = builder.infer
    causal = bool(ctx.attr("unidirectional", 0))
    filtered = ctx.attr("mask_filter_value")
    hidden = scalar_operand(builder, -10000.0 if filtered is None else float(filtered), dtype)
    shown = _shown(builder, mask, queries, total) if ctx.has(mask) and not _is_dummy(ctx, mask, total, causal) else None
    bias = None if shown is None else builder.emit("Where", shown, scalar_operand(builder, 0.0, dtype), hidden)
    if not causal:
        return bias
    place = builder.emit("Add", positions(builder, queries.length, 1), size_operand(builder, as_object(past), "int64"))
    before = builder.emit("LessOrEqual", positions(builder, total), place)
    least = scalar_operand(builder, float(np.finfo(np.float32).min), dtype)
    return builder.emit("Where", before, scalar_operand(builder, 0.0, dtype) if bias is None else bias, least)


def _is_dummy(ctx: InferContext, mask: int, total: SymExpr, causal: bool) -> bool:
    """Whether a mask is one of those of one place that stand where unidirectional attention needs none."""
    shape = canonical(ctx, mask)
    return causal and len(shape) == 2 and shape[1] == ONE != total


def _shown(builder: Builder, mask: int, queries: Heads, total: SymExpr) -> str:
    """Of batch, heads, rows and keys whether a mask shows the key: by its length, where it begins and ends, or one by one."""
    ctx, value, shape = builder.infer, builder.infer.node.inputs[mask], canonical(builder.infer, mask)
    reason = f"{where(ctx)}: input {mask} masks"
    if len(shape) == 1:
        ends = [value]
        if shape[0] != queries.batch and ctx.env.canon(2 * queries.batch) == shape[0]:
            ends = [*builder.several("Split", (value, shape_operand(builder, (queries.batch,) * 2)), 2, axis=0)]
        else:
            unify(ctx.env, shape[0], queries.batch, f"{reason} each sequence")
        found = [builder.emit("Cast", reshape(builder, end, (queries.batch, ONE, ONE, ONE)), to=7) for end in ends]
        key = positions(builder, total)
        seen = builder.emit("Less", key, found[0])
        return seen if len(found) < 2 else builder.emit("And", seen, builder.emit("GreaterOrEqual", key, found[1]))
    if len(shape) not in (2, 3):
        raise UnsupportedError(f"{where(ctx)} has a mask of rank {len(shape)}, which is not supported; use rank 1, 2 or 3")
    unify(ctx.env, shape[-1], total, f"{reason} each key")
    rows = shape[1] if len(shape) == 3 else ONE
    if len(shape) == 3:
        unify(ctx.env, rows, queries.length, f"{reason} each query's keys")
    unify(ctx.env, shape[0], queries.batch, f"{reason} each sequence")
    seen = builder.emit("Greater", value, builder.constant(np.array(0, ctx.type(mask).dtype)))
    return reshape(builder, seen, (shape[0], ONE, rows, total))


# -- turns by position -------------------------------------------------------------------------------------------

def turned(builder: Builder, x: str, shape: Shape, half: SymExpr, cos: str, sin: str, interleaved: bool) -> str:
    """The first 2 * `half` elements of each row of `x` turned in pairs by angles, whose `cos` and `sin` are broadcast: the pair
    is an element and the one next to it, or the one `half` behind it."""
    ctx, size = builder.infer, shape[-1]
    rest = ctx.env.canon(size - 2 * half)
    if interleaved:
        parts = builder.several("Split", (x, shape_operand(builder, (ctx.env.canon(2 * half), rest))), 2, axis=-1)
        pairs = reshape(builder, parts[0], (*shape[:-1], half, SymExpr.of(2)))
        a, b = (builder.emit("Gather", pairs, builder.constant(np.array(k)), axis=len(shape)) for k in (0, 1))
        tail = parts[1]
    else:
        a, b, tail = builder.several("Split", (x, shape_operand(builder, (half, half, rest))), 3, axis=-1)
    real = builder.emit("Sub", builder.emit("Mul", cos, a), builder.emit("Mul", sin, b))
    other = builder.emit("Add", builder.emit("Mul", sin, a), builder.emit("Mul", cos, b))
    if interleaved:
        own = (builder.emit("Unsqueeze", part, axes=(len(shape),)) for part in (real, other))
        made = [reshape(builder, builder.emit("Concat", *own, axis=-1), (*shape[:-1], ctx.env.canon(2 * half)))]
    else:
        made = [real, other]
    return builder.emit("Concat", *made, *([] if rest == ZERO else [tail]), axis=-1)


def angles(builder: Builder, cache: int, places: str, shape: Shape) -> str:
    """Rows of input `cache` at places, as `shape`, which broadcasts over heads."""
    return reshape(builder, builder.emit("Gather", builder.infer.node.inputs[cache], places, axis=0), shape)


def refuse(ctx: InferContext, inputs: dict[int, str]) -> None:
    """Raise UnsupportedError for an input that is given."""
    for i, what in inputs.items():
        if ctx.has(i):
            raise UnsupportedError(f"{where(ctx)} has {what} (input {i}), which is not supported")


def expect_heads(ctx: InferContext, name: str) -> SymExpr:
    """A count of heads. Raises ModelError for one below 1."""
    count = int(ctx.attr(name, 0))
    if count < 1:
        raise ModelError(f"{where(ctx)} has {name} {count}, expected at least 1")
    return SymExpr.of(count)
