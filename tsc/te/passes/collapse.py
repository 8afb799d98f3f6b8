"""Collapsing: adjacent axes that every access takes together, row-major, become one axis over the product of their extents.

`[B, L, K] x [K, N]` is scheduled as `[B*L, K] x [K, N]`: one more or less dim in the model's way of writing does not show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from tsc.sym import ZERO, ShapeEnv, SymExpr
from tsc.te.compute import SUM, Axis, Compute, Program
from tsc.te.expr import (
    INDEX,
    Buffer,
    Call,
    Cast,
    CheckedIndex,
    Expr,
    Load,
    Var,
    as_size,
    call,
    children,
    index,
    loads,
    map_children,
    substitute,
    variables,
)
from tsc.te.linear import Linear, linear, to_expr
from tsc.te.passes.products import PRODUCTS


@dataclass(frozen=True, slots=True)
class Pair:
    """Two adjacent axes of one Compute, outer and inner."""

    compute: str
    outer: Axis
    inner: Axis


#: The Loads of each buffer, in order, with the Compute that each belongs to.
Reads: TypeAlias = dict[str, list[tuple[Compute, Load]]]


@dataclass(slots=True)
class _Plan:
    """A closed set of merges: axis pairs by inner axis name, and for each target that is merged its outer dim."""

    pairs: dict[str, Pair] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    divided: Pair | None = None


def collapse(program: Program, env: ShapeEnv) -> Program:
    """`program` with as many axes collapsed as its accesses allow; inputs are then read through flatter views."""
    changed = True
    while changed:
        changed, reads = False, _reads(program)
        for pair in _pairs(program):
            plan = _closure(program, reads, pair)
            if plan is not None:
                program, changed = _apply(program, plan, env), True
                break
    return program


def collapse_positions(program: Program, env: ShapeEnv) -> Program:
    """`program` with the last two axes of a sum of products collapsed though an operand reads windows around them, where both
    belong to that operand alone and another axis to the other one alone.

    The positions of an image are then one axis, so that narrow images fill wide tiles. The operand is read at the quotient and
    the remainder of that axis, which are the old axes again: each position is one pair of them, and the other way round.
    """
    for compute in program.computes:
        pair = _positions(compute)
        plan = None if pair is None else _closure(program, _reads(program), pair, pair)
        if plan is not None:
            program = _apply(program, plan, env)
    return program


def _positions(compute: Compute) -> Pair | None:
    body = compute.body
    while isinstance(body, Cast):
        body = body.value
    if compute.monoid != SUM or len(compute.axes) < 3 or not (isinstance(body, Call) and body.fn in PRODUCTS):
        return None
    names = [variables(a) for a in body.args]
    own = [[a.name for a in compute.axes if a.name in mine - other] for mine, other in (names, names[::-1])]
    *_, outer, inner = compute.axes
    ends = {outer.name, inner.name}
    if ZERO in (outer.extent, inner.extent) or not any(ends <= set(mine) and other for mine, other in (own, own[::-1])):
        return None
    return Pair(compute.name, outer, inner)


def _pairs(program: Program) -> Iterator[Pair]:
    for compute in program.computes:
        for axes in (compute.axes, compute.reduce_axes):
            for outer, inner in pairwise(axes):
                if ZERO not in (outer.extent, inner.extent):
                    yield Pair(compute.name, outer, inner)


def _reads(program: Program) -> Reads:
    found: Reads = {}
    for compute in program.computes:
        for load in loads(compute.body):
            found.setdefault(load.buffer.name, []).append((compute, load))
    return found


def _closure(program: Program, reads: Reads, first: Pair, divided: Pair | None = None) -> _Plan | None:
    """The merges that `first` entails, or None when one of them is not possible. The body of the Compute of `divided` may use
    that pair in any way: it gets the quotient and the remainder of the collapsed axis."""
    computes = {c.name: c for c in program.computes}
    plan = _Plan(divided=divided)
    pending = [first]
    while pending:
        pair = pending.pop()
        if pair.inner.name in plan.pairs:
            continue
        taken = {name for p in plan.pairs.values() for name in (p.outer.name, p.inner.name)}
        if taken & {pair.outer.name, pair.inner.name}:
            return None  # three axes at once are two rounds
        plan.pairs[pair.inner.name] = pair
        compute = computes[pair.compute]
        if compute.along in (pair.outer.name, pair.inner.name):
            return None
        required = [] if pair == divided else _targets_read(compute, pair, computes.keys())
        if required is None:
            return None
        if pair.outer in compute.axes:
            required.append((compute.name, compute.axes.index(pair.outer)))
        for name, dim in required:
            if plan.targets.setdefault(name, dim) != dim:
                return None
            entailed = _entailed(reads, computes[name], dim)
            if entailed is None:
                return None
            pending += entailed
    return plan


def _targets_read(compute: Compute, pair: Pair, targets: Collection[str]) -> list[tuple[str, int]] | None:
    """Which targets must be merged (name, outer dim) so that the body can use the collapsed axis; None if it cannot."""
    required: list[tuple[str, int]] = []

    def visit(expr: Expr) -> bool:
        if isinstance(expr, Var):
            return expr.name not in (pair.outer.name, pair.inner.name)
        if isinstance(expr, Load):
            dim = _pair_dim(expr, pair)
            if dim is not None:
                if expr.buffer.name in targets:
                    required.append((expr.buffer.name, dim))
                rest = (*expr.index[:dim], *expr.index[dim + 2:])
                return all(map(visit, rest))
        if expr.dtype == INDEX and _joined(linear(expr), pair) is not None:
            return all(visit(atom) for atom, _ in linear(expr).terms
                       if not (isinstance(atom, Var) and atom.name in (pair.outer.name, pair.inner.name)))
        return all(map(visit, children(expr)))

    return required if visit(compute.body) else None


def _pair_dim(load: Load, pair: Pair) -> int | None:
    """The dim `d` where the load's index is exactly `.., outer, inner, ..` over a buffer whose dim d+1 is the inner extent."""
    for d, (a, b) in enumerate(zip(load.index, load.index[1:])):
        if a == Var(pair.outer.name) and b == Var(pair.inner.name) and _fits(pair, *load.buffer.shape[d:d + 2]):
            return d
    return None


