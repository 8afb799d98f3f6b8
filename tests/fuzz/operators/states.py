"""Recipes of operators that came late: bits as they stand, places in images, states that go from token to token."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz.operators.case import Draft
from tests.fuzz.operators.elementwise import Recipe, rank
from tests.fuzz.operators.values import Array, Sizes, places, within


def bit_cast(d: Draft) -> None:
    source, target = d.rng.choice((
        ("float32", "int32"), ("int32", "float32"), ("uint32", "float32"), ("float64", "uint64"), ("int64", "float64"),
        ("int8", "uint8"), ("uint16", "int16"), ("bool", "uint8"), ("float32", "float32")))
    number = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    d.node("BitCast", [d.operand(d.extents(rank(d)), source)], to=int(number))


def roi_align(d: Draft) -> None:
    """Regions inside of images and beyond them, and of negative sizes; no sample lies where a rounding decides whether it
    counts."""
    def bounds(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.uniform(-3, 20, shape), np.float32)

    images, count = d.size(1, 3), d.size(1, 9)
    channels = d.rng.choice((1, 3, d.size(1, 5)))
    x = d.operand((images, channels, d.size(1, 17), d.size(1, 17)), "float32", within("float32", -2, 2))
    rois = d.operand((count, 4), "float32", bounds)
    which = d.operand((count,), "int64", places("int64", images, False), of=(images,))
    mode = {} if d.opset < 16 else {"coordinate_transformation_mode": d.maybe(
        0.5, d.rng.choice(("half_pixel", "output_half_pixel")))}
    d.node("RoiAlign", [x, rois, which], mode=d.maybe(0.6, d.rng.choice(("avg", "max"))),
           sampling_ratio=d.rng.choice((1, 2, 3)), output_height=d.maybe(0.8, d.rng.choice((1, 2, 5))),
           output_width=d.maybe(0.8, d.rng.choice((1, 3))), spatial_scale=d.maybe(0.4, 0.5), **mode)


def deform_conv(d: Draft) -> None:
    """Offsets of a few elements; groups of channels and of offsets, and masks."""
    groups, own, offset_groups = d.rng.choice((1, 1, 2)), d.rng.choice((1, 2)), d.rng.choice((1, 1, 2))
    channels, outputs = 2 * own * groups, groups * d.rng.choice((1, 3))
    size = d.rng.choice(((3, 3), (1, 2), (2, 2)))
    high, wide, pad = d.rng.choice((5, 8)), d.rng.choice((4, 9)), d.rng.choice((0, 1))
    stride = d.rng.choice((1, 2))
    after = [(extent + 2 * pad - k) // stride + 1 for extent, k in zip((high, wide), size)]
    batch, taps = d.size(1, 4), size[0] * size[1]
    draw = within("float32", -2, 2)
    inputs = [d.operand((batch, channels, high, wide), "float32", draw),
              d.operand((outputs, 2 * own, *size), "float32", draw),
              d.operand((batch, 2 * taps * offset_groups, *after), "float32", draw)]
    if d.chance(0.5):
        inputs.append(d.operand((outputs,), "float32", draw))
    if d.chance(0.4):
        mask = d.operand((batch, taps * offset_groups, *after), "float32", within("float32", 0, 1))
        inputs += [""] * (4 - len(inputs)) + [mask]
    d.node("DeformConv", inputs, group=None if groups == 1 else groups, strides=[stride] * 2,
           offset_group=None if offset_groups == 1 else offset_groups, pads=[pad] * 4 if pad else d.maybe(0.5, [0] * 4))


def linear_attention(d: Draft) -> None:
    """Each rule, with a state from before or none; decays are below 0 and rates within 0 and 1."""
    rule, heads, members = d.rng.choice(("linear", "gated", "delta", "gated_delta")), d.rng.choice((1, 2)), d.rng.choice((1, 2))
    batch, tokens, depth, width = d.rng.choice((1, d.size(1, 3))), d.size(1, 9), d.rng.choice((1, 4)), d.rng.choice((1, 3))
    small = within("float32", -0.5, 0.5)
    inputs = [d.operand((batch, tokens, count * each), "float32", small)
              for count, each in ((heads * members, depth), (heads, depth), (heads, width))]
    past = d.operand((batch, heads, depth, width), "float32", small) if d.chance(0.5) else ""
    decay = beta = ""
    if "gated" in rule:
        decay = d.operand((batch, tokens, heads * d.rng.choice((1, depth))), "float32", within("float32", -1, 0))
    if "delta" in rule:
        beta = d.operand((batch, tokens, d.rng.choice((1, heads))), "float32", within("float32", 0, 1))
    d.node("LinearAttention", [*inputs, past, decay, beta], 2, q_num_heads=heads * members, kv_num_heads=heads,
           update_rule=rule if rule != "gated_delta" else d.maybe(0.5, rule), scale=d.maybe(0.3, 0.7))
    d.outputs = d.outputs[:1]  # nobody says how far off the state is that is left


def causal_conv(d: Draft) -> None:
    channels, taps = d.rng.choice((1, 3)), d.rng.choice((1, 2, 4))
    batch, length = d.size(1, 3), d.size(1, 17)
    draw = within("float32", -2, 2)
    inputs = [d.operand((batch, channels, length), "float32", draw), d.operand((channels, 1, taps), "float32", draw),
              d.operand((channels,), "float32", draw) if d.chance(0.5) else ""]
    if d.chance(0.5) and taps > 1:
        inputs.append(d.operand((batch, channels, taps - 1), "float32", draw))
    d.node("CausalConvWithState", inputs, 2, activation=d.maybe(0.6, d.rng.choice(("none", "silu", "swish"))))


RECIPES: dict[str, Recipe] = {"BitCast": bit_cast, "RoiAlign": roi_align, "DeformConv": deform_conv,
                              "LinearAttention": linear_attention, "CausalConvWithState": causal_conv}
