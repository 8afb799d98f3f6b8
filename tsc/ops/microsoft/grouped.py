"""GroupQueryAttention: what language models decode by. Each sequence has keys and values of its own past in a cache, of which
the new ones take their places; rows are turned by their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import UnsupportedError
from tsc.ops.attention import apart
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.form import FLOATS, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.microsoft.heads import Heads, angles, attend, evenly, expect_heads, refuse, turned
from tsc.ops.movement import positions, reshape, shape_operand, size_operand
from tsc.ops.samples import floats
from tsc.ops.shapes import as_object, canonical, scalar_contents, unify, where
from tsc.sym import ONE, ZERO, SymExpr, sym_max

Q, K, V, PAST_K, PAST_V, LAST, TOTAL, COS, SIN, PLACES, ADDED = range(11)


def _grouped(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    _refuse(ctx)
    parts, queries, new = _operands(builder)
    total = scalar_contents(ctx, TOTAL, "total_sequence_length")
    first, places = _places(builder, queries)
    q, k, v = parts
    if ctx.attr("do_rotary", 0):
        q, k = _turned(builder, q, queries, places), _turned(builder, k, new, places)
    past = ZERO
    if ctx.has(PAST_K):
        past = unify(ctx.env, canonical(ctx, PAST_K)[2], canonical(ctx, PAST_V)[2], f"{where(ctx)}: a value for each key")
    kept = ctx.env.canon(sym_max(past, total))
    cached = [_written(builder, i, x, new, first, kept) for i, x in ((PAST_K, k), (PAST_V, v))]
    shown = [x if kept == total else builder.emit("Slice", x, *(shape_operand(builder, (at,)) for at in (
        ZERO, total, SymExpr.of(2)))) for x in cached]
    keys = Heads(new.batch, new.count, total, new.size)
    bias = _seen(builder, queries, total, places)
    y, _ = attend(builder, q, shown[0], shown[1], (queries, keys, keys), ctx.type(Q).dtype, bias,
                  float(ctx.attr("softcap", 0.0)))
    return (y, *cached)[:len(ctx.node.outputs)]


def _refuse(ctx: InferContext) -> None:
    refuse(ctx, {11: "sinks of heads", 12: "a quantised cache", 13: "a quantised cache", 14: "norms of queries",
                 15: "norms of keys", 16: "lengths of queries"})
    if ctx.has(PAST_K) != ctx.has(PAST_V):
        raise UnsupportedError(f"{where(ctx)} has one of past_key and past_value, expected both or none")
    if len(ctx.node.outputs) > 3:
        raise UnsupportedError(f"{where(ctx)} gives its scores, which is not supported")


def _operands(builder: Builder) -> tuple[list[str], Heads, Heads]:
    """Queries, keys and values by heads; the queries', and those of keys and values."""
    ctx = builder.infer
    count, groups = expect_heads(ctx, "num_heads"), expect_heads(ctx, "kv_num_heads")
    batch, rows, width = canonical(ctx, Q)
    ctx.env.assume_eq(count % groups, ZERO, f"{where(ctx)}: heads of queries share those of keys evenly")
    if ctx.has(K):
        size = evenly(ctx, width, count, "queries")
        given = list(ctx.node.inputs[:3])
    else:  # all in one, side by side
        size = evenly(ctx, width, ctx.env.canon(count + 2 * groups), "queries, keys and values")
        widths = [ctx.env.canon(n * size) for n in (count, groups, groups)]
        given = [*builder.several("Split", (ctx.node.inputs[Q], shape_operand(builder, widths)), 3, axis=2)]
    queries, new = Heads(batch, count, rows, size), Heads(batch, groups, rows, size)
    return [apart(builder, part, own.shape) for part, own in zip(given, (queries, new, new))], queries, new


def _places(builder: Builder, queries: Heads) -> tuple[str, str]:
    """The place of the first new row of each sequence, and of all of them, as int64: sequences end at their last key."""
    ctx, (batch, rows) = builder.infer, (queries.batch, queries.length)
    unify(ctx.env, canonical(ctx, LAST)[0], batch, f"{where(ctx)}: a last key for each sequence")
    last = builder.emit("Cast", reshape(builder, ctx.node.inputs[LAST], (batch, ONE)), to=7)
    back = size_operand(builder, as_object(ctx.env.canon(rows - 1)), "int64")
    first = builder.emit("Max", builder.emit("Sub", last, back), builder.constant(np.array(0)))  # of a padded prompt
    return first, builder.emit("Add", first, positions(builder, rows))


def _turned(builder: Builder, x: str, heads: Heads, places: str) -> str:
    ctx = builder.infer
    half = canonical(ctx, COS)[1]
    given = ctx.node.inputs[PLACES] if ctx.has(PLACES) else places
    shape = heads.batch, ONE, heads.length, half
    cos, sin = (angles(builder, cache, given, shape) for cache in (COS, SIN))
    return turned(builder, x, heads.shape, half, cos, sin, bool(ctx.attr("rotary_interleaved", 0)))


