"""Places in shared memory and registers, and quotients of small numbers, in 32 bits without a sign: a GPU has none of 64 bits.

Sums, differences and products of numbers cut to their lower 32 bits are those of the numbers; a quotient or a remainder is,
where facts hold the dividend between 0 and 2^32.
"""

from __future__ import annotations

from tsc.codegen_c.scalar import Scope, offset_expr, scalar, split_offset
from tsc.te.expr import Buffer, Call, Const, Expr
from tsc.te.index import to_sym

_END = 1 << 32
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
