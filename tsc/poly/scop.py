"""Scop: a te.Program as statements with domains, access relations and an original order, over a symbolic context.

A reducing Compute gives two statements, `init` and `update`; any other gives one. An access is exact where every index is
affine, and where an input is read at what is affine in no coordinates of isl's (`m // L` with a symbolic L): that is an exact
access to a view of it (`tsc/poly/views.py`). An index that depends on data makes its dimension opaque: the access may touch the
whole extent there, and is recorded as such. Section 5.2 of the paper; Verdoolaege 2010 for the objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.affine import box_text, condition_text, fact_texts, index_text
from tsc.poly.promotion.layout import Layout
from tsc.poly.views import Lifting, depends_on_data, view_of
from tsc.sym import SymExpr, dim, sym_min
from tsc.te.compute import Axis, Compute, Fact, Program
from tsc.te.expr import Buffer, Call, CheckedIndex, Const, Expr, Load, Var, children, format_expr, loads, map_loads

Role = Literal["store", "init", "update"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: the Compute it comes from, what it does, its axes (reduce axes last) and its instances."""

    name: str
    compute: Compute
    role: Role
    axes: tuple[Axis, ...]
    domain: isl.Set

    @property
    def body(self) -> Expr:
        """The value stored, as an expression of the axes."""
        compute = self.compute
        if compute.monoid is None:
            return compute.body
        if self.role == "init":
            return Const(compute.monoid.identity(compute.target.dtype), compute.target.dtype)
        return Call(compute.monoid.fn, (Load(compute.target, self.cell), compute.body), compute.target.dtype)

    @property
    def cell(self) -> tuple[Expr, ...]:
        """The index that is written."""
        return tuple(Var(a.name) for a in self.compute.axes)


@dataclass(frozen=True, slots=True)
class View:
    """What stands between an access and its buffer: instances -> cells of the box of `layout`, which says where those are."""

    layout: Layout
    relation: isl.Map

    def __str__(self) -> str:
        return f"{self.relation}, {self.layout.name} at [{', '.join(map(format_expr, self.layout.index))}]"


@dataclass(frozen=True, slots=True)
class Access:
    """Instances of a statement -> cells of a buffer. Not `exact`: a may-access, over-approximated in opaque dimensions. With a
    `view`, the cell of the view is exact, and `relation` over-approximates where its layout takes that. `anywhere` is where a
    read under conditions would be without them, at every instance. `bounded`: what it may touch in opaque dimensions is all
    that it can touch there, as of an index of data that is checked when the kernel runs.
    """

    statement: str
    buffer: Buffer
    relation: isl.Map
    exact: bool
    view: View | None = None
    anywhere: isl.Map | None = None
    bounded: bool = True


@dataclass(frozen=True, slots=True)
class Scop:
    """The polyhedral view of one Program. `params` is the text "[M, N]" that isl objects over its sizes start with;
    `notes` lists what was over-approximated.

    `context` holds the sizes' ranges and divisors: what domains, dependences and loops are made in. `known` is the part of it
    in which the Program's facts hold. Facts with min, max and divisions make it a union of many pieces, and loops made in it
    would branch on them; it only serves to prove that accesses stay within extents. `populated` is the part of `context` where
    every statement has instances: what is derived there is extended to empty domains.
    """

    program: Program
    params: str
    context: isl.Set
    known: isl.Set
    populated: isl.Set
    statements: Mapping[str, Statement]
    domain: isl.UnionSet
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    notes: tuple[str, ...]

    def of(self, compute: Compute) -> tuple[Statement, ...]:
        """The statements of a Compute, in order."""
        return tuple(s for s in self.statements.values() if s.compute.name == compute.name)

    def reaching(self, buffer: str, accesses: Sequence[Access]) -> isl.UnionMap:
        """Those of `accesses` that are to `buffer`: instances -> cells."""
        return isl.union_of_maps(self.params, (a.relation for a in accesses if a.buffer.name == buffer))

    def locals(self) -> dict[str, Buffer]:
        """Targets that do not outlive the kernel, by name."""
        kept = {b.name for b in self.program.outputs}
        return {c.name: c.target for c in self.program.computes if c.name not in kept}


