"""Translation validation of the loops: what the loop IR executes, read back from its bounds and guards as isl sets.

The instances must be exactly the Scop's, each once, and every affine access must stay within its buffer, locals included. A
bound or a guard that was dropped, widened or narrowed on the way from the tree is found here, for all sizes at once. Loops and
rows of the tree correspond by depth, so that the proof needs no projection: every loop point is mapped to an instance and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from tsc.errors import InternalError
from tsc.loop_ir.marks import alloc_of
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Stmt, Store, walk
from tsc.poly import isl
from tsc.poly.affine import bound_texts, box_text, condition_text, index_text
from tsc.poly.legality import Place, leaves
from tsc.poly.proof.loop_order import Edges, check_order
from tsc.poly.proof.occurrences import Scope, Unreadable, occurrences
from tsc.poly.scop import Scop, conditional_loads
from tsc.te.expr import Call, Expr, Load, format_expr


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops around a statement: their variables, and the constraints that bounds and guards put on them."""

    variables: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    loops: tuple[For, ...] = ()


def check_loops(func: Func, schedule: isl.Schedule, scop: Scop, iterators: list[str],
                edges: Edges = MappingProxyType({})) -> None:
    """Raise InternalError unless `func` executes exactly the instances of `scop`, each once, within all extents, in an order
    that keeps the dependences in `edges`.

    `func` was made from `schedule`; `iterators[d]` is the variable of the loop over row d.
    """
    places = leaves(schedule.get_root(), Place(None, scop.domain))
    executed: set[str] = set()
    copied: dict[str, isl.Set] = {}
    run = cache(lambda variables, constraints: loop_points(Nest(variables, constraints), scop))
    for store, nest in stores(func.body):
        if store.instance is None:
            raise InternalError(f"a store to {store.buffer.name} names no statement instance")
        points = run(nest.variables, nest.constraints)
        for load, conditions in _accesses(store, nest):
            _check_access(load, nest, points if not conditions else points.intersect(
                loop_points(replace(nest, constraints=conditions), scop)), store, scop)
        name = store.instance.statement
        instance = _relation(nest, name, [affine_text(e, nest) for e in store.instance.index], scop)
        if name not in scop.statements:
            made = instance.intersect_domain(points).range()
            copied[name] = made.union(copied[name]) if name in copied else made
            continue
        if name in executed:
            raise InternalError(f"the loops of {func.name} hold statement {name} twice")
        executed.add(name)
        place = next(p for p in places if name in isl.tuple_names(p.domain))
        _check_instances(instance, points, place, scop.statements[name].domain, nest, iterators)
    if executed != set(scop.statements):
        raise InternalError(f"the loops of {func.name} lack the statements {sorted(set(scop.statements) - executed)}")
    allocated = {alloc_of(s.buffer.name) for s in walk(func.body) if isinstance(s, Allocate)}
    for name, wanted in _introduced(schedule.get_root()).items():
        found = copied.pop(name, None)
        if name not in allocated and not (wanted.intersect_params(scop.context).is_empty() if found is None else
                                          found.is_equal(wanted.intersect_params(scop.context))):
            raise InternalError(f"the loops around {name} do not make the copies that the schedule tree asks for")
    if copied:
        raise InternalError(f"the loops of {func.name} make copies that no schedule asks for: {sorted(copied)}")
    if edges:
        sizes = tuple(s.name for s in scop.program.sizes)
        try:
            check_order(occurrences(func.body, Scope(sizes)), edges, func.name)
        except Unreadable as why:
            raise InternalError(f"the loops of {func.name} are not affine: {why}") from why


def _introduced(node: isl.ScheduleNode) -> dict[str, isl.Set]:
    """The instances that the extensions of a tree add, by name."""
    found: dict[str, isl.Set] = {}
    if node.get_type() == isl.NodeType.extension:
        found = {str(m.get_tuple_name(isl.OUT)): m.range() for m in isl.maps_of(node.extension_get_extension())}
    for i in range(node.n_children()):
        found |= _introduced(node.child(i))
    return found


