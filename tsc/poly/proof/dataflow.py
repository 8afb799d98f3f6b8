"""The dataflow after promotion, composed and compared with the original.

What a statement reads from a local that copies fill is followed back: the read of the local, then the inverse of the copy's
write, give the one copy instance of the same life that made the value; and the value that this instance stores has to be, over
all instances, what the statement computed with before. Nothing is taken from promotion but its result: the tree, the locals and
what each statement stores. Section 5.3 of the paper (prologues combined with promotion statements).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.affine import condition_text, index_text
from tsc.poly.deps import Dependences
from tsc.poly.legality import Place
from tsc.poly.promotion.promote import Assignment, Introduced, Local, Promoted, introduced
from tsc.poly.scop import Scop, Statement, conditional_loads
from tsc.poly.to_expr import function_expr
from tsc.te.expr import INDEX, Call, Cast, CheckedIndex, Const, Expr, Load, Var, children, format_expr, loads, substitute
from tsc.te.intrinsics import MEANING


@dataclass(frozen=True, slots=True)
class _Copy:
    """One statement that fills a local: its instances -> (cell, life), and what they store."""

    name: str
    assignment: Assignment
    stores: isl.Map
    place: Place


_Made = tuple[tuple[_Copy, isl.Map], ...]  # copies, with the relation from the reader's instances to theirs


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the checks look at: the locals that copies fill, with their copies and the place where a life begins."""

    scop: Scop
    executed: Mapping[str, isl.Set]
    promoted: Promoted
    filled: Mapping[str, Local]
    copies: Mapping[str, tuple[_Copy, ...]]
    lives: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class _Reader:
    """A statement, and who made what it reads from locals that copies fill."""

    statement: Statement
    scop: Scop
    made: Mapping[Load, _Made]

    @property
    def names(self) -> dict[str, str]:
        """Its axes, as `index_text` wants them."""
        return {a.name: a.name for a in self.statement.axes}

    def where(self, condition: str) -> isl.Set:
        """Its instances at which an affine condition over its axes holds."""
        return isl.Set(f"{self.scop.params} -> {{ {self.statement.name}[{', '.join(self.names)}] : {condition} }}")


def check_dataflow(promoted: Promoted, scop: Scop, deps: Dependences, rounded: Scop | None = None) -> isl.UnionMap:
    """The order that the tree must keep: copy instances -> the instances that read what they stored.

    `rounded` is the Scop with the domains that the tree has, if these are not those of `scop`. Raises InternalError unless
    every statement stores the value that it stored before promotion, every value that it reads from a local was put there once
    in the same life, nothing writes what was copied while the copy is in use, and instances that are not in `scop` do no harm.
    """
    tree = _tree(promoted, scop, rounded or scop)
    order = isl.UnionMap.empty(deps.full.get_space())
    for statement in scop.statements.values():
        assignment = promoted.assignments[statement.name]
        if (assignment.names, assignment.buffer, assignment.index) != (
                tuple(a.name for a in statement.axes), statement.compute.target, statement.cell):
            raise InternalError(f"after promotion {statement.name} stores to another cell")
        reader = _reader(statement, tree)
        if not _equal(statement.body, assignment.value, statement.domain, reader):
            raise InternalError(f"after promotion {statement.name} stores {format_expr(assignment.value)}, "
                                f"which is not {format_expr(statement.body)}")
        for made in reader.made.values():
            for copy, instances in made:
                order = order.union(isl.UnionMap.from_map(instances.reverse()))
                _check_sources(statement, copy, tree, deps)
        if rounded is not None:
            _check_surplus(statement, rounded.statements[statement.name].domain, reader, tree)
    return order


def check_vectors(promoted: Promoted, scop: Scop, statement: Statement, together: isl.Map) -> None:
    """Raise InternalError unless everything that a statement reads from locals that copies fill, at its instances and at those
    computed `together` with them, was put there in the same life: no lane of a vector computes with what nobody wrote."""
    tree = _tree(promoted, scop, scop)
    names, own = tuple(a.name for a in statement.axes), isl.UnionSet.from_set(statement.domain)
    for load in dict.fromkeys(loads(promoted.assignments[statement.name].value)):
        if load.buffer.name not in tree.filled:
            continue
        life = isl.as_map(isl.prefix_relation(own, tree.lives[load.buffer.name].rows))
        lives = together.intersect_domain(statement.domain).reverse().apply_range(life)
        missing = _cell_map(statement.name, names, load.index, scop).flat_range_product(lives).range()
        for copy in tree.copies[load.buffer.name]:
            missing = missing.subtract(copy.stores.range())
        if not missing.is_empty():
            raise InternalError(f"vectors of {statement.name} read {format_expr(load)} where no copy fills it: {missing}")