def build_scop(program: Program) -> Scop:
    """The Scop of `program`, of which `check_held` has held. Raises InternalError when an exact access leaves its extents or an
    extent is not affine."""
    clash = {s.name for s in program.sizes} & {a.name for c in program.computes for a in c.axes + c.reduce_axes}
    if clash:
        raise InternalError(f"axes and sizes share the names {sorted(clash)}; they need names of their own")
    params, context, known = _sizes(program)
    statements = {s.name: s for compute in program.computes for s in _statements(compute, params, context)}
    domain = isl.union_of_sets(params, (s.domain for s in statements.values()))
    populated = context
    for statement in statements.values():
        populated = populated.intersect(statement.domain.params())
    notes: list[str] = []
    reads = tuple(a for s in statements.values() for a in _reads(s, program, params, known, notes))
    writes = tuple(_write(s, params) for s in statements.values())
    for wrong, _ in _escaping(program, reads, writes, params, known):
        raise InternalError(wrong)
    return Scop(program, params, context, known, populated, statements, domain, reads, writes, tuple(dict.fromkeys(notes)))


def with_layouts(scop: Scop, program: Program) -> Scop:
    """The Scop of `program`, which differs from its own in the layouts of inputs alone: no instance or access does."""
    computes, inputs = {c.name: c for c in program.computes}, {b.name: b for b in program.inputs}
    statements = {n: replace(s, compute=computes[s.compute.name]) for n, s in scop.statements.items()}
    reads = tuple(replace(a, buffer=inputs.get(a.buffer.name, a.buffer)) for a in scop.reads)
    return replace(scop, program=program, statements=statements, reads=reads)


def sizes_known(program: Program) -> isl.Set:
    """All that is known of a Program's sizes."""
    return _sizes(program)[2]


def _sizes(program: Program) -> tuple[str, isl.Set, isl.Set]:
    """`params`, `context` and `known` of a Program's Scop."""
    params = "[" + ", ".join(s.name for s in program.sizes) + "]"
    bounds = [f"{s.name} >= {s.lo}" for s in program.sizes]
    bounds += [f"{s.name} <= {s.hi}" for s in program.sizes if s.hi is not None]
    bounds += [f"{s.name} mod {s.divisor} = 0" for s in program.sizes if s.divisor > 1]
    context = isl.Set(f"{params} -> {{ : {' and '.join(bounds) or '1 = 1'} }}")
    return params, context, context.intersect(_facts(program, params))


def _facts(program: Program, params: str) -> isl.Set:
    """The sizes at which the Program's facts hold; its hidden names are projected out."""
    hidden, texts = fact_texts(program)
    where = " and ".join(texts) or "1 = 1"
    return isl.Set(f"{params} -> {{ : " + (f"exists ({', '.join(hidden)} : {where})" if hidden else where) + " }")


def escapes(program: Program) -> Iterator[tuple[Compute, int, Mapping[str, int]]]:
    """Reads of `program` that can leave their buffer's extents: the Compute, the read's number in the order of `loads`, and
    sizes and axes at which it does. Only affine conditions count as guards."""
    params, context, known = _sizes(program)
    for compute in program.computes:
        *_, statement = _statements(compute, params, context)
        names = {a.name: a.name for a in statement.axes}
        for number, (load, conditions, _) in enumerate(conditional_loads(compute.body, names)):
            relation, _ = _relation(statement, load, names, list(conditions), params)
            outside = relation.subtract_range(_extents(load.buffer, params)).intersect_params(known).domain()
            if not outside.is_empty():
                sizes, instance = isl.sample(outside)
                yield compute, number, {**sizes, **dict(zip(names, instance))}


def unproved(program: Program, exact: bool = False) -> str | None:
    """The first access of `program` of which it cannot be proved that it stays within extents, None where there is none. What
    is over-approximated counts as proved unless all has to be `exact`."""
    params, context, known = _sizes(program)
    statements = [s for compute in program.computes for s in _statements(compute, params, context)]
    for access in (a for s in statements for a in (*_reads(s, program, params, known, []), _write(s, params))):
        wrong = _outside(access, params, known)
        if wrong is not None or (exact and not access.exact):
            return wrong or f"{access.statement} does not say exactly what it reads of {access.buffer.name}"
    return None


def unheld(program: Program) -> Iterator[tuple[str, str]]:
    """Computes and buffers that they read at an index of which nothing says that it stays within its extent."""
    known: tuple[str, isl.Set, isl.Set] | None = None
    for compute in program.computes:
        names = {a.name: a.name for a in compute.axes + compute.reduce_axes}
        if not any(_is_open(place, extent, names) for load in loads(compute.body)
                   for place, extent in zip(load.index, load.buffer.shape)):
            continue  # most Programs: isl is not asked
        params, context, facts = known = known or _sizes(program)
        *_, statement = _statements(compute, params, context)
        found = (a.buffer.name for a in _reads(statement, program, params, facts, []) if not a.bounded)
        yield from ((compute.name, name) for name in dict.fromkeys(found))


def check_held(program: Program) -> None:
    """Raise InternalError where nothing says that an index stays within its extent. What a Program becomes by inlining reads
    the same elements: it is asked of the one that is given, where less has been made of the index."""
    for compute, buffer in unheld(program):
        raise InternalError(f"{compute} reads {buffer} at an index that nothing holds within its extents")


