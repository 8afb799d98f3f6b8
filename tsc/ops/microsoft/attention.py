"""Attention, MultiHeadAttention and RotaryEmbedding: projections, biases, masks and caches around heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ops.attention import apart, together
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.form import FLOATS, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.microsoft.heads import Heads, angles, attend, evenly, expect_heads, mask_bias, refuse, turned
from tsc.ops.movement import positions, shape_operand
from tsc.ops.samples import floats, ints
from tsc.ops.shapes import Shape, canonical, expect_list, unify, where
from tsc.sym import ONE, ZERO, SymExpr

X, WEIGHTS, BIAS, MASK, PAST, SCORES_BIAS = range(6)
Q, K, V, ALL_BIAS, PADDING, ADDED, PAST_K, PAST_V = range(8)


# -- Attention: one projection to queries, keys and values -------------------------------------------------------

def _attention(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    refuse(ctx, {6: "a buffer of past keys and values"})
    inputs = ctx.node.inputs
    made = builder.emit("MatMul", inputs[X], inputs[WEIGHTS])
    if ctx.has(BIAS):
        made = builder.emit("Add", made, inputs[BIAS])
    return of_projection(builder, made, _widths(ctx), ctx.type(X).dtype, MASK, PAST, SCORES_BIAS)


def of_projection(builder: Builder, projected: str, widths: Sequence[SymExpr], dtype: str, mask: int, past: int,
                  added: int | None = None) -> tuple[str, ...]:
    """Attention of queries, keys and values of these `widths`, which are side by side in what was projected; the numbers of
    the inputs that are its mask, past keys and values, and what is added to scores."""
    ctx, count = builder.infer, expect_heads(builder.infer, "num_heads")
    batch, rows, _ = canonical(ctx, X)
    own = [Heads(batch, count, rows, evenly(ctx, width, count, "what is projected")) for width in widths]
    parts = builder.several("Split", (projected, shape_operand(builder, widths)), 3, axis=2)
    q, k, v = (apart(builder, part, heads.shape) for part, heads in zip(parts, own))
    before, kept = ZERO, []
    if ctx.has(past):
        before, whole = canonical(ctx, past)[3], ctx.node.inputs[past]
        k, v = (builder.emit("Concat", builder.emit("Gather", whole, builder.constant(np.array(n)), axis=0), x, axis=2)
                for n, x in enumerate((k, v)))
    if len(ctx.node.outputs) > 1:
        kept = [builder.emit("Concat", *(builder.emit("Unsqueeze", x, axes=(0,)) for x in (k, v)), axis=0)]
    total = ctx.env.canon(before + rows)
    keys, values = (Heads(batch, count, total, heads.size) for heads in own[1:])
    bias = _with_added(builder, mask_bias(builder, mask, own[0], total, before, dtype), added)
    return (attend(builder, q, k, v, (own[0], keys, values), dtype, bias)[0], *kept)


def thirds(ctx: InferContext, weights: int) -> tuple[SymExpr, SymExpr, SymExpr]:
    """How many columns of the weights that are input number `weights` make queries, keys and values: as many each."""
    third = evenly(ctx, canonical(ctx, weights)[1], SymExpr.of(3), "the columns of the weights")
    return third, third, third


def _widths(ctx: InferContext) -> tuple[SymExpr, SymExpr, SymExpr]:
    """How many columns of the weights make queries, keys and values."""
    columns, given = canonical(ctx, WEIGHTS)[1], ctx.attr("qkv_hidden_sizes")
    if given is None:
        return thirds(ctx, WEIGHTS)
    if len(given) != 3 or min(given) < 1:
        raise ModelError(f"{where(ctx)} has qkv_hidden_sizes {tuple(given)}, expected three sizes")
    unify(ctx.env, columns, SymExpr.of(sum(given)), f"{where(ctx)}: the weights make queries, keys and values")
    q, k, v = map(SymExpr.of, given)
    return q, k, v


def _with_added(builder: Builder, bias: str | None, added: int | None) -> str | None:
    """A bias of scores and what input `added` has of it."""
    ctx = builder.infer
    if added is None or not ctx.has(added):
        return bias
    own = ctx.node.inputs[added]
    return own if bias is None else builder.emit("Add", own, bias)


# -- MultiHeadAttention ------------------------------------------------------------------------------------------

def _multi_head(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    refuse(ctx, {8: "a buffer of past keys and values", 9: "an indirection of its cache"})
    if ctx.has(PAST_K) != ctx.has(PAST_V):
        raise ModelError(f"{where(ctx)} has one of past_key and past_value, expected both or none")
    parts, own = _operands(builder)
    q, k, v = parts
    past = ZERO
    if ctx.has(PAST_K):
        past = unify(ctx.env, canonical(ctx, PAST_K)[2], canonical(ctx, PAST_V)[2], f"{where(ctx)}: a value for each key")
        k, v = (builder.emit("Concat", ctx.node.inputs[i], x, axis=2) for i, x in ((PAST_K, k), (PAST_V, v)))
    total = ctx.env.canon(past + own[1].length)
    queries, keys, values = own[0], *(Heads(h.batch, h.count, total, h.size) for h in own[1:])
    bias = _with_added(builder, mask_bias(builder, PADDING, queries, total, past, ctx.type(Q).dtype), ADDED)
    y, scores = attend(builder, q, k, v, (queries, keys, values), ctx.type(Q).dtype, bias)
    return (y, k, v, scores)[:len(ctx.node.outputs)]


def _operands(builder: Builder) -> tuple[list[str], list[Heads]]:
    """Queries, keys and values as batch, heads, rows and size, from operands that hold one, two or all three of them."""
    ctx, count = builder.infer, expect_heads(builder.infer, "num_heads")
    inputs, shape = ctx.node.inputs, canonical(ctx, Q)
    batch, rows = shape[:2]
    if len(shape) == 5:  # of each head its query, key and value
        size = shape[4]
        return _unpacked(builder, Q, 3), [Heads(batch, count, rows, size)] * 3
    queries = Heads(batch, count, rows, evenly(ctx, shape[2], count, "queries"))
    if not ctx.has(K):
        raise ModelError(f"{where(ctx)} has no keys, and queries of rank {len(shape)}, which hold none")
    key = canonical(ctx, K)
    if len(key) == 5:  # of each head its key and value
        pair = Heads(batch, count, key[1], key[4])
        q = apart(builder, _biased(builder, inputs[Q], ZERO, shape[2]), queries.shape)
        return [q, *_unpacked(builder, K, 2)], [queries, pair, pair]
    if not ctx.has(V):
        raise ModelError(f"{where(ctx)} has keys of rank {len(key)} and no values")
    value = canonical(ctx, V)
    if len(key) == 4:  # by heads already
        keys, values = Heads(batch, count, key[2], key[3]), Heads(batch, count, value[2], value[3])
        q = apart(builder, _biased(builder, inputs[Q], ZERO, shape[2]), queries.shape)
        return [q, inputs[K], inputs[V]], [queries, keys, values]
    keys = Heads(batch, count, key[1], evenly(ctx, key[2], count, "keys"))
    values = Heads(batch, count, value[1], evenly(ctx, value[2], count, "values"))
    starts = ZERO, shape[2], ctx.env.canon(shape[2] + key[2])
    found = [_biased(builder, inputs[i], start, canonical(ctx, i)[2]) for i, start in zip((Q, K, V), starts)]
    own = [queries, keys, values]
    return [apart(builder, part, heads.shape) for part, heads in zip(found, own)], own


def _biased(builder: Builder, value: str, start: SymExpr, width: SymExpr) -> str:
    """A projection with its part of the bias."""
    ctx = builder.infer
    if not ctx.has(ALL_BIAS):
        return value
    ends = (shape_operand(builder, (at,)) for at in (start, ctx.env.canon(start + width)))
    return builder.emit("Add", value, builder.emit("Slice", ctx.node.inputs[ALL_BIAS], *ends))


def _unpacked(builder: Builder, i: int, count: int) -> list[str]:
    """The parts of an operand of batch, rows, heads, parts and size."""
    refuse(builder.infer, {ALL_BIAS: "a bias beside packed operands"})
    whole = builder.infer.node.inputs[i]
    parts = (builder.emit("Gather", whole, builder.constant(np.array(n)), axis=3) for n in range(count))
    return [builder.emit("Transpose", part, perm=(0, 2, 1, 3)) for part in parts]


# -- RotaryEmbedding ---------------------------------------------------------------------------------------------

def _rotary(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    x, shape, half = ctx.node.inputs[0], canonical(ctx, 0), canonical(ctx, 2)[1]
    heads = _rotated(ctx, shape, half)
    if len(shape) == 3:
        x = apart(builder, x, heads.shape)
    angled: Shape = (heads.batch, ONE, heads.length, half)
    places, given = ctx.node.inputs[1], canonical(ctx, 1)
    if len(given) < 2:
        expect_list(ctx, 1, ONE)
        places = builder.emit("Add", positions(builder, heads.length), places)
        angled = (ONE, *angled[1:])
    cos, sin = (angles(builder, cache, places, angled) for cache in (2, 3))
    y = turned(builder, x, heads.shape, half, cos, sin, bool(ctx.attr("interleaved", 0)))
    return (together(builder, y, heads.shape) if len(shape) == 3 else y,)


def _rotated(ctx: InferContext, shape: Shape, half: SymExpr) -> Heads:
    """The heads whose rows are turned."""
    if len(shape) == 4:
        return Heads(*shape)
    if len(shape) != 3:
        raise ModelError(f"{where(ctx)} has an input of rank {len(shape)}, expected 3 or 4")
    if ctx.attr("num_heads", 0):
        count = expect_heads(ctx, "num_heads")
        return Heads(shape[0], count, shape[1], evenly(ctx, shape[2], count, "the last axis"))
    size = ctx.env.canon(2 * half)
    ctx.env.assume_eq(shape[2] % size, ZERO, f"{where(ctx)}: heads are as large as what is turned")
    return Heads(shape[0], ctx.env.canon(shape[2] // size), shape[1], size)


# -- samples -----------------------------------------------------------------------------------------------------

def _attentions() -> Sequence[Sample]:
    x, w, b = floats(2, 5, 6), floats(6, 24), floats(24)
    lengths, shown = np.array([3, 5], np.int32), np.array([[1, 1, 1, 0, 1], [0, 1, 1, 1, 1]], np.int32)
    heads = {"num_heads": 2}
    off = {"do_rotary": 0, "past_present_share_buffer": 0, "rotary_embedding_dim": 0}
    return [Sample([x, w, b], heads | {"scale": 0.25}), Sample([x, w, None, lengths], heads | off),
            Sample([x, w, b, shown], heads | {"unidirectional": 1}),
            Sample([x, w, b, ints(2, 5, 5, low=0, high=2, dtype="int32")], heads | {"mask_filter_value": -5.0}),
            Sample([x, w, b, None, floats(2, 2, 2, 3, 4)], heads | {"unidirectional": 1}, 2),
            Sample([x, floats(6, 28), floats(28), None, None, floats(2, 2, 5, 5)], heads | {"qkv_hidden_sizes": (8, 8, 12)})]


def _multi_heads() -> Sequence[Sample]:
    q, k, v, heads = floats(2, 3, 8), floats(2, 5, 8), floats(2, 5, 12), {"num_heads": 2}
    lengths, shown = np.array([3, 5], np.int32), np.array([[1, 1, 1, 0, 1], [0, 1, 1, 1, 1]], np.int32)
    return [Sample([q, k, v], heads), Sample([q, k, v, floats(28)], heads | {"scale": 0.25}),
            Sample([q, k, v, None, shown, floats(1, 2, 3, 5)], heads), Sample([q, k, v, None, lengths], heads),
            Sample([q, floats(2, 3, 8), floats(2, 3, 8), floats(24), None, None, floats(2, 2, 4, 4), floats(2, 2, 4, 4)],
                   heads | {"unidirectional": 1}, 3),
            Sample([q, floats(2, 2, 5, 4), floats(2, 2, 5, 4)], heads)]


def _rotaries() -> Sequence[Sample]:
    x, places, cache = floats(2, 3, 16), np.array([[0, 1, 2], [4, 3, 5]]), (floats(6, 4), floats(6, 4))
    return [Sample([x, places, *cache], {"is_packed_batching": 0}), Sample([x, np.array([2]), *cache], {"interleaved": 1}),
            Sample([floats(2, 2, 3, 8), places, *cache]),
            Sample([floats(2, 3, 24), places, *cache], {"num_heads": 2, "rotary_embedding_dim": 8})]


_MASKED = {"unidirectional": 0}
_SCALES = {"scale": "float", "mask_filter_value": "float"}

OPS: tuple[OpDef, ...] = (
    OpDef("Attention", PatternKind.CONTRACTION, decompose=_attention, samples=_attentions, domain=MICROSOFT,
          grows=lambda _, k: 3 if k == PAST else None,
          reads=("num_heads", "qkv_hidden_sizes", "unidirectional", "scale", "mask_filter_value"),
          form=Form("input:T weights:T bias?:T mask_index?:M past?:T attention_bias?:T past_sequence_length?:M",
                    "output:T present?:T", {"T": FLOATS, "M": ("int32",)}, _MASKED, {
                        **_SCALES, "qkv_hidden_sizes": "ints", "do_rotary": "int", "past_present_share_buffer": "int",
                        "rotary_embedding_dim": "int"}, {"num_heads": "int"},
                    {"do_rotary": 0, "past_present_share_buffer": 0, "rotary_embedding_dim": 0})),
    OpDef("MultiHeadAttention", PatternKind.CONTRACTION, decompose=_multi_head, samples=_multi_heads, domain=MICROSOFT,
          grows=lambda _, k: 2 if k in (PAST_K, PAST_V) else None,
          reads=("num_heads", "unidirectional", "scale", "mask_filter_value"),
          form=Form("query:T key?:T value?:T bias?:T key_padding_mask?:M attention_bias?:T past_key?:T past_value?:T "
                    "past_sequence_length?:M cache_indirection?:M", "output:T present_key?:T present_value?:T qk?:T",
                    {"T": FLOATS, "M": ("int32",)}, _MASKED, _SCALES, {"num_heads": "int"})),
    OpDef("RotaryEmbedding", PatternKind.INJECTIVE, decompose=_rotary, samples=_rotaries, domain=MICROSOFT,
          reads=("num_heads", "interleaved"), ignores=("rotary_embedding_dim",),
          form=Form("input:T position_ids:M cos_cache:T sin_cache:T", "output:T", {"T": FLOATS, "M": ("int64",)}, {}, {
              name: "int" for name in ("num_heads", "interleaved", "rotary_embedding_dim", "is_packed_batching")},
                    off={"is_packed_batching": 0})),
)
