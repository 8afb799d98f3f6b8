"""LinearAttention: a state of keys times values that decays and is corrected from token to token.

With S_t = exp(g_t) S_(t-1) + k_t u_t and G_t the sum of g up to t, S_t is the sum over s <= t of exp(G_t - G_s) k_s u_s, and
what was there before, times exp(G_t). So no state is made but the last one: outputs are products of queries, keys and u, as in
attention, without a softmax and with decays for weights (Yang et al. 2024, "Gated Delta Networks"). Of the delta rules u
depends on the u before it, by a triangular matrix: that is a recurrence over rows of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.attention import score_scale
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.movement import positions, reshape, size_operand
from tsc.ops.samples import floats
from tsc.ops.shapes import as_object, canonical, unify, where
from tsc.sym import ONE, ZERO, SymExpr
from tsc.te import Scalar, Tensor

QUERY, KEY, VALUE, PAST, DECAY, BETA = range(6)
#: What each rule needs besides queries, keys and values.
_RULES = {"linear": (), "gated": (DECAY,), "delta": (BETA,), "gated_delta": (DECAY, BETA)}


@dataclass(frozen=True, slots=True)
class _Form:
    """The sizes of a node: `members` query heads share each of the `heads`."""

    batch: SymExpr
    tokens: SymExpr
    heads: int
    members: int
    depth: SymExpr
    width: SymExpr
    scale: float | None  # None is 1 over the root of the depth


def _form(ctx: InferContext) -> _Form:
    rule = ctx.attr("update_rule", "gated_delta")
    if rule not in _RULES:
        raise ModelError(f"{where(ctx)} has update_rule '{rule}', expected one of {', '.join(_RULES)}")
    for i in (DECAY, BETA):
        if ctx.has(i) != (i in _RULES[rule]):
            raise ModelError(f"{where(ctx)} {'has' if ctx.has(i) else 'lacks'} its input {i}, which the rule '{rule}' "
                             f"{'does not take' if ctx.has(i) else 'needs'}")
    heads, queries = int(ctx.attr("kv_num_heads", 0)), int(ctx.attr("q_num_heads", 0))
    if heads < 1 or queries < 1 or queries % heads:
        raise ModelError(f"{where(ctx)} has q_num_heads {queries} and kv_num_heads {heads}, expected a multiple of a number")
    for i, rank in ((QUERY, 3), (KEY, 3), (VALUE, 3), (PAST, 4), (DECAY, 3), (BETA, 3)):
        if ctx.has(i) and ctx.type(i).rank != rank:
            raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected {rank}")
    batch, tokens, _ = canonical(ctx, QUERY)
    parts = []
    for i, count in ((QUERY, queries), (KEY, heads), (VALUE, heads)):
        ctx.env.assume_eq(canonical(ctx, i)[2] % count, SymExpr.of(0), f"{where(ctx)}: input {i} is of {count} heads")
        parts.append(ctx.env.canon(canonical(ctx, i)[2] // count))
    depth = unify(ctx.env, parts[0], parts[1], f"{where(ctx)}: queries and keys are as wide")
    for i in (KEY, VALUE, DECAY, BETA):
        for k, extent in enumerate((batch, tokens) if ctx.has(i) else ()):
            unify(ctx.env, extent, canonical(ctx, i)[k], f"{where(ctx)}: dim {k} of input {i}")
    if ctx.has(BETA) and canonical(ctx, BETA)[2].as_int() is None:
        ctx.env.assume_eq(canonical(ctx, BETA)[2], heads, f"{where(ctx)}: input {BETA} has a number for each head")
    for i, known in ((DECAY, (SymExpr.of(heads), ctx.env.canon(depth * heads))), (BETA, (ONE, SymExpr.of(heads)))):
        if ctx.has(i) and (found := canonical(ctx, i)[2]) not in known:
            each, most = (ctx.env.canon(size // heads) for size in (found, known[1]))
            if found.as_int() is not None or i == BETA:
                raise ModelError(f"{where(ctx)} has an input {i} of {found} numbers a token, expected "
                                 f"{' or '.join(map(str, known))}")
            ctx.env.assume_eq(found % heads, ZERO, f"{where(ctx)}: decays are of {heads} heads")
            ctx.env.assume_eq((each - 1) * (each - most), ZERO, f"{where(ctx)}: a head has a decay or one a number")
    if ctx.has(PAST):
        for extent, own in zip((batch, SymExpr.of(heads), depth, parts[2]), canonical(ctx, PAST)):
            unify(ctx.env, extent, own, f"{where(ctx)}: the state before has a matrix for each head")
    scale = float(ctx.attr("scale", 0.0)) or None
    sizes = [ctx.env.canon(size) for size in (batch, tokens, depth, parts[2])]
    return _Form(sizes[0], sizes[1], heads, queries // heads, sizes[2], sizes[3], scale)


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    form = _form(ctx)
    output = (form.batch, form.tokens, ctx.env.canon(form.width * form.heads * form.members))
    state = ctx.type(PAST).dtype if ctx.has(PAST) else ctx.type(QUERY).dtype
    return (TensorType(ctx.type(QUERY).dtype, output),
            TensorType(state, (form.batch, SymExpr.of(form.heads), form.depth, form.width)))[:max(1, len(ctx.node.outputs))]


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx, emit = builder.infer, builder.emit
    form, names, dtype = _form(ctx), ctx.node.inputs, ctx.type(QUERY).dtype
    heads, members = SymExpr.of(form.heads), SymExpr.of(form.members)

    def apart(i: int, *each: SymExpr) -> str:
        """An input by heads: [B, H, .., T, D]."""
        split = reshape(builder, names[i], (form.batch, form.tokens, *each))
        return emit("Transpose", split, perm=(0, *range(2, len(each) + 1), 1, len(each) + 1))

    scale = score_scale(builder, form.scale, form.depth, dtype)
    query = emit("Mul", apart(QUERY, heads, members, form.depth), scale)
    key, value = apart(KEY, heads, form.depth), apart(VALUE, heads, form.width)
    summed = None  # the sums of decays [B, H, T, 1 or D]
    if ctx.has(DECAY):
        each = ctx.env.canon(canonical(ctx, DECAY)[2] // heads)
        decay = apart(DECAY, heads, each)
        if each not in (ONE, form.depth):  # a head has one, or one for each: only the run knows
            last = size_operand(builder, as_object(each - 1), "int64")
            decay = emit("Gather", decay, emit("Min", positions(builder, form.depth), last), axis=3)
        summed = emit("CumSum", decay, builder.constant(np.array(2)))
    past = names[PAST] if ctx.has(PAST) else None
    # 1. what is added to the state at each token
    added = value
    if ctx.has(BETA):
        shared = canonical(ctx, BETA)[2] != heads
        beta = apart(BETA, ONE if shared else heads, ONE)
        if past is not None:
            added = emit("Sub", value, emit("MatMul", _decayed(builder, key, summed), past))
        before = _weights(builder, form, emit("Unsqueeze", key, axes=(2,)), key, summed, dtype, strict=True)
        before = emit("Mul", emit("Squeeze", before, axes=(2,)), beta)
        added, = builder.several(CUSTOM, (emit("Mul", added, beta), before), 1,
                                 definition=CustomOp("ai.onnx", "LinearAttention", _solved), attributes={})
        added = emit("Transpose", added, perm=(1, 2, 0, 3))
    # 2. what queries read of it
    read = _weights(builder, form, query, key, summed, dtype, strict=False)
    output = emit("MatMul", read, emit("Unsqueeze", added, axes=(2,)))
    if past is not None:
        own = None if summed is None else emit("Unsqueeze", summed, axes=(2,))
        output = emit("Add", output, emit("MatMul", _decayed(builder, query, own), emit("Unsqueeze", past, axes=(2,))))
    output = reshape(builder, emit("Transpose", output, perm=(0, 3, 1, 2, 4)), _types(ctx)[0].shape)
    if len(ctx.node.outputs) < 2:
        return (output,)
    # 3. the last state
    kept = key
    if summed is not None:
        last = emit("Unsqueeze", emit("Gather", summed, builder.constant(np.array(-1)), axis=2), axes=(2,))
        kept = emit("Mul", key, emit("Exp", emit("Sub", last, summed)))
        past = None if past is None else emit("Mul", past, emit("Exp", emit("Transpose", last, perm=(0, 1, 3, 2))))
    state = emit("MatMul", emit("Transpose", kept, perm=(0, 1, 3, 2)), added)
    return output, state if past is None else emit("Add", state, past)


def _decayed(builder: Builder, value: str, summed: str | None) -> str:
    """Rows of a token, by what is left of the state from before all tokens."""
    return value if summed is None else builder.emit("Mul", value, builder.emit("Exp", summed))


def _weights(builder: Builder, form: _Form, rows: str, key: str, summed: str | None, dtype: str, strict: bool) -> str:
    """[B, H, M, T, T]: each row of a token times each key before it (or its own), with the decay between them."""
    emit = builder.emit
    places = positions(builder, form.tokens)
    is_before = emit("Greater" if strict else "GreaterOrEqual", emit("Unsqueeze", places, axes=(1,)), places)
    product = emit("MatMul", rows, emit("Unsqueeze", emit("Transpose", key, perm=(0, 1, 3, 2)), axes=(2,)))
    zero = builder.constant(np.zeros((), dtype))
    if summed is None:
        return emit("Where", is_before, product, zero)
    if canonical(builder.infer, DECAY)[2] == SymExpr.of(form.heads):  # a decay a head
        later = emit("Transpose", summed, perm=(0, 1, 3, 2))
        apart = emit("Where", is_before, emit("Sub", summed, later), builder.constant(np.array(-np.inf, dtype)))
        return emit("Mul", product, emit("Unsqueeze", emit("Exp", apart), axes=(2,)))
    made, = builder.several(CUSTOM, (rows, key, summed), 1, definition=CustomOp("ai.onnx", "LinearAttention", _decaying),
                            attributes={})
    return emit("Where", is_before, made, zero)


def _decaying(rows: Tensor, key: Tensor, summed: Tensor) -> Tensor:
    """The sum over d of rows[b, h, m, t, d] key[b, h, s, d] exp(summed[b, h, t, d] - summed[b, h, s, d]), for s <= t."""
    batch, heads, members, tokens, depth = rows.shape
    d = te.reduce_axis(depth, "d")

    def element(b: Scalar, h: Scalar, m: Scalar, t: Scalar, s: Scalar) -> te.Reduction:
        apart = te.minimum(summed[b, h, t, d] - summed[b, h, s, d], te.where(s <= t, math.inf, 0.0))
        return te.sum(rows[b, h, m, t, d] * key[b, h, s, d] * te.exp(apart), axis=d)

    return te.compute((batch, heads, members, tokens, tokens), element, "weights")


def _solved(given: Tensor, before: Tensor) -> Tensor:
    """u[t, b, h, j] = given[b, h, t, j] - sum over s < t of before[b, h, t, s] u[s, b, h, j]."""
    batch, heads, tokens, width = given.shape
    made = te.state((tokens, batch, heads, width), given.dtype, "u")
    s = te.reduce_axis(tokens, "s")
    corrected = te.compute((tokens, batch, heads, width), lambda t, b, h, j: te.sum(
        te.where(s < t, before[b, h, t, s] * made[s, b, h, j], 0.0), axis=s), "corrected")
    return te.scan(made, lambda t, b, h, j: given[b, h, t, j] - corrected[t, b, h, j])


# -- samples ---------------------------------------------------------------------------------------------------

def _samples() -> Sequence[Sample]:
    key, value, query, past = floats(2, 5, 2 * 4), floats(2, 5, 2 * 3), floats(2, 5, 4 * 4), floats(2, 2, 4, 3)
    one, each, beta = floats(2, 5, 2, low=-1, high=0), floats(2, 5, 8, low=-1, high=0), floats(2, 5, 2, low=0, high=1)
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    return [Sample([query, key, value, None], {**heads, "update_rule": "linear"}, 2),
            Sample([query, key, value, past, one], {**heads, "update_rule": "gated"}, 2),
            Sample([query, key, value, past, each], {**heads, "update_rule": "gated", "scale": 0.3}, 2),
            Sample([query, key * 0.3, value, past, None, beta], {**heads, "update_rule": "delta"}, 2),
            Sample([query, key * 0.3, value, past, one, floats(2, 5, 1, low=0, high=1)], heads, 2),
            Sample([query, key * 0.3, value, None, each, beta], heads, 2)]


OPS: tuple[OpDef, ...] = (
    OpDef("LinearAttention", PatternKind.OPAQUE, _types, decompose=_decompose, samples=_samples,
          reads=("q_num_heads", "kv_num_heads", "scale", "update_rule"), ignores=("chunk_size",)),
)
