"""Views and permutations: Transpose, Reshape and its kin, Concat, Split, Expand, Tile, Trilu, DepthToSpace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Contents, Node, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample, symbolic
from tsc.ops.reshape import reshape_target
from tsc.ops.samples import bools, floats, ints, scalar, vector
from tsc.ops.shapes import (
    CONTENTS_LIMIT,
    Shape,
    Values,
    all_contents,
    as_object,
    at_least_zero,
    axes_operand,
    broadcast,
    broadcast_read,
    canonical,
    distinct,
    expect_rank,
    is_float,
    known_ints,
    moved,
    place_of,
    scalar_contents,
    sizes_operand,
    static_shape,
    tensor,
    unify,
    view_index,
    where,
)
from tsc.ops.told_axes import are_told, marks, with_ones, without
from tsc.sym import ONE, ZERO, SymExpr, ceildiv, product
from tsc.te.expr import BOOL, Const, Expr, add, call, index, select

# -- Transpose -------------------------------------------------------------------------------------------------

def _permutation(ctx: InferContext) -> tuple[int, ...]:
    rank = ctx.type(0).rank
    perm = tuple(ctx.attr("perm", tuple(reversed(range(rank)))))
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{where(ctx)} has perm {perm}, expected a permutation of {rank} axes")
    return perm


def _transpose_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = canonical(ctx, 0)
    return tensor(ctx.type(0).dtype, [shape[p] for p in _permutation(ctx)])


def _transpose_contents(ctx: InferContext) -> Values:
    return moved(lambda c: c.transpose(_permutation(ctx)))(ctx)


def _transpose_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    perm = _permutation(lowering.infer)
    return lowering.read(0, tuple(at[perm.index(k)] for k in range(len(perm))))


# -- orders of memory --------------------------------------------------------------------------------------------

#: Dims of a value, slowest first.
Order = tuple[int, ...]


def reorder_node(source: str, output: str, name: str) -> Node:
    """A node that makes `output` a copy of `source`, which memory may have in another order."""
    return Node("Reorder", (source,), (output,), {}, name, "tsc")


def _reorder_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return lowering.read(0, at)


def alias_node(source: str, output: str, shape: Shape, orders: tuple[Order, Order], name: str) -> Node:
    """A node that makes `output`, of a `shape`, the memory of `source`; `orders` are the dims of both, slowest first."""
    return Node("Alias", (source,), (output,), {"shape": shape, "orders": orders}, name, "tsc")


def alias_index(at: Sequence[Expr], shape: Shape, source: Shape, orders: tuple[Order, Order]) -> tuple[Expr, ...]:
    """The index in a value of the shape `source` of what the same memory has at an index of another `shape`; `orders` are the
    dims of both, slowest first."""
    theirs, own = orders
    found = view_index([at[d] for d in own], [shape[d] for d in own], [source[d] for d in theirs])
    return tuple(found[theirs.index(d)] for d in range(len(source)))


def _alias_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    own = tuple(lowering.infer.env.canon(d) for d in lowering.out[0].shape)
    return lowering.read(0, alias_index(at, own, canonical(lowering.infer, 0), lowering.infer.node.attrs["orders"]))


# -- row-major views -------------------------------------------------------------------------------------------

def _squeeze_target(ctx: InferContext) -> Shape:
    shape = canonical(ctx, 0)
    if are_told(ctx, 1):
        marked = marks(ctx, 1, len(shape))
        for d, mark in zip(shape, marked):
            ctx.env.assume_eq((d - 1) * mark, ZERO, f"{where(ctx)}: a squeezed dim must be 1")
        return without(ctx, shape, marked, len(shape) - ctx.known(1, "axes").size)
    axes = axes_operand(ctx, 1, len(shape))
    if not axes:  # an empty list counts as none
        left = tuple(d for d in shape if d != ONE)
        for d in left:
            ctx.env.assume_le(2, d, f"{where(ctx)}: without axes, a dim of 1 changes the rank")
        return left
    for k in axes:
        ctx.env.assume_eq(shape[k], ONE, f"{where(ctx)}: a squeezed dim must be 1")
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def _unsqueeze_target(ctx: InferContext) -> Shape:
    shape = list(canonical(ctx, 0))
    if are_told(ctx, 1):
        return with_ones(ctx, shape, marks(ctx, 1, len(shape) + ctx.known(1, "axes").size))
    given = known_ints(ctx, 1, "axes", scalar=True) if ctx.has(1) else tuple(ctx.attr("axes", ()))
    for k in sorted(distinct(ctx, [ctx.axis(int(a), len(shape) + len(given)) for a in given])):
        shape.insert(k, ONE)
    return tuple(shape)


def _flatten_target(ctx: InferContext) -> Shape:
    shape = canonical(ctx, 0)
    axis = int(ctx.attr("axis", 1))
    axis = len(shape) if axis == len(shape) else ctx.axis(axis, len(shape))
    return (product(shape[:axis]), product(shape[axis:]))


def _view(name: str, target: Callable[[InferContext], Shape], samples: Callable[[], Sequence[Sample]], reads: str,
          static_inputs: tuple[int, ...] = (1,)) -> OpDef:
    """An operator whose output is its first input's memory in the shape that `target` gives."""
    def types(ctx: InferContext) -> tuple[TensorType, ...]:
        return tensor(ctx.type(0).dtype, target(ctx))

    def contents(ctx: InferContext) -> Values:
        sizes = static_shape(target(ctx))
        return (None,) if sizes is None else moved(lambda c: c.reshape(sizes))(ctx)

    return OpDef(name, PatternKind.INJECTIVE, types, contents=contents, te=_view_te, samples=samples,
                 static_inputs=static_inputs, is_view=True, reads=(reads,))


