"""Recipes of com.microsoft, which ONNX Runtime's own tools write, and of ai.onnx.ml, which those of scikit-learn do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe, rank, stretched
from tests.fuzz.operators.quantised import EXACT, among, octets
from tests.fuzz.operators.values import Array, Draw, Sizes, at, fixed, places, within

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
#: Activations that are fused, with the parameters that they must have.
_ACTIVATIONS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("LeakyRelu", (0.1,)), ("HardSigmoid", (0.3, 0.4)))
_SMALL = within("float32", -1, 1)


def _weight(d: Draft, dims: Sequence[str | int], draw: Draw = _SMALL) -> str:
    """What is mostly constant."""
    return d.operand(dims, "float32", draw, d.rng.choice(("initializer", "initializer", "node", "feed")))


def _optional(d: Draft, p: float, dims: Sequence[str | int], draw: Draw = _SMALL) -> str:
    return _weight(d, dims, draw) if d.chance(p) else ""


def _rows(d: Draft) -> Dims:
    """Leading dims of what has a last axis of its own."""
    return d.extents(d.rng.choice((1, 2, 2)))


def _node(d: Draft, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
    """A node of com.microsoft, without the operands that are left out behind its last."""
    last = max(k for k, name in enumerate(inputs) if name)
    return d.node(op, inputs[:last + 1], outputs, domain=MICROSOFT, **attributes)


# -- activations, products, convolutions ---------------------------------------------------------------------------

def activation(d: Draft, op: str) -> None:
    x = d.operand(d.extents(rank(d, 1)), "float32", within("float32", -6, 6))
    bias = [_weight(d, d.dims[x][-1:])] if op == "BiasGelu" or (op == "FastGelu" and d.chance(0.5)) else []
    alpha = {"alpha": d.maybe(0.5, d.rng.choice((1.0, 1.5, -0.5)))} if op == "QuickGelu" else {}
    _node(d, op, [x, *bias], **alpha)


def fused_matmul(d: Draft, op: str) -> None:
    """Either operand as it is or transposed, its rows before the batch as well."""
    rows, depth, columns = d.extents(3)
    batch = d.extents(d.rng.choice((0, 0, 1, 2)))
    attributes: dict[str, Any] = {"alpha": d.maybe(0.5, d.rng.choice((0.125, -2.0)))}

    def side(name: str, high: str | int, wide: str | int, own: Dims) -> list[str | int]:
        turned, moved = d.chance(0.4), op == "FusedMatMul" and own and d.chance(0.3)
        attributes[f"trans{name}"] = 1 if turned else d.maybe(0.3, 0)
        if op == "FusedMatMul":
            attributes[f"transBatch{name}"] = 1 if moved else None
        last = (wide, high) if turned else (high, wide)
        return [last[0], *own, last[1]] if moved else [*own, *last]

    a = side("A", rows, depth, batch)
    b = side("B", depth, columns, batch if d.chance(0.5) or attributes.get("transBatchA") else ())
    _node(d, op, [d.operand(a, draw=_SMALL), _weight(d, b)], **attributes)


def fused_gemm(d: Draft) -> None:
    rows, depth, columns = d.extents(3)
    kind, parameters = d.rng.choice(_ACTIVATIONS)
    names: dict[str, Any] = dict(zip(("activation_alpha", "activation_beta"), parameters))
    trans_a, trans_b = d.chance(0.3), d.chance(0.4)
    inputs = [d.operand((depth, rows) if trans_a else (rows, depth), draw=_SMALL),
              _weight(d, (columns, depth) if trans_b else (depth, columns))]
    if d.chance(0.7):
        inputs.append(_weight(d, stretched(d, (rows, columns))))
    _node(d, "FusedGemm", inputs, transA=d.maybe(0.9, int(trans_a)) if not trans_a else 1,
           transB=1 if trans_b else None, alpha=d.maybe(0.4, 0.5), beta=d.maybe(0.4, 2.0), activation=kind, **names)


def fused_conv(d: Draft) -> None:
    """An image as large as before, to which another may be added before the activation."""
    groups, taps = d.rng.choice((1, 1, 2)), d.rng.choice((1, 3))
    own, outputs = d.rng.choice((1, 3, 4)), groups * d.rng.choice((1, 2, 8))
    image = (d.size(1, 3), d.size(1, 17), d.size(1, 17))
    x = d.operand((image[0], own * groups, *image[1:]), draw=_SMALL)
    kind, parameters = d.rng.choice((*_ACTIVATIONS, ("Clip", (0.0, 0.5))))
    inputs = [x, _weight(d, (outputs, own, taps, taps)), _optional(d, 0.6, (outputs,))]
    if d.chance(0.4):
        inputs.append(d.operand((image[0], outputs, *image[1:]), draw=_SMALL, role="feed"))
    _node(d, "FusedConv", inputs, group=groups, pads=[taps // 2] * 4, activation=kind,
           activation_params=list(parameters) or None)


# -- norms -----------------------------------------------------------------------------------------------------------

def skip_norm(d: Draft, op: str) -> None:
    """A norm of a sum, and the sum."""
    dims = (*(d.size(), d.size()), d.rng.choice((4, 16, 17, 64)))
    other = dims if d.chance(0.6) else dims[1:] if d.chance(0.5) else (1, *dims[1:])
    x, skip = d.operand(dims, draw=_SMALL, role="feed"), d.operand(other, draw=_SMALL)
    inputs = [x, skip, _weight(d, dims[2:])]
    if op == "SkipLayerNormalization":
        inputs.append(_optional(d, 0.7, dims[2:]))
    inputs.append(_optional(d, 0.5, dims[2:]))
    made = _node(d, op, inputs, 4, epsilon=d.rng.choice((0.5, 1e-3)))
    d.nodes[-1].output[1], d.nodes[-1].output[2] = "", ""
    d.outputs = [made[0], made[3]]


def embed_norm(d: Draft) -> None:
    batch, length, width = d.size(1, 8), d.size(1, 17), d.rng.choice((4, 16, 17))
    words, rows = d.rng.choice((3, 20)), 24

    def ids(most: int) -> str:
        return d.operand((batch, length), "int32", places("int32", most, False), "feed")

    kinds = d.chance(0.6)
    inputs = [ids(words), ids(2) if kinds else "", _weight(d, (words, width)), _weight(d, (rows, width)),
              _weight(d, (2, width)) if kinds else "", _weight(d, (width,)), _weight(d, (width,))]
    if d.chance(0.5):
        inputs += ["", ids(rows)] if d.chance(0.5) else [ids(2)]
    made = _node(d, "EmbedLayerNormalization", inputs, 2, epsilon=d.rng.choice((0.5, 1e-3)))
    d.outputs = made[:1 + d.chance(0.5)]


# -- attention ---------------------------------------------------------------------------------------------------------

def _shown(first: int) -> Draw:
    """Which places are shown: the first of them in any case, for a row of none has no meaning that all agree on."""
    def made(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        found = np.asarray(gen.integers(0, 2, shape), np.int32)
        found[..., :first] = 1
        return found
    return made


def _lengths(length: str | int) -> Draw:
    def made(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.integers(1, at(length, sizes) + 1, shape), np.int32)
    return made


def _padding(d: Draft, batch: str | int, length: str | int) -> str:
    if d.chance(0.4):
        return ""
    if d.chance(0.4):
        return d.operand((batch,), "int32", _lengths(length), "feed")
    return d.operand((batch, length), "int32", _shown(1), "feed")


def attention(d: Draft) -> None:
    """Heads of one input's projections, among what came before as well."""
    batch, length, heads, head = d.size(1, 4), d.size(1, 33), d.rng.choice((1, 2, 3)), d.rng.choice((1, 4, 16))
    depth, width = d.rng.choice((3, 16)), heads * head
    inputs = [d.operand((batch, length, depth), draw=_SMALL, role="feed"), _weight(d, (depth, 3 * width)),
              _weight(d, (3 * width,))]
    past = d.chance(0.25)
    if past:
        before = d.size(1, 9)
        inputs += ["", d.operand((2, batch, heads, before, head), draw=_SMALL, role="feed")]
    else:
        inputs += [_padding(d, batch, length), ""]
    if not past and d.chance(0.3):
        inputs.append(d.operand((d.rng.choice((1, batch)), d.rng.choice((1, heads)), length, length), draw=_SMALL, role="feed"))
    _node(d, "Attention", inputs, 2 if past else 1, num_heads=heads, unidirectional=d.maybe(0.4, 1),
           scale=d.maybe(0.3, 0.3))


