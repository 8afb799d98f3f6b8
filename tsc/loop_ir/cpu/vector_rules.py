"""What one vector of iterations may compute: which accesses, which intrinsics, which conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tsc.loop_ir.bounds import margin_of, within
from tsc.loop_ir.nodes import For
from tsc.sym import ONE, ZERO, SymExpr, dim
from tsc.sym.expr import apply, coefficient_of
from tsc.sym.facts import Facts
from tsc.target import DeviceSpec
from tsc.te.expr import BOOL, INDEX, Call, Cast, CheckedIndex, Expr, Load, Var, children, loads, substitute, walk
from tsc.te.index import to_expr, to_sym
from tsc.te.intrinsics import EXPENSIVE

_LOADED = frozenset({"float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "bool"})

#: What floats are converted to as int32 of which lower bits are kept.
WHOLE = frozenset({"int8", "int16", "int32", "uint8", "uint16"})

#: How an access moves along the lanes; "spaced" is every second to fourth element of a row, "twice" each element two times.
Access = Literal["invariant", "contiguous", "spaced", "twice", "strided"]
#: Those that touch the memory of active lanes alone.
MASKED = ("invariant", "contiguous", "spaced")
SPACES = range(2, 5)


@dataclass(frozen=True, slots=True)
class LaneRange:
    """A condition that holds in one run of iterations: from the greatest of `lows` up to the least of `highs` (exclusive), and
    only where each of `others`, which do not vary, holds. The bounds count from where the variable is 0."""

    lows: tuple[SymExpr, ...]
    highs: tuple[SymExpr, ...]
    others: tuple[Expr, ...]


class Refused(Exception):
    """Why a loop is not vectorized."""


#: Whether a part of an expression is evaluated always (with or without masks at hand), in a run of lanes alone (see
#: LaneRange), or under another condition.
When = Literal["always", "unmasked", "in range", "sometimes"]


def varies(expr: Expr, var: str) -> bool:
    """Whether `expr` uses the variable."""
    return any(isinstance(n, Var) and n.name == var for n in walk(expr))


def looks_at_data(expr: Expr) -> bool:
    """Whether `expr` loads something, an index of its own among it."""
    return any(isinstance(n, (Load, CheckedIndex)) for n in walk(expr))


def check_load(load: Load, var: str) -> Access:
    """How an access moves with the variable. Raises Refused where its place is not affine in it."""
    if not any(varies(i, var) for i in load.index):
        return "invariant"
    leaves: dict[str, Expr] = {}
    factors: list[SymExpr] = []
    halves = half_of(to_sym(load.index[-1], leaves), var) is not None
    for i in load.index[:-1] if halves else load.index:
        factor = coefficient_of(to_sym(i, leaves), var)
        if factor is None:
            raise Refused(f"the index of {load.buffer.name} is not affine in it")
        factors.append(factor)
    if any(varies(leaf, var) for leaf in leaves.values()):
        raise Refused(f"the index of {load.buffer.name} depends on data")
    if load.buffer.panel is not None:
        moved = [d for d, factor in enumerate(factors) if factor != ZERO]
        if halves or moved != [load.buffer.panel[0]] or factors[moved[0]] != ONE or load.buffer.beside is not None:
            raise Refused(f"{load.buffer.name} is stored in panels")
        return "contiguous"  # where it is a part of one (`_part_of_panel`)
    if any(f != ZERO for f in (factors if halves else factors[:-1])):
        return "strided"
    if halves:
        return "twice"
    return "contiguous" if factors[-1] == ONE else "spaced" if factors[-1].as_int() in SPACES else "strided"


def _part_of_panel(load: Load, loop: For, lanes: int, facts: Facts) -> bool:
    """Whether each vector of a loop that reads along a panel lies within one."""
    panel, leaves = load.buffer.panel, dict[str, Expr]()
    if panel is None or not varies(load.index[panel[0]], loop.var):
        return True
    first = facts.reduce(to_sym(substitute(load.index[panel[0]], {loop.var: loop.lo}), leaves))
    return not leaves and panel[1] % lanes == 0 and facts.divisor(first) % lanes == 0


def half_of(place: SymExpr, var: str) -> SymExpr | None:
    """What half of the variable, rounded down, is added to where `place` is that; None where it is not."""
    half = _half(var)
    rest = place - half if half.terms[0] in place.terms else None
    return rest if rest is not None and coefficient_of(rest, var) == ZERO else None


@lru_cache(maxsize=1024)
def _half(var: str) -> SymExpr:
    return apply("//", [dim(var), SymExpr.of(2)])


def check_value(value: Expr, loop: For, lanes: int, facts: Facts, spec: DeviceSpec, masks: bool,
                known: tuple[Expr, ...] = ()) -> None:
    """Raises Refused unless a device can compute `value` for so many iterations of a loop at once; `facts` hold inside it, and
    conditions that are `known`. With `masks`, a load may stand under a condition that holds in a run of lanes: no other lane is
    touched."""
    var = loop.var
    costly = any(isinstance(n, Call) and n.fn in EXPENSIVE for n in walk(value))
    safe = frozenset(n for n in unconditional(value) if isinstance(n, (Load, CheckedIndex)))
    _check(value, var, _Held(facts, known, safe), spec.vector_calls, costly, "always" if masks else "unmasked")
    if not all(_part_of_panel(load, loop, lanes, facts) for load in loads(value)):
        raise Refused("its vectors are no parts of panels")


def unconditional(expr: Expr) -> list[Expr]:
    """The parts of `expr` that are evaluated whatever its conditions say."""
    parts = (expr.args[0],) if isinstance(expr, Call) and expr.fn == "select" else children(expr)
    return [*(n for part in parts for n in unconditional(part)), expr]


@dataclass(frozen=True, slots=True)
class _Held:
    """What holds where a value is computed: facts, conditions around it, and the reads that are `safe`: made in any case."""

    facts: Facts
    known: tuple[Expr, ...]
    safe: frozenset[Expr]


def _check(expr: Expr, var: str, held: _Held, calls: Collection[tuple[str, str]], costly: bool, when: When) -> None:
    guarded = when in ("in range", "sometimes")
    if not varies(expr, var):  # a scalar, which in a run of lanes is computed only where the run has one
        if when == "sometimes":
            _check_reads(expr, var, held)
        return
    if expr.dtype == INDEX and is_affine(expr, var):
        if guarded:
            _check_reads(expr, var, held)
        return
    match expr:
        case Load(buffer=buffer):
            access = check_load(expr, var)
            if guarded and expr not in held.safe:
                if when == "in range" and access in MASKED:  # the lanes are masked, what the index loads is not
                    for place in expr.index:
                        _check_reads(place, var, held)
                else:
                    _check_reads(expr, var, held)
            if buffer.dtype not in _LOADED:
                raise Refused(f"{buffer.dtype} has no vectors")
            if access == "strided" and not costly:
                raise Refused(f"{buffer.name} is read with a stride")
            return
        case Cast(value=value, dtype=dtype):
            cut = value.dtype.startswith("float") and not dtype.startswith("float") and dtype != BOOL
            if not {value.dtype, dtype} <= _LOADED or (cut and not (value.dtype == "float32" and dtype in WHOLE)):
                raise Refused(f"{value.dtype} to {dtype} has no vector form")
        case Call(fn=fn, args=args):
            if (fn, args[-1].dtype) not in calls:
                raise Refused(f"{fn} on {args[-1].dtype} has no vector form")
            if fn == "select":
                ranged = when in ("always", "in range") and lane_range(args[0], var) is not None
                if not ranged:
                    _check(args[0], var, held, calls, costly, when)
                _check(args[1], var, held, calls, costly, "in range" if ranged else "sometimes")
                _check(args[2], var, held, calls, costly, "sometimes")
                return
        case CheckedIndex():
            raise Refused("it computes an index from data")
    for child in children(expr):
        _check(child, var, held, calls, costly, when)


def _check_reads(expr: Expr, var: str, held: _Held) -> None:
    """What stands under a condition that no lane is asked for must be harmless where the condition does not hold."""
    for read in executed(expr, var, lost=True):
        if read.what in held.safe:
            continue
        if isinstance(read.what, CheckedIndex):
            raise Refused("it checks an index under a condition")
        if not within(read.what, held.facts, (*held.known, *read.known)):
            raise Refused(f"a condition guards {read.what.buffer.name}, which may be read out of bounds without it")


@dataclass(frozen=True, slots=True)
class Read:
    """A load or a checked index as one vector of iterations executes it: the conditions that are known to hold then (in some
    lane, where it is one for all lanes), and whether it stands under others that are `lost`."""

    what: Load | CheckedIndex
    known: tuple[Expr, ...]
    lost: bool


def executed(expr: Expr, var: str, known: tuple[Expr, ...] = (), lost: bool = False) -> Iterator[Read]:
    """The reads of `expr` in all lanes of `var` at once: what back ends keep to. Both sides of a choice are computed; but
    under a LaneRange, loads of neighbouring or spaced elements touch no other lanes, and what does not vary is computed as one
    scalar, with the choices within it, only where the range has a lane."""
    if not varies(expr, var):
        yield from _of_scalar(expr, known, lost)
        return
    if isinstance(expr, Call) and expr.fn == "select":
        condition, yes, no = expr.args
        ranged = lane_range(condition, var) is not None
        yield from executed(condition, var, known, lost)
        yield from executed(yes, var, (*known, condition) if ranged else known, lost or not ranged)
        yield from executed(no, var, known, True)
        return
    if isinstance(expr, (Load, CheckedIndex)):
        masked = isinstance(expr, Load) and _has_masks(expr, var)
        yield Read(expr, known if masked else (), lost or (bool(known) and not masked))
    if isinstance(expr, (Load, CheckedIndex)) or (expr.dtype == INDEX and is_affine(expr, var)):
        known, lost = (), lost or bool(known)  # an index is computed whatever the mask
    for child in children(expr):
        yield from executed(child, var, known, lost)


def _has_masks(load: Load, var: str) -> bool:
    try:
        return check_load(load, var) in MASKED
    except Refused:
        return False


def _of_scalar(expr: Expr, known: tuple[Expr, ...], lost: bool) -> Iterator[Read]:
    if isinstance(expr, Call) and expr.fn == "select":
        condition, yes, no = expr.args
        yield from _of_scalar(condition, known, lost)
        yield from _of_scalar(yes, (*known, condition), lost)
        yield from _of_scalar(no, (*known, Call("not", (condition,), BOOL)), lost)
        return
    if isinstance(expr, (Load, CheckedIndex)):
        yield Read(expr, known, lost)
    for child in children(expr):
        yield from _of_scalar(child, known, lost)


def is_affine(expr: Expr, var: str) -> bool:
    """Whether an int64 expression is affine in the variable."""
    leaves: dict[str, Expr] = {}
    factor = coefficient_of(to_sym(expr, leaves), var)
    return factor is not None and not any(varies(leaf, var) for leaf in leaves.values())


def lane_range(condition: Expr, var: str) -> LaneRange | None:
    """The run of iterations in which a condition holds; None where it is not one of that form, or looks at data."""
    if looks_at_data(condition):
        return None
    if not varies(condition, var):
        return LaneRange((), (), (condition,))
    if isinstance(condition, Call) and condition.fn == "and":
        parts = [lane_range(a, var) for a in condition.args]
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        return LaneRange(*(tuple(x for p in known for x in getattr(p, name)) for name in ("lows", "highs", "others")))
    leaves: dict[str, Expr] = {}
    bound = margin_of(condition, leaves)
    factor = None if bound is None or leaves else coefficient_of(bound, var)
    step = None if factor is None else factor.as_int()
    if bound is None or not step:
        return None
    at = bound.substitute({var: ZERO})  # step * var + at > 0
    return LaneRange((-at // step + 1,), (), ()) if step > 0 else LaneRange((), ((at - step - 1) // -step,), ())


def split_point(condition: Expr, var: str, inner: Facts, outer: Facts) -> tuple[Expr, Expr, bool] | None:
    """A comparison within `condition` that changes once along the loop: the comparison, the first iteration at which it has
    changed, and its value before. None where there is none."""
    if isinstance(condition, Call) and condition.fn in ("and", "or", "not"):
        return next((f for f in (split_point(a, var, inner, outer) for a in condition.args) if f is not None), None)
    leaves: dict[str, Expr] = {}
    margin = margin_of(condition, leaves)
    if margin is None or leaves:
        return None
    bound = inner.reduce(margin)
    factor = coefficient_of(bound, var)
    value = None if factor is None else factor.as_int()
    if value not in (1, -1):
        return None
    at = bound.substitute({var: ZERO})
    if value == -1:  # at - var > 0: true while var < at
        return condition, to_expr(at, {}, outer), True
    return condition, to_expr(1 - at, {}, outer), False  # var + at > 0: true from var = 1 - at on

