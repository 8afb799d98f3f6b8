"""Sizes that execute a given Store, or the proof that no admissible ones do: isl is asked, where trying has found none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

from tsc.loop_ir.map_blocks import BLOCK
from tsc.loop_ir.nodes import Block, For, Func, If, Let, Stmt, Store, children
from tsc.poly import PatternMismatch, isl
from tsc.poly.proof.occurrences import Scope, Unreadable, occurrences
from tsc.poly.scop import sizes_known
from tsc.sym import OversizeError, SymExpr, dim
from tsc.sym.expr import Apply
from tsc.te.compute import Program
from tsc.te.expr import INDEX, Buffer, Const, Expr, Size, variables
from tsc.te.index import to_sym
from tsc.validate.cases import admitted

#: isl operations that may be spent on one Store.
OPERATIONS = 200_000
#: Sizes that are tried are no more than this above their least values, if there are such ones.
_NEAR = (70, 300, 4_000)
#: More blocks than any kernel has.
_MANY = 2**40
_MARK = Store(Buffer("", "", ()), (), Const(0, INDEX))


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes to try, and numbers of interest along axes: values of the loops around a Store that is to be executed, and where it
    stores."""

    sizes: dict[str, int]
    numbers: frozenset[int] = frozenset()


def completed(program: Program, func: Func, cases: Sequence[dict[str, int]],
              reached: Collection[int], rng: Random) -> tuple[list[Case], set[int]]:
    """`cases` and others that execute the Stores of `func` (by `id`) which are not `reached`; and those that no sizes that are
    admissible execute."""
    found, dead = [Case(sizes) for sizes in cases], set[int]()
    for nest, stores in _nests_missed(func, reached).items():
        with suppress(Unreadable):
            case = reaching(program, nest, dict.fromkeys(place for store in stores for place in places_of(store)))
            if case is None:
                dead |= {id(store) for store in stores}
                continue
            sizes = admitted(program, case.sizes, rng)
            if sizes is not None and (case := replace(case, sizes=sizes)) not in found:
                found.append(case)
    return found, dead


def _nests_missed(func: Func, reached: Collection[int]) -> dict[Stmt, list[Store]]:
    """The Stores that are not reached (by `id`), by what is around them: the loops and guards that decide about them."""
    found: dict[Stmt, list[Store]] = {}
    for store, nest in _missed(func.body, reached):
        found.setdefault(_blocks_apart(nest), []).append(store)
    return found


def _missed(stmt: Stmt, reached: Collection[int]) -> Iterator[tuple[Store, Stmt]]:
    if isinstance(stmt, Store) and id(stmt) not in reached:
        yield stmt, _MARK
    for place, child in enumerate(children(stmt)):
        for store, nest in _missed(child, reached):
            match stmt:
                case For(var=name) if name == BLOCK:
                    yield store, nest
                case For(lo=Const(value=lo), hi=Const(value=hi)) if lo < hi and not _uses(nest, stmt.var):
                    yield store, nest
                case For() | Let():
                    yield store, replace(stmt, body=nest)
                case If(condition=condition):
                    yield store, If(condition, Block(()), nest) if place else If(condition, nest)
                case _:
                    yield store, nest


def _uses(stmt: Stmt, var: str) -> bool:
    """Whether the bounds and guards of a nest depend on a variable."""
    match stmt:
        case For(lo=lo, hi=hi):
            exprs: tuple[Expr, ...] = (lo, hi)
        case If(condition=one) | Let(value=one):
            exprs = (one,)
        case _:
            exprs = ()
    return any(var in variables(e) for e in exprs) or any(_uses(child, var) for child in children(stmt))


def _blocks_apart(stmt: Stmt) -> Stmt:
    """The Lets in front of `stmt` that decode a block number as the loops that they stand for (`map_blocks`), in any order."""
    if not isinstance(stmt, Let):
        return stmt
    body = _blocks_apart(stmt.body)
    formula = to_sym(stmt.value, {})
    for monomial, step in formula.terms:
        if BLOCK in SymExpr(((monomial, 1),)).dims() and len(monomial) == 1 and isinstance(monomial[0], Apply):
            count = monomial[0].args[1] if monomial[0].fn == "%" else SymExpr.of(_MANY)
            low = formula - SymExpr(((monomial, step),))
            return For(stmt.var, Size(low), Size(low + count * step), body, step)
    return replace(stmt, body=body)


def places_of(store: Store) -> tuple[Expr, ...]:
    """Where a Store stores, and in which instance of its statement: elements of what it makes, and terms of sums."""
    return store.index if store.instance is None else (*store.index, *store.instance.index)


def reaching(program: Program, nest: Stmt, places: Iterable[Expr] = ()) -> Case | None:
    """A Case in which what is within a nest may be executed, which is of interest at some `places`; None where there is none.
    Raises Unreadable where it is not known whether there is one."""
    names = [s.name for s in program.sizes]
    scope = Scope(tuple(names)).parameter(BLOCK)
    try:
        with isl.budget(OPERATIONS):
            (found,) = occurrences(nest, scope)
            points = found.relation("[]").domain().intersect_params(sizes_known(program))
            for meaning in reversed(scope.names.meanings.values()):
                points = points.intersect_params(meaning)
            if points.is_empty():
                return None
            for above in _NEAR:
                near = points.intersect_params(isl.condition(f"[{', '.join(names)}]", " and ".join(
                    f"{s.name} <= {s.lo + above}" for s in program.sizes) or "1 = 1"))
                if not near.is_empty():
                    values, place = isl.sample(near)
                    known = values | dict(zip(found.scope.variables, place))
                    numbers = {found.scope.values.get(v, dim(v)).evaluate(known) for v in found.scope.variables}
                    numbers |= set(_numbers(places, found.scope, known))
                    return Case({s.name: values.get(s.name, s.lo) for s in program.sizes}, frozenset(numbers))
    except PatternMismatch as why:
        raise Unreadable(str(why)) from why
    raise Unreadable("only large sizes execute it")


def _numbers(places: Iterable[Expr], scope: Scope, known: Mapping[str, int]) -> Iterator[int]:
    """What is known of `places` where the variables around have these values."""
    for place in places:
        with suppress(OversizeError, ZeroDivisionError):
            formula = to_sym(place, {}).substitute(scope.values)
            if formula.dims() <= known.keys():
                yield formula.evaluate(known)