def multi_head(d: Draft) -> None:
    """Queries, keys and values of their own lengths and widths."""
    batch, length, other = d.size(1, 4), d.size(1, 33), d.size(1, 33)
    heads, head, wide = d.rng.choice((1, 2, 3)), d.rng.choice((1, 4, 16)), d.rng.choice((1, 4, 16))
    widths = heads * head, heads * head, heads * wide
    inputs = [d.operand((batch, n, w), draw=_SMALL, role="feed") for n, w in zip((length, other, other), widths)]
    inputs += [_optional(d, 0.4, (sum(widths),)), _padding(d, batch, other)]
    if d.chance(0.3):
        inputs.append(d.operand((d.rng.choice((1, batch)), d.rng.choice((1, heads)), length, other), draw=_SMALL, role="feed"))
    _node(d, "MultiHeadAttention", inputs, num_heads=heads, scale=d.maybe(0.3, 0.3))


def rotary(d: Draft) -> None:
    batch, length, heads, half = d.size(1, 4), d.size(1, 17), d.rng.choice((1, 3)), d.rng.choice((1, 4, 8))
    flat = d.chance(0.5)
    x = d.operand((batch, length, 2 * half * heads) if flat else (batch, heads, length, 2 * half), draw=_SMALL, role="feed")
    where = d.operand((1,), "int64", fixed([3]), "feed") if d.chance(0.5) else d.operand(
        (batch, length), "int64", places("int64", 24, False), "feed")
    caches = [_weight(d, (24, half)) for _ in range(2)]
    _node(d, "RotaryEmbedding", [x, where, *caches], interleaved=d.maybe(0.5, 1))