def _written(builder: Builder, past: int, new: str, of: Heads, first: str, kept: SymExpr) -> str:
    """A cache of so many places: what was in it before the first new row of each sequence, its new rows, and zeros."""
    ctx = builder.infer
    rest = scalar_operand(builder, 0.0, ctx.type(Q).dtype)
    if ctx.has(past):
        old, had = ctx.node.inputs[past], canonical(ctx, past)[2]
        if had != kept:
            behind = shape_operand(builder, (*(ZERO,) * 6, ctx.env.canon(kept - had), ZERO))
            old = builder.emit("Pad", old, behind)
        was = builder.emit("Less", positions(builder, kept), first)
        rest = builder.emit("Where", reshape(builder, was, (of.batch, ONE, kept, ONE)), old, rest)
    place = builder.emit("Sub", positions(builder, kept), first)  # batch, places
    most = size_operand(builder, as_object(ctx.env.canon(of.length - 1)), "int64")
    within = builder.emit("Max", builder.emit("Min", place, most), builder.constant(np.array(0)))
    is_new = reshape(builder, builder.emit("Equal", place, within), (of.batch, ONE, kept, ONE))
    rows = builder.emit("Transpose", new, perm=(0, 2, 1, 3))
    taken = builder.emit("GatherND", rows, builder.emit("Unsqueeze", within, axes=(2,)), batch_dims=1)
    return builder.emit("Where", is_new, builder.emit("Transpose", taken, perm=(0, 2, 1, 3)), rest)


def _seen(builder: Builder, queries: Heads, total: SymExpr, places: str) -> str:
    """What is added to scores: minus infinity for keys behind a row's own, and for those further before it than the window."""
    ctx, dtype, window = builder.infer, builder.infer.type(Q).dtype, int(builder.infer.attr("local_window_size", -1))
    place, key = reshape(builder, places, (queries.batch, ONE, queries.length, ONE)), positions(builder, total)
    shown = builder.emit("LessOrEqual", key, place)
    if window >= 0:
        near = builder.emit("Less", builder.emit("Sub", place, key), builder.constant(np.array(window)))
        shown = builder.emit("And", shown, near)
    given = ctx.node.inputs[ADDED] if ctx.has(ADDED) else scalar_operand(builder, 0.0, dtype)
    return builder.emit("Where", shown, given, scalar_operand(builder, -np.inf, dtype))


# -- samples -----------------------------------------------------------------------------------------------------

def _samples() -> Sequence[Sample]:
    heads, total = {"num_heads": 4, "kv_num_heads": 2}, np.array(5, np.int32)
    one, last = [floats(2, 1, 64), floats(2, 1, 32), floats(2, 1, 32)], np.array([4, 2], np.int32)
    past, ends, caches = (floats(2, 2, 4, 16), floats(2, 2, 4, 16)), np.array([4, 4], np.int32), (floats(7, 8), floats(7, 8))
    two = [floats(1, 2, 64), floats(1, 2, 32), floats(1, 2, 32), floats(1, 2, 3, 16), floats(1, 2, 3, 16), ends[:1], total]
    return [Sample([*one, *past, last, total], heads, 3), Sample([*two, *caches], heads | {"do_rotary": 1, "scale": 0.5}, 3),
            Sample([floats(2, 5, 64), floats(2, 5, 32), floats(2, 5, 32), None, None, ends, total], heads, 3),
            Sample([floats(2, 5, 128), None, None, None, None, ends, total, *caches],
                   heads | {"do_rotary": 1, "rotary_interleaved": 1}, 3),
            Sample([*one, floats(2, 2, 9, 16), floats(2, 2, 9, 16), ends, total, *caches], heads | {
                "local_window_size": 2, "do_rotary": 1}, 3),
            Sample(two, heads | {"softcap": 3.0, "smooth_softmax": 0, "kv_cache_bit_width": 0}, 3)]


_NUMBERS = {"do_rotary": "int", "rotary_interleaved": "int", "softcap": "float", "scale": "float"}

OPS: tuple[OpDef, ...] = (
    OpDef("GroupQueryAttention", PatternKind.CONTRACTION, decompose=_grouped, samples=_samples, domain=MICROSOFT,
          static_inputs=(TOTAL,), reads=("num_heads", "kv_num_heads", "local_window_size", *_NUMBERS),
          form=Form("query:T key?:T value?:T past_key?:T past_value?:T seqlens_k:M total_sequence_length:M cos_cache?:T "
                    "sin_cache?:T position_ids?:I attention_bias?:T head_sink?:T k_scale?:S v_scale?:S q_norm_weight?:T "
                    "k_norm_weight?:T query_seqlens?:M", "output:T present_key?:T present_value?:T output_qk?:T",
                    {"T": FLOATS, "M": ("int32",), "I": ("int64",), "S": ("float32",)}, {
                        "local_window_size": -1, "causal": 1, "smooth_softmax": -1, "qk_output": 0, "sliding_window_cache": 0,
                        "k_quant_type": "NONE", "v_quant_type": "NONE", "qk_norm_epsilon": 1e-6}, {
                            **_NUMBERS, "kv_cache_bit_width": "int"}, {"num_heads": "int", "kv_num_heads": "int"},
                    {"smooth_softmax": 0, "kv_cache_bit_width": 0})),
)