# -- copies and lives ------------------------------------------------------------------------------------------

def _tree(promoted: Promoted, scop: Scop, rounded: Scop) -> _Tree:
    found = introduced(promoted.schedule, scop)
    filled = {x.buffer.name: x for x in promoted.locals if x.buffer.name not in scop.locals()}
    copies: dict[str, tuple[_Copy, ...]] = {}
    for name, local in filled.items():
        if local.statement not in found:
            raise InternalError(f"the schedule tree does not say where {name} has storage")
        life = found[local.statement]
        makers = [(s, a) for s, a in promoted.assignments.items() if a.buffer.name == name and s in found]
        copies[name] = tuple(_copy(s, a, found[s], life, scop) for s, a in makers)
        _check_storage(local, life, copies[name], scop)
    executed = {n: s.domain if n in promoted.guards else rounded.statements[n].domain for n, s in scop.statements.items()}
    lives = {x.buffer.name: found[x.statement].place for x in promoted.locals if x.statement in found}
    return _Tree(scop, executed, promoted, filled, copies, lives)


def _copy(name: str, assignment: Assignment, made: Introduced, life: Introduced, scop: Scop) -> _Copy:
    """Raises InternalError unless the copies run where a life of the local begins, and each stores to one cell."""
    prefix = made.relation.dim(isl.IN)
    if life.statement not in made.above or prefix != life.relation.dim(isl.IN):
        raise InternalError(f"{name} does not run where the life of {assignment.buffer.name} begins")
    names = (*assignment.names, *(f"p{i}_" for i in range(made.relation.dim(isl.OUT) - len(assignment.names))))
    cell = _cell_map(name, names, assignment.index, scop)
    stores = cell.flat_range_product(made.relation.reverse()).intersect_domain(made.relation.range())
    told_apart = {Var(n) for n in assignment.names} <= set(assignment.index)  # the rest of an instance is its life
    if not told_apart and not stores.is_injective():
        raise InternalError(f"{name} stores to one cell twice")
    return _Copy(name, assignment, stores, made.place)


def _check_storage(local: Local, life: Introduced, copies: tuple[_Copy, ...], scop: Scop) -> None:
    """Every copy stores inside the storage of its life, two cells of a life never in one place."""
    for copy in copies:
        cells = isl.split_range(copy.stores.range(), len(local.buffer.shape))
        if not isl.within(cells, life.relation, local.extents, scop.params):
            raise InternalError(f"{copy.name} leaves the storage {local.storage}")


def _reader(statement: Statement, tree: _Tree) -> _Reader:
    """Raises InternalError where a statement reads from a local what nothing, or more than one instance, stored."""
    names = {a.name: a.name for a in statement.axes}
    made: dict[Load, _Made] = {}
    for load, conditions, certain in conditional_loads(tree.promoted.assignments[statement.name].value, names):
        if load.buffer.name not in tree.filled or load in made:
            continue
        if conditions or not certain:
            raise InternalError(f"{statement.name} reads {format_expr(load)} under a condition")
        made[load] = _makers(statement, load, tree)
    return _Reader(statement, tree.scop, made)


def _makers(statement: Statement, load: Load, tree: _Tree) -> _Made:
    place, domain = tree.lives[load.buffer.name], tree.executed[statement.name]
    own = isl.UnionSet.from_set(domain)
    if not own.is_subset(place.domain):
        raise InternalError(f"{statement.name} reads {format_expr(load)} outside its life")
    cell = _cell_map(statement.name, tuple(a.name for a in statement.axes), load.index, tree.scop)
    life = isl.as_map(isl.prefix_relation(own, place.rows))
    wanted = cell.intersect_domain(domain).flat_range_product(life)
    made: list[tuple[_Copy, isl.Map]] = []
    missing = wanted.domain()
    for copy in tree.copies[load.buffer.name]:
        instances = wanted.apply_range(copy.stores.reverse())
        if not instances.is_empty():
            if not instances.is_single_valued() or not instances.domain().is_subset(missing):
                raise InternalError(f"what {statement.name} reads as {format_expr(load)} is stored more than once")
            missing = missing.subtract(instances.domain())
            made.append((copy, instances))
    if not missing.is_empty():
        raise InternalError(f"{statement.name} reads {format_expr(load)} where no copy fills it: {missing}")
    return tuple(made)


