"""Weights of few bits, several in a byte, with a scale for each block of them: products, and tables that are looked up in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.form import INTEGERS, Form
from tsc.ops.microsoft.domain import MICROSOFT
from tsc.ops.movement import reshape, shape_operand
from tsc.ops.reduce import cast
from tsc.ops.samples import floats, ints, octets, scales
from tsc.ops.shapes import Shape, canonical, is_float, unify, where
from tsc.sym import ONE, ZERO, SymExpr, ceildiv

A, B, SCALES, ZERO_POINTS, ORDER, BIAS = range(6)
DATA, INDICES = range(2)


def _bits(ctx: InferContext) -> int:
    bits = int(ctx.attr("bits"))
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"{where(ctx)} has weights of {bits} bits, which is not supported; use 2, 4 or 8")
    return bits


def _block(ctx: InferContext) -> int:
    block = int(ctx.attr("block_size"))
    if block < 16 or block & (block - 1):
        raise ModelError(f"{where(ctx)} has a block_size of {block}, expected a power of 2 that is at least 16")
    return block


def _fitted(builder: Builder, i: int, shape: Shape) -> str:
    """Input `i`, which must be of this shape or a list of as many elements, in it."""
    ctx, own = builder.infer, canonical(builder.infer, i)
    if len(own) not in (1, len(shape)):
        raise ModelError(f"{where(ctx)} has an input {i} of rank {len(own)}, expected {len(shape)}")
    for have, want in zip(own, shape) if len(own) == len(shape) else ():
        unify(ctx.env, have, want, f"{where(ctx)}: input {i} is of shape ({', '.join(map(str, shape))})")
    return reshape(builder, ctx.node.inputs[i], shape)


def _unpacked(builder: Builder, value: str, shape: Shape, axis: int, bits: int, length: SymExpr) -> str:
    """The first `length` numbers along an axis of bytes of `shape`, which hold several each, the lowest bits first, as float32:
    shifts and masks of bytes have no vector form, products with powers of two have and are exact."""
    value, each = cast(builder, value, "uint8", "float32"), 8 // bits
    if each == 1:
        return value
    ctx, before, behind = builder.infer, shape[:axis + 1], shape[axis + 1:]
    apart = reshape(builder, value, (*before, ONE, *behind))
    places = 0.5 ** np.arange(0, 8, bits, dtype=np.float32).reshape(-1, *(1,) * len(behind))
    here, above = (builder.emit("Floor", builder.emit("Mul", apart, builder.constant(unit.astype(np.float32)))) for unit in (
        places, places / 2**bits))
    low = builder.emit("Sub", here, builder.emit("Mul", above, scalar_operand(builder, 2.0**bits, "float32")))
    count = ctx.env.canon(shape[axis] * each)
    made = reshape(builder, low, (*shape[:axis], count, *behind))
    return made if count == length else _first(builder, made, axis, length)


def _first(builder: Builder, value: str, axis: int, length: SymExpr) -> str:
    """The first `length` elements along an axis."""
    return builder.emit("Slice", value, *(shape_operand(builder, (part,)) for part in (ZERO, length, SymExpr.of(axis))))


def _middle(builder: Builder, bits: int, dtype: str) -> str:
    """What stands for 0 where nothing else is said."""
    return scalar_operand(builder, float(1 << (bits - 1)), dtype)


# -- products ----------------------------------------------------------------------------------------------------

def _product(builder: Builder) -> tuple[str, ...]:
    """A product with weights in rows of K, of which each block has a scale and a zero point."""
    ctx = builder.infer
    if ctx.has(ORDER):
        raise UnsupportedError(f"{where(ctx)} has the input g_idx, which is not supported; export the model without reordering")
    made = builder.emit("MatMul", ctx.node.inputs[A], _weights(builder))
    return (builder.emit("Add", made, ctx.node.inputs[BIAS]) if ctx.has(BIAS) else made,)


def _weights(builder: Builder) -> str:
    """Weights in columns. They are turned while they are bytes, which a compiler does to constants of any size."""
    ctx, bits, block, dtype = builder.infer, _bits(builder.infer), _block(builder.infer), builder.infer.type(SCALES).dtype
    columns, length = (SymExpr.of(int(ctx.attr(name))) for name in "NK")
    blocks, size = ceildiv(length, block), SymExpr.of(block * bits // 8)
    turned = builder.emit("Transpose", _fitted(builder, B, (columns, blocks, size)), perm=(1, 2, 0))
    steps = _unpacked(builder, turned, (blocks, size, columns), 1, bits, SymExpr.of(block))
    centred = builder.emit("Sub", cast(builder, steps, "float32", dtype), _zero_points(builder, columns, blocks, bits))
    scale = builder.emit("Transpose", _fitted(builder, SCALES, (columns, blocks)), perm=(1, 0))
    scaled = builder.emit("Mul", centred, reshape(builder, scale, (blocks, ONE, columns)))
    padded = ctx.env.canon(blocks * block)
    made = reshape(builder, scaled, (padded, columns))
    return made if padded == length else _first(builder, made, 0, length)


def _zero_points(builder: Builder, columns: SymExpr, blocks: SymExpr, bits: int) -> str:
    """That of each block: in floats, or in as many bits as weights, several in a byte."""
    ctx, dtype = builder.infer, builder.infer.type(SCALES).dtype
    if not ctx.has(ZERO_POINTS):
        return _middle(builder, bits, dtype)
    own = ctx.type(ZERO_POINTS).dtype
    held = blocks if is_float(own) else ceildiv(blocks * bits, 8)
    found = builder.emit("Transpose", _fitted(builder, ZERO_POINTS, (columns, held)), perm=(1, 0))
    if not is_float(own):
        found, own = _unpacked(builder, found, (held, columns), 0, bits, blocks), "float32"
    return reshape(builder, cast(builder, found, own, dtype), (blocks, ONE, columns))


# -- tables ------------------------------------------------------------------------------------------------------

def _gather(builder: Builder) -> tuple[str, ...]:
    """Rows of a table in bytes are looked up, with their scales and zero points, before they are brought to floats."""
    ctx, bits, block = builder.infer, _bits(builder.infer), _block(builder.infer)
    data, dtype = canonical(ctx, DATA), ctx.type(SCALES).dtype
    last = len(data) - 1
    axes = [int(ctx.attr(name)) for name in ("gather_axis", "quantize_axis")]
    if last < 1 or [ctx.axis(axis, last + 1) for axis in axes] != [0, last]:
        raise UnsupportedError(f"{where(ctx)} looks up along axis {axes[0]} of rank {last + 1}, with blocks along axis "
                               f"{axes[1]}, which is not supported; use the first and the last axis")
    length = ctx.env.canon(data[-1] * (8 // bits))
    blocks = ceildiv(length, block)
    steps = cast(builder, _numbers(builder, DATA, data, bits, length), "float32", dtype)
    zero_point = _middle(builder, bits, dtype)
    if ctx.has(ZERO_POINTS):
        stored = _numbers(builder, ZERO_POINTS, (*data[:-1], ceildiv(blocks * bits, 8)), bits, blocks)
        zero_point = _spread(builder, cast(builder, stored, "float32", dtype), length)
    scale = _spread(builder, _looked_up(builder, SCALES, (*data[:-1], blocks)), length)
    return (builder.emit("Mul", builder.emit("Sub", steps, zero_point), scale),)


def _looked_up(builder: Builder, i: int, shape: Shape) -> str:
    """The rows of input `i`, which is of this shape."""
    return builder.emit("Gather", _fitted(builder, i, shape), builder.infer.node.inputs[INDICES], axis=0)


def _numbers(builder: Builder, i: int, shape: Shape, bits: int, length: SymExpr) -> str:
    """The rows of input `i`, which is of this shape, unpacked to `length` numbers each."""
    rows = tuple(map(builder.infer.env.canon, (*canonical(builder.infer, INDICES), *shape[1:])))
    return _unpacked(builder, _looked_up(builder, i, shape), rows, len(rows) - 1, bits, length)


def _spread(builder: Builder, value: str, length: SymExpr) -> str:
    """What each block has, for each of its elements."""
    ctx = builder.infer
    axis = ctx.type(INDICES).rank + ctx.type(DATA).rank - 2
    return builder.emit("BlockRepeat", value, axis=axis, block=_block(ctx), length=length)


# -- samples -----------------------------------------------------------------------------------------------------

def _products() -> Sequence[Sample]:
    found = [_weighted(bits, length) for bits in (2, 4, 8) for length in (32, 40)]
    x, w, step, _ = _weighted(4, 40).inputs
    attrs = {"N": 5, "K": 40, "block_size": 16}
    return [*found, Sample([x, w, step], attrs), Sample([x, w, step, floats(5, 3, low=0, high=15), None, floats(5)], attrs),
            Sample([x, w, scales(15), octets(10)], {**attrs, "accuracy_level": 1}), Sample([floats(40), w, step], attrs)]


def _weighted(bits: int, length: int) -> Sample:
    blocks = -(-length // 16)
    return Sample([floats(2, 3, length), octets(5, blocks, 2 * bits), scales(5, blocks), octets(5, -(-blocks * bits // 8))], {
        "N": 5, "K": length, "block_size": 16, "bits": bits})


def _tables() -> Sequence[Sample]:
    places, deep = ints(2, 5, low=0, high=7), octets(7, 3, 16)
    found = [Sample([octets(7, bits * 5), places, scales(7, 3), octets(7, -(-3 * bits // 8))], {"block_size": 16, "bits": bits})
             for bits in (2, 4, 8)]
    return [*found, Sample([deep, ints(4, low=0, high=7, dtype="int32"), scales(7, 3, 2)], {
                "block_size": 16, "quantize_axis": 2}),
            Sample([octets(7, 40), places, scales(7, 3)], {"block_size": 16, "bits": 8, "quantize_axis": -1})]


_FLOATS = ("float32", "float16", "bfloat16")

OPS: tuple[OpDef, ...] = (
    OpDef("MatMulNBits", PatternKind.CONTRACTION, decompose=_product, samples=_products, domain=MICROSOFT,
          reads=("bits", "block_size", "K", "N"), ignores=("accuracy_level",),
          form=Form("A:T B:B scales:T zero_points?:Z g_idx?:I bias?:T", "Y:T", {
              "T": _FLOATS, "B": ("uint8",), "Z": ("uint8", *_FLOATS), "I": ("int32",)},
              {"bits": 4, "accuracy_level": 0, "weight_prepacked": 0}, {}, {"block_size": "int", "K": "int", "N": "int"})),
    OpDef("GatherBlockQuantized", PatternKind.INJECTIVE, decompose=_gather, samples=_tables, domain=MICROSOFT,
          reads=("bits", "block_size", "gather_axis", "quantize_axis"),
          form=Form("data:B indices:I scales:T zero_points?:B", "output:T", {
              "B": ("uint8",), "I": INTEGERS, "T": _FLOATS},
              {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1})),
)
