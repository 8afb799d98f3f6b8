"""Products in the bodies of Computes: their factors, the axes of these, and how they are read."""

from __future__ import annotations

from tsc.sym import ONE
from tsc.te.compute import Compute
from tsc.te.expr import Call, Cast, Const, Expr, Load, Size, Var, index, item_bytes, loads, map_children, variables
from tsc.te.intrinsics import WORDS
from tsc.te.linear import linear

#: What multiplies two factors, or the parts of two.
PRODUCTS = frozenset({"mul", *(dot for _, dot in WORDS.values())})
#: Elements between two that count as lying next to each other.
MOST_APART = 4


def product_of(body: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a product that both load, looking through casts; None for anything else."""
    body = without_casts(body)
    if isinstance(body, Call) and body.fn in PRODUCTS and all(any(loads(a)) for a in body.args):
        return body.args[0], body.args[1]
    return None


def as_stored(factor: Expr) -> Expr:
    """A factor as it is stored: what has no more bits stays as it is, and is converted where it is read."""
    while isinstance(factor, Cast) and item_bytes(factor.value.dtype) <= item_bytes(factor.dtype):
        factor = factor.value
    return factor


def without_casts(factor: Expr) -> Expr:
    """What is converted, however often."""
    while isinstance(factor, Cast) or (isinstance(factor, Call) and factor.fn == "from_bfloat"):
        factor = factor.value if isinstance(factor, Cast) else factor.args[0]
    return factor


def unit_stride(factor: Expr, axis: str) -> bool:
    """Whether `factor` is one load (through casts) that reads consecutive elements along `axis`."""
    load = without_casts(factor)
    return isinstance(load, Load) and stride(load, axis) == 1


def stride(load: Load, axis: str) -> int | None:
    """How many elements of its last dim a load moves on along `axis`; None where that is no constant, or another dim moves."""
    if not load.index or any(axis in variables(i) for i in load.index[:-1]):
        return None
    form = linear(load.index[-1])
    nested = any(axis in variables(atom) for atom, _ in form.terms if atom != Var(axis))
    return None if nested else form.coefficient(axis).as_int()


def lies_along(load: Load, axis: str) -> bool:
    """Whether a load moves on by few elements of its last dim along `axis`, also where that counts rows of such elements (the
    positions of an image)."""
    def unrolled(expr: Expr) -> Expr:
        match expr:
            case Call(fn="mod" | "floordiv" as fn, args=(Var(name=name), Const() | Size())) if name == axis:
                return expr.args[0] if fn == "mod" else index(0)
        return map_children(unrolled, expr)

    return stride(Load(load.buffer, tuple(map(unrolled, load.index))), axis) in range(1, MOST_APART + 1)


def single_axes(compute: Compute, factors: tuple[Expr, Expr]) -> list[str]:
    """The axes of a product that belong to one of its factors alone; axes of extent 1 do not count."""
    left, right = variables(factors[0]), variables(factors[1])
    return [a.name for a in compute.axes if (a.name in left) != (a.name in right) and a.extent != ONE]


def is_contraction(compute: Compute) -> bool:
    """Whether it is a sum of products in which each factor has an axis that the other has not."""
    factors = product_of(compute.body)
    if factors is None or compute.monoid is None or compute.monoid.fn != "add":
        return False
    single = set(single_axes(compute, factors))
    return bool(single & variables(factors[0])) and bool(single & variables(factors[1]))