# -- quantised -----------------------------------------------------------------------------------------------------------

def _step(d: Draft, dtype: str) -> list[str]:
    """A scale that is a power of two, so that no rounding is a matter of taste, and a zero point."""
    point = (0, 3, 128) if dtype == "uint8" else (0, 3, -7)
    return [d.operand((), "float32", among(EXACT, "float32"), "initializer"),
            d.operand((), dtype, among(point, dtype), "initializer")]


def quantised_pair(d: Draft, op: str) -> None:
    dims, dtype = d.extents(rank(d, 1)), d.rng.choice(("uint8", "int8"))
    inputs = [octets(d, dims, dtype, "feed"), *_step(d, dtype), octets(d, stretched(d, dims), dtype), *_step(d, dtype)]
    _node(d, op, [*inputs, *_step(d, dtype)])


def quantised_concat(d: Draft) -> None:
    dims, dtype = list(d.extents(rank(d, 1))), d.rng.choice(("uint8", "int8"))
    axis, inputs = d.rng.randrange(len(dims)), _step(d, dtype)
    for _ in range(d.rng.choice((1, 2, 3))):
        dims[axis] = d.rng.choice((1, 3, d.size()))
        inputs += [octets(d, dims, dtype, "feed"), *_step(d, dtype)]
    _node(d, "QLinearConcat", inputs, axis=axis)


def to_floats(d: Draft) -> None:
    rows, columns = d.extents(2)
    depth, kinds = d.rng.choice((1, 4, 16, 33)), [d.rng.choice(("uint8", "int8")) for _ in range(2)]
    each = (columns,) if d.chance(0.5) else ()
    a = octets(d, (*d.extents(d.rng.choice((0, 1))), rows, depth), kinds[0], "feed")
    inputs = [a, octets(d, (depth, columns), kinds[1], "initializer"), _weight(d, (), among(EXACT, "float32")),
              _weight(d, each, among(EXACT, "float32"))]
    points = [d.operand((), kinds[0], among((0, 3), kinds[0]), "initializer"),
              d.operand(each, kinds[1], among((0, 3), kinds[1]), "initializer")] if d.chance(0.6) else ["", ""]
    inputs += [*points, _optional(d, 0.5, (columns,))]
    _node(d, "MatMulIntegerToFloat", inputs)


