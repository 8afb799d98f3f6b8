"""What asks of each place whether something goes there: a value that is nothing but where an index from elsewhere is the place.

A fold of such values over what goes somewhere (a scatter, as an element sees it) has one place for each update that changes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tsc.sym import ZERO, SymExpr, dim
from tsc.sym.expr import coefficient_of
from tsc.te.compute import Compute, Monoid
from tsc.te.expr import BOOL, INDEX, Call, Const, Expr, call, children, map_children, operands, variables, walk
from tsc.te.index import to_sym

#: What updates may be folded with: the meaning of a Monoid's function leaves what it finds where the other is its identity. A
#: sum of floats that begins with 0 is never -0, to which adding 0 would make a difference.
FOLDS = frozenset({"add", "mul", "max", "min", "and", "or"})


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a value is something: `test` is the comparison that says so, true where a variable plus `offset` is `goes`. It is
    asked where all of `guards` hold; nowhere else may `goes` be looked at, and the value is nothing there."""

    test: Call
    goes: Expr
    offset: SymExpr
    guards: tuple[Expr, ...]


def spot_of(value: Expr, var: str, nothing: Const) -> Spot | None:
    """The Spot of a value that is `nothing` at every other value of a variable; None where it has none."""
    for node in walk(value):
        if isinstance(node, Call) and node.fn == "eq" and node.args[0].dtype == INDEX:
            for place, goes in (node.args, node.args[::-1]):
                offset = _offset(place, var)
                once = sum(other == node for other in walk(value)) == 1
                if offset is not None and once and var not in variables(goes) and _is_nothing(value, node, nothing):
                    return Spot(node, goes, offset, tuple(_guards(value, node)))
    return None


def sought(compute: Compute, axis: str) -> Spot | None:
    """Where one update of a fold goes along an axis; None where it may change more than one place."""
    return None if compute.monoid is None else spot_of(compute.body, axis, nothing_of(compute.monoid.fn, compute.body.dtype))


def nothing_of(fn: str, dtype: str) -> Const:
    """The identity of a fold."""
    return Const(Monoid(fn).identity(dtype), dtype)


def there(value: Expr, test: Call) -> Expr:
    """A value where a test holds, which it need not ask any more."""
    if value == test:
        return Const(True, BOOL)
    inner = map_children(lambda part: there(part, test), value)
    match inner:
        case Call(fn="and", args=(Const(value=True), other)) | Call(fn="and", args=(other, Const(value=True))):
            return other
        case Call(fn="select", args=(Const(value=True), yes, _)):
            return yes
    return inner


def _offset(place: Expr, var: str) -> SymExpr | None:
    """What is added to a variable where that is a place; None where the place is something else."""
    leaves: dict[str, Expr] = {}
    offset = to_sym(place, leaves) - dim(var)
    fixed = coefficient_of(offset, var) == ZERO and not any(var in variables(leaf) for leaf in leaves.values())
    return offset if fixed and not leaves else None


def _guards(value: Expr, test: Call) -> Iterator[Expr]:
    """The conditions under which a part of a value is evaluated."""
    while value != test:
        inner = next(part for part in children(value) if test in walk(part))
        match value:
            case Call(fn="select", args=(condition, yes, _)) if inner != condition:
                yield condition if inner == yes else call("not", condition)
            case Call(fn="and" | "or" as fn, args=(first, _)) if inner != first:
                yield first if fn == "and" else call("not", first)
        value = inner


def _is_nothing(value: Expr, test: Call, nothing: Const) -> bool:
    """Whether a value is `nothing` wherever a test fails."""
    match value:
        case Call(fn="select", args=(condition, yes, no)):
            return _is_nothing(no, test, nothing) and (test in operands(condition, "and") or _is_nothing(yes, test, nothing))
    return value == nothing
