"""Loops read as Presburger text: where each Store stands, which instances it executes, and when.

What isl cannot express (a product of a variable and a size, an index from data, a condition on values) becomes a parameter of
its own, as long as it is one and the same value wherever it is read: where it depends on nothing but what is outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce

from tsc.errors import InternalError
from tsc.loop_ir.cpu.vector_rules import looks_at_data
from tsc.loop_ir.facts import inside
from tsc.loop_ir.nodes import Allocate, Barrier, Block, Commit, For, If, Intrin, Let, Stmt, Store, Wait
from tsc.poly import isl
from tsc.poly.affine import bound_texts, condition_of, index_text, size_text, upper_texts
from tsc.sym import SymExpr, dim
from tsc.sym.expr import Apply, Atom, Dim, apply
from tsc.sym.facts import Facts
from tsc.te.expr import INDEX, Buffer, Call, Const, Expr, Var, add, format_expr, index, mul, substitute, variables, walk
from tsc.te.index import to_sym


class Unreadable(Exception):
    """Why loops cannot be read for all sizes at once."""


@dataclass(frozen=True, slots=True)
class Names:
    """Parameters that stand for expressions over other parameters; it grows. `by_text`: the name of an expression; `meanings`:
    the values at which a name means what it stands for. One without a meaning has no formula: it may be anything. Of those in
    `partly` a meaning says something, and not all; `products` has the factors of those that are products of two parameters."""

    by_text: dict[str, str] = field(default_factory=dict)
    meanings: dict[str, isl.Set] = field(default_factory=dict)
    partly: set[str] = field(default_factory=set)
    products: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known at a place: the `parameters` (sizes, variables of the loops outside), the `variables` inside, and what
    bounds, Lets and guards say of the latter. `values` are variables that stand for an expression of others (a loop with a step
    counts its iterations). Extrema of parameters have `names`, too: isl need not tell cases apart until a proof asks for it.
    `multiples` says of which number a parameter is a multiple, where that is known; `sizes` and `around`, the loops and Lets
    outside and inside, are what symbolic proofs know, `data` the variables that stand for what looks at data. Nothing has a
    formula that depends on one of the `unknown` variables."""

    parameters: tuple[str, ...]
    variables: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    values: Mapping[str, SymExpr] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    multiples: Mapping[str, int] = field(default_factory=dict)
    sizes: Facts = field(default_factory=Facts)
    around: tuple[For | Let, ...] = ()
    data: Mapping[str, Expr] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def parameter(self, name: str, multiple: int = 1) -> Scope:
        """With one more parameter. Raises InternalError where its name is in use."""
        self._check_new(name)
        return replace(self, parameters=(*self.parameters, name), texts={**self.texts, name: name},
                       multiples={**self.multiples, name: multiple})

    def inside(self, loop: For) -> Scope:
        """The scope of a loop's body, its variable counting iterations."""
        self._check_new(loop.var)
        inner = replace(self, variables=(*self.variables, loop.var), texts={**self.texts, loop.var: loop.var})
        if loop.step == 1:
            return inner.where(*bound_texts(loop, inner.text)).knowing(loop)
        inner = inner.let(loop.var, add(loop.lo, mul(Var(loop.var), index(loop.step)))).knowing(loop)
        return inner.where(f"0 <= {loop.var}", *upper_texts(loop, inner.text(Var(loop.var)), inner.text))

    def let(self, name: str, value: Expr) -> Scope:
        """With a variable that stands for an expression. Raises Unreadable."""
        leaves: dict[str, Expr] = {}
        found = self.formula(to_sym(value, leaves), leaves)
        return replace(self, values={**self.values, name: found}, texts={**self.texts, name: f"({self.size(found)})"})

    def bind(self, stmt: Let) -> Scope:
        """The scope of a Let's body. Where its value has no formula, since it looks at other data in each iteration, it is
        unknown: what does not depend on it is read all the same."""
        try:
            inner = self.let(stmt.var, stmt.value)
        except Unreadable:
            inner = replace(self, unknown=self.unknown | {stmt.var})
        return inner.knowing(stmt)

    def knowing(self, stmt: For | Let) -> Scope:
        """With what is known inside of a loop or a Let."""
        known = replace(self, around=(*self.around, stmt))
        if isinstance(stmt, Let) and looks_at_data(stmt.value):
            known = replace(known, data={**self.data, stmt.var: substitute(stmt.value, self.data)})
        return known

    def facts(self) -> Facts:
        """What loops and Lets say to symbolic proofs. (It takes a while to find out, and few ask.)"""
        return reduce(inside, self.around, self.sizes)

    def _check_new(self, name: str) -> None:
        if name in self.parameters or name in self.variables:
            raise InternalError(f"variable {name} is bound twice in one nest")

    def where(self, *constraints: str) -> Scope:
        """With more constraints."""
        return replace(self, constraints=(*self.constraints, " and ".join(constraints)))

    def params(self, text: str) -> str:
        """The parameters that occur in `text`, as isl text."""
        used = _words(text)
        return f"[{', '.join(p for p in (*self.parameters, *self.names.by_text.values()) if p in used)}]"

    def holding(self, condition: str) -> isl.Set:
        """The parameters at which a condition over them holds."""
        return isl.condition(self.params(condition), condition)

    def define(self, name: str, value: Expr) -> Scope:
        """With one more parameter, which stands for an expression."""
        meaning = self.text(value)
        inner = self.parameter(name)
        self.names.meanings.pop(name, None)  # of another place
        self.names.meanings[name] = inner.holding(f"{name} = {meaning}")
        return inner

    def at_least(self, sym: SymExpr) -> str:
        """That a polynomial in parameters is not negative."""
        return f"{self.size(self.formula(sym, {}))} >= 0"

    # -- expressions -------------------------------------------------------------------------------------------

    def text(self, expr: Expr) -> str:
        """An index as isl text. Raises Unreadable where a part of it has no formula and varies inside."""
        if not isinstance(expr, Call) or not any(isinstance(n, Call) and n.fn in ("min", "max") for n in walk(expr)):
            found = index_text(expr, self.texts)
            if found is not None:
                return found
        leaves: dict[str, Expr] = {}
        return self.size(self.formula(to_sym(expr, leaves), leaves))

    def size(self, formula: SymExpr) -> str:
        """A formula as isl text."""
        found = size_text(formula)
        if found is None:
            raise InternalError(f"{formula} is no formula")
        return found

    def condition(self, expr: Expr, negate: bool = False) -> str:
        """A condition as a Presburger formula. Raises Unreadable as `text` does."""
        found = condition_of(expr, self.text, self._truth, negate)
        if found is None:
            raise InternalError(f"the condition {format_expr(expr)} has no formula, although its opaque parts have names")
        return found

    def _truth(self, expr: Expr) -> str:
        """A condition that compares no indices, as a parameter of its own."""
        return f"{self._named(format_expr(expr), variables(expr))} = 1"

    def formula(self, sym: SymExpr, leaves: Mapping[str, Expr]) -> SymExpr:
        """`sym` over parameters and variables, with a name for each part that is not affine. Raises Unreadable."""
        total = SymExpr.of(0)
        for monomial, coefficient in sym.terms:
            if len(monomial) > 1:
                part = self._opaque(SymExpr(((monomial, 1),)), leaves)
            else:
                part = self._atom(monomial[0], leaves) if monomial else SymExpr.of(1)
            total = total + part * coefficient
        return total

    def _atom(self, atom: Atom, leaves: Mapping[str, Expr]) -> SymExpr:
        if not isinstance(atom, Apply) and atom.name in self.unknown:
            raise Unreadable(f"{atom.name} has no formula")
        if not isinstance(atom, Apply):
            return self._opaque(dim(atom.name), leaves) if atom.name in leaves else self.values.get(atom.name, dim(atom.name))
        by = atom.args[1].as_int() if atom.fn in ("//", "%") else 1
        if by is None or by <= 0:
            return self._opaque(SymExpr((((atom,), 1),)), leaves)
        found = apply(atom.fn, [self.formula(a, leaves) for a in atom.args])
        return self._extremum(found) if atom.fn in ("min", "max") and found.dims().isdisjoint(self.variables) else found

    def _extremum(self, formula: SymExpr) -> SymExpr:
        text = self.size(formula)
        if formula.as_int() is None and text not in self.names.by_text:
            name = self.names.by_text[text] = f"extremum{len(self.names.by_text)}_"
            self.names.meanings[name] = self.holding(f"{name} = {text}")
        return dim(self.names.by_text[text]) if text in self.names.by_text else formula

    def _opaque(self, sym: SymExpr, leaves: Mapping[str, Expr]) -> SymExpr:
        parts = self._operands(sym, leaves)
        used = {name for d in sym.dims() for name in (variables(leaves[d]) if d in leaves else {d})}
        name = self._named(str(sym), used)
        self.names.partly.add(name)
        factors = [atom.name for atom in sym.terms[0][0] if isinstance(atom, Dim)]
        if name not in self.names.meanings and len(factors) == 2 == len(sym.terms[0][0]) and set(factors) <= {*self.parameters}:
            text = _product_text(name, *sorted(factors, key=self.parameters.index))
            multiples = [(x, self.multiples.get(x, 1)) for x in factors]  # of this place: the name serves others, too
            texts = [f"({name} mod {by} = 0 or {x} mod {by} >= 1)" for x, by in multiples if by > 1]
            self.names.meanings[name] = self.holding(" and ".join([f"({text})", *texts]))
            self.names.products[name] = factors[0], factors[1]
        elif name not in self.names.meanings and parts is not None:
            self.names.meanings[name] = self.holding(_divided_text(name, *parts))
        return dim(name)

    def _operands(self, sym: SymExpr, leaves: Mapping[str, Expr]) -> tuple[str, str, str] | None:
        """Which function a quotient or a remainder by a size is, and its operands, where they are over parameters. (These have
        names before it has.)"""
        match sym.terms:
            case (((Apply(fn="//" | "%" as fn, args=args),), 1),):
                x, by = (self.formula(a, leaves) for a in args)
                if (x.dims() | by.dims()).isdisjoint(self.variables):
                    return fn, self.size(x), self.size(by)
        return None

    def _named(self, text: str, used: Iterable[str]) -> str:
        behind = {n for name in used for n in ({name} | self.values[name].dims() if name in self.values else {name})}
        if not behind.isdisjoint({*self.variables, *self.unknown}):
            raise Unreadable(f"{text} has no formula")
        return self.names.by_text.setdefault(text, f"opaque{len(self.names.by_text)}_")


