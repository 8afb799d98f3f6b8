"""Bits of integers: BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import ModelError
from tsc.ops.base import InferContext, OpDef, Sample
from tsc.ops.elementwise import elementwise, intrinsic
from tsc.ops.samples import ints
from tsc.ops.shapes import where
from tsc.te.expr import Const, Expr, call


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


def _pairs() -> Sequence[Sample]:
    return [Sample([ints(3, 5, dtype="int32"), ints(5, dtype="int32")]), Sample([ints(2, 1, 3), ints(4, 1)]),
            Sample([ints(7, low=0, high=255, dtype="uint8"), ints(7, low=0, high=255, dtype="uint8")])]


def _singles() -> Sequence[Sample]:
    return [Sample([ints(3, 5, dtype="int32")]), Sample([ints(7, low=0, high=255, dtype="uint8")]), Sample([ints(2, 3)])]


def _shifts() -> Sequence[Sample]:
    x, by = ints(3, 5, low=0, high=2**31, dtype="uint32"), ints(5, low=0, high=31, dtype="uint32")
    return [Sample([x, by], {"direction": "LEFT"}), Sample([x, by], {"direction": "RIGHT"}),
            Sample([ints(9, low=0, high=255, dtype="uint8"), ints(9, low=0, high=7, dtype="uint8")], {"direction": "LEFT"})]


OPS: tuple[OpDef, ...] = (
    elementwise("BitwiseAnd", intrinsic("bitand"), samples=_pairs, required=2),
    elementwise("BitwiseOr", intrinsic("bitor"), samples=_pairs, required=2),
    elementwise("BitwiseXor", intrinsic("bitxor"), samples=_pairs, required=2),
    elementwise("BitwiseNot", _not, samples=_singles),
    elementwise("BitShift", _shift, samples=_shifts, required=2, reads=("direction",), check=_check_direction),
)
