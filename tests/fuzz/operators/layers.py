"""Recipes of reductions, contractions, normalisations, windows and Resize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe, rank, stretched
from tests.fuzz.operators.values import Array, Draw, Sizes, fixed, mood, plain, within

REDUCTIONS = ("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSum", "ReduceLogSumExp")
#: The opset that made the axes an input.
_AXES_INPUT = {"ReduceSum": 13}


def reduction(op: str, d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 0 if d.chance(0.1) else 1)), d.dtype(op)
    draw = within(dtype, 0.5, 2) if op == "ReduceProd" and d.chance(0.7) else None
    x, keep = d.operand(dims, dtype, draw), d.maybe(0.6, d.rng.choice((0, 1)))
    axes = d.rng.sample(range(len(dims)), d.rng.randint(1, len(dims))) if dims and d.chance(0.85) else None
    if axes is not None:
        axes = [a - len(dims) if d.opset >= 11 and d.chance(0.3) else a for a in axes]
    if d.opset < _AXES_INPUT.get(op, 18):
        d.node(op, [x], axes=axes, keepdims=keep)
        return
    if axes is None and d.chance(0.4):
        axes = []
    inputs = [x] if axes is None else [x, d.constant(fixed(axes), (len(axes),))]
    d.node(op, inputs, keepdims=keep, noop_with_empty_axes=d.maybe(0.3, d.rng.choice((0, 1))))


def softmax(op: str, d: Draft) -> None:
    dims = d.extents(rank(d, 1))
    least = -len(dims) if d.opset >= 11 else 0
    d.node(op, [d.operand(dims, d.dtype(op))], axis=d.maybe(0.8, d.rng.randrange(least, len(dims))) if len(dims) > 1 else
           None if d.opset >= 13 else 0)


def arg(op: str, d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 1)), d.dtype(op)
    x = d.operand(dims, dtype, plain(dtype, d.rng.choice(("whole", "ordinary", "special", "extreme"))))
    least = -len(dims) if d.opset >= 11 else 0
    d.node(op, [x], axis=d.maybe(0.8, d.rng.randrange(least, len(dims))), keepdims=d.maybe(0.6, d.rng.choice((0, 1))),
           select_last_index=d.maybe(0.5, d.rng.choice((0, 1))) if d.opset >= 12 else None)


def cumulative(op: str, d: Draft) -> None:
    dims = d.extents(rank(d, 1, 3))
    kind, axis = d.rng.choice(("int64", "int32")), d.rng.randrange(-len(dims), len(dims))
    d.node(op, [d.operand(dims, d.dtype(op)), d.constant(fixed(axis, kind), (), kind)],
           exclusive=d.maybe(0.5, d.rng.choice((0, 1))), reverse=d.maybe(0.5, d.rng.choice((0, 1))))


# -- contractions ----------------------------------------------------------------------------------------------

def matmul(d: Draft) -> None:
    dtype = d.dtype("MatMul")
    m, k, n = (d.rng.choice((1, 4, d.size(0), d.size(), d.size())) for _ in range(3))
    batch = d.extents(d.rng.choice((0, 0, 0, 1, 1, 2)))
    a: Dims = (*batch, m, k)
    b: Dims = (*stretched(d, batch), k, n)
    if d.chance(0.3):
        a, b = (*stretched(d, batch), m, k), (*batch, k, n)
    a = (k,) if d.chance(0.1) else a
    b = (k,) if d.chance(0.1) else b
    d.node("MatMul", [d.operand(a, dtype), d.operand(b, dtype)])


def gemm(d: Draft) -> None:
    dtype = d.dtype("Gemm")
    m, k, n = (d.rng.choice((1, 4, d.size(), d.size(), d.size())) for _ in range(3))
    ta, tb = d.maybe(0.5, d.rng.choice((0, 1))), d.maybe(0.5, d.rng.choice((0, 1)))
    inputs = [d.operand((k, m) if ta else (m, k), dtype), d.operand((n, k) if tb else (k, n), dtype)]
    if d.opset < 11 or d.chance(0.7):
        inputs.append(d.operand(stretched(d, (m, n)), dtype))
    factors = (2, -1) if not dtype.startswith("float") else (0.5, -1.25, 0.0)
    d.node("Gemm", inputs, alpha=d.maybe(0.4, float(d.rng.choice(factors))), beta=d.maybe(0.4, float(d.rng.choice(factors))),
           transA=ta, transB=tb)


def det(d: Draft) -> None:
    """Small matrices, some of them singular."""
    count, outer = d.rng.choice((1, 2, 3, 4, 6)), d.extents(d.rng.choice((0, 1, 1, 2)))
    dtype = d.dtype("Det")
    d.node("Det", [d.operand((*outer, count, count), dtype, within(dtype, -2, 2))])


def einsum(d: Draft) -> None:
    """Of one operand or two: labels of both and of one, summed or kept, in any order, an ellipsis or a diagonal by chance."""
    dtype, letters = d.dtype("Einsum"), list("abcdefghij")
    d.rng.shuffle(letters)
    sizes = {letter: d.rng.choice((1, 2, d.size(1, 9), d.size(1, 17))) for letter in letters}

    def some(most: int) -> list[str]:
        return [letters.pop() for _ in range(d.rng.randint(0, most))]

    shared, summed = some(1), some(1)
    terms = [[*shared, *summed, *some(2)] for _ in range(d.rng.choice((1, 2, 2, 2)))]
    used = sorted({letter for term in terms for letter in term})
    result = [letter for letter in used if letter not in summed and d.chance(0.85)]
    if terms[0] and d.chance(0.15):
        terms[0].append(terms[0][0])  # a diagonal
    for term in (*terms, result):
        d.rng.shuffle(term)
    hidden = [d.extents(d.rng.randint(0, 2)) if d.chance(0.2) else ()] if d.chance(0.3) else []
    dots = "..." if hidden else ""
    operands = []
    for k, term in enumerate(terms):
        own = stretched(d, hidden[0]) if hidden and k else hidden[0] if hidden else ()
        operands.append(d.operand((*own, *(sizes[letter] for letter in term)), dtype))
    text = ",".join(dots + "".join(term) for term in terms)
    d.node("Einsum", operands, equation=text if d.chance(0.15) else f"{text}->{dots}{''.join(result)}")


def lp_norm(d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 1)), d.dtype("LpNormalization")
    d.node("LpNormalization", [d.operand(dims, dtype, within(dtype, -4, 4))], p=d.maybe(0.6, d.rng.choice((1, 2))),
           axis=d.maybe(0.8, d.rng.randrange(-len(dims), len(dims))) if len(dims) > 1 else None)


def lrn(d: Draft) -> None:
    dtype, dims = d.dtype("LRN"), (d.rng.choice((1, 2)), d.size(1, 17), *d.extents(2))
    d.node("LRN", [d.operand(dims, dtype, within(dtype, -4, 4))], size=d.rng.choice((1, 3, 3, 5)),
           alpha=d.maybe(0.7, d.rng.choice((0.5, 0.0625))), beta=d.maybe(0.5, d.rng.choice((0.5, 1.0))),
           bias=d.maybe(0.5, d.rng.choice((2.0, 1.0))))


def window(d: Draft, dims: int, kernel: list[int], dilations: list[int]) -> dict[str, object]:
    """Strides, dilations and padding of a window operator, at their defaults by chance."""
    found: dict[str, object] = {"strides": d.maybe(0.6, [d.rng.choice((1, 1, 2, 3)) for _ in range(dims)])}
    if any(r != 1 for r in dilations):
        found["dilations"] = dilations
    form = d.rng.choice(("pads", "pads", "none", "auto"))
    if form == "pads":
        found["pads"] = [d.rng.randint(0, max((k - 1) * r // 2, 0)) for _ in range(2) for k, r in zip(kernel, dilations)]
    elif form == "auto":
        found["auto_pad"] = d.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    return found


def kernel_and_image(d: Draft, dims: int) -> tuple[list[int], list[int], Dims]:
    """A window, its dilations, and an image that holds it."""
    kernel = [d.rng.choice((1, 2, 3, 3, 4, 5)) for _ in range(dims)]
    dilations = [d.rng.choice((1, 1, 1, 2, 3)) for _ in range(dims)]
    spans = [(k - 1) * r + 1 for k, r in zip(kernel, dilations)]
    most = {1: 65, 2: 24, 3: 9}[dims]
    return kernel, dilations, tuple(d.size(s, max(most, s)) if d.chance(0.7) else d.rng.randint(s, s + 9) for s in spans)


def conv(d: Draft) -> None:
    dims = d.rng.choice((1, 2, 2, 2, 3))
    kernel, dilations, image = kernel_and_image(d, dims)
    group = d.rng.choice((1, 1, 1, 2, 3))
    inner, outer = d.rng.choice((1, 1, 2, 3)), d.rng.choice((1, 2, 5))
    if d.chance(0.15):
        group, inner, outer = d.rng.choice((4, 8, 17)), 1, 1  # depthwise
    dtype = d.dtype("Conv")
    inputs = [d.operand((d.rng.choice((1, 2, d.size(1, 3))), group * inner, *image), dtype),
              d.operand((group * outer, inner, *kernel), dtype)]
    if d.chance(0.5):
        inputs.append(d.operand((group * outer,), dtype))
    d.node("Conv", inputs, group=d.maybe(0.5, group) if group == 1 else group, kernel_shape=d.maybe(0.6, kernel),
           **window(d, dims, kernel, dilations))


def conv_transpose(d: Draft) -> None:
    dims = d.rng.choice((1, 2, 2, 2, 3))
    kernel, strides = ([d.rng.choice((1, 2, 2, 3, 3, 4)) for _ in range(dims)] for _ in range(2))
    dilations = [d.rng.choice((1, 1, 1, 2, 3)) for _ in range(dims)]
    group, inner, outer = d.rng.choice((1, 1, 1, 2, 3)), d.rng.choice((1, 1, 2, 3)), d.rng.choice((1, 2, 5))
    dtype = d.dtype("ConvTranspose")
    image = [d.size(2, {1: 65, 2: 17, 3: 5}[dims]) for _ in range(dims)]
    inputs = [d.operand((d.rng.choice((1, 2, d.size(1, 3))), group * inner, *image), dtype),
              d.operand((group * inner, outer, *kernel), dtype)]
    if d.chance(0.5):
        inputs.append(d.operand((group * outer,), dtype))
    more: dict[str, object] = {}
    form = d.rng.choice(("pads", "pads", "none", "auto"))
    if form == "pads":
        more["pads"] = [d.rng.randint(0, (k - 1) * r // 2) for _ in range(2) for k, r in zip(kernel, dilations)]
    elif form == "auto":
        more["auto_pad"] = d.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if form != "auto" and d.chance(0.4):
        more["output_padding"] = [d.rng.randrange(max(s, r)) for s, r in zip(strides, dilations)]
    d.node("ConvTranspose", inputs, group=d.maybe(0.5, group) if group == 1 else group, kernel_shape=d.maybe(0.6, kernel),
           strides=strides, dilations=dilations if any(r != 1 for r in dilations) else None, **more)


def pool(op: str, d: Draft) -> None:
    dims = d.rng.choice((1, 2, 2, 3))
    kernel, dilations, image = kernel_and_image(d, dims)
    if d.opset < {"MaxPool": 10, "LpPool": 18}.get(op, 19):
        dilations = [1] * dims
    dtype = d.dtype(op)
    draw = within(dtype, -4, 4) if op == "LpPool" else None
    x = d.operand((d.rng.choice((1, 2, d.size(1, 3))), d.rng.choice((1, 3)), *image), dtype, draw)
    attributes = window(d, dims, kernel, dilations)
    if op == "AveragePool" and d.opset >= 7:
        attributes["count_include_pad"] = d.maybe(0.5, d.rng.choice((0, 1)))
    if op == "LpPool":
        attributes["p"] = d.maybe(0.6, d.rng.choice((1, 2, 3)))
    if d.opset >= (18 if op == "LpPool" else 10):
        attributes["ceil_mode"] = d.maybe(0.4, d.rng.choice((0, 1)))
    places = op == "MaxPool" and d.opset >= 8 and d.generation >= 8 and d.chance(0.4)
    if places:
        attributes["storage_order"] = d.maybe(0.5, d.rng.choice((0, 1)))
    d.node(op, [x], 1 + places, kernel_shape=kernel, **attributes)


def global_pool(op: str, d: Draft) -> None:
    dtype, is_norm = d.dtype(op), op == "GlobalLpPool"
    x = d.operand((*d.extents(2), *d.extents(d.rng.randint(1, 3))), dtype, within(dtype, -4, 4) if is_norm else None)
    d.node(op, [x], p=d.maybe(0.6, d.rng.choice((1, 2, 3))) if is_norm else None)


# -- normalisations --------------------------------------------------------------------------------------------

def _calm(d: Draft, dtype: str) -> Draw:
    """Values that a variance can bear, others by chance."""
    return plain(dtype, "ordinary" if d.chance(0.8) else mood(d.rng))


def layer_norm(op: str, d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 1)), d.dtype(op)
    axis = d.rng.randrange(-len(dims), len(dims))
    own = dims[axis:] if d.chance(0.8) else dims[-1:]
    inputs = [d.operand(dims, dtype, _calm(d, dtype)), d.operand(own, dtype, _calm(d, dtype))]
    if op == "LayerNormalization" and d.chance(0.6):
        inputs.append(d.operand(own, dtype, _calm(d, dtype)))
    outputs = d.rng.choice((1, 1, 3)) if op == "LayerNormalization" else 1
    d.node(op, inputs, outputs, axis=d.maybe(0.3, axis) if axis == -1 else axis,
           epsilon=d.maybe(0.5, d.rng.choice((1e-3, 0.1))))


def batch_norm(d: Draft) -> None:
    dtype, channels = d.dtype("BatchNormalization"), d.rng.choice((1, 3, 17, d.size()))
    x = d.operand((d.rng.choice((1, 2, d.size())), channels, *d.extents(d.rng.choice((0, 1, 2)))), dtype, _calm(d, dtype))
    rest = [d.operand((channels,), dtype, within(dtype, 0.25, 2) if k == 3 else _calm(d, dtype)) for k in range(4)]
    d.node("BatchNormalization", [x, *rest], epsilon=d.maybe(0.5, 1e-2))


def instance_norm(d: Draft) -> None:
    dtype, channels = d.dtype("InstanceNormalization"), d.rng.choice((1, 3, d.size(1, 17)))
    x = d.operand((d.rng.choice((1, 2, d.size(1, 4))), channels, *d.extents(d.rng.randint(1, 2))), dtype, _calm(d, dtype))
    d.node("InstanceNormalization", [x, *(d.operand((channels,), dtype, _calm(d, dtype)) for _ in range(2))],
           epsilon=d.maybe(0.5, 1e-2))


def group_norm(d: Draft) -> None:
    groups, width, dtype = d.rng.choice((1, 2, 3)), d.rng.choice((1, 2, 4)), d.dtype("GroupNormalization")
    own = groups if d.opset < 21 else groups * width
    x = d.operand((d.rng.choice((1, 2, d.size(1, 4))), groups * width, *d.extents(d.rng.randint(1, 2))), dtype, _calm(d, dtype))
    d.node("GroupNormalization", [x, *(d.operand((own,), dtype, _calm(d, dtype)) for _ in range(2))], num_groups=groups,
           epsilon=d.maybe(0.5, 1e-2))


def mean_variance(d: Draft) -> None:
    dims = d.extents(4) if d.chance(0.7) else d.extents(3)
    axes = None if len(dims) == 4 and d.chance(0.6) else sorted(d.rng.sample(range(len(dims)), d.rng.randint(1, len(dims))))
    d.node("MeanVarianceNormalization", [d.operand(dims, "float32", _calm(d, "float32"))], axes=axes)


# -- Resize ----------------------------------------------------------------------------------------------------

def resize(d: Draft) -> None:
    dims: Dims = (1, d.rng.choice((1, 2)), d.size(1, 17), d.size(1, 17))
    dtype = d.rng.choice(("uint8", "int8")) if d.chance(0.1) else "float32"
    x = d.operand(dims, dtype, plain(dtype))
    mode = d.rng.choice(("nearest", "nearest", "linear", "cubic"))
    factors = [d.rng.choice((0.5, 1.0, 1.5, 2.0, 3.0, 0.75)) for _ in range(2)]
    later = (0.3, 0.6, 1.0, 1.75, 2.0) if d.generation >= 8 else ()  # in other runs, where they are fed
    if d.opset == 10:
        scales = d.constant(_scales([1.0, 1.0, *factors], (2, 3), later), (4,), "float32")
        d.node("Resize", [x, scales], mode=mode if mode != "cubic" else "linear")
        return
    axes = d.rng.choice(([2, 3], [3, 2], [-1, -2], [3], [2])) if d.opset >= 18 and d.chance(0.3) else None
    own = [0, 1, 2, 3] if axes is None else [a % 4 for a in axes]
    by_sizes, policy = d.chance(0.5), None
    if by_sizes:
        d.fix(str(dims[2]))
        wanted = [dims[0], dims[1], *(d.rng.choice((1, 2, 7, 16)) for _ in range(2))]
        last = ["", d.constant(fixed([wanted[a] for a in own]), (len(own),))]
        if d.opset >= 18 and (axes is not None or d.chance(0.1)):
            policy = d.maybe(0.6, d.rng.choice(("stretch", "not_larger", "not_smaller")))
    else:
        changed = [k for k, a in enumerate(own) if a >= 2]
        last = [d.constant(_scales([[1.0, 1.0, *factors][a] for a in own], changed, later), (len(own),), "float32")]
    coordinates = d.maybe(0.8, d.rng.choice(_coordinates(d.opset)))
    crop = [0.0] * len(own) + [1.0] * len(own)
    if coordinates == "tf_crop_and_resize":
        for k, a in enumerate(own):
            if a >= 2:
                crop[k], crop[k + len(own)] = d.rng.choice(((0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (-0.25, 1.5)))
    roi = "" if d.opset >= 13 else d.constant(fixed([], "float32"), (0,), "float32")
    if coordinates == "tf_crop_and_resize":
        roi = d.constant(fixed(crop, "float32"), (len(crop),), "float32")
    if d.opset < 13 and by_sizes:
        last[0] = d.constant(fixed([], "float32"), (0,), "float32")
    d.node("Resize", [x, roi, *last], mode=mode, coordinate_transformation_mode=coordinates, axes=axes,
           nearest_mode=d.maybe(0.7, d.rng.choice(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))),
           cubic_coeff_a=d.maybe(0.3, -0.5), exclude_outside=d.maybe(0.2, 1) if mode == "cubic" else None,
           extrapolation_value=d.maybe(0.5, 2.5) if coordinates == "tf_crop_and_resize" else None,
           antialias=d.maybe(0.1, 1) if d.opset >= 18 else None, keep_aspect_ratio_policy=policy)


def _scales(first: list[float], changed: Sequence[int], later: Sequence[float]) -> Draw:
    """These scales, or (`later`) for the axes that are `changed` any others."""
    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        found = np.asarray(first, np.float32)
        for k in changed if later and gen.random() < 0.5 else ():
            found[k] = gen.choice(later)
        return found

    return drawn


def _coordinates(opset: int) -> list[str]:
    """The standard's names of how coordinates follow."""
    found = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    return found + ["half_pixel_symmetric"] * (opset >= 19)


