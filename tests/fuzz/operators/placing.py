"""Recipes of operators that put elements in computed places or in order: the Scatter family, TopK, and those that count."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe, rank
from tests.fuzz.operators.values import Array, Sizes, fixed, places, shape_at


def _folded(d: Draft, op: str) -> str | None:
    """How updates are joined with what is there, where the opset has that; of several that only replace, each may be kept."""
    if d.opset < 16 or op == "Scatter" or d.chance(0.4):
        return None
    return d.rng.choice(("add", "mul") if d.opset < 18 else ("add", "mul", "max", "min"))


def scatter_elements(d: Draft, op: str = "ScatterElements") -> None:
    dims, kind = d.extents(rank(d, 1, 3)), d.rng.choice(("int64", "int64", "int32"))
    axis, folded = d.rng.randrange(-len(dims), len(dims)), _folded(d, op)
    dtype = d.dtype(op) if folded is None else d.dtype(op, among=("float32", "float64", "int32", "int64", "int8"))
    own: list[str | int] = list(dims)
    if folded is not None:
        own[axis] = d.rng.choice((1, 3, d.size()))

    def apart(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        """Each place of an axis once, counted from either end."""
        found = gen.random(shape).argsort(axis=axis)
        return np.asarray(np.where(gen.random(shape) < 0.3, found - max(shape[axis], 1), found), kind)

    x = d.operand(dims, dtype)
    indices = d.operand(own, kind, apart if folded is None else places(kind, dims[axis]), of=(dims[axis],))
    d.node(op, [x, indices, d.operand(own, dtype)], axis=axis, **({} if folded is None else {"reduction": folded}))


def scatter(d: Draft) -> None:
    scatter_elements(d, "Scatter")


def scatter_nd(d: Draft) -> None:
    dims, folded = d.extents(rank(d, 1, 4)), _folded(d, "ScatterND")
    dtype = d.dtype("ScatterND") if folded is None else d.dtype("ScatterND", among=("float32", "float64", "int32", "int64"))
    depth = d.rng.randint(1, len(dims))
    outer: Dims = d.extents(d.rng.choice((0, 1, 2))) if folded else (d.rng.choice((1, dims[0])),)

    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        extents = [max(n, 1) for n in shape_at(dims[:depth], sizes)]
        found = np.asarray(gen.integers([-n for n in extents], extents, shape))
        if folded is None:  # rows of their own
            found[..., 0] = gen.permutation(extents[0])[:shape[0]] - (extents[0] if gen.random() < 0.3 else 0)
        return found

    x = d.operand(dims, dtype)
    indices = d.operand((*outer, depth), "int64", drawn, of=dims[:depth])
    d.node("ScatterND", [x, indices, d.operand((*outer, *dims[depth:]), dtype)],
           **({} if folded is None else {"reduction": folded}))


def tensor_scatter(d: Draft) -> None:
    """A cache that fills up, or goes round."""
    count, size, mode = d.rng.choice((1, 2, 3)), d.size(3, 17), d.rng.choice((None, "linear", "circular"))
    batch, before, behind = d.rng.choice((1, 2, d.size(1, 3))), d.extents(d.rng.choice((0, 1))), d.extents(d.rng.choice((0, 1)))
    axis = 1 + len(before)
    dtype = d.dtype("TensorScatter")

    def begins(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        (length,) = shape_at((size,), sizes)
        return np.asarray(gen.integers(0, length if mode == "circular" else length - count + 1, shape))

    cache = d.operand((batch, *before, size, *behind), dtype)
    inputs = [cache, d.operand((batch, *before, count, *behind), dtype)]
    if d.chance(0.8):
        inputs.append(d.operand((batch,), "int64", begins, of=(size,)))
    ranks = axis + 1 + len(behind)
    d.node("TensorScatter", inputs, axis=d.rng.choice((axis, axis - ranks)), mode=mode)


def max_unpool(d: Draft) -> None:
    """Elements that go to places of their own among what was pooled, which may be less than the output."""
    dims = d.rng.choice((1, 2, 2, 3))
    kernel, strides = ([d.rng.choice((1, 2, 3, 4)) for _ in range(dims)] for _ in range(2))
    pads = [d.rng.randint(0, (k - 1) // 2) for _ in range(2) for k in kernel]
    image = [d.size(1, {1: 33, 2: 9, 3: 4}[dims]) for _ in range(dims)]
    shape = (d.rng.choice((1, 2, d.size(1, 3))), d.rng.choice((1, 3)), *image)

    def apart(gen: np.random.Generator, own: tuple[int, ...], sizes: Sizes) -> Array:
        pooled = [(n - 1) * s + k - p - q for n, s, k, p, q in zip(own[2:], strides, kernel, pads, pads[dims:])]
        return np.asarray(gen.permutation(prod((*own[:2], *pooled)))[:prod(own)].reshape(own))

    inputs = [d.operand(shape, d.dtype("MaxUnpool")), d.operand(shape, "int64", apart)]
    if d.chance(0.4) and not any(isinstance(n, str) for n in shape):
        spans = [(int(n) - 1) * s + k + d.rng.randint(0, 2) for n, s, k in zip(image, strides, kernel)]
        most = [*shape[:2], *spans]
        inputs.append(d.constant(fixed(most), (len(shape),)))
    d.node("MaxUnpool", inputs, kernel_shape=kernel, strides=d.maybe(0.8, strides) if max(strides) == 1 else strides,
           pads=pads if any(pads) else d.maybe(0.5, pads))


def top_k(d: Draft) -> None:
    """Few of many, all, or none; ties keep their order."""
    dims = list(d.extents(rank(d, 1, 3)))
    axis = d.rng.randrange(-len(dims), len(dims))
    dims[axis] = d.size(4, 33)
    flags = {} if d.opset < 11 else {"largest": d.maybe(0.6, d.rng.choice((0, 1))), "sorted": d.maybe(0.2, 1)}
    dtype = d.dtype("TopK")
    x = d.operand(dims, dtype)
    count = d.rng.choice((0, 1, 2, 4))
    if d.opset < 10:
        d.node("TopK", [x], 2, axis=axis, k=max(count, 1))
    else:
        d.node("TopK", [x, d.constant(fixed(count), (1,))], 2, axis=axis, **flags)


def non_zero(d: Draft) -> None:
    """Of numbers that are often 0, or of bools."""
    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.integers(-3, 4, shape) * (gen.random(shape) < gen.choice((0.0, 0.1, 0.5, 1.0))), dtype)

    dtype = d.dtype("NonZero", among=("float32", "float64", "int32", "int64", "int8", "bool"))
    d.node("NonZero", [d.operand(d.extents(rank(d, 0, 4)), dtype, drawn)])


def compress(d: Draft) -> None:
    """Along an axis or of all elements, by a condition that may be shorter."""
    dims = d.extents(rank(d, 1, 3))
    axis = d.maybe(0.8, d.rng.randrange(-len(dims), len(dims)))
    along = d.rng.choice((dims[axis], 1, dims[axis])) if axis is not None else 1

    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.random(shape) < gen.choice((0.0, 0.2, 0.7, 1.0)))

    d.node("Compress", [d.operand(dims, d.dtype("Compress")), d.operand((along,), "bool", drawn)],
           **({} if axis is None else {"axis": axis}))


def unique(d: Draft) -> None:
    """Few different numbers, so that some are alike."""
    dims = d.extents(rank(d, 1, 3))
    dtype = d.dtype("Unique", among=("float32", "float64", "int32", "int64", "int8", "bool"))

    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        return np.asarray(gen.integers(0, gen.choice((1, 3, 50)), shape), dtype)

    axis = d.maybe(0.5, d.rng.randrange(-len(dims), len(dims)))
    d.node("Unique", [d.operand(dims, dtype, drawn)], d.rng.randint(1, 4), sorted=d.maybe(0.6, d.rng.choice((0, 1))),
           **({} if axis is None else {"axis": axis}))


def non_max_suppression(d: Draft) -> None:
    """Boxes whose corners are whole numbers of eighths, so that overlaps are exact, and scores without ties."""
    batch, classes, boxes = d.rng.choice((1, 2)), d.rng.choice((1, 3, d.size(1, 3))), d.size(1, 33)
    centred = d.maybe(0.4, d.rng.choice((0, 1)))

    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        begin, size = gen.integers(0, 12, (*shape[:2], 2)) / 8, gen.integers(1, 12, (*shape[:2], 2)) / 8
        return np.asarray(np.concatenate([begin, size if centred else begin + size], axis=-1), np.float32)

    def ranked(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        found = gen.permuted(np.broadcast_to(np.arange(shape[2]), shape), axis=2)
        return np.asarray((found + 1) / (shape[2] + 1), np.float32)

    inputs = [d.operand((batch, boxes, 4), "float32", drawn), d.operand((batch, classes, boxes), "float32", ranked)]
    limits = [(np.int64(d.rng.choice((0, 1, 3, 99))), "int64"), (np.float32(d.rng.choice((0.0, 0.3, 0.7))), "float32"),
              (np.float32(d.rng.choice((0.01, 0.4, 0.9, 2.0))), "float32")]
    for value, dtype in limits[:d.rng.choice((1, 2, 3, 3, 3))]:
        inputs.append(d.operand((1,), dtype, lambda gen, shape, sizes, value=value: np.full(shape, value)))
    d.node("NonMaxSuppression", inputs, **({} if centred is None else {"center_point_box": centred}))


RECIPES: dict[str, Recipe] = {"ScatterElements": scatter_elements, "Scatter": scatter, "ScatterND": scatter_nd,
                              "TensorScatter": tensor_scatter, "MaxUnpool": max_unpool, "TopK": top_k}
COUNTED: dict[str, Recipe] = {"NonZero": non_zero, "Compress": compress, "Unique": unique,
                              "NonMaxSuppression": non_max_suppression}
