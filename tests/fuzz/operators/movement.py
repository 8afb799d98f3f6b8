"""Recipes of operators that move elements, views, joins, cuts, repetitions, reads at computed places, and of If."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, helper

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe, rank
from tests.fuzz.operators.values import FAR, Array, Sizes, at, computed, fixed, places, plain, shape_at


def _axis(d: Draft, count: int) -> int:
    return d.rng.randrange(-count, count)


def transpose(d: Draft) -> None:
    dims = d.extents(rank(d))
    order = list(range(len(dims)))
    d.rng.shuffle(order)
    d.node("Transpose", [d.operand(dims, d.dtype("Transpose"))], perm=d.maybe(0.85, order))


def reshape(d: Draft) -> None:
    """Merge, split by a constant, keep by 0, infer by -1; sizes by number where they are fixed."""
    dims = list(d.extents(rank(d, 1)))
    form = d.rng.choice(("merge", "split", "zeros", "flat", "numbers", "ones"))
    target: list[int]
    if form == "merge" and len(dims) > 1:
        k = d.rng.randrange(len(dims) - 1)
        target = [0] * k + [-1]
        dims = dims[:k + 2]
    elif form == "split":
        k, factor = d.rng.randrange(len(dims)), d.rng.choice((2, 3, 4))
        dims[k] = d.size(factor, 65, factor)
        target = [0] * k + d.rng.choice(([-1, factor], [factor, -1]))
        dims = dims[:k + 1]
    elif form == "zeros":
        target = [0] * len(dims)
    elif form == "ones":
        target = [0] * d.rng.randint(0, len(dims)) + [1, -1]
    elif form == "numbers":
        sizes = [x if isinstance(x, int) else d.rng.choice((1, 2, 6, 15, 17)) for x in dims]
        dims, total = list(sizes), 1
        for s in sizes:
            total *= s
        factor = next(f for f in (5, 4, 3, 2, 1) if total % f == 0)
        target = d.rng.choice(([factor, total // factor], [total // factor, 1, factor], [total]))
    else:
        target = [-1]
    x = d.operand(dims, d.dtype("Reshape"))
    legal_zero = 0 not in target and -1 not in target
    d.node("Reshape", [x, d.constant(fixed(target), (len(target),))],
           allowzero=1 if d.opset >= 14 and legal_zero and d.chance(0.3) else None)


def squeeze(d: Draft) -> None:
    dims = list(d.extents(rank(d, 1)))
    axes = sorted(d.rng.sample(range(len(dims)), d.rng.randint(1, len(dims))))
    for a in axes:
        dims[a] = 1
    x, given = d.operand(dims, d.dtype("Squeeze")), [a - len(dims) if d.chance(0.3) else a for a in axes]
    if d.chance(0.15) and all(x == 1 or k not in axes for k, x in enumerate(dims)) and 1 not in (
            x for k, x in enumerate(dims) if k not in axes) and not any(isinstance(x, str) for x in dims):
        d.node("Squeeze", [x])
    elif d.opset < 13:
        d.node("Squeeze", [x], axes=given)
    else:
        d.node("Squeeze", [x, d.constant(fixed(given), (len(given),))])


def unsqueeze(d: Draft) -> None:
    dims = d.extents(rank(d, 0, 3))
    count = d.rng.randint(1, 2)
    axes = d.rng.sample(range(len(dims) + count), count)
    axes = [a - len(dims) - count if d.opset >= 11 and d.chance(0.3) else a for a in axes]
    x = d.operand(dims, d.dtype("Unsqueeze"))
    if d.opset < 13:
        d.node("Unsqueeze", [x], axes=axes)
    else:
        d.node("Unsqueeze", [x, d.constant(fixed(axes), (count,))])


def flatten(d: Draft) -> None:
    dims = d.extents(rank(d, 1))
    least = -len(dims) if d.opset >= 11 else 0
    d.node("Flatten", [d.operand(dims, d.dtype("Flatten"))], axis=d.maybe(0.8, d.rng.randint(least, len(dims))))


def concat(d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 1), 0), d.dtype("Concat")
    axis = _axis(d, len(dims)) if d.opset >= 11 else d.rng.randrange(len(dims))
    parts = []
    for _ in range(d.rng.choice((1, 2, 2, 3, 6))):
        own = list(dims)
        own[axis] = d.rng.choice((1, 2, 3, d.size(0), d.size(0)))
        parts.append(d.operand(own, dtype))
    d.node("Concat", parts, axis=axis)


def split(d: Draft) -> None:
    dims, dtype, count = list(d.extents(rank(d, 1))), d.dtype("Split"), d.rng.randint(1, 4)
    axis = _axis(d, len(dims))
    if d.chance(0.5):
        sizes = [d.rng.choice((0, 1, 2, 3, 5, 16)) for _ in range(count)]
        dims[axis] = sum(sizes) or 1
        sizes[-1] += dims[axis] - sum(sizes)
        x = d.operand(dims, dtype)
        if d.opset < 13:
            d.node("Split", [x], count, axis=axis, split=sizes)
        else:
            d.node("Split", [x, d.constant(fixed(sizes), (count,))], count, axis=axis)
    elif d.opset >= 18:
        dims[axis] = d.size(count) if d.chance(0.5) else d.size(count, 65, count)
        d.node("Split", [d.operand(dims, dtype)], count, axis=axis, num_outputs=count)
    else:
        dims[axis] = d.size(count, 65, count)
        d.node("Split", [d.operand(dims, dtype)], count, axis=axis)


def expand(d: Draft) -> None:
    dims = d.extents(rank(d))
    wanted = [d.rng.choice((1, 2, 3)) for _ in range(d.rng.randint(0, 2))]
    wanted += [d.rng.choice((1, 2, 5, 16)) if x == 1 else x if isinstance(x, int) and d.chance(0.5) else 1 for x in dims]
    d.node("Expand", [d.operand(dims, d.dtype("Expand")), d.constant(fixed(wanted), (len(wanted),))])


def tile(d: Draft) -> None:
    dims = d.extents(rank(d, 1, 3))
    repeats = [d.rng.choice((0, 1, 1, 2, 3)) if d.chance(0.9) else 5 for _ in dims]
    d.node("Tile", [d.operand(dims, d.dtype("Tile")), d.constant(fixed(repeats), (len(dims),))])


def trilu(d: Draft) -> None:
    dims = d.extents(rank(d, 2))
    x = d.operand(dims, d.dtype("Trilu"))
    known = fixed(d.rng.choice(FAR) if d.chance(0.2) else d.rng.randint(-4, 4))
    diagonal = [d.constant(known, ())] if d.chance(0.6) else []
    if diagonal and d.chance(0.3):  # what only the run knows
        diagonal = [d.operand((), "int64", known, role="feed")]
    d.node("Trilu", [x, *diagonal], upper=d.maybe(0.6, d.rng.choice((0, 1))))


def depth_to_space(d: Draft) -> None:
    b, deep = d.rng.choice((1, 2, 3)), d.rng.choice((1, 2, 3))
    x = d.operand((d.rng.choice((1, 2, d.size(1, 3))), b * b * deep, d.size(1, 17), d.size(1, 17)), d.dtype("DepthToSpace"))
    d.node("DepthToSpace", [x], blocksize=b, mode=d.maybe(0.6, d.rng.choice(("DCR", "CRD"))) if d.opset >= 11 else None)


def space_to_depth(d: Draft) -> None:
    b = d.rng.choice((1, 2, 3))
    x = d.operand((d.rng.choice((1, 2)), d.rng.choice((1, 3)), d.size(b, 30, b), d.size(b, 30, b)), d.dtype("SpaceToDepth"))
    d.node("SpaceToDepth", [x], blocksize=b, mode=d.maybe(0.6, d.rng.choice(("DCR", "CRD"))) if d.opset >= 28 else None)


def cut(d: Draft) -> None:
    dims = d.extents(rank(d, 1), 0)
    axes = d.rng.sample(range(len(dims)), d.rng.randint(1, len(dims)))
    steps = [d.rng.choice((1, 1, 1, 2, 3, -1, -2)) if d.opset >= 10 else 1 for _ in axes]
    starts, ends = ([d.rng.choice(FAR) if d.chance(0.25) else d.rng.randint(-6, 6) for _ in axes] for _ in range(2))
    given = [a - len(dims) if d.opset >= 10 and d.chance(0.3) else a for a in axes]
    x, n = d.operand(dims, d.dtype("Slice")), len(axes)
    if d.opset < 10:
        d.node("Slice", [x], starts=starts, ends=ends, axes=given)
        return
    inputs = [x, d.constant(fixed(starts), (n,)), d.constant(fixed(ends), (n,))]
    named = axes != list(range(n)) or d.chance(0.7)
    if named or any(s != 1 for s in steps):
        inputs.append(d.constant(fixed(given), (n,)))
    if any(s != 1 for s in steps) or (named and d.chance(0.5)):
        inputs.append(d.constant(fixed(steps), (n,)))
    d.node("Slice", inputs)


def pad(d: Draft) -> None:
    dims = d.extents(rank(d, 1, 3))
    modes = ("constant", "constant", "edge", "reflect", *(("wrap",) if d.opset >= 19 else ()))
    mode, n = d.rng.choice(modes), len(dims)
    low, high = (-2, 4) if mode == "constant" else (0, 3)
    pads = [d.rng.randint(low, high) if d.chance(0.7) else 0 for _ in range(2 * n)]
    dtype = d.dtype("Pad")
    x, named = d.operand(dims, dtype), d.maybe(0.85 if mode == "constant" else 1.0, mode)
    if d.opset < 11:
        d.node("Pad", [x], pads=pads, mode=named, value=d.maybe(0.5, 1.5))
        return
    axes = sorted(d.rng.sample(range(n), d.rng.randint(1, n))) if d.opset >= 18 and d.chance(0.3) else None
    if axes is not None:
        pads = [pads[a] for a in axes] + [pads[a + n] for a in axes]
    inputs = [x, d.constant(fixed(pads), (len(pads),))]
    inputs += [d.operand((), dtype)] if mode == "constant" and d.chance(0.6) else [""] if axes is not None else []
    d.node("Pad", [*inputs, d.constant(fixed(axes), (len(axes),))] if axes is not None else inputs, mode=named)


# -- computed places -------------------------------------------------------------------------------------------

def gather(d: Draft) -> None:
    dims, kind = d.extents(rank(d, 1, 3)), d.rng.choice(("int64", "int64", "int32"))
    axis = _axis(d, len(dims))
    x = d.operand(dims, d.dtype("Gather"))
    indices = d.operand(d.extents(d.rng.choice((0, 1, 1, 2))), kind, places(kind, dims[axis], d.opset >= 11),
                        of=(dims[axis],))
    d.node("Gather", [x, indices], axis=d.maybe(0.9, axis) if axis == 0 else axis)


def gather_elements(d: Draft) -> None:
    dims, kind = d.extents(rank(d, 1, 3)), d.rng.choice(("int64", "int64", "int32"))
    axis = _axis(d, len(dims))
    own: list[str | int] = list(dims)
    own[axis] = d.rng.choice((1, 3, d.size()))
    x = d.operand(dims, d.dtype("GatherElements"))
    d.node("GatherElements", [x, d.operand(own, kind, places(kind, dims[axis]), of=(dims[axis],))], axis=axis)


def gather_nd(d: Draft) -> None:
    dims = d.extents(rank(d, 1, 4))
    batch = d.rng.randint(0, min(len(dims) - 1, 2)) if d.opset >= 12 and d.chance(0.5) else 0
    depth = d.rng.randint(1, len(dims) - batch)
    outer: Dims = (*dims[:batch], *d.extents(d.rng.choice((0, 1)) if batch else d.rng.choice((0, 1, 2))))

    def drawn(gen: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
        extents = [max(n, 1) for n in shape_at(dims[batch:batch + depth], sizes)]
        return np.asarray(gen.integers([-n for n in extents], extents, shape))

    x = d.operand(dims, d.dtype("GatherND"))
    d.node("GatherND", [x, d.operand((*outer, depth), "int64", drawn, of=dims[batch:batch + depth])], batch_dims=batch or None)


# -- shape arithmetic ------------------------------------------------------------------------------------------

def shape_of(d: Draft) -> None:
    """Reshape by what Shape, Gather, Mul and Concat compute of the input's own shape."""
    dims = d.extents(3)
    x = d.operand(dims, role="feed")
    sizes, = d.node("Shape", [x])
    k = d.rng.randrange(2)
    first, = d.node("Gather", [sizes, d.constant(fixed([0]), (1,))], axis=0)
    rest = [d.node("Gather", [sizes, d.constant(fixed([j]), (1,))], axis=0)[0] for j in (1, 2)]
    both, = d.node("Mul", rest)
    parts = [first, both] if k else [both, first] if d.chance(0.3) else [first, d.constant(fixed([-1]), (1,))]
    target, = d.node("Concat", parts, axis=0)
    d.node("Reshape", [x, target])


