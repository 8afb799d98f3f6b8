"""Layers of transformers on numbers of 8 bits: attention and embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.ops.base import Builder, OpDef, PatternKind, Sample
from tsc.ops.form import BYTES, FLOAT32, Form
from tsc.ops.microsoft.attention import of_projection, thirds
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.microsoft.normalized import BETA, GAMMA, KINDS, PLACES, WORDS, embedded, shown_words
from tsc.ops.microsoft.quantized import one, product_in_floats
from tsc.ops.reduce import cast
from tsc.ops.samples import floats, ints, octets, scalar, scales
from tsc.ops.shapes import expect_rank

X, WEIGHT, BIAS, X_SCALE, WEIGHT_SCALE, MASK, X_ZERO, WEIGHT_ZERO, PAST = range(9)
SHOWN = 7
#: What a node may say is not done.
_OFF = {"do_rotary": 0, "past_present_share_buffer": 0}
#: The scales and zero points of the tables and norms that are in bytes.
_STEPS = {WORDS: (8, 13), PLACES: (9, 14), KINDS: (10, 15), GAMMA: (11, 16), BETA: (12, 17)}


# -- attention ---------------------------------------------------------------------------------------------------

def _attention(builder: Builder) -> tuple[str, ...]:
    """Queries, keys and values are one product of bytes; what follows is in floats."""
    ctx = builder.infer
    expect_rank(ctx, X, 3)
    expect_rank(ctx, WEIGHT, 2)
    dtype = ctx.type(BIAS).dtype
    made = product_in_floats(builder, (X, WEIGHT), (X_ZERO, WEIGHT_ZERO), (X_SCALE, WEIGHT_SCALE), BIAS)
    return of_projection(builder, cast(builder, made, "float32", dtype), thirds(ctx, WEIGHT), dtype, MASK, PAST)


# -- embeddings --------------------------------------------------------------------------------------------------

def _embedding(builder: Builder) -> tuple[str, ...]:
    """The norm of the sum of what words, their places and segments stand for; and how many places a mask shows."""
    ctx = builder.infer
    total = embedded(builder, lambda i, value: _in_floats(builder, i, value))
    norm = (_in_floats(builder, i, ctx.node.inputs[i]) for i in (GAMMA, BETA))
    y = builder.emit("LayerNormalization", total, *norm, axis=-1, epsilon=ctx.attr("epsilon"))
    return (y, shown_words(builder, SHOWN))


def _in_floats(builder: Builder, i: int, value: str) -> str:
    """Elements of input `i` in its scale."""
    return builder.emit("DequantizeLinear", value, *(one(builder, k) for k in _STEPS[i]))


# -- samples -----------------------------------------------------------------------------------------------------

def _attentions() -> Sequence[Sample]:
    x, bias, past = octets(3, 5, 6), floats(24), floats(2, 3, 2, 7, 4)
    w = ints(6, 24, low=-60, high=60, dtype="int8")
    one_scale = [x, w, bias, scalar(0.01), scalar(0.011)]
    zero_points = [scalar(120, "uint8"), scalar(3, "int8")]
    rows, ends = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32), np.array([3, 5, 1], np.int32)
    whole = np.array([[1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 12, [0] * 6 + [1] * 6], np.int32)
    each = np.tril(np.ones((3, 5, 5), np.int32))
    some = {"num_heads": 2}
    return [Sample(one_scale, some | _OFF), Sample([*one_scale, rows, *zero_points], some),
            Sample([*one_scale[:4], scales(24), ends, zero_points[0], ints(24, low=-9, high=9, dtype="int8")],
                   {**some, "scale": 0.3}),
            Sample([*one_scale, whole, *zero_points, past], {**some, "unidirectional": 1}, 2),
            Sample([*one_scale, each, *zero_points], {**some, "mask_filter_value": -2.0}),
            Sample([*one_scale, None, *zero_points, past], some, 2), Sample([*one_scale, None, *zero_points], {
                **some, "unidirectional": 1}, 2)]


def _embeddings() -> Sequence[Sample]:
    ids, segments = ints(2, 5, low=0, high=9, dtype="int32"), ints(2, 5, low=0, high=2, dtype="int32")
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    tables, norm = [octets(9, 8), octets(7, 8), octets(2, 8)], [octets(8), octets(8)[::-1].copy()]
    steps = [scalar(step) for step in (0.021, 0.032, 0.043, 0.054, 0.065)]
    zero_points = [scalar(point, "uint8") for point in (120, 100, 90, 130, 127)]
    without = [*steps[:2], None, *steps[3:], *zero_points[:2], None, *zero_points[3:]]
    return [Sample([ids, segments, *tables, *norm, mask, *steps, *zero_points], {"epsilon": 0.001}, 2),
            Sample([ids, None, *tables[:2], None, *norm, None, *without], {}, 2)]


OPS: tuple[OpDef, ...] = (
    OpDef("QAttention", PatternKind.CONTRACTION, decompose=_attention, samples=_attentions, domain=MICROSOFT,
          reads=("num_heads", "unidirectional", "mask_filter_value", "scale"),
          form=Form("input:X weight:W bias:T input_scale:T weight_scale:T mask_index?:I input_zero_point?:X "
                    "weight_zero_point?:W past?:T", "output:T present?:T", {
                        "X": BYTES, "W": BYTES, "T": ("float32", "float16"), "I": ("int32",)},
                    {"unidirectional": 0}, {"mask_filter_value": "float", "scale": "float", **dict.fromkeys(_OFF, "int")},
                    {"num_heads": "int"}, _OFF)),
    OpDef("QEmbedLayerNormalization", PatternKind.REDUCE, decompose=_embedding, samples=_embeddings, domain=MICROSOFT,
          reads=("epsilon",),
          form=Form("input_ids:I segment_ids?:I word_embedding_quant:Q position_embedding_quant:Q segment_embedding?:Q "
                    "gamma_quant:Q beta_quant:Q mask?:I word_embedding_scale:T position_embedding_scale:T "
                    "segment_embedding_scale?:T gamma_scale:T beta_scale:T word_embedding_zero_point:Q "
                    "position_embedding_zero_point:Q segment_embedding_zero_point?:Q gamma_zero_point:Q beta_zero_point:Q",
                    "layernorm_out:T mask_index_out:I", {"I": ("int32",), "Q": BYTES, "T": FLOAT32}, {"epsilon": 1e-12})),
)