def with_checks(program: Program) -> Program:
    """`program`, in which each index that nothing holds within its extent is checked when a kernel runs."""
    found = set(unheld(program))

    def checked(compute: Compute) -> Compute:
        names = {a.name: a.name for a in compute.axes + compute.reduce_axes}

        def with_check(load: Load) -> Load:
            if (compute.name, load.buffer.name) not in found:
                return load
            return replace(load, index=tuple(
                CheckedIndex(place, extent, "an index expression") if _is_open(place, extent, names) else place
                for place, extent in zip(load.index, load.buffer.shape)))

        return replace(compute, body=map_loads(with_check, compute.body))

    return replace(program, computes=tuple(map(checked, program.computes))) if found else program


def _is_open(place: Expr, extent: SymExpr, names: Mapping[str, str]) -> bool:
    """Whether an index has neither a formula nor a check of its own."""
    checked = isinstance(place, CheckedIndex) and place.extent == extent
    return not checked and index_text(place, names) is None


def needs(program: Program) -> tuple[Fact, ...]:
    """What has to hold of a Program's sizes for its accesses to stay within extents, and to read what was written, beyond what
    is known of them; nothing where no such thing can be said."""
    params, context, known = _sizes(program)
    statements = [s for compute in program.computes for s in _statements(compute, params, context)]
    reads = tuple(a for s in statements for a in _reads(s, program, params, known, []))
    if not all(access.bounded for access in reads):  # that has nothing to do with sizes
        return ()
    names = [size.name for size in program.sizes]
    found: dict[Fact, None] = {}
    for _, outside in _escaping(program, reads, tuple(_write(s, params) for s in statements), params, known):
        for piece in isl.halfspaces(outside.params().gist(known), names):
            sums = [sum((dim(n) * c for n, c in zip(names, sides)), SymExpr.of(constant)) for sides, constant in piece]
            if not sums:  # there are no sizes at which it stays inside
                return ()
            found.setdefault(Fact(sym_min(*sums), "<=", SymExpr.of(-1)))
    return tuple(found)


# -- statements ------------------------------------------------------------------------------------------------

def _statements(compute: Compute, params: str, context: isl.Set) -> Iterator[Statement]:
    roles: tuple[tuple[Role, tuple[Axis, ...]], ...] = (("store", compute.axes),)
    if compute.monoid is not None:
        roles = (("init", compute.axes), ("update", compute.axes + compute.reduce_axes))
    for role, axes in roles:
        name = f"{compute.name}_{role}"
        dims = [a.name for a in axes]
        text = f"{params} -> {{ {name}[{', '.join(dims)}] : {box_text(tuple(a.extent for a in axes), dims)} }}"
        yield Statement(name, compute, role, axes, isl.Set(text).intersect_params(context))


def _dims(statement: Statement) -> list[str]:
    return [a.name for a in statement.axes]


def _instance(statement: Statement) -> str:
    return f"{statement.name}[{', '.join(_dims(statement))}]"


# -- accesses --------------------------------------------------------------------------------------------------

def _write(statement: Statement, params: str) -> Access:
    names = {a.name: a.name for a in statement.axes}
    relation, exact = _relation(statement, Load(statement.compute.target, statement.cell), names, [], params)
    return Access(statement.name, statement.compute.target, relation, exact)


def _reads(statement: Statement, program: Program, params: str, known: isl.Set, notes: list[str]) -> Iterator[Access]:
    names = {a.name: a.name for a in statement.axes}
    targets = {c.name for c in program.computes}
    lifting = Lifting(statement.axes, program)
    lifted = lifting.lifted(statement.body)
    seen: set[tuple[Load, tuple[str, ...]]] = set()
    for (load, conditions, certain), (place, held, _) in zip(
            conditional_loads(statement.body, names), conditional_loads(lifted, lifting.names), strict=True):
        if (load, conditions) in seen:
            continue
        seen.add((load, conditions))
        relation, exact = _relation(statement, load, names, list(conditions), params)
        inside = certain or _leaving(relation, load.buffer, params, known).is_empty()
        stays = (exact and inside) or lifting.stays(place, _box(statement), held, params, known)
        view, on_data = None, any(map(depends_on_data, load.index))
        if not exact and not on_data and load.buffer.name not in targets and stays:
            layout, cell = view_of(load, statement.axes)
            view, exact = View(layout, _view_relation(statement, layout, cell, conditions, names, params)), True
        if not exact:
            notes.append(f"{statement.name} may read all of {format_expr(load)} (opaque index{', of data' if on_data else ''})")
        if not inside:
            relation = relation.intersect_range(_extents(load.buffer, params))
            if not stays:
                notes.append(f"{statement.name} reads {format_expr(load)} under a condition that is not affine")
                exact = False
        anywhere = _relation(statement, load, names, [], params)[0] if conditions and load.buffer.name in targets else None
        bounded = exact or stays or lifting.bounded(place, _box(statement), held, params, known)
        yield Access(statement.name, load.buffer, relation, exact, view, anywhere, bounded)


