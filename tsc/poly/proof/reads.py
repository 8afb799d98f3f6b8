"""What a Store of the final loops reads, against what its statement read before the passes; and constants.

Where a value is that nobody needs, no test at chosen sizes looks, and still its Loads are executed. So each of them is proved
to be of a cell that its own instance read before, under conditions that its own had, for all sizes. As a rule the whole value
is the same formula of the instance, which takes no polyhedra to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tsc.loop_ir.bounds import within
from tsc.poly import isl
from tsc.poly.proof.occurrences import Occurrence, Unreadable
from tsc.sym import SymExpr, dim
from tsc.sym.expr import Apply, Dim, apply, coefficient_of
from tsc.sym.facts import Facts
from tsc.te.expr import (
    BOOL,
    COMMUTATIVE,
    COMPARISONS,
    INDEX,
    Call,
    Cast,
    CheckedIndex,
    Const,
    Expr,
    Load,
    call,
    children,
    format_expr,
    loads,
    map_children,
    substitute,
)
from tsc.te.index import to_sym

#: The name of all cells, whatever their buffer is called: a pass may give a buffer another name.
CELL = "cell"
#: A condition, and whether it holds or does not.
_Condition = tuple[Expr, bool]


def difference(new: Occurrence, old: Occurrence, aliases: Mapping[str, str], executed: isl.Set,
               impossible: Callable[[isl.Set], bool]) -> str | None:
    """How `new` differs, at an instance in `executed`, from what this instance does in `old`: it stores another constant, or
    reads a cell that is not read there, or only under further conditions. None where it does neither. `aliases[buffer]` is what
    a buffer of `new` stands for in `old`. What has no formula is not compared; raises Unreadable where it is of a buffer that
    stands for another. Where only a name that isl knows in part leaves open whether a cell is another one, it is within its
    buffer."""
    match new.store.value, old.store.value:
        case Const() as now, Const() as before:
            same = repr(now) == repr(before) or impossible(executed)
            return None if same else f"stores {format_expr(now)} in place of {format_expr(before)}"
    return _stray_load(new, old, aliases, executed, impossible) if any(loads(new.store.value)) else None


def _stray_load(new: Occurrence, old: Occurrence, aliases: Mapping[str, str], executed: isl.Set,
                impossible: Callable[[isl.Set], bool]) -> str | None:
    new = replace(new, store=replace(new.store, value=substitute(new.store.value, new.scope.data)))
    now, before = _formulas(new, old, aliases)
    if now.of(new.store.value) == before.of(old.store.value):
        return None
    now, before = _formulas(new, old, aliases, (old.scope.facts(), new.scope.facts()))
    if now.of(new.store.value) == before.of(old.store.value):
        return None
    if impossible(executed):
        return None
    value, given = (_Decided(x, executed, impossible).of(x.store.value) for x in (new, old))
    if now.of(value) == before.of(given):
        return None
    wanted = [(w, before.of(w), [(before.of(c), side, (c, side)) for c, side in under])
              for w, under in _under_conditions(given)]
    unread: Unreadable | None = None
    for load, conditions in dict.fromkeys(_under_conditions(value)):
        held, formula = {(now.of(c), side) for c, side in conditions}, now.of(load)
        if any(formula == again and all((c, side) in held for c, side, _ in under) for _, again, under in wanted):
            continue
        own = aliases.get(load.buffer.name) == load.buffer.name
        try:
            cells = _cells(new, load, _readable(new, conditions)).intersect_domain(executed)
            for w, _, under in wanted:
                if w.buffer.name == aliases.get(load.buffer.name):
                    cells = cells.subtract(_cells(old, w, [c for formula, side, c in under if (formula, side) not in held]))
            if not impossible(cells.domain()):
                opaque = _opaque_in(cells.domain(), new)
                if opaque is None:
                    return f"reads {format_expr(load)}, which it did not read before"
                if own and not any(any(loads(i)) for i in load.index) and not _inside(new, load, conditions, cells, impossible):
                    return f"reads {format_expr(load)}, which is proved neither to be read before nor to be within its buffer"
                raise Unreadable(f"{opaque} has no formula")
        except Unreadable as why:  # of the tree's own buffers it is only not proved
            unread = unread if own else why
    if unread is not None:
        raise unread
    return None


@dataclass(frozen=True, slots=True)
class _Decided:
    """What is left of a value of `x` at some instances `executed`, where conditions on indices have one answer, and one side
    of an extremum of indices is it."""

    x: Occurrence
    executed: isl.Set
    impossible: Callable[[isl.Set], bool]
    known: dict[Expr, Expr] = field(default_factory=dict)

    def of(self, expr: Expr) -> Expr:
        """What is left of it."""
        if expr not in self.known:
            self.known[expr] = self._of(expr)
        return self.known[expr]

    def _of(self, expr: Expr) -> Expr:
        answer = next((a for a in (True, False) if self._never(expr, not a)), None)
        if answer is not None:
            return Const(answer, BOOL)
        match expr:
            case Call(fn="select", args=(condition, yes, no)):
                chosen = self.of(condition)
                if isinstance(chosen, Const):
                    return self.of(yes if chosen.value else no)
            case Call(fn="and" | "or" as fn, args=args):
                total, *parts = map(self.of, args)
                for part in parts:
                    total = _both(fn, total, part)
                return total
            case Call(fn="not", args=(inner,)) if isinstance(known := self.of(inner), Const):
                return Const(not known.value, BOOL)
            case Call(fn="min" | "max" as fn, args=(a, b)) if expr.dtype == INDEX:
                for one, other in ((a, b), (b, a)):
                    if self._never(call("lt", *((other, one) if fn == "min" else (one, other))), True):
                        return self.of(one)
        return map_children(self.of, expr)

    def _never(self, condition: Expr, side: bool) -> bool:
        if not isinstance(condition, Call) or condition.fn not in {*COMPARISONS, "and", "or"} or (
                condition.args[0].dtype not in (INDEX, BOOL)):
            return False
        try:
            points = _under(self.x, [(condition, side)]).run(CELL, ())[1]
        except Unreadable:
            return False
        return self.impossible(points.intersect(self.executed))


@dataclass(frozen=True, slots=True)
class _Formulas:
    """Expressions as formulas, equal only where the expressions are: `values` are what variables stand for, `aliases` what
    buffers do; the facts `here` hold of the former, those `there` of the latter. The cell that a Store combines something with
    is its `own` on either side. `numbers` counts what is opaque."""

    values: Mapping[str, SymExpr]
    aliases: Mapping[str, str]
    own: Load | None
    here: Facts | None
    there: Facts | None
    numbers: dict[object, str]

    def of(self, expr: Expr) -> object:
        """The formula."""
        if expr == self.own:
            return "own"
        if expr.dtype == INDEX:
            leaves: dict[str, Expr] = {}
            found = to_sym(expr, leaves)
            if expr not in leaves.values():
                opaque = {name: dim(self.numbers.setdefault(self.of(e), f"%{len(self.numbers)}")) for name, e in leaves.items()}
                return _reduced(_reduced(found, self.here).substitute({**self.values, **opaque}), self.there)
        parts = tuple(map(self.of, children(expr)))
        ordered = not (isinstance(expr, Call) and expr.fn in COMMUTATIVE)
        return self._head(expr), parts if ordered else frozenset(Counter(parts).items())

    def _head(self, expr: Expr) -> object:
        match expr:
            case Load(buffer=buffer):
                return "load", self.aliases.get(buffer.name, buffer.name)
            case Call(fn=fn):
                return fn
            case CheckedIndex(extent=extent):
                return "checked", extent
            case Cast(dtype=dtype):
                return "cast", dtype
        return expr if not isinstance(expr, Const) else repr(expr)  # what is not a number does not equal itself


def _formulas(new: Occurrence, old: Occurrence, aliases: Mapping[str, str],
              facts: tuple[Facts | None, Facts | None] = (None, None)) -> tuple[_Formulas, _Formulas]:
    """Those of `new`, and of `old` at the instance that `new` executes. The `facts` are those around `old` and `new`."""
    here, there = facts
    numbers: dict[object, str] = {}
    return (_Formulas({}, aliases, own_cell(new), None, there, numbers),
            _Formulas(_solved(old, new), {}, own_cell(old), here, there, numbers))


def _solved(old: Occurrence, new: Occurrence) -> dict[str, SymExpr]:
    """The variables around `old` at the instance that `new` executes; one that the instance does not say is like no other."""
    names = *old.scope.variables, *old.scope.values
    if old.store.instance is None or new.store.instance is None:
        return {name: dim(f"?{name}") for name in names}
    return _inverse(names, old.store.instance.index, new.store.instance.index)


@lru_cache(maxsize=256)
def _inverse(names: Sequence[str], index: Sequence[Expr], place: Sequence[Expr]) -> dict[str, SymExpr]:
    """The values of `names` at which `index` is `place`."""
    unknown = {name: dim(f"?{name}") for name in names}
    found: dict[str, SymExpr] = {}
    pairs = [(to_sym(a, {}).substitute(unknown), to_sym(b, {})) for a, b in zip(index, place)]
    for _ in unknown:
        for a, b in pairs:
            rest = a.substitute(found)
            left = [n for n in rest.dims() if n.startswith("?")]
            factor = coefficient_of(rest, left[0]) if len(left) == 1 else None
            sign = None if factor is None else factor.as_int()
            if sign in (1, -1):
                found[left[0]] = (b - rest.substitute({left[0]: SymExpr.of(0)})) * sign
    return {name: found.get(f"?{name}", other) for name, other in unknown.items()}


def _reduced(expr: SymExpr, facts: Facts | None) -> SymExpr:
    """`expr` as `facts` reduce it, each quotient that is a variable in scope as that variable, and remainders likewise."""
    return expr if facts is None else facts.reduce(_undivided(facts.reduce(expr), facts))


def _undivided(expr: SymExpr, facts: Facts) -> SymExpr:
    total = SymExpr.of(0)
    for monomial, coefficient in expr.terms:
        part = SymExpr.of(coefficient)
        for atom in monomial:
            part = part * (dim(atom) if isinstance(atom, Dim) else _quotient(atom, facts))
        total = total + part
    return total


def _quotient(atom: Apply, facts: Facts) -> SymExpr:
    args = [_undivided(a, facts) for a in atom.args]
    if atom.fn in ("//", "%"):
        dividend, by = args
        whole = _multiple(dividend, by) if facts.nonneg(by - 1) else 0
        if whole:
            inner = _quotient(Apply(atom.fn, (dividend - by * whole, by)), facts)
            return inner + whole if atom.fn == "//" else inner
        for name in facts.known:
            rest = dividend - dim(name) * by
            if name not in facts.sizes and facts.nonneg(rest) and facts.lt(rest, by):
                return dim(name) if atom.fn == "//" else rest
    return apply(atom.fn, args)


def _multiple(dividend: SymExpr, by: SymExpr) -> int:
    """How often a divisor of one term is to be taken from a dividend so that its factor of that term lies between 0 and the
    divisor's own."""
    if len(by.terms) != 1 or not by.dims():
        return 0
    (monomial, times), = by.terms
    return dict(dividend.terms).get(monomial, 0) // times


