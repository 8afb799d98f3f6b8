"""Words: whole numbers of few bits side by side in 32, of which a device sums up the products at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.ir import Node, TensorType
from tsc.ops.base import InferContext, Lowering, OpDef, PatternKind
from tsc.ops.shapes import canonical, tensor
from tsc.sym import ZERO, SymExpr, ceildiv
from tsc.te.expr import Cast, Const, Expr, add, call, index, mul, select
from tsc.te.intrinsics import WORDS

#: The attribute that says how many numbers words have: of the node that makes them, and of products of such.
PARTS = "parts"
_DTYPE = "int32"


def words_node(source: str, output: str, parts: int, group: int, name: str) -> Node:
    """A node that makes words of so many neighbours along dim 1 of a value, in groups that share none."""
    return Node("Words", (source,), (output,), {PARTS: parts, "group": group}, name, "tsc")


def words_shape(shape: tuple[SymExpr, ...], parts: int, group: int) -> tuple[SymExpr, ...]:
    """The shape of what `words_node` makes."""
    return (shape[0], ceildiv(shape[1] // group, parts) * group, *shape[2:])


def words_of(array: NDArray[Any], parts: int) -> NDArray[np.int32]:
    """The words of an array along its last axis, with zeros behind its end."""
    behind = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % parts)]
    narrow = np.pad(array, behind).astype(f"<i{4 // parts}")
    return np.ascontiguousarray(narrow).view("<i4").astype(np.int32)


def word_of(number: int, parts: int) -> int:
    """The word of which each part is a number."""
    return int(words_of(np.full(parts, number & (1 << 32 // parts) - 1, np.int64), parts)[0])


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(_DTYPE, words_shape(canonical(ctx, 0), int(ctx.attr(PARTS)), int(ctx.attr("group"))))


def _te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    parts, group = int(ctx.attr(PARTS)), int(ctx.attr("group"))
    each = canonical(ctx, 0)[1] // group
    count = index(ceildiv(each, parts))
    first, place = (index(0), at[1]) if group == 1 else (
        mul(call("floordiv", at[1], count), index(each)), call("mod", at[1], count))

    def part(k: int) -> Expr:
        own = add(mul(place, index(parts)), index(k))
        value = Cast(lowering.read(0, (at[0], add(first, own), *at[2:])), _DTYPE)
        return value if each % parts == ZERO else select(call("lt", own, index(each)), value, Const(0, _DTYPE))

    return call(WORDS[parts][0], *map(part, range(parts)))


OPS: tuple[OpDef, ...] = (OpDef("Words", PatternKind.INJECTIVE, _types, te=_te, domain="tsc"),)
