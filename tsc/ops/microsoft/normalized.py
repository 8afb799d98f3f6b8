"""Norms with the residual, the bias or the embedding that stands before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc.errors import UnsupportedError
from tsc.ops.base import Builder, OpDef, PatternKind, Sample
from tsc.ops.form import FLOATS, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.movement import shape_operand
from tsc.ops.normalization import rms
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import floats, ints
from tsc.ops.shapes import canonical, where
from tsc.sym import ZERO

IDS, SEGMENTS, WORDS, PLACES, KINDS, GAMMA, BETA, MASK, PLACE_IDS = range(9)


def _residual(builder: Builder, bias: int) -> str:
    """The sum of the first two inputs, and of a bias."""
    inputs = builder.infer.node.inputs
    total = builder.emit("Add", inputs[0], inputs[1])
    return builder.emit("Add", total, inputs[bias]) if builder.infer.has(bias) else total


def _skip_layer(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    total = _residual(builder, 4)
    scales = [name for name in ctx.node.inputs[2:4] if name]
    made = builder.several("LayerNormalization", (total, *scales), 3, axis=-1, epsilon=ctx.attr("epsilon"))
    return (*made, total)[:len(ctx.node.outputs)]


def _skip_simplified(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    if any(ctx.node.outputs[1:3]):
        raise UnsupportedError(f"{where(ctx)} gives its statistics, which is not supported")
    total = _residual(builder, 3)
    y = builder.emit("RMSNormalization", total, ctx.node.inputs[2], axis=-1, epsilon=ctx.attr("epsilon"))
    return (y, total, total, total)[:len(ctx.node.outputs)]


def _embedding(builder: Builder) -> tuple[str, ...]:
    """The norm of the sum of what words, their places and segments stand for; how many places a mask shows; and the sum."""
    ctx = builder.infer
    total = embedded(builder, lambda i, value: value, PLACE_IDS)
    y = builder.emit("LayerNormalization", total, *ctx.node.inputs[GAMMA:BETA + 1], axis=-1, epsilon=ctx.attr("epsilon"))
    return (y, shown_words(builder, MASK), total)[:len(ctx.node.outputs)]


def embedded(builder: Builder, numbers: Callable[[int, str], str], place_ids: int | None = None) -> str:
    """The sum of what words, their places and segments stand for: rows of tables, whose elements are `numbers` of an input. An
    input may say the places, else they are counted."""
    ctx = builder.infer
    inputs, (_, length) = ctx.node.inputs, canonical(ctx, IDS)
    ctx.env.assume_le(length, canonical(ctx, PLACES)[0], f"{where(ctx)}: each word has a place")
    if place_ids is not None and ctx.has(place_ids):
        places = builder.emit("Gather", inputs[PLACES], inputs[place_ids], axis=0)
    else:
        places = builder.emit("Slice", inputs[PLACES], *(shape_operand(builder, (part,)) for part in (ZERO, length, ZERO)))
    words = numbers(WORDS, builder.emit("Gather", inputs[WORDS], inputs[IDS], axis=0))
    total = builder.emit("Add", words, numbers(PLACES, places))
    if not (ctx.has(SEGMENTS) and ctx.has(KINDS)):
        return total
    return builder.emit("Add", total, numbers(KINDS, builder.emit("Gather", inputs[KINDS], inputs[SEGMENTS], axis=0)))


def shown_words(builder: Builder, mask: int) -> str:
    """How many places input number `mask` shows of each row, none where it is left out."""
    ctx = builder.infer
    if not ctx.has(mask):
        return builder.emit("Expand", builder.constant(np.array(0, np.int32)), shape_operand(builder, canonical(ctx, IDS)[:1]))
    shown = builder.emit("Equal", ctx.node.inputs[mask], builder.constant(np.array(1, np.int32)))
    return reduction(builder, "ReduceSum", cast(builder, shown, "bool", "int32"), (1,), keepdims=0)


# -- samples -----------------------------------------------------------------------------------------------------

def _skips() -> Sequence[Sample]:
    x, skip, gamma, beta, bias = floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)
    return [Sample([x, skip, gamma, beta, bias]), Sample([x, skip, gamma], {"epsilon": 0.5}),
            Sample([x, floats(3, 8), gamma, beta]), Sample([floats(4, 8), floats(4, 8), gamma, None, bias])]


def _simple_skips() -> Sequence[Sample]:
    x, skip, gamma, bias = floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)
    return [Sample([x, skip, gamma, bias]), Sample([x, floats(3, 8), gamma], {"epsilon": 0.5})]


def _simples() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 8), floats(8)]), Sample([floats(5, 7), floats(7)], {"epsilon": 0.25, "axis": 1}, 2)]


def _embeddings() -> Sequence[Sample]:
    ids, segments, mask = ints(2, 5, low=0, high=9, dtype="int32"), ints(2, 5, low=0, high=2, dtype="int32"), np.array(
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    words, places, kinds = floats(9, 8), floats(7, 8), floats(2, 8)
    return [Sample([ids, segments, words, places, kinds, floats(8), floats(8), mask], {}, 2),
            Sample([ids, None, words, places, None, floats(8), floats(8)], {"epsilon": 0.25}, 2),
            Sample([ids, segments, words, places, kinds, floats(8), floats(8), None, ints(2, 5, low=0, high=7, dtype="int32")],
                   {}, 2)]


_EPSILON = {"epsilon": 1e-12}
_RESULTS = "output:T mean?:U inv_std_var?:U input_skip_bias_sum?:T"
_SUMS = {"T": FLOATS, "U": ("float32",)}

OPS: tuple[OpDef, ...] = (
    OpDef("SkipLayerNormalization", PatternKind.REDUCE, decompose=_skip_layer, samples=_skips, domain=MICROSOFT,
          reads=("epsilon",), form=Form("input:T skip:T gamma:T beta?:T bias?:T", _RESULTS, _SUMS, _EPSILON)),
    OpDef("SkipSimplifiedLayerNormalization", PatternKind.REDUCE, decompose=_skip_simplified, samples=_simple_skips,
          domain=MICROSOFT, reads=("epsilon",),
          form=Form("input:T skip:T gamma:T bias?:T", _RESULTS, _SUMS, _EPSILON)),
    OpDef("SimplifiedLayerNormalization", PatternKind.REDUCE, decompose=rms, samples=_simples, domain=MICROSOFT,
          reads=("axis", "epsilon", "stash_type"),
          form=Form("X:T scale:V", "Y:V inv_std_var?:U", {"T": FLOATS, "V": FLOATS, "U": FLOATS}, {
              "axis": -1, "epsilon": 1e-5, "stash_type": 1})),
    OpDef("EmbedLayerNormalization", PatternKind.REDUCE, decompose=_embedding, samples=_embeddings, domain=MICROSOFT,
          reads=("epsilon",), ignores=("mask_index_type",),
          form=Form("input_ids:I segment_ids?:I word_embedding:T position_embedding:T segment_embedding?:T gamma:T beta:T "
                    "mask?:I position_ids?:I", "output:T mask_index?:I embedding_sum?:T", {"T": FLOATS, "I": ("int32",)},
                    _EPSILON, {"mask_index_type": "int"})),
)