def _box(statement: Statement) -> str:
    return box_text(tuple(a.extent for a in statement.axes), _dims(statement))


def _view_relation(statement: Statement, layout: Layout, cell: Sequence[Expr], conditions: Sequence[str],
                   names: Mapping[str, str], params: str) -> isl.Map:
    texts = [str(index_text(c, names)) for c in cell] or ["0"]
    where = " and ".join(conditions) or "1 = 1"
    text = f"{params} -> {{ {_instance(statement)} -> [{', '.join(texts)}] : {where} }}"
    return isl.Map(text).intersect_domain(statement.domain)


def conditional_loads(expr: Expr, names: Mapping[str, str], conditions: tuple[str, ...] = (),
                      certain: bool = True) -> Iterator[tuple[Load, tuple[str, ...], bool]]:
    """Loads with the affine conditions they stand under; not certain: under one that is not affine, too."""
    match expr:
        case Call(fn="select", args=(condition, yes, no)):
            yield from conditional_loads(condition, names, conditions, certain)
            for branch, negate in ((yes, False), (no, True)):
                text = condition_text(condition, names, negate)
                if text is None:
                    yield from conditional_loads(branch, names, conditions, False)
                else:
                    yield from conditional_loads(branch, names, (*conditions, text), certain)
            return
        case Load():
            yield expr, conditions, certain
    for child in children(expr):
        yield from conditional_loads(child, names, conditions, certain)


def _cells(buffer: Buffer) -> list[str]:
    return [f"d{i}_" for i in range(len(buffer.shape))]


@lru_cache(maxsize=256)
def _extents(buffer: Buffer, params: str) -> isl.Set:
    """All cells of a buffer."""
    cells = _cells(buffer)
    return isl.Set(f"{params} -> {{ {buffer.name}[{', '.join(cells)}] : {box_text(buffer.shape, cells)} }}")


def _relation(statement: Statement, load: Load, names: Mapping[str, str], conditions: list[str],
              params: str) -> tuple[isl.Map, bool]:
    texts = [index_text(i, names) for i in load.index]
    cells = _cells(load.buffer)
    constraints = list(conditions)
    for cell, text, extent in zip(cells, texts, load.buffer.shape):
        constraints.append(f"{cell} = {text}" if text is not None else box_text((extent,), [cell]))
    where = " and ".join(constraints) or "1 = 1"
    text = f"{params} -> {{ {_instance(statement)} -> {load.buffer.name}[{', '.join(cells)}] : {where} }}"
    return isl.Map(text).intersect_domain(statement.domain), all(t is not None for t in texts)


def _leaving(relation: isl.Map, buffer: Buffer, params: str, known: isl.Set) -> isl.Set:
    """The cells that an access reaches outside the extents of its buffer."""
    return relation.range().subtract(_extents(buffer, params)).intersect_params(known)


def _outside(access: Access, params: str, known: isl.Set) -> str | None:
    """What is wrong with an access that can leave its buffer's extents, None where it cannot."""
    if not access.bounded:
        return _unbounded_text(access)
    outside = _leaving(access.relation, access.buffer, params, known)
    if outside.is_empty():
        return None
    return _outside_text(access, outside)


def _unbounded_text(access: Access) -> str:
    return f"statement {access.statement} reads {access.buffer} at an index that nothing holds within its extents"


def _outside_text(access: Access, outside: isl.Set) -> str:
    return f"statement {access.statement} accesses {access.buffer} outside its extents, at {outside}"


def _escaping(program: Program, reads: tuple[Access, ...], writes: tuple[Access, ...], params: str,
              known: isl.Set) -> Iterator[tuple[str, isl.Set]]:
    """What is wrong with accesses, in words, and the cells at which it is: outside of extents, or read and not written."""
    for access in reads + writes:
        outside = _leaving(access.relation, access.buffer, params, known)
        if not outside.is_empty():
            yield _outside_text(access, outside), outside
    targets = {c.name for c in program.computes}
    for access in reads:
        if access.buffer.name in targets:
            written = [w.relation.range() for w in writes if w.buffer.name == access.buffer.name]
            missing = access.relation.range()
            for part in written:
                missing = missing.subtract(part)
            if not missing.is_empty():
                yield f"statement {access.statement} reads {access.buffer.name} where nothing writes it: {missing}", missing