def col2im(d: Draft) -> None:
    """Columns that fit an image, with strides, dilations and pads."""
    rank = d.rng.choice((1, 2, 2, 3))
    block, strides, dilations = ([d.rng.choice(some) for _ in range(rank)] for some in ((1, 2, 3), (1, 1, 2), (1, 1, 2)))
    pads = [d.rng.choice((0, 0, 1)) for _ in range(2 * rank)]
    image = [(b - 1) * r + 1 + d.rng.randint(0, 6) for b, r in zip(block, dilations)]
    counts = [(n + p + q - (b - 1) * r - 1) // s + 1 for n, b, s, r, p, q in zip(
        image, block, strides, dilations, pads, pads[rank:])]
    channels, size, count = d.rng.choice((1, 2, 3)), 1, 1
    for b, c in zip(block, counts):
        size, count = size * b, count * c
    dtype = d.dtype("Col2Im", among=("float32", "float64", "int32", "int64"))
    x = d.operand((d.rng.choice((1, d.size(1, 3))), channels * size, count), dtype)
    shapes = [d.constant(fixed(v), (rank,)) for v in (image, block)]
    d.node("Col2Im", [x, *shapes], strides=strides, dilations=dilations, pads=d.maybe(0.9, pads) if not any(pads) else pads)