def _fits(pair: Pair, outer: SymExpr, inner: SymExpr) -> bool:
    """Whether the collapsed axis provably stays within the product of two dims: not where a part of them is read whose extent,
    times a symbolic one, is no longer affine in sizes."""
    return pair.inner.extent == inner and (pair.outer.extent == outer or inner.as_int() is not None)


def _joined(form: Linear, pair: Pair) -> Linear | None:
    """The linear form with `outer * extent + inner` replaced by the collapsed axis; None where it has no such sum."""
    a, b = form.coefficient(pair.outer.name), form.coefficient(pair.inner.name)
    if b == ZERO or a != b * pair.inner.extent:
        return None
    terms = [(Var(_name(pair)) if x == Var(pair.outer.name) else x, b if x == Var(pair.outer.name) else c)
             for x, c in form.terms if x != Var(pair.inner.name)]
    return Linear(tuple(terms), form.constant)


def _entailed(reads: Reads, written: Compute, dim: int) -> list[Pair] | None:
    """The axis pairs that must collapse when dims `dim`, `dim + 1` of a target do: its writer's and its readers'."""
    result = [Pair(written.name, written.axes[dim], written.axes[dim + 1])]
    outer, inner = written.target.shape[dim:dim + 2]
    for compute, load in reads.get(written.name, ()):
        a, b = load.index[dim], load.index[dim + 1]
        if _quotient_of(a, b, inner) is not None:
            continue
        pair = _axis_pair(compute, a, b)
        if pair is None or not _fits(pair, outer, inner):
            return None
        result.append(pair)
    return result


def _axis_pair(compute: Compute, a: Expr, b: Expr) -> Pair | None:
    for axes in (compute.axes, compute.reduce_axes):
        for outer, inner in pairwise(axes):
            if a == Var(outer.name) and b == Var(inner.name):
                return Pair(compute.name, outer, inner)
    return None


def _quotient_of(a: Expr, b: Expr, extent: SymExpr) -> Expr | None:
    """`x` where `a` is `x // extent` and `b` is `x % extent`."""
    match a, b:
        case Call(fn="floordiv", args=(x, d)), Call(fn="mod", args=(y, e)) if x == y and as_size(d) == as_size(e) == extent:
            return x
    return None


def _apply(program: Program, plan: _Plan, env: ShapeEnv) -> Program:
    merged = {p.inner.name: Axis(_name(p), env.canon(p.outer.extent * p.inner.extent)) for p in plan.pairs.values()}
    gone = {p.outer.name for p in plan.pairs.values()}

    def rename(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(merged.get(a.name, a) for a in axes if a.name not in gone)

    def reshape(buffer: Buffer) -> Buffer:
        dim = plan.targets.get(buffer.name)
        return buffer if dim is None else _flat(buffer, dim, env)

    def rewrite(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            dim = plan.targets.get(expr.buffer.name)
            if dim is None:
                dim = next((d for p in plan.pairs.values() if (d := _pair_dim(expr, p)) is not None), None)
            if dim is not None:
                at = _flat_index(expr, dim)
                expr = Load(_flat(expr.buffer, dim, env), (*expr.index[:dim], at, *expr.index[dim + 2:]))
        if expr.dtype == INDEX and not isinstance(expr, Load | Var | CheckedIndex):
            for pair in plan.pairs.values():
                joined = _joined(linear(expr), pair)
                if joined is not None:
                    return rewrite(to_expr(joined))
        return map_children(rewrite, expr)

    def body(compute: Compute) -> Expr:
        pair = plan.divided
        if pair is None or pair.compute != compute.name:
            return rewrite(compute.body)
        at, by = Var(_name(pair)), index(pair.inner.extent)
        return substitute(compute.body, {pair.outer.name: call("floordiv", at, by), pair.inner.name: call("mod", at, by)})

    computes = tuple(replace(c, target=reshape(c.target), axes=rename(c.axes), body=body(c), reduce_axes=rename(c.reduce_axes))
                     for c in program.computes)
    return replace(program, computes=computes, outputs=tuple(map(reshape, program.outputs)))


def _flat(buffer: Buffer, dim: int, env: ShapeEnv) -> Buffer:
    shape = buffer.shape
    return replace(buffer, shape=(*shape[:dim], env.canon(shape[dim] * shape[dim + 1]), *shape[dim + 2:]))


def _flat_index(load: Load, dim: int) -> Expr:
    a, b, inner = load.index[dim], load.index[dim + 1], load.buffer.shape[dim + 1]
    whole = _quotient_of(a, b, inner)
    if whole is not None:
        return whole
    one, two = linear(a), linear(b)
    scaled = Linear(tuple((x, c * inner) for x, c in one.terms), one.constant * inner)
    return to_expr(Linear((*scaled.terms, *two.terms), scaled.constant + two.constant))


def _name(pair: Pair) -> str:
    return f"{pair.outer.name}.{pair.inner.name}"

