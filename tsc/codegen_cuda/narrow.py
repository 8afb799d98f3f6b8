"""Places in shared memory and registers, and quotients of small numbers, in 32 bits without a sign: a GPU has none of 64 bits.

Sums, differences and products of numbers cut to their lower 32 bits are those of the numbers; a quotient or a remainder is,
where facts hold the dividend between 0 and 2^32.
"""

from __future__ import annotations

from collections.abc import Collection

from tsc.codegen_c.scalar import Scope, offset_expr, scalar, split_offset
from tsc.sym import ZERO, SymExpr
from tsc.te.expr import Buffer, Call, Const, Expr
from tsc.te.index import to_expr, to_sym

_END = 1 << 32
#: Numbers that `clipped` in device/scalar.cuh leaves as they are.
_CLIPPED = 1 << 30
#: Comparisons of l and r as 0 <= f: the sign of r - l in f, and what f is less than that.
_AT_MOST = {"lt": (1, 1), "le": (1, 0), "gt": (-1, 1), "ge": (-1, 0)}
_EXACT = {"add": "+", "sub": "-", "mul": "*", "bitxor": "^"}
_DIVIDE = {"floordiv": "/", "mod": "%"}


def place_text(buffer: Buffer, at: tuple[Expr, ...], scope: Scope, size: int = 1) -> str:
    """CUDA text of the offset of an access in elements of a `size`, which is between 0 and 2^32, as a u32."""
    return _narrow(offset_expr(buffer, at, scope, size), scope)


def split_text(buffer: Buffer, at: tuple[Expr, ...], scope: Scope, size: int) -> tuple[str, int]:
    """The same in two summands, of which the second is constant."""
    constant, rest = split_offset(buffer, at, scope, size)
    return _narrow(rest, scope), constant


def quotient_text(expr: Call, scope: Scope) -> str:
    """CUDA text of a quotient or a remainder of what is not negative, as an int64_t; "" where it takes 64 bits."""
    left, right = expr.args
    whole = isinstance(right, Const) and 0 < int(right.value) < _END and _is_narrow(left, scope)
    return f"int64_t{_narrow(expr, scope)}" if whole else ""


def comparison_text(expr: Call, scope: Scope, loops: Collection[str]) -> str:
    """CUDA text of a comparison of indices: what the variables of some `loops` add to them, small numbers, is compared in 32
    bits with all else, which is the same in these; "" where they add nothing."""
    if expr.fn not in _AT_MOST:
        return ""
    sign, less = _AT_MOST[expr.fn]
    leaves: dict[str, Expr] = {}
    above = (to_sym(expr.args[1], leaves) - to_sym(expr.args[0], leaves)) * sign - less  # which is to be at least 0
    terms = [SymExpr(((monomial, factor),)) for monomial, factor in above.terms if monomial]
    near = sum((-term for term in terms if term.dims() <= set(loops) and _is_small(term, scope)), ZERO)
    if near == ZERO or not _is_small(near, scope):
        return ""
    left, right = (scalar(to_expr(side, leaves, scope.facts), scope) for side in (near, above + near))
    return f"(int32_t({left}) <= clipped({right}))"


def _is_small(number: SymExpr, scope: Scope) -> bool:
    least, most = scope.facts.bounds(number)
    return least is not None and most is not None and least > -_CLIPPED and most < _CLIPPED


def _narrow(expr: Expr, scope: Scope) -> str:
    match expr:
        case Const(value=value):
            return f"{int(value) % _END}u"
        case Call(fn=fn, args=(left, right)) if fn in _EXACT:
            return f"({_narrow(left, scope)} {_EXACT[fn]} {_narrow(right, scope)})"
        case Call(fn=fn, args=(left, Const(value=size))) if fn in _DIVIDE and 0 < int(size) < _END and _is_narrow(left, scope):
            if fn == "mod" and int(size) & int(size) - 1:
                return f"(remainder<{int(size)}u>({_narrow(left, scope)}))"
            return f"({_narrow(left, scope)} {_DIVIDE[fn]} {int(size)}u)"
    return f"u32({scalar(expr, scope)})"


def _is_narrow(expr: Expr, scope: Scope) -> bool:
    least, most = scope.facts.bounds(to_sym(expr, {}))
    return least is not None and most is not None and least >= 0 and most < _END