def grid_sample(d: Draft) -> None:
    """Images, of opset 20 on lines and volumes, at places inside and outside."""
    rank = d.rng.choice((2, 2, 2, 1, 3)) if d.opset >= 20 else 2
    batch, extents = d.rng.choice((1, 2, d.size(1, 3))), [d.size(1, 9) for _ in range(rank)]
    x = d.operand((batch, d.rng.choice((1, 3)), *extents))
    grid = d.operand((batch, *(d.size(1, 9) for _ in range(rank)), rank), "float32", within("float32", *d.rng.choice(
        ((-1, 1), (-1.4, 1.4), (-6, 6)))))
    linear, cubic = ("linear", "cubic") if d.opset >= 20 else ("bilinear", "bicubic")
    d.node("GridSample", [x, grid], mode=d.maybe(0.8, d.rng.choice((linear, "nearest", *([cubic] if rank == 2 else ())))),
           padding_mode=d.maybe(0.7, d.rng.choice(("zeros", "border", "reflection"))),
           align_corners=d.maybe(0.5, d.rng.choice((0, 1))))


def upsample(d: Draft) -> None:
    x = d.operand((1, d.rng.choice((1, 2)), d.size(1, 17), d.size(1, 17)))
    scales, mode = [1.0, 1.0, d.rng.choice((1.0, 2.0, 3.0)), d.rng.choice((1.0, 2.0, 3.0))], d.rng.choice(("nearest", "linear"))
    if d.opset < 9:
        d.node("Upsample", [x], scales=scales, mode=mode)
    else:
        d.node("Upsample", [x, d.constant(fixed(scales, "float32"), (4,), "float32")], mode=mode)