def _check_instances(instance: isl.Map, points: isl.Set, place: Place, domain: isl.Set, nest: Nest,
                     iterators: list[str]) -> None:
    name = domain.get_tuple_name()
    outside = points.subtract(instance.intersect_range(domain).domain())
    if not outside.is_empty():
        raise InternalError(f"the loops around {name} run outside its domain, at {outside}")
    depths = [iterators.index(v) if v in iterators else -1 for v in nest.variables]
    back = isl.selected_rows(domain, place.rows, depths)
    if not domain.is_subset(back.intersect_range(points).domain()):
        raise InternalError(f"the loops around {name} miss {domain.subtract(back.intersect_range(points).domain())}")
    if not back.apply_range(instance).is_subset(domain.identity()):
        raise InternalError(f"the loops around {name} do not count the rows of the schedule tree")
    again = instance.intersect_domain(points).apply_range(back)
    if not again.is_subset(points.identity()):
        raise InternalError(f"the loops around {name} execute instances twice")


def loop_points(nest: Nest, scop: Scop) -> isl.Set:
    """The values that the loop variables take together."""
    where = " and ".join(nest.constraints) or "1 = 1"
    return isl.Set(f"{scop.params} -> {{ [{', '.join(nest.variables)}] : {where} }}").intersect_params(scop.context)


def stores(stmt: Stmt, nest: Nest = Nest()) -> Iterator[tuple[Store, Nest]]:  # a frozen value
    """Every store, with what is around it. Raises InternalError where a bound or a guard is not affine."""
    match stmt:
        case Store():
            yield stmt, nest
        case For(var=var, body=body):
            if var in nest.variables:
                raise InternalError(f"loop variable {var} is used twice in one nest")
            inner = Nest((*nest.variables, var), nest.constraints, (*nest.loops, stmt))
            bounds = bound_texts(stmt, lambda e: affine_text(e, inner))
            yield from stores(body, replace(inner, constraints=(*nest.constraints, *bounds)))
        case If(condition=condition, then=then, otherwise=otherwise):
            for branch, negate in ((then, False), (otherwise, True)):
                text = condition_text(condition, {v: v for v in nest.variables}, negate)
                if text is None:
                    raise InternalError(f"the guard {format_expr(condition)} is not affine")
                if branch is not None:
                    yield from stores(branch, replace(nest, constraints=(*nest.constraints, text)))
        case Block(body=body):
            for part in body:
                yield from stores(part, nest)
        case Allocate(body=body):
            yield from stores(body, nest)
        case _:
            raise InternalError(f"a {type(stmt).__name__} does not come from a schedule")


def affine_text(expr: Expr, nest: Nest) -> str:
    """An index as isl text over the loop variables. Raises InternalError where it is not affine."""
    text = index_text(expr, {v: v for v in nest.variables})
    if text is None:
        raise InternalError(f"{format_expr(expr)} is not affine in the loops around it")
    return text


def _relation(nest: Nest, name: str, index: list[str], scop: Scop) -> isl.Map:
    return isl.Map(f"{scop.params} -> {{ [{', '.join(nest.variables)}] -> {name}[{', '.join(index)}] }}")


def _accesses(store: Store, nest: Nest) -> Iterator[tuple[Load, tuple[str, ...]]]:
    names = {v: v for v in nest.variables}
    yield Load(store.buffer, store.index), ()
    seen: set[tuple[Load, tuple[str, ...]]] = set()
    whole = Call("tuple", (*store.index, store.value), store.value.dtype)
    for load, conditions, certain in conditional_loads(whole, names):
        if certain and (load, conditions) not in seen:
            seen.add((load, conditions))
            yield load, conditions


def _check_access(load: Load, nest: Nest, points: isl.Set, store: Store, scop: Scop) -> None:
    names = {v: v for v in nest.variables}
    texts = [index_text(i, names) for i in load.index]
    known = [(t, e) for t, e in zip(texts, load.buffer.shape) if t is not None]
    if not known:
        return
    reached = _relation(nest, "cell", [t for t, _ in known], scop)
    cells = [f"d{i}_" for i in range(len(known))]
    inside = isl.Set(f"{scop.params} -> {{ cell[{', '.join(cells)}] : {box_text([e for _, e in known], cells)} }}")
    if not points.intersect_params(scop.known).is_subset(reached.intersect_range(inside).domain()):
        raise InternalError(
            f"the loops reach {load.buffer} outside its extents, at {format_expr(load)} in a store to {store.buffer.name}")