def rows_by_length(d: Draft) -> None:
    """Rows of a flat batch taken apart by the length of another input, which is then added: `[-1, L, c]` of `[R, c]`."""
    count, length, columns = d.size(), d.size(), d.extents(1)
    x = d.operand((d.product(count, length), *columns), role="feed")
    y = d.operand((length, *columns), role="feed")
    sizes, = d.node("Shape", [y])
    if d.chance(0.5):  # the whole shape as it is, else its length alone
        target, = d.node("Concat", [d.constant(fixed([-1]), (1,)), sizes], axis=0)
    else:
        own, = d.node("Gather", [sizes, d.constant(fixed([0]), (1,))], axis=0)
        last = d.constant(fixed([columns[0]]), (1,)) if isinstance(columns[0], int) else d.node(
            "Gather", [sizes, d.constant(fixed([-1]), (1,))], axis=0)[0]
        target, = d.node("Concat", [d.constant(fixed([-1]), (1,)), own, last], axis=0)
    apart, = d.node("Reshape", [x, target])
    d.node(d.rng.choice(("Add", "Mul")), [apart, y])


def expand_to_shape(d: Draft) -> None:
    """Expand a row to another input's shape, as exporters write broadcasting; or a ConstantOfShape of it."""
    dims = d.extents(2)
    x = d.operand(dims, role="feed")
    sizes, = d.node("Shape", [x])
    if d.chance(0.5):
        made, = d.node("Expand", [d.operand((1, dims[1])), sizes])
    else:
        made, = d.node("ConstantOfShape", [sizes])
    d.node(d.rng.choice(("Add", "Sub")), [x, made])


