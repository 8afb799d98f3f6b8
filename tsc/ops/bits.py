"""Bits of integers: BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift; and bits as they stand: BitCast, bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Node, TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.elementwise import elementwise, intrinsic
from tsc.ops.samples import bools, floats, ints
from tsc.ops.shapes import HALVES, canonical, element_type, tensor, where
from tsc.te.expr import BOOL, Const, Expr, bits, call, from_bfloat, item_bytes, to_bfloat


def _not(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    x = args[0]
    assert x is not None
    unsigned = x.dtype.startswith("u")
    return call("bitxor", x, Const(int(np.iinfo(x.dtype).max) if unsigned else -1, x.dtype))


def _direction(ctx: InferContext) -> str:
    direction = str(ctx.attr("direction", ""))
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"{where(ctx)} has direction '{direction}', expected LEFT or RIGHT")
    return direction


def _check_direction(ctx: InferContext) -> None:
    _direction(ctx)


def _shift(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    """By as many bits as there are, or more, or by less than none: nothing is left but the sign to the right."""
    x, by = args[0], args[1]
    assert x is not None and by is not None
    return call("shl" if _direction(ctx) == "LEFT" else "shr", x, by)


def _cast_types(ctx: InferContext) -> tuple[TensorType, ...]:
    source, target = ctx.type(0).dtype, element_type(ctx, ctx.attr("to", 0))
    if HALVES & {source, target} or target == BOOL != source:
        raise UnsupportedError(f"{where(ctx)} takes the bits of {source} for {target}, which is not supported; cast them")
    if item_bytes(source) != item_bytes(target):
        raise ModelError(f"{where(ctx)} takes the bits of {source} for {target}, expected a type of as many")
    return tensor(target, canonical(ctx, 0))


def _cast_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return bits(lowering.read(0, at), lowering.out[0].dtype)


# -- bfloat16 ----------------------------------------------------------------------------------------------------

def from_bfloat_node(source: str, output: str, name: str) -> Node:
    """A node that makes float32 of the bits of bfloat16."""
    return Node("FromBfloat", (source,), (output,), {}, name, "tsc")


def to_bfloat_node(source: str, output: str, name: str) -> Node:
    """A node that rounds float32 to the bits of bfloat16."""
    return Node("ToBfloat", (source,), (output,), {}, name, "tsc")


def is_from_bfloat(node: Node) -> bool:
    """Whether a node makes float32 of the bits of bfloat16."""
    return node.op == "FromBfloat"


def _types_of(dtype: str) -> Callable[[InferContext], tuple[TensorType, ...]]:
    return lambda ctx: tensor(dtype, canonical(ctx, 0))


def _from_bfloat(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return from_bfloat(lowering.read(0, at))


def _to_bfloat(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return to_bfloat(lowering.read(0, at))


def _pairs() -> Sequence[Sample]:
    return [Sample([ints(3, 5, dtype="int32"), ints(5, dtype="int32")]), Sample([ints(2, 1, 3), ints(4, 1)]),
            Sample([ints(7, low=0, high=255, dtype="uint8"), ints(7, low=0, high=255, dtype="uint8")])]


def _singles() -> Sequence[Sample]:
    return [Sample([ints(3, 5, dtype="int32")]), Sample([ints(7, low=0, high=255, dtype="uint8")]), Sample([ints(2, 3)])]


def _shifts() -> Sequence[Sample]:
    x, by = ints(3, 5, low=0, high=2**31, dtype="uint32"), ints(5, low=0, high=31, dtype="uint32")
    return [Sample([x, by], {"direction": "LEFT"}), Sample([x, by], {"direction": "RIGHT"}),
            Sample([ints(9, low=0, high=255, dtype="uint8"), ints(9, low=0, high=7, dtype="uint8")], {"direction": "LEFT"})]


def _casts() -> Sequence[Sample]:
    return [Sample([floats(3, 5)], {"to": 6}), Sample([ints(3, 5, dtype="int32")], {"to": 1}),
            Sample([floats(4, dtype="float64")], {"to": 7}), Sample([ints(2, 3)], {"to": 11}),
            Sample([ints(5, dtype="int8")], {"to": 2}), Sample([bools(2, 2)], {"to": 2})]


OPS: tuple[OpDef, ...] = (
    elementwise("BitwiseAnd", intrinsic("bitand"), samples=_pairs, required=2),
    elementwise("BitwiseOr", intrinsic("bitor"), samples=_pairs, required=2),
    elementwise("BitwiseXor", intrinsic("bitxor"), samples=_pairs, required=2),
    elementwise("BitwiseNot", _not, samples=_singles),
    elementwise("BitShift", _shift, samples=_shifts, required=2, reads=("direction",), check=_check_direction),
    OpDef("BitCast", PatternKind.ELEMENTWISE, _cast_types, te=_cast_te, samples=_casts, reads=("to",)),
    OpDef("FromBfloat", PatternKind.ELEMENTWISE, _types_of("float32"), te=_from_bfloat, domain="tsc"),
    OpDef("ToBfloat", PatternKind.ELEMENTWISE, _types_of("uint16"), te=_to_bfloat, domain="tsc"),
)
