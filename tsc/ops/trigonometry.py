"""Functions of angles and hyperbolic ones, made of exp, log, sqrt, sin and cos, and their inverses.

Each is within a few units of the last place: differences that cancel are left to log1p (by Kahan's correction of a logarithm)
and to series. The arcus tangent is reduced and approximated as in S. L. Moshier's Cephes library (atan.c, atanf.c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tsc.ops.base import InferContext, OpDef
from tsc.ops.elementwise import elementwise, literal, singles
from tsc.te.expr import Expr, add, call, mul, select

#: A function of one number.
Function = Callable[[Expr], Expr]

#: Beyond this a number's square plus 1 is its square, and its square is still a number.
_FAR = 1e10


def _sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


def _div(a: Expr, b: Expr) -> Expr:
    return call("div", a, b)


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """By Horner's rule, the highest power first."""
    result: Expr = literal(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = add(mul(result, x), literal(coefficient, x))
    return result


def _odd(function: Function) -> Function:
    """A function that changes sign with its operand, of what it is for operands from 0 on; -0 stays so."""
    def body(x: Expr) -> Expr:
        found = function(call("abs", x))
        return select(call("lt", x, literal(0, x)), call("neg", found), select(call("eq", x, literal(0, x)), x, found))
    return body


def _log1p(y: Expr) -> Expr:
    """log(1 + y): the logarithm of the rounded sum, corrected by what the sum was rounded by."""
    one = literal(1, y)
    total = add(one, y)
    corrected = _div(mul(call("log", total), y), _sub(total, one))
    return select(call("eq", total, one), y, select(call("eq", total, y), call("log", total), corrected))


def _is_double(x: Expr) -> bool:
    return x.dtype == "float64"


# -- angles ------------------------------------------------------------------------------------------------------

def _tan(x: Expr) -> Expr:
    return _div(call("sin", x), call("cos", x))


def _atan_from_zero(x: Expr) -> Expr:
    """Reduced to within tan(pi / 8) of 0 by atan(x) = pi / 2 - atan(1 / x) and pi / 4 + atan((x - 1) / (x + 1))."""
    one = literal(1, x)
    far = call("gt", x, literal(math.tan(3 * math.pi / 8), x))
    middle = call("gt", x, literal(0.66 if _is_double(x) else math.tan(math.pi / 8), x))
    begin = select(far, literal(math.pi / 2, x), select(middle, literal(math.pi / 4, x), literal(0, x)))
    z = select(far, _div(literal(-1, x), x), select(middle, _div(_sub(x, one), add(x, one)), x))
    square = mul(z, z)
    if _is_double(x):
        above = _polynomial((-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
                             -1.228866684490136173410e2, -6.485021904942025371773e1), square)
        below = _polynomial((1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
                             4.853903996359136964868e2, 1.945506571482613964425e2), square)
        rest = _div(mul(square, above), below)
    else:
        rest = mul(square, _polynomial((8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1), square))
    return add(begin, add(mul(rest, z), z))


_atan = _odd(_atan_from_zero)


def _asin(x: Expr) -> Expr:
    one = literal(1, x)
    return _atan(_div(x, call("sqrt", mul(_sub(one, x), add(one, x)))))


def _acos(x: Expr) -> Expr:
    one = literal(1, x)
    return mul(literal(2, x), _atan(call("sqrt", _div(_sub(one, x), add(one, x)))))


# -- hyperbolic functions ----------------------------------------------------------------------------------------

def _half_exp(x: Expr) -> Expr:
    """exp(x) / 2, by halves where exp(x) alone may be too large."""
    half = literal(0.5, x)
    root = call("exp", mul(x, half))
    small = call("lt", x, literal(708 if _is_double(x) else 87, x))
    return select(small, mul(half, call("exp", x)), mul(mul(half, root), root))


def _cosh(x: Expr) -> Expr:
    size = call("abs", x)
    return add(_half_exp(size), mul(literal(0.5, x), call("exp", call("neg", size))))


def _sinh_from_zero(x: Expr) -> Expr:
    """Below 1 by its series, where the difference of exponentials cancels."""
    powers = range(8 if _is_double(x) else 5, -1, -1)
    series = mul(x, _polynomial([1 / math.factorial(2 * k + 1) for k in powers], mul(x, x)))
    difference = _sub(_half_exp(x), mul(literal(0.5, x), call("exp", call("neg", x))))
    return select(call("lt", x, literal(1, x)), series, difference)


def _asinh_from_zero(x: Expr) -> Expr:
    one = literal(1, x)
    near = _log1p(add(x, _div(mul(x, x), add(one, call("sqrt", add(mul(x, x), one))))))
    return select(call("gt", x, literal(_FAR, x)), add(call("log", x), literal(math.log(2), x)), near)


def _acosh(x: Expr) -> Expr:
    more = _sub(x, literal(1, x))
    near = _log1p(add(more, mul(call("sqrt", more), call("sqrt", add(more, literal(2, x))))))
    return select(call("gt", x, literal(_FAR, x)), add(call("log", x), literal(math.log(2), x)), near)


def _atanh_from_zero(x: Expr) -> Expr:
    return mul(literal(0.5, x), _log1p(_div(mul(literal(2, x), x), _sub(literal(1, x), x))))


# -- the operators -----------------------------------------------------------------------------------------------

def _of(function: Function) -> Callable[[InferContext, Sequence[Expr | None]], Expr]:
    def body(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
        x = args[0]
        assert x is not None
        return function(x)
    return body


OPS: tuple[OpDef, ...] = (
    elementwise("Tan", _of(_tan), samples=singles(-1.4, 1.4)),
    elementwise("Asin", _of(_asin), samples=singles(-1, 1)),
    elementwise("Acos", _of(_acos), samples=singles(-1, 1)),
    elementwise("Atan", _of(_atan), samples=singles(-5, 5)),
    elementwise("Sinh", _of(_odd(_sinh_from_zero)), samples=singles(-3, 3)),
    elementwise("Cosh", _of(_cosh), samples=singles(-3, 3)),
    elementwise("Asinh", _of(_odd(_asinh_from_zero)), samples=singles(-3, 3)),
    elementwise("Acosh", _of(_acosh), samples=singles(1, 9)),
    elementwise("Atanh", _of(_odd(_atanh_from_zero)), samples=singles(-0.9, 0.9)),
)