def _view_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    own = tuple(lowering.infer.env.canon(d) for d in lowering.out[0].shape)
    return lowering.read(0, view_index(at, own, canonical(lowering.infer, 0)))


# -- Concat and Split ------------------------------------------------------------------------------------------

def _concat_axis(ctx: InferContext) -> int:
    return ctx.axis(int(ctx.attr("axis", 0)), ctx.type(0).rank)


def _concat_types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis = _concat_axis(ctx)
    shape = list(canonical(ctx, 0))
    for i in range(1, len(ctx.types)):
        other = canonical(ctx, i)
        if len(other) != len(shape):
            raise ModelError(f"{where(ctx)} joins tensors of rank {len(shape)} and {len(other)}, expected equal ranks")
        for k, d in enumerate(other):
            shape[k] = shape[k] + d if k == axis else unify(ctx.env, shape[k], d, f"{where(ctx)}: joined dims must be equal")
    return tensor(ctx.type(0).dtype, [ctx.env.canon(d) for d in shape])


def _concat_contents(ctx: InferContext) -> Values:
    found = all_contents(ctx)
    if found is None or sum(c.size for c in found) > CONTENTS_LIMIT:
        return (None,)
    return (np.concatenate(found, axis=_concat_axis(ctx)),)


def _concat_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    """A balanced tree of choices on the axis; the comparisons pick the piece, so each read stays inside it."""
    axis = _concat_axis(lowering.infer)
    extents = [canonical(lowering.infer, i)[axis] for i in range(len(lowering.infer.types))]
    starts = list(accumulate(extents, initial=ZERO))
    pieces = [i for i, extent in enumerate(extents) if extent != ZERO]

    def choice(some: Sequence[int]) -> Expr:
        if len(some) > 1:
            before, after = some[:len(some) // 2], some[len(some) // 2:]
            return select(call("lt", at[axis], index(starts[after[0]])), choice(before), choice(after))
        return lowering.read(some[0], (*at[:axis], call("sub", at[axis], index(starts[some[0]])), *at[axis + 1:]))

    return choice(pieces) if pieces else lowering.read(0, at)


def _split_sizes(ctx: InferContext) -> tuple[SymExpr, ...]:
    extent, outputs = canonical(ctx, 0)[_concat_axis(ctx)], len(ctx.node.outputs)
    sizes: Sequence[SymExpr] | None = None
    if ctx.has(1):
        sizes = sizes_operand(ctx, 1, "parts", outputs)
    elif ctx.attr("split") is not None:
        sizes = [SymExpr.of(int(v)) for v in ctx.attr("split")]
    count = int(ctx.attr("num_outputs", outputs)) if sizes is None else len(sizes)
    if count < 1 or count != outputs:
        raise ModelError(f"{where(ctx)} has {outputs} outputs for {count} parts, expected one each")
    if sizes is not None:
        ctx.env.assume_eq(extent, sum(sizes, ZERO), f"{where(ctx)}: the parts must sum up to the split dim")
        return tuple(at_least_zero(ctx, size, "a part") for size in sizes)
    if ctx.env.prove_divides(count, extent):
        return (extent // count,) * count
    chunk = ceildiv(extent, count)
    return (*(chunk,) * (count - 1), at_least_zero(ctx, extent - chunk * (count - 1), "the last part"))


def _split_types(ctx: InferContext) -> tuple[TensorType, ...]:
    axis, source = _concat_axis(ctx), ctx.type(0)
    shape = canonical(ctx, 0)
    return tuple(TensorType(source.dtype, (*shape[:axis], size, *shape[axis + 1:])) for size in _split_sizes(ctx))


def _split_contents(ctx: InferContext) -> Values:
    sizes = [s.as_int() for s in _split_sizes(ctx)]
    source = ctx.contents[0]
    if source is None or any(s is None for s in sizes):
        return (None,) * len(sizes)
    stops = np.cumsum([s for s in sizes if s is not None])
    return tuple(np.split(source, stops[:-1], axis=_concat_axis(ctx)))


def _split_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    axis = _concat_axis(lowering.infer)
    start = sum(_split_sizes(lowering.infer)[:output], ZERO)
    return lowering.read(0, (*at[:axis], add(at[axis], index(start)), *at[axis + 1:]))


# -- repetition ------------------------------------------------------------------------------------------------

def _expand_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """A size that only a run knows may be 1 beside a constant one, which stays."""
    own, wanted = canonical(ctx, 0), sizes_operand(ctx, 1, "dims")
    for k in range(1, min(len(own), len(wanted)) + 1):
        if own[-k].as_int() not in (None, 1) and wanted[-k].as_int() is None and not ctx.env.prove_le(2, wanted[-k]):
            ctx.env.assume_eq((wanted[-k] - 1) * (wanted[-k] - own[-k]), ZERO,
                              f"{where(ctx)}: a dim of {own[-k]} stays or is expanded to {own[-k]}")
            wanted[-k] = own[-k]
    return tensor(ctx.type(0).dtype, broadcast(ctx.env, [own, wanted], where(ctx)))


def _expand_contents(ctx: InferContext) -> Values:
    sizes = static_shape(_expand_types(ctx)[0].shape)
    return (None,) if sizes is None else moved(lambda c: np.broadcast_to(c, sizes))(ctx)


def _expand_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return broadcast_read(lowering, 0, at)


def _tile_types(ctx: InferContext) -> tuple[TensorType, ...]:
    shape = canonical(ctx, 0)
    repeats = sizes_operand(ctx, 1, "repeats", len(shape))
    if len(repeats) != len(shape):
        raise ModelError(f"{where(ctx)} has {len(repeats)} repeats for rank {len(shape)}, expected one an axis")
    return tensor(ctx.type(0).dtype, [d * r for d, r in zip(shape, repeats)])


def _tile_contents(ctx: InferContext) -> Values:
    sizes = static_shape(_tile_types(ctx)[0].shape)
    return (None,) if sizes is None else moved(lambda c: np.tile(c, known_ints(ctx, 1, "repeats")))(ctx)


def _tile_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    repeats = ctx.known(1, "repeats").ravel()
    return lowering.read(0, tuple(
        i if ctx.env.canon(r) == ONE else index(0) if d in (ZERO, ONE) else call("mod", i, index(d))
        for i, d, r in zip(at, canonical(ctx, 0), repeats)))


# -- Trilu, DepthToSpace, SpaceToDepth -------------------------------------------------------------------------

#: Further from the diagonal than any element.
_BEYOND = 1 << 60


def _diagonal(ctx: InferContext) -> SymExpr:
    return scalar_contents(ctx, 1, "diagonal") if ctx.has(1) else ZERO


def _trilu_types(ctx: InferContext) -> tuple[TensorType, ...]:
    expect_rank(ctx, 0, 2)
    if not ctx.has(1) or ctx.contents[1] is not None:
        _diagonal(ctx)
    elif any(extent != ONE for extent in canonical(ctx, 1)):
        raise ModelError(f"{where(ctx)} has a diagonal of rank {ctx.type(1).rank}, expected one number")
    return tensor(ctx.type(0).dtype, canonical(ctx, 0))


def _trilu(builder: Builder) -> tuple[str, ...]:
    """By indices where the diagonal is known, else by numbers of rows and columns, which are compared with it."""
    ctx = builder.infer
    if not ctx.has(1) or ctx.contents[1] is not None:
        return (builder.emit("Triangle", *ctx.node.inputs, **ctx.node.attrs),)
    x, shape, dtype = ctx.node.inputs[0], canonical(ctx, 0), ctx.type(0).dtype

    low, high = (builder.constant(np.array(end)) for end in (-_BEYOND, _BEYOND))
    diagonal = builder.emit("Max", builder.emit("Min", reshape(builder, ctx.node.inputs[1], ()), high), low)
    edge = builder.emit("Add", positions(builder, shape[-2], 1), diagonal)
    kept = builder.emit("GreaterOrEqual" if ctx.attr("upper", 1) else "LessOrEqual", positions(builder, shape[-1]), edge)
    return (builder.emit("Where", kept, x, builder.constant(np.zeros((), dtype))),)


def _trilu_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    edge = add(at[-2], place_of(_diagonal(ctx)))
    kept = call("ge" if ctx.attr("upper", 1) else "le", at[-1], edge)
    value = lowering.read(0, at)
    zero = Const(False, BOOL) if value.dtype == BOOL else Const(0.0 if is_float(value.dtype) else 0, value.dtype)
    return select(kept, value, zero)


def _blocked(ctx: InferContext) -> tuple[Shape, int, bool]:
    """The four dims of the input, the size of a block, and whether depth comes last in an order of blocks (CRD)."""
    shape, b, mode = canonical(ctx, 0), int(ctx.attr("blocksize", 0)), ctx.attr("mode", "DCR")
    if len(shape) != 4 or b < 1:
        raise ModelError(f"{where(ctx)} has rank {len(shape)} and blocksize {b}, expected rank 4 and at least 1")
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"{where(ctx)} has mode '{mode}', expected DCR or CRD")
    divided = shape[1:2] if ctx.node.op == "DepthToSpace" else shape[2:]
    for d in divided:
        by = b * b if ctx.node.op == "DepthToSpace" else b
        ctx.env.assume_eq(d % by, ZERO, f"{where(ctx)}: {by} must divide what is split into blocks")
    return tuple(map(ctx.env.canon, shape)), b, mode == "CRD"


def _depth_to_space_types(ctx: InferContext) -> tuple[TensorType, ...]:
    (n, c, h, w), b, _ = _blocked(ctx)
    return tensor(ctx.type(0).dtype, (n, c // (b * b), h * b, w * b))


def _depth_to_space(builder: Builder) -> tuple[str, ...]:
    (n, c, h, w), b, depth_last = _blocked(builder.infer)
    depth = c // (b * b)
    parts: Shape = (n, depth, *_int_dims(b, b), h, w) if depth_last else (n, *_int_dims(b, b), depth, h, w)
    perm = (0, 1, 4, 2, 5, 3) if depth_last else (0, 3, 4, 1, 5, 2)
    spread = reshape(builder, builder.infer.node.inputs[0], parts)
    return (reshape(builder, builder.emit("Transpose", spread, perm=perm), (n, depth, h * b, w * b)),)


def _space_to_depth_types(ctx: InferContext) -> tuple[TensorType, ...]:
    (n, c, h, w), b, _ = _blocked(ctx)
    return tensor(ctx.type(0).dtype, (n, c * (b * b), h // b, w // b))


def _space_to_depth(builder: Builder) -> tuple[str, ...]:
    (n, c, h, w), b, depth_last = _blocked(builder.infer)
    block, = _int_dims(b)
    spread = reshape(builder, builder.infer.node.inputs[0], (n, c, h // b, block, w // b, block))
    moved_ = builder.emit("Transpose", spread, perm=(0, 1, 3, 5, 2, 4) if depth_last else (0, 3, 5, 1, 2, 4))
    return (reshape(builder, moved_, (n, c * (b * b), h // b, w // b)),)


def _int_dims(*sizes: int) -> Shape:
    return tuple(SymExpr.of(s) for s in sizes)


def reshape(builder: Builder, value: str, shape: Shape) -> str:
    """Emit a view of `value` as `shape`, in which 0 is 0."""
    return builder.emit("Reshape", value, shape_operand(builder, shape), allowzero=1)


def reshape_node(source: str, shape: str, output: str, name: str) -> Node:
    """A node that makes `output` a view of `source` in the shape that the value `shape` holds, in which 0 is 0."""
    return Node("Reshape", (source, shape), (output,), {"allowzero": 1}, name)


def transpose_node(source: str, perm: tuple[int, ...], output: str, name: str) -> Node:
    """A node whose output's dim `k` is dim `perm[k]` of `source`."""
    return Node("Transpose", (source,), (output,), {"perm": perm}, name)


def split_node(source: str, axis: int, sizes: tuple[int, ...], outputs: tuple[str, ...], name: str) -> Node:
    """A node that cuts `source` along `axis` into parts of `sizes`, one an output."""
    return Node("Split", (source,), outputs, {"axis": axis, "split": sizes}, name)


def shape_operand(builder: Builder, shape: Sequence[SymExpr]) -> str:
    """A 1-D int64 value that holds `shape`, constant where it is static."""
    return size_operand(builder, symbolic(list(shape)).reshape(len(shape)), "int64")


def positions(builder: Builder, extent: SymExpr, behind: int = 0) -> str:
    """The numbers from 0 on along an axis, with `behind` axes of one element after it."""
    numbers = builder.emit("Range", builder.constant(np.array(0)), size_operand(builder, as_object(extent), "int64"),
                           builder.constant(np.array(1)))
    return builder.emit("Unsqueeze", numbers, axes=tuple(range(1, behind + 1))) if behind else numbers


def size_operand(builder: Builder, value: Contents, dtype: str) -> str:
    """A value that holds symbolic contents in `dtype`: a constant where they are static. Raises UnsupportedError for numbers
    that are no int64, of which no value can be."""
    numbers = [v.as_int() for v in value.ravel()]
    if beyond := [n for n in numbers if n is not None and dtype == "int64" and not -1 << 63 <= n < 1 << 63]:
        raise UnsupportedError(f"{where(builder.infer)} needs a size of {beyond[0]}, which no machine has; correct the model")
    if all(n is not None for n in numbers):
        return builder.constant(np.array(numbers, dtype=dtype).reshape(value.shape))
    return builder.emit("SymbolicConstant", value=value, dtype=dtype)


# -- samples ---------------------------------------------------------------------------------------------------

def _transposes() -> Sequence[Sample]:
    return [Sample([floats(2, 3, 5)], {"perm": (1, 2, 0)}), Sample([floats(3, 5)]), Sample([floats(1, 7, 1)])]


def _reshapes() -> Sequence[Sample]:
    x = floats(2, 3, 10)
    targets = ((6, 10), (2, -1), (0, 0, 2, 5), (5, 12), (-1,), (1, 2, 30), (4, 15), (2, 1, 3, 10))
    return [Sample([x, vector(*target)]) for target in targets]


def _squeezes() -> Sequence[Sample]:
    x = floats(1, 3, 1, 5)
    return [Sample([x, vector(0)]), Sample([x, vector(-2, 0)]), Sample([x])]


def _unsqueezes() -> Sequence[Sample]:
    return [Sample([floats(3, 5), vector(*a)]) for a in ((0,), (1, -1), (3, 0))]


def _concats() -> Sequence[Sample]:
    return [Sample([floats(2, 3), floats(2, 1), floats(2, 5)], {"axis": 1}), Sample([ints(1, 3), ints(2, 3)], {"axis": -2}),
            Sample([floats(3)], {"axis": 0})]


def _splits() -> Sequence[Sample]:
    return [Sample([floats(2, 7), vector(1, 4, 2)], {"axis": 1}, outputs=3),
            Sample([floats(6, 2)], {"num_outputs": 3}, outputs=3),
            Sample([floats(7, 1)], {"num_outputs": 2}, outputs=2)]


def _expands() -> Sequence[Sample]:
    return [Sample([floats(3, 1), vector(2, 1, 5)]), Sample([floats(2, 3, 5), vector(3, 1)]), Sample([floats(), vector(4)])]


def _tiles() -> Sequence[Sample]:
    return [Sample([floats(2, 3), vector(2, 3)]), Sample([floats(1, 5), vector(4, 1)])]


def _trilus() -> Sequence[Sample]:
    return [Sample([floats(4, 5)]), Sample([floats(2, 4, 3)], {"upper": 0}), Sample([ints(5, 4), scalar(-1, "int64")]),
            Sample([floats(3, 3), scalar(1, "int64")], {"upper": 0}), Sample([bools(3, 4)])]


def _blocks() -> Sequence[Sample]:
    x = floats(2, 8, 3, 5)
    return [Sample([x], {"blocksize": 2, "mode": m}) for m in ("DCR", "CRD")]


OPS: tuple[OpDef, ...] = (
    OpDef("Reorder", PatternKind.OPAQUE, lambda ctx: tensor(ctx.type(0).dtype, canonical(ctx, 0)), te=_reorder_te,
          domain="tsc"),
    OpDef("Alias", PatternKind.INJECTIVE, lambda ctx: tensor(ctx.type(0).dtype, ctx.node.attrs["shape"]), te=_alias_te,
          is_view=True, domain="tsc"),
    OpDef("Transpose", PatternKind.INJECTIVE, _transpose_types, contents=_transpose_contents, te=_transpose_te,
          samples=_transposes, reads=("perm",)),
    _view("Reshape", reshape_target, _reshapes, "allowzero"),
    _view("Squeeze", _squeeze_target, _squeezes, "axes"),
    _view("Unsqueeze", _unsqueeze_target, _unsqueezes, "axes"),
    _view("Flatten", _flatten_target, lambda: [Sample([floats(2, 3, 5)], {"axis": a}) for a in (0, 1, 2, -1)], "axis", ()),
    OpDef("Concat", PatternKind.INJECTIVE, _concat_types, contents=_concat_contents, te=_concat_te, samples=_concats,
          reads=("axis",), associative=True, grows=lambda node, _: int(node.attrs["axis"])),
    OpDef("Split", PatternKind.INJECTIVE, _split_types, contents=_split_contents, te=_split_te, samples=_splits,
          static_inputs=(1,), reads=("axis", "split", "num_outputs")),
    OpDef("Expand", PatternKind.BROADCAST, _expand_types, contents=_expand_contents, te=_expand_te, samples=_expands,
          static_inputs=(1,)),
    OpDef("Tile", PatternKind.INJECTIVE, _tile_types, contents=_tile_contents, te=_tile_te, samples=_tiles, static_inputs=(1,)),
    OpDef("Trilu", PatternKind.INJECTIVE, _trilu_types, decompose=_trilu, samples=_trilus, reads=("upper",)),
    OpDef("Triangle", PatternKind.ELEMENTWISE, _trilu_types, te=_trilu_te, domain="tsc", static_inputs=(1,)),
    OpDef("DepthToSpace", PatternKind.INJECTIVE, _depth_to_space_types, decompose=_depth_to_space, samples=_blocks,
          reads=("blocksize", "mode")),
    OpDef("SpaceToDepth", PatternKind.INJECTIVE, _space_to_depth_types, decompose=_space_to_depth,
          samples=lambda: [Sample([floats(2, 3, 4, 6)], {"blocksize": 2})], reads=("blocksize", "mode")),
)