def _product_text(name: str, by: str, x: str) -> str:
    """What is affine of `name == x * by`: its sign, and that it is no closer to zero than a factor."""
    return (f"({by} >= 1 and {x} >= 1 and {name} >= {x} + {by} - 1) or ({by} >= 1 and {x} = 0 and {name} = 0) or "
            f"({by} >= 1 and {x} <= -1 and {name} <= {x} - {by} + 1) or ({by} = 0 and {name} = 0) or {by} <= -1")


def _divided_text(name: str, fn: str, x: str, by: str) -> str:
    """What is affine of `name == x // by` or `x % by`: where it lies between 0, the dividend and the divisor."""
    if fn == "%":
        cases = f"(0 <= {x} < {by} and {name} = {x}) or (({x} >= {by} or {x} <= -1) and 0 <= {name} < {by})"
    else:
        cases = (f"(0 <= {x} < {by} and {name} = 0) or ({x} >= {by} and 1 <= {name} <= {x}) or "
                 f"({x} <= -1 and {x} <= {name} <= -1)")
    return f"({by} >= 1 and ({cases})) or {by} <= 0"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A Store and what is around it. `time` orders occurrences: places in sequences and the variables of loops, outermost
    first; the iterations of a loop in `lanes` have no order. `branches` are the sides taken of the Ifs around, by their places.

    `team` are the loops of warps and threads around. They have no part in `time`: it is that of threads in step, all of which
    do the same at once. Threads are not in step, but where two touch one element a barrier between them keeps them in that
    order, which is `verify_sync`'s to prove. A condition within a team may hold for one thread and not for another.
    """

    store: Store
    scope: Scope
    time: tuple[int | str, ...]
    lanes: frozenset[str] = frozenset()
    branches: Mapping[tuple[int | str, ...], bool] = field(default_factory=dict)
    team: tuple[For, ...] = ()

    def relation(self, target: str) -> isl.Map:
        """The variables around it -> `target`, a tuple in them as isl text."""
        return _relation(*self._relation_texts(target))

    def _relation_texts(self, target: str) -> tuple[str, tuple[str, ...]]:
        """The whole relation, and the sets of variables on which it is defined: much of both is that of other occurrences."""
        scope, variables = self.scope, f"[{', '.join(self.scope.variables)}]"
        return (f"{scope.params(target)} -> {{ {variables} -> {target} }}",
                tuple(f"{scope.params(c)} -> {{ {variables} : {c} }}" for c in scope.constraints))

    def once_each(self) -> bool:
        """Whether no instance is executed twice. As a rule the bounds of lanes suffice to see that, and are the same in others.
        Raises Unreadable."""
        whole, inside = self._relation_texts(self.instance_text())
        some = tuple(c for c, text in zip(inside, self.scope.constraints) if not self.lanes.isdisjoint(_words(text)))
        return _injective(whole, some) or (some != inside and _injective(whole, inside))

    def tuple_text(self, name: str, index: Iterable[Expr]) -> str:
        """A tuple of expressions as isl text. Raises Unreadable."""
        return f"{name}[{', '.join(map(self.scope.text, index))}]"

    def instance_text(self) -> str:
        """The instance that it executes, as isl text. Raises Unreadable, InternalError where it has none."""
        instance = self.store.instance
        if instance is None:
            raise InternalError(f"a store to {self.store.buffer.name} executes no instance of a statement")
        return self.tuple_text(instance.statement, instance.index)

    def instances(self) -> isl.Map:
        """The variables around it -> the instance executed. Raises Unreadable."""
        return self.relation(self.instance_text())

    def pairs(self, name: str, index: Iterable[Expr]) -> isl.Map:
        """The variables around it -> the instance executed, paired with a tuple of expressions. Raises Unreadable."""
        return self.relation(self._pairs_text(name, index))

    def run(self, name: str, index: Iterable[Expr]) -> tuple[isl.Map, isl.Set]:
        """The instance executed -> a tuple of expressions, and all that are executed. Raises Unreadable."""
        return _run(*self._relation_texts(self._pairs_text(name, index)))

    def _pairs_text(self, name: str, index: Iterable[Expr]) -> str:
        return f"[{self.instance_text()} -> {self.tuple_text(name, index)}]"


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


@lru_cache(maxsize=1024)
def _map(text: str) -> isl.Map:
    return isl.Map(text)


@lru_cache(maxsize=4096)
def _set(text: str) -> isl.Set:
    return isl.Set(text)


@lru_cache(maxsize=1024)
def _relation(whole: str, inside: tuple[str, ...]) -> isl.Map:
    return reduce(lambda points, text: points.intersect_domain(_set(text)), inside, _map(whole))


@lru_cache(maxsize=1024)
def _run(whole: str, inside: tuple[str, ...]) -> tuple[isl.Map, isl.Set]:
    cells = _relation(whole, inside).range().unwrap()
    return cells, cells.domain()


@lru_cache(maxsize=1024)
def _injective(whole: str, inside: tuple[str, ...]) -> bool:
    return bool(_relation(whole, inside).is_injective())


def occurrences(stmt: Stmt, scope: Scope) -> list[Occurrence]:
    """Every Store of `stmt`, in the order of the text. Raises Unreadable where bounds or guards have no formula."""
    return list(_read(stmt, Occurrence(Store(Buffer("", "", ()), (), Const(0, INDEX)), scope, ())))


def _read(stmt: Stmt, place: Occurrence) -> Iterator[Occurrence]:
    scope = place.scope
    match stmt:
        case Store():
            yield replace(place, store=stmt)
        case For(kind="warp" | "thread", body=body):
            yield from _read(body, replace(place, scope=scope.inside(stmt), team=(*place.team, stmt)))
        case For(var=var, body=body):
            lanes = place.lanes | {var} if stmt.kind in ("block", "vector") else place.lanes
            yield from _read(body, replace(place, scope=scope.inside(stmt), time=(*place.time, var), lanes=lanes))
        case Let(body=body):
            yield from _read(body, replace(place, scope=scope.bind(stmt)))
        case If(condition=condition, then=then, otherwise=otherwise):
            for side, branch in ((True, then), (False, otherwise)):
                if branch is not None:
                    inner = scope.where(scope.condition(condition, negate=not side))
                    taken = place.branches if place.team else {**place.branches, place.time: side}
                    yield from _read(branch, replace(place, scope=inner, time=(*place.time, int(not side)), branches=taken))
        case Block(body=body):
            for i, part in enumerate(body):
                yield from _read(part, replace(place, time=(*place.time, i)))
        case Allocate(body=body) | Intrin(meaning=body):
            yield from _read(body, place)
        case Barrier() | Commit() | Wait():
            return


def exclusive(a: Occurrence, b: Occurrence) -> bool:
    """Whether two occurrences stand on different sides of one If that no loop is around, so that never both run."""
    return any(b.branches.get(place, side) != side for place, side in a.branches.items()
               if not any(isinstance(t, str) for t in place))


def stands_after(a: Occurrence, b: Occurrence) -> bool:
    """Whether `a` stands behind `b` in the text with no loop around both."""
    first = next((pair for pair in zip(a.time, b.time) if pair[0] != pair[1] or isinstance(pair[0], str)), None)
    return first is not None and isinstance(first[0], int) and isinstance(first[1], int) and first[0] > first[1]
