"""Functions of scalars, and reductions, for the tensor DSL. Each raises ModelError with the user's line for a wrong dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import numpy as np

from tsc.te.compute import MAX, MIN, PROD, SUM, Monoid
from tsc.te.dsl.scalar import DTYPES, IndexVar, Scalar, binary, joined, kind_of, literal, refuse, shown, together
from tsc.te.dsl.tensor import Reduction, Tensor
from tsc.te.expr import BOOL, Call, Cast, Const, Expr, Var, call

# -- element by element ----------------------------------------------------------------------------------------

def _float(fn: str, x: Any) -> Scalar:
    value = _scalar(fn, x)
    if kind_of(value) != "f":
        refuse(f"te.{fn} takes floats, not '{shown(value.expr)}' of {value.dtype}; cast it with te.cast")
    return Scalar(call(fn, value.expr), value.uses)


def _scalar(what: str, x: Any) -> Scalar:
    return x if isinstance(x, Scalar) else literal(x, None, f"te.{what}")


def exp(x: Any) -> Scalar:
    """e to the power `x`."""
    return _float("exp", x)


def log(x: Any) -> Scalar:
    """The natural logarithm."""
    return _float("log", x)


def sqrt(x: Any) -> Scalar:
    """The square root."""
    return _float("sqrt", x)


def erf(x: Any) -> Scalar:
    """The error function."""
    return _float("erf", x)


def tanh(x: Any) -> Scalar:
    """The hyperbolic tangent."""
    return _float("tanh", x)


def sin(x: Any) -> Scalar:
    """The sine."""
    return _float("sin", x)


def cos(x: Any) -> Scalar:
    """The cosine."""
    return _float("cos", x)


def floor(x: Any) -> Scalar:
    """The greatest whole number not above `x`."""
    return _float("floor", x)


def ceil(x: Any) -> Scalar:
    """The least whole number not below `x`."""
    return _float("ceil", x)


def minimum(a: Any, b: Any) -> Scalar:
    """The smaller of two."""
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Scalar:
    """The greater of two."""
    return binary("max", a, b)


def cast(x: Any, dtype: str) -> Scalar:
    """`x` converted as C does: a float to an int truncates, anything to bool is `!= 0`.

    Examples:
        >>> from tsc import te
        >>> print(te.cast(te.dim("n"), "float32") / 2)
        (float32(n) / 2.0)
    """
    value, name = _scalar("cast", x), np.dtype(dtype).name
    if name not in DTYPES:
        refuse(f"te.cast to '{name}', expected one of {', '.join(DTYPES)}")
    return value if value.dtype == name else Scalar(Cast(value.expr, name), value.uses)


def where(condition: Any, yes: Any, no: Any) -> Scalar:
    """`yes` where `condition` holds, else `no`; only the chosen one is evaluated, so that it may guard an index.

    Examples:
        >>> from tsc import te
        >>> x = te.placeholder((te.dim("n"),), "float32", "x")
        >>> print(te.compute((te.dim("n"),), lambda i: te.where(i >= 1, x[i - 1], 0.0), "shifted").definition)
        shifted[i<n] = select(ge(i, 1), x[sub(i, 1)], 0.0:float32)
    """
    chosen = _condition("where", condition)
    a, b = together("te.where", yes, no)
    return Scalar(Call("select", (chosen.expr, a.expr, b.expr), a.dtype), joined((chosen.uses, a.uses, b.uses)))


def all_of(*conditions: Any) -> Scalar:
    """Whether all conditions hold."""
    return _joined("and", conditions)


def any_of(*conditions: Any) -> Scalar:
    """Whether any condition holds."""
    return _joined("or", conditions)


def _joined(fn: str, conditions: Sequence[Any]) -> Scalar:
    if not conditions:
        return Scalar(Const(fn == "and", BOOL))
    parts = [_condition("all_of" if fn == "and" else "any_of", c) for c in conditions]
    return Scalar(fold(lambda a, b: Call(fn, (a, b), BOOL), (p.expr for p in parts)), joined(p.uses for p in parts))


def _condition(what: str, value: Any) -> Scalar:
    found = _scalar(what, value)
    if found.dtype != BOOL:
        refuse(f"te.{what} takes conditions, not '{shown(found.expr)}' of {found.dtype}; compare it with something")
    return found


# -- reductions ------------------------------------------------------------------------------------------------

def sum(value: Any, axis: Any) -> Reduction:
    """The sum over one reduce axis or several.

    Examples:
        >>> from tsc import te
        >>> x, k = te.placeholder((te.dim("n"), 3), "float32", "x"), te.reduce_axis(3, "k")
        >>> print(te.compute((te.dim("n"),), lambda i: te.sum(x[i, k], axis=k), "rows").definition)
        rows[i<n] = add over k<3: x[i, k]
    """
    return _reduction("sum", SUM, value, axis)


def prod(value: Any, axis: Any) -> Reduction:
    """The product over reduce axes."""
    return _reduction("prod", PROD, value, axis)


def max(value: Any, axis: Any) -> Reduction:
    """The greatest value over reduce axes."""
    return _reduction("max", MAX, value, axis)


def min(value: Any, axis: Any) -> Reduction:
    """The least value over reduce axes."""
    return _reduction("min", MIN, value, axis)


def reduce(combine: Callable[[Scalar, Scalar], Scalar], value: Any, axis: Any) -> Reduction:
    """A reduction by `combine`, which must be a declared monoid: +, *, te.maximum, te.minimum, & or |.

    The order of a reduction is the scheduler's to choose, which only an associative and commutative operator with an identity
    allows. Anything else is refused with its line.
    """
    element = _scalar("reduce", value)
    a, b = (Var(name, element.dtype) for name in ("left", "right"))
    made = combine(Scalar(a), Scalar(b))
    found: Expr | None = made.expr if isinstance(made, Scalar) else None
    if not (isinstance(found, Call) and found.fn in _MONOIDS and found.args in ((a, b), (b, a))):
        text = shown(found) if found is not None else type(made).__name__
        refuse(f"'{text}' is no declared monoid (associative and commutative, with an identity); reduce by +, *, te.maximum, "
               "te.minimum, & or |")
    return _reduction("reduce", Monoid(found.fn), element, axis)


_MONOIDS = frozenset({"add", "mul", "max", "min", "and", "or"})


def _reduction(what: str, monoid: Monoid, value: Any, axis: Any) -> Reduction:
    if isinstance(value, Tensor | Reduction):
        refuse(f"te.{what} takes an expression of elements, not a {type(value).__name__.lower()}; index it")
    found = _scalar(what, value)
    if (found.dtype == BOOL) != (monoid.fn in ("and", "or")):
        refuse(f"te.{what} by '{monoid.fn}' does not take {found.dtype}; use te.cast")
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes: list[IndexVar] = []
    for item in given:
        name = item.expr.name if isinstance(item, Scalar) and isinstance(item.expr, Var) else None
        if name is None or not item.uses.axes[name].reduces:
            refuse(f"te.{what} reduces over '{item}', which is no te.reduce_axis")
        if any(a.name == name for a in axes):
            refuse(f"te.{what} has two reduce axes called '{name}', and one shadows the other; rename one")
        axes.append(item.uses.axes[name])
    if not axes:
        refuse(f"te.{what} reduces over no axis; give it a te.reduce_axis")
    return Reduction(monoid, tuple(axes), found)