def _check_sources(statement: Statement, copy: _Copy, tree: _Tree, deps: Dependences) -> None:
    """What a copy reads is written before its life begins or after its use: below the place of the copy, no write of it in the
    same life depends on the reader, or the reader on it."""
    targets = {c.name for c in tree.scop.program.computes}
    reader = isl.UnionSet.from_set(statement.domain)
    for source in dict.fromkeys(x.buffer.name for x in loads(copy.assignment.value)):
        if source in tree.filled:
            raise InternalError(f"{copy.name} copies from {source}, which copies fill")
        if source not in targets:
            continue
        flow = deps.through[source]
        flow = flow.intersect_range(reader).union(flow.intersect_domain(reader).reverse())
        inside = flow.intersect_domain(copy.place.domain)
        if copy.place.rows is not None:
            inside = inside.eq_at_multi_union_pw_aff(copy.place.rows)
        if not inside.is_empty():
            raise InternalError(f"{source} is written between {copy.name} and its use by {statement.name}")


# -- instances that rounding adds ------------------------------------------------------------------------------

def _check_surplus(statement: Statement, rounded: isl.Set, reader: _Reader, tree: _Tree) -> None:
    """A guard leaves exactly the statement's own instances; without one, the others write to cells of a local that nobody
    else touches in that life, or combine what changes nothing."""
    guard = tree.promoted.guards.get(statement.name)
    if guard is not None:
        text = condition_text(guard, reader.names)
        if text is None or not rounded.intersect(reader.where(text)).is_equal(statement.domain):
            raise InternalError(f"the guard {format_expr(guard)} does not leave the instances of {statement.name}")
        return
    surplus = rounded.subtract(statement.domain)
    if not statement.domain.is_subset(rounded):
        raise InternalError(f"the rounded domain of {statement.name} lacks some of its instances")
    if surplus.is_empty():
        return
    target = statement.compute.target
    if target.name not in tree.scop.locals() or target.name not in tree.lives:
        raise InternalError(f"{statement.name} runs outside its domain, without a guard, and writes to {target.name}")
    rows = tree.lives[target.name].rows
    touched = tree.scop.reaching(target.name, tree.scop.reads + tree.scop.writes)
    held = isl.as_set(_by_life(touched, rows).range())
    cell = _cell_map(statement.name, tuple(reader.names), statement.cell, tree.scop).intersect_domain(surplus)
    own = isl.as_map(_by_life(isl.UnionMap.from_map(cell), rows))
    harmful = own.intersect_range(held).domain()
    if harmful.is_empty():
        return
    monoid, value = statement.compute.monoid, tree.promoted.assignments[statement.name].value
    if statement.role != "update" or monoid is None or not isinstance(value, Call):
        raise InternalError(f"{statement.name} runs outside its domain and overwrites what others need: {harmful}")
    combined = _constant(value.args[1], harmful, reader)
    if combined is None or combined != monoid.identity(target.dtype):
        raise InternalError(f"{statement.name} runs outside its domain and combines {combined}, which is not neutral")


def _by_life(cells: isl.UnionMap, rows: isl.MultiUnionPwAff | None) -> isl.UnionMap:
    """Accesses as instance -> (cell, life)."""
    total = isl.UnionMap.empty(cells.get_space())
    for part in isl.maps_of(cells):
        life = isl.as_map(isl.prefix_relation(isl.UnionSet.from_set(part.domain()), rows))
        total = total.union(isl.UnionMap.from_map(part.reset_tuple_id(isl.OUT).flat_range_product(life)))
    return total


def _constant(expr: Expr, domain: isl.Set, reader: _Reader) -> Any:
    """The one value that `expr` has at all instances in `domain`; None where that is not evident."""
    if isinstance(expr, Const):
        return np.dtype(expr.dtype).type(expr.value)
    if isinstance(expr, Load) and expr in reader.made:
        made = [(copy, instances.intersect_domain(domain)) for copy, instances in reader.made[expr]]
        return _same(_constant(_stored(c, i, reader), i.domain(), reader) for c, i in made if not i.is_empty())
    if isinstance(expr, Call) and expr.fn == "select" and condition_text(expr.args[0], reader.names) is not None:
        sides = [(side, part) for side, part in _sides(expr, domain, reader) if not part.is_empty()]
        return _same(_constant(side, part, reader) for side, part in sides)
    values = [_constant(c, domain, reader) for c in children(expr)]
    if any(v is None for v in values) or not isinstance(expr, (Call, Cast)):
        return None
    with np.errstate(all="ignore"):
        result = values[0] if isinstance(expr, Cast) else MEANING[expr.fn](*values)
    return np.dtype(expr.dtype).type(result)