def _opaque_in(points: isl.Set, x: Occurrence) -> str | None:
    """What points depend on that may be anything to isl, so that they need not occur."""
    return next((text for text, name in x.scope.names.by_text.items() if isl.depends_on(points, name)
                 and (name in x.scope.names.partly or name not in x.scope.names.meanings)), None)


def _inside(x: Occurrence, load: Load, conditions: Sequence[_Condition], cells: isl.Map,
            impossible: Callable[[isl.Set], bool]) -> bool:
    """Whether a load under conditions is proved to stay within its buffer, by facts or else by isl, for these cells of it.
    What the run checks stays there."""
    left = [number for number, (i, extent) in enumerate(zip(load.index, load.buffer.shape))
            if not isinstance(i, CheckedIndex) or i.extent != extent]
    if within(load, x.scope.facts(), [c if side else Call("not", (c,), BOOL) for c, side in conditions], left):
        return True
    places = [f"p{number}" for number in range(len(load.index))]
    extents = [x.scope.size(x.scope.formula(load.buffer.shape[number], {})) for number in left]
    bounds = " and ".join(f"0 <= {places[number]} < {extent}" for number, extent in zip(left, extents))
    buffer = isl.Set(f"{x.scope.params(bounds)} -> {{ {CELL}[{', '.join(places)}] : {bounds} }}")
    return impossible(cells.subtract_range(buffer).domain())