def recurrent(op: str, d: Draft) -> None:
    """Forward and without lengths, as the reference evaluator has it; the rest is in tests/ops/test_recurrent.py."""
    gates, hidden, draw = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], d.rng.choice((1, 2, 5, 16)), within("float32", -1, 1)
    steps, rows, width = d.size(1, 9), d.rng.choice((1, d.size(1, 9))), d.rng.choice((1, 3, d.size(1, 17)))
    inputs = [d.operand(dims, "float32", draw) for dims in (
        (steps, rows, width), (1, gates * hidden, width), (1, gates * hidden, hidden))]
    state: Dims = (1, rows, hidden)
    more: list[Dims | None] = [(1, 2 * gates * hidden), None, state]
    more += [state, (1, 3 * hidden)] if op == "LSTM" else []
    inputs += [d.operand(dims, "float32", draw) if dims is not None and d.chance(0.5) else "" for dims in more]
    while not inputs[-1]:
        inputs.pop()
    d.node(op, inputs, 3 if op == "LSTM" else 2, hidden_size=hidden, direction=d.maybe(0.3, "forward"),
           **({"linear_before_reset": d.maybe(0.4, 1)} if op == "GRU" else {}))


RECIPES: dict[str, Recipe] = {
    **{op: partial(reduction, op) for op in REDUCTIONS}, "Softmax": partial(softmax, "Softmax"),
    "LogSoftmax": partial(softmax, "LogSoftmax"), "ArgMax": partial(arg, "ArgMax"), "ArgMin": partial(arg, "ArgMin"),
    **{op: partial(cumulative, op) for op in ("CumSum", "CumProd")}, "GridSample": grid_sample, "Col2Im": col2im,
    "MatMul": matmul, "Gemm": gemm, "Conv": conv, "Einsum": einsum,
    "ConvTranspose": conv_transpose, "LpNormalization": lp_norm, "LRN": lrn, "LpPool": partial(pool, "LpPool"),
    "GlobalLpPool": partial(global_pool, "GlobalLpPool"), "Hardmax": partial(softmax, "Hardmax"),
    "MaxPool": partial(pool, "MaxPool"),
    "AveragePool": partial(pool, "AveragePool"), "GlobalAveragePool": partial(global_pool, "GlobalAveragePool"),
    "GlobalMaxPool": partial(global_pool, "GlobalMaxPool"), "LayerNormalization": partial(layer_norm, "LayerNormalization"),
    "RMSNormalization": partial(layer_norm, "RMSNormalization"), "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm, "GroupNormalization": group_norm, "MeanVarianceNormalization": mean_variance,
    "Resize": resize, "Upsample": upsample, **{op: partial(recurrent, op) for op in ("RNN", "GRU", "LSTM")},
}