def few_bits(d: Draft) -> None:
    """Weights of four or eight bits in blocks, of which the last may be cut off."""
    block, bits, columns = d.rng.choice((16, 32)), d.rng.choice((4, 4, 8)), d.rng.choice((1, 5, 16, 48))
    depth = block * d.rng.choice((1, 2, 5)) - d.rng.choice((0, 0, 2, 9))
    blocks = -(-depth // block)
    packed = partial(d.operand, dtype="uint8", draw=within("uint8", 0, 256), role="initializer")
    inputs = [d.operand((*_rows(d), depth), draw=_SMALL, role="feed"), packed((columns, blocks, block * bits // 8)),
              d.operand((columns * blocks,), draw=within("float32", 0.01, 0.1), role="initializer")]
    if d.chance(0.5):
        inputs.append(packed((columns * -(-blocks * bits // 8),)))
    _node(d, "MatMulNBits", inputs, K=depth, N=columns, block_size=block, bits=bits)


# -- ai.onnx.ml --------------------------------------------------------------------------------------------------------------

def _floats(d: Draft, count: int, low: float = -2, high: float = 2) -> list[float]:
    return [round(d.rng.uniform(low, high), 3) for _ in range(count)]


def _features(d: Draft, dtype: str = "float32") -> tuple[str, int]:
    columns = d.rng.choice((1, 2, 5, 17))
    return d.operand((d.size(), columns), dtype, within(dtype, -3, 4), "feed"), columns


def scaler(d: Draft) -> None:
    x, columns = _features(d)
    count = d.rng.choice((1, columns))
    d.node("Scaler", [x], domain=ML, offset=_floats(d, count), scale=_floats(d, count))


def normalizer(d: Draft) -> None:
    d.node("Normalizer", [_features(d)[0]], domain=ML, norm=d.rng.choice(("MAX", "L1", "L2")))


def binarizer(d: Draft) -> None:
    d.node("Binarizer", [_features(d)[0]], domain=ML, threshold=d.maybe(0.7, d.rng.choice((0.5, -1.0))))


def extractor(d: Draft) -> None:
    x, columns = _features(d)
    which = d.operand((d.rng.choice((1, 3)),), "int64", places("int64", columns, False))
    d.node("ArrayFeatureExtractor", [x, which], domain=ML)


def one_hot(d: Draft) -> None:
    x = d.operand(d.extents(1), "int64", within("int64", -1, 5), "feed")
    d.node("OneHotEncoder", [x], domain=ML, cats_int64s=d.rng.sample(range(-1, 5), 4), zeros=1)


def linear(d: Draft) -> None:
    x, columns = _features(d)
    targets = d.rng.choice((1, 3))
    d.node("LinearRegressor", [x], domain=ML, coefficients=_floats(d, targets * columns), targets=targets,
           intercepts=d.maybe(0.6, _floats(d, targets)))


def forest(d: Draft) -> None:
    """Trees of nodes that part at halves, where no rounding decides, each leaf with a weight for some target."""
    x, columns = _features(d)
    targets, keys = d.rng.choice((1, 2)), ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {key: [] for key in keys}
    leaves: list[tuple[int, int]] = []
    for tree in range(d.rng.choice((1, 3))):
        left = [(0, 0)]  # number and depth
        made = 0
        while left:
            number, depth = left.pop()
            inner = depth < d.rng.choice((1, 2, 4))
            mode = d.rng.choice(("BRANCH_LEQ", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT")) if inner else "LEAF"
            yes, no = (made + 1, made + 2) if inner else (0, 0)
            row: tuple[Any, ...] = (tree, number, d.rng.randrange(columns), d.rng.randrange(-2, 3) + 0.5, mode, yes, no)
            for key, value in zip(keys, row):
                nodes[key].append(value)
            if inner:
                made += 2
                left += [(yes, depth + 1), (no, depth + 1)]
            else:
                leaves.append((tree, number))
    own = [d.rng.randrange(targets) for _ in leaves]
    parts: dict[str, Any] = {f"nodes_{key}": value for key, value in nodes.items()}
    d.node("TreeEnsembleRegressor", [x], domain=ML, n_targets=targets, **parts,
           target_treeids=[tree for tree, _ in leaves], target_nodeids=[number for _, number in leaves], target_ids=own,
           target_weights=_floats(d, len(leaves)), base_values=d.maybe(0.4, _floats(d, targets)),
           aggregate_function=d.maybe(0.5, "SUM"))


RECIPES: dict[str, Recipe] = {
    **{f"{MICROSOFT}.{op}": partial(activation, op=op) for op in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")},
    **{f"{MICROSOFT}.{op}": partial(fused_matmul, op=op) for op in ("FusedMatMul", "TransposeMatMul")},
    **{f"{MICROSOFT}.{op}": partial(skip_norm, op=op) for op in (
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    **{f"{MICROSOFT}.{op}": partial(quantised_pair, op=op) for op in ("QLinearAdd", "QLinearMul")},
    **{f"{MICROSOFT}.{op}": recipe for op, recipe in (
        ("FusedGemm", fused_gemm), ("FusedConv", fused_conv), ("EmbedLayerNormalization", embed_norm), ("Attention", attention),
        ("MultiHeadAttention", multi_head), ("RotaryEmbedding", rotary), ("QLinearConcat", quantised_concat),
        ("MatMulIntegerToFloat", to_floats), ("MatMulNBits", few_bits))},
    **{f"{ML}.{op}": recipe for op, recipe in (
        ("Scaler", scaler), ("Normalizer", normalizer), ("Binarizer", binarizer), ("ArrayFeatureExtractor", extractor),
        ("OneHotEncoder", one_hot), ("LinearRegressor", linear), ("TreeEnsembleRegressor", forest))}}