def _both(fn: str, a: Expr, b: Expr) -> Expr:
    """`and` or `or`, folded."""
    for known, other in ((a, b), (b, a)):
        if isinstance(known, Const):
            return known if known.value == (fn == "or") else other
    return call(fn, a, b)


def own_cell(x: Occurrence) -> Load | None:
    """What its Store combines something with, where that is what its own cell held."""
    own = Load(x.store.buffer, x.store.index)
    return own if isinstance(x.store.value, Call) and own in x.store.value.args else None


def _under_conditions(expr: Expr, conditions: tuple[_Condition, ...] = ()) -> Iterator[tuple[Load, tuple[_Condition, ...]]]:
    """Every Load, with the sides of the choices that it stands on."""
    if isinstance(expr, Call) and expr.fn == "select":
        condition, yes, no = expr.args
        yield from _under_conditions(condition, conditions)
        yield from _under_conditions(yes, (*conditions, *_parts(condition, True)))
        yield from _under_conditions(no, (*conditions, *_parts(condition, False)))
        return
    if isinstance(expr, Load):
        yield expr, conditions
    for child in children(expr):
        yield from _under_conditions(child, conditions)


def _parts(condition: Expr, side: bool) -> Iterator[_Condition]:
    """A condition as several that hold together."""
    match condition:
        case Call(fn="and" | "or" as fn, args=args) if side == (fn == "and"):
            for part in args:
                yield from _parts(part, side)
        case Call(fn="not", args=(inner,)):
            yield from _parts(inner, not side)
        case _:
            yield condition, side


def _cells(x: Occurrence, load: Load, conditions: Sequence[_Condition]) -> isl.Map:
    """The instance executed -> the cell read, where conditions hold. Raises Unreadable."""
    return _under(x, conditions).run(CELL, load.index)[0]


def _under(x: Occurrence, conditions: Sequence[_Condition]) -> Occurrence:
    """`x` where conditions hold. Raises Unreadable."""
    texts = [x.scope.condition(c, negate=not side) for c, side in conditions]
    return replace(x, scope=x.scope.where(*texts)) if texts else x


def _readable(x: Occurrence, conditions: Sequence[_Condition]) -> list[_Condition]:
    """Those that have a formula."""
    found = []
    for condition, side in conditions:
        try:
            x.scope.condition(condition)
        except Unreadable:
            continue
        found.append((condition, side))
    return found