def range_of(d: Draft) -> None:
    """Positions 0 .. n-1 of a dim, and a comparison with another: a mask."""
    n = d.size()
    x = d.operand((n, d.size()), role="feed")
    sizes, = d.node("Shape", [x])
    count, = d.node("Gather", [sizes, d.constant(fixed(0), ())], axis=0)
    found, = d.node("Range", [d.constant(fixed(0), ()), count, d.constant(fixed(1), ())])
    d.node(d.rng.choice(("Less", "Equal")), [found, d.operand((1,), "int64", computed(lambda sizes: at(n, sizes) // 2))])


# -- If --------------------------------------------------------------------------------------------------------

def branch(d: Draft) -> None:
    """One of two graphs over x, by a constant, a size of x or a bool that is fed."""
    dims, dtype = d.extents(rank(d, 1)), d.rng.choice(("float32", "int64"))
    x, role = d.operand(dims, dtype, role="feed"), d.rng.choice(("initializer", "node"))
    if d.generation >= 8 and d.chance(0.3):
        condition = d.operand((), "bool", plain("bool"), "feed")
    elif d.chance(0.3):
        condition = d.operand((), "bool", fixed(d.chance(0.5), "bool"), role)
    else:
        sizes, = d.node("Shape", [x])
        size, = d.node("Gather", [sizes, d.operand((), "int64", fixed(d.rng.randrange(len(dims))), role)], axis=0)
        bound = d.operand((), "int64", fixed(d.rng.choice((0, 1, 1, 2, 3, 70))), role)
        condition, = d.node(d.rng.choice(("Equal", "Less", "Greater")), [size, bound])
    d.node("If", [condition], **{f"{name}_branch": _graph(d, x, condition, name, 2) for name in ("then", "else")})


def _graph(d: Draft, x: str, condition: str, name: str, deepest: int) -> GraphProto:
    """A few nodes over x, or the same choice once more among two such graphs; both branches call values by the same names."""
    nodes, value = [], x
    for k in range(d.rng.randint(1, 3)):
        made = f"inner{deepest}_{k}"
        if deepest and d.chance(0.25):
            inner = {f"{side}_branch": _graph(d, value, condition, side, deepest - 1) for side in ("then", "else")}
            nodes.append(helper.make_node("If", [condition], [made], **inner))
        else:
            nodes.append(helper.make_node(d.rng.choice(("Neg", "Abs", "Identity")), [value], [made]))
        value = made
    return helper.make_graph(nodes, name, [], [helper.make_value_info(value, onnx.TypeProto())])


RECIPES: dict[str, Recipe] = {
    "Transpose": transpose, "Reshape": reshape, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Flatten": flatten,
    "Concat": concat, "Split": split, "Expand": expand, "Tile": tile, "Trilu": trilu, "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Slice": cut, "Pad": pad, "Gather": gather, "GatherElements": gather_elements, "GatherND": gather_nd,
    "If": branch,
}
SHAPE_CHAINS: dict[str, Recipe] = {"shape of": shape_of, "rows by a length": rows_by_length, "expand to shape": expand_to_shape,
                                   "range of": range_of}