def _same(values: Iterable[Any]) -> Any:
    found = list(values)
    return found[0] if found and all(v is not None and v == found[0] for v in found) else None


# -- equal values ----------------------------------------------------------------------------------------------

def _equal(old: Expr, new: Expr, domain: isl.Set, reader: _Reader) -> bool:
    """Whether two values are the same for all instances in `domain`, loads of filled locals followed to what was stored."""
    if domain.is_empty() or (old == new and not any(x in reader.made for x in loads(new))):
        return True
    if isinstance(new, Load) and new in reader.made:
        parts = [(copy, made.intersect_domain(domain)) for copy, made in reader.made[new]]
        return all(made.is_empty() or _equal(old, _stored(copy, made, reader), made.domain(), reader) for copy, made in parts)
    for choice in (new, old):
        if isinstance(choice, Call) and choice.fn == "select" and condition_text(choice.args[0], reader.names) is not None:
            return all(_equal(old if choice is new else side, side if choice is new else new, part, reader)
                       for side, part in _sides(choice, domain, reader))
    if old.dtype == new.dtype == INDEX:
        return _equal_index(old, new, domain, reader)
    match old, new:
        case Load(), Load():
            return old.buffer == new.buffer and _all_equal(old, new, domain, reader)
        case Call(), Call():
            return (old.fn, old.dtype) == (new.fn, new.dtype) and _all_equal(old, new, domain, reader)
        case Cast(), Cast():
            return old.dtype == new.dtype and _all_equal(old, new, domain, reader)
    return False


def _all_equal(old: Expr, new: Expr, domain: isl.Set, reader: _Reader) -> bool:
    pairs = list(zip(children(old), children(new)))
    return len(children(old)) == len(children(new)) and all(_equal(a, b, domain, reader) for a, b in pairs)


def _equal_index(old: Expr, new: Expr, domain: isl.Set, reader: _Reader) -> bool:
    texts = [index_text(e, reader.names) for e in (old, new)]
    if None not in texts:
        return bool(domain.is_disjoint(reader.where(f"({texts[0]}) != ({texts[1]})")))
    match old, new:
        case Load(), Load():
            return old.buffer == new.buffer and _all_equal(old, new, domain, reader)
        case Call(), Call():
            return old.fn == new.fn and _all_equal(old, new, domain, reader)
        case CheckedIndex(), CheckedIndex():
            return (old.extent, old.what) == (new.extent, new.what) and _all_equal(old, new, domain, reader)
        case Cast(), Cast():
            return _all_equal(old, new, domain, reader)
    return False


def _sides(choice: Call, domain: isl.Set, reader: _Reader) -> list[tuple[Expr, isl.Set]]:
    """The two sides of a select with the instances that choose them."""
    texts = [condition_text(choice.args[0], reader.names, negate) for negate in (False, True)]
    return [(side, domain.intersect(reader.where(str(text)))) for side, text in zip(choice.args[1:], texts)]


def _stored(copy: _Copy, instances: isl.Map, reader: _Reader) -> Expr:
    """The value that the copy instances store, in the axes of the statement that reads it."""
    region, names = instances.domain(), copy.assignment.names
    functions = [f.gist(region).coalesce() for f in isl.components(instances)[:len(names)]]
    return substitute(copy.assignment.value, {n: function_expr(f, list(reader.names)) for n, f in zip(names, functions)})


def _cell_map(name: str, dims: tuple[str, ...], index: tuple[Expr, ...], scop: Scop) -> isl.Map:
    """Instances `name[dims]` -> the cell at `index`. Raises InternalError where that is not affine."""
    texts = [index_text(i, {d: d for d in dims}) for i in index]
    if None in texts:
        raise InternalError(f"{name} reaches a local at ({', '.join(map(format_expr, index))}), which is not affine")
    return isl.Map(f"{scop.params} -> {{ {name}[{', '.join(dims)}] -> [{', '.join(str(t) for t in texts)}] }}")
