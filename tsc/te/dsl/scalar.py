"""Scalars of the tensor DSL: elements, indices, sizes and what is computed from them, written with Python's operators.

A Scalar is an expression (`te/expr.py`) with what it uses. A mistake is refused with the file and line of the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NoReturn, Protocol

import numpy as np

from tsc.errors import ModelError
from tsc.sym import Range, SymExpr
from tsc.te.expr import (
    BOOL,
    FARTHEST,
    INDEX,
    Call,
    Cast,
    CheckedIndex,
    Const,
    Expr,
    Load,
    Size,
    as_size,
    call,
    format_expr,
    index,
)

#: The element types that tensors may have.
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")

# -- where the user is -----------------------------------------------------------------------------------------

def here() -> str:
    """`file:line` of the innermost caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("tsc."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def place_of(function: Callable[..., Any]) -> str:
    """`file:line` where a function begins."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else here()


# -- scalars ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True, eq=False)
class IndexVar:
    """An axis of one compute (`reduces` false), or a reduce axis; two of equal names are two axes."""

    name: str
    extent: SymExpr
    dims: Mapping[str, Range]
    reduces: bool
    place: str


class Named(Protocol):
    """A tensor, as scalars see it: a name, and where the user made it."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Uses:
    """What an expression is made of: axes, tensors and dims by name, and where each element was read (`file:line`)."""

    axes: Mapping[str, IndexVar] = field(default_factory=dict)
    tensors: Mapping[str, Named] = field(default_factory=dict)
    dims: Mapping[str, Range] = field(default_factory=dict)
    places: Mapping[Load, str] = field(default_factory=dict)


NOTHING = Uses()


def joined(parts: Iterable[Uses]) -> Uses:
    """The union of what expressions use. Raises ModelError where one name stands for two things."""
    parts = [p for p in parts if p is not NOTHING]
    if len(parts) <= 1 or all(p is parts[0] for p in parts):
        return parts[0] if parts else NOTHING
    axes: dict[str, IndexVar] = {}
    tensors: dict[str, Named] = {}
    places: dict[Load, str] = {}
    for part in parts:
        for name, axis in part.axes.items():
            if axes.setdefault(name, axis) is not axis:
                refuse(f"two axes are called '{name}', and one shadows the other ({axis.place}); rename one")
        for name, tensor in part.tensors.items():
            if tensors.setdefault(name, tensor) is not tensor:
                refuse(f"two tensors are called '{name}', made at {tensors[name].place} and {tensor.place}; rename one")
        places = {**part.places, **places}
    return Uses(axes, tensors, joined_dims(p.dims for p in parts), places)


def joined_dims(parts: Iterable[Mapping[str, Range]]) -> Mapping[str, Range]:
    """All dims. Raises ModelError where one was declared twice with different ranges."""
    dims: dict[str, Range] = {}
    for part in parts:
        for name, known in part.items():
            if dims.setdefault(name, known) != known:
                refuse(f"dim '{name}' is declared twice, as {dims[name]} and as {known}; declare it once and use it twice")
    return dims


def refuse(message: str, place: str | None = None) -> NoReturn:
    """Raise ModelError for the user's code at `place`, by default where it stands now."""
    raise ModelError(f"{place or here()}: {message}")


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """One element of a tensor, an index, a size, or an expression of such.

    Arithmetic and comparisons make new Scalars. Operands share one dtype; Python numbers take the other operand's. Indices and
    sizes are int64. Division is `/` for floats and `//` and `%` (rounding down) for integers. `&`, `|`, `~` are for conditions.
    """

    expr: Expr
    uses: Uses = NOTHING

    __array_ufunc__ = None  # NumPy scalars leave `np.float32(2) * x` to us
    __hash__ = None  # type: ignore[assignment]  # `==` makes an expression

    @property
    def dtype(self) -> str:
        """The element type, by NumPy's name."""
        return self.expr.dtype

    def __add__(self, other: Any) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return binary("div", self, other, "f", "use // to divide integers, rounding down")

    def __rtruediv__(self, other: Any) -> Scalar:
        return binary("div", other, self, "f", "use // to divide integers, rounding down")

    def __floordiv__(self, other: Any) -> Scalar:
        return binary("floordiv", self, other, "iu", "use te.floor(a / b) for floats")

    def __rfloordiv__(self, other: Any) -> Scalar:
        return binary("floordiv", other, self, "iu", "use te.floor(a / b) for floats")

    def __mod__(self, other: Any) -> Scalar:
        return binary("mod", self, other, "iu", "use a - te.floor(a / b) * b for floats")

    def __rmod__(self, other: Any) -> Scalar:
        return binary("mod", other, self, "iu", "use a - te.floor(a / b) * b for floats")

    def __pow__(self, other: Any) -> Scalar:
        return binary("pow", self, other, "f", "write a product of integers out, or cast")

    def __neg__(self) -> Scalar:
        return binary("sub", 0, self) if kind_of(self) != "f" else Scalar(call("neg", self.expr), self.uses)

    def __abs__(self) -> Scalar:
        return Scalar(call("abs", self.expr), self.uses)

    def __lt__(self, other: Any) -> Scalar:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Scalar:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return binary("gt", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return binary("ge", self, other)

    def __eq__(self, other: object) -> Scalar:  # type: ignore[override]
        return binary("eq", self, other)

    def __ne__(self, other: object) -> Scalar:  # type: ignore[override]
        return binary("ne", self, other)

    def __and__(self, other: Any) -> Scalar:
        return binary("and", self, other, "b", "& joins conditions")

    def __or__(self, other: Any) -> Scalar:
        return binary("or", self, other, "b", "| joins conditions")

    def __invert__(self) -> Scalar:
        if self.dtype != BOOL:
            refuse(f"~ negates a condition, not a value of {self.dtype}")
        return Scalar(Call("not", (self.expr,), BOOL), self.uses)

    def __bool__(self) -> bool:
        refuse(f"'{shown(self.expr)}' has no truth value yet, since it differs from element to element; choose with te.where, "
               "and join conditions with te.all_of, te.any_of, & and |")

    def __index__(self) -> int:
        known = as_size(self.expr)
        value = None if known is None else known.as_int()
        if value is None:
            refuse(f"'{shown(self.expr)}' is no number yet; it is known only when the kernel runs")
        return value

    def __str__(self) -> str:
        return shown(self.expr)


def kind_of(value: Scalar) -> str:
    """'f', 'i', 'u' or 'b', as NumPy says."""
    return np.dtype(value.dtype).kind


def binary(fn: str, a: Any, b: Any, kinds: str = "", hint: str = "") -> Scalar:
    """`fn` of two operands of one dtype, which must be of `kinds` where given. Raises ModelError with the user's line."""
    x, y = together(fn, a, b)
    if kinds and kind_of(x) not in kinds:
        refuse(f"'{fn}' does not take {x.dtype}; {hint}")
    if x.dtype == BOOL and fn in ("add", "sub", "mul"):
        refuse(f"'{fn}' does not take conditions; use te.where or te.cast")
    _within_int64(fn, x, y)
    uses = joined((x.uses, y.uses))
    if fn in ("and", "or"):
        return Scalar(Call(fn, (x.expr, y.expr), BOOL), uses)
    return Scalar(call(fn, x.expr, y.expr), uses)


def _within_int64(fn: str, *operands: Scalar) -> None:
    """Raise ModelError for a literal with which the arithmetic of an index may leave int64: axes and sizes are below FARTHEST,
    and those that literals are multiplied with, one after the other, below 2^32."""
    most = {"add": FARTHEST, "sub": FARTHEST, "mul": 1 << 31}.get(fn)
    literals = [o.expr.value for o in operands if isinstance(o.expr, Const) and o.dtype == INDEX]
    if most is None or len(literals) != 1 or any(o.uses.tensors for o in operands):
        return
    if fn == "mul":
        most //= max(_factor(o.expr) for o in operands if not isinstance(o.expr, Const))
    if abs(literals[0]) > most:
        refuse(f"the literal {literals[0]} is too large for the arithmetic of an index, where {most} is the greatest in "
               f"'{fn}'; cast the index to uint64 for arithmetic that wraps around")


def _factor(expr: Expr) -> int:
    """The greatest number that axes and sizes are multiplied with in `expr`, at least 1."""
    match expr:
        case Size(value=value):
            return max((abs(c) for monomial, c in value.terms if monomial), default=1)
        case Call(fn="mul", args=(a, b)):
            return _factor(a) * _factor(b)
        case Const(value=value):
            return max(1, abs(int(value)))
        case Call(fn="floordiv", args=(a, _)):
            return _factor(a)
        case Call(fn="add" | "sub" | "neg" | "abs" | "min" | "max" | "select", args=args):
            return max((_factor(a) for a in args if not isinstance(a, Const)), default=1)
    return 1


def together(what: str, *operands: Any) -> tuple[Scalar, ...]:
    """Operands as Scalars of one dtype: Python numbers take that of the others. Raises ModelError when there are two dtypes."""
    found = [o for o in operands if isinstance(o, Scalar)]
    dtypes = list(dict.fromkeys(o.dtype for o in found))
    if len(dtypes) > 1:
        parts = ", ".join(f"'{shown(o.expr)}' of {o.dtype}" for o in found)
        refuse(f"the operands of '{what}' differ in dtype: {parts}; make them equal with te.cast")
    return tuple(o if isinstance(o, Scalar) else literal(o, dtypes[0] if dtypes else None, what) for o in operands)


def literal(value: Any, dtype: str | None, what: str) -> Scalar:
    """A Python or NumPy number as a Scalar of `dtype` (None: int64, bool or float32). Raises ModelError for what is no number
    or does not fit."""
    if isinstance(value, SymExpr):
        return Scalar(index(value))
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, bool | int | float):
        hint = "; index it" if hasattr(value, "extents") else ""
        refuse(f"'{what}' takes scalars and numbers, not a {type(value).__name__}{hint}")
    made = dtype or (BOOL if isinstance(number, bool) else INDEX if isinstance(number, int) else "float32")
    kind = np.dtype(made).kind
    if (kind == "b") != isinstance(number, bool) or (kind in "iu" and isinstance(number, float)):
        refuse(f"'{what}' mixes {made} with the literal {number!r}; cast one of them")
    if kind in "iu" and not np.iinfo(made).min <= number <= np.iinfo(made).max:
        refuse(f"the literal {number} does not fit {made}")
    return Scalar(index(int(number)) if made == INDEX else Const(float(number) if kind == "f" else number, made))


def shown(expr: Expr) -> str:
    """An expression as users write it."""
    match expr:
        case Call(fn=fn, args=(a, b)) if fn in _SIGNS:
            return f"({shown(a)} {_SIGNS[fn]} {shown(b)})"
        case Call(fn=fn, args=args):
            return f"{fn}({', '.join(map(shown, args))})"
        case Load(buffer=buffer, index=at):
            return f"{buffer.name}[{', '.join(map(_bare, at))}]"
        case Cast(value=value, dtype=dtype):
            return f"{dtype}({shown(value)})"
        case CheckedIndex(value=value):
            return shown(value)
        case Size(value=value):
            return str(value)
        case Const(value=value):
            return str(value)
    return format_expr(expr)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|"}


def _bare(expr: Expr) -> str:
    text = shown(expr)
    return text[1:-1] if isinstance(expr, Call) and expr.fn in _SIGNS else text
