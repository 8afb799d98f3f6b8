"""Program transformations: unit dims, divisions of inputs, sizes, canonical names. Each keeps the Program's meaning.

Before `canonical`, a Program is *loose*: its shapes are over model Dims, it has no size parameters, and one input may be read
as several Buffers of the same name and different shapes (views of the same memory).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm

from tsc.sym import GREATEST, ONE, ZERO, ShapeEnv, SymExpr, dim
from tsc.sym.expr import Monomial
from tsc.te.compute import UNBOUNDED, Axis, Carried, Fact, Program, SizeParam, needed
from tsc.te.expr import (
    INDEX,
    Buffer,
    Call,
    CheckedIndex,
    Expr,
    Load,
    Size,
    Var,
    as_size,
    call,
    checking,
    index,
    loads,
    map_children,
    map_loads,
    substitute,
    walk,
)
from tsc.te.linear import Linear, Ranges, linear, simplify, to_expr, within
from tsc.te.passes.collapse import collapse, collapse_positions
from tsc.te.passes.divide import divide
from tsc.te.passes.facts import size_facts
from tsc.te.passes.hoist import hoist


@dataclass(frozen=True, slots=True)
class Canonical:
    """A canonical Program; `buffers` maps the names of its inputs and outputs to the loose names, `sizes` its size
    parameters to expressions of model Dims."""

    program: Program
    buffers: dict[str, str]
    sizes: dict[str, SymExpr]


def lower(program: Program, env: ShapeEnv, accumulators: Sequence[str] = ()) -> Canonical:
    """All passes in order: a loose Program to a canonical one. `accumulators` are its contractions; what scales their terms is
    hoisted."""
    program = drop_unit_dims(program)                   # dims of extent 1 are no dims
    program = simplified(program, env)                  # indices in linear form
    program = hoist(program, accumulators, env)         # what scales whole sums is applied to the sums
    program = merge_divisions(program, env)             # inputs read at (x // E, x % E) are viewed flat
    program = collapse(program, env)                    # axes that always go together become one
    program = collapse(divide(program, env), env)       # axes whose parts go different ways become several
    program = collapse_positions(program, env)          # the positions of an image are one axis
    return canonical(simplified(program, env), env, accumulators)


def map_bodies(fn: Callable[[Expr], Expr], program: Program) -> Program:
    """`fn` over the body of every Compute."""
    return replace(program, computes=tuple(replace(c, body=fn(c.body)) for c in program.computes))


def axis_extents(program: Program) -> dict[str, SymExpr]:
    """Every axis of the Program with its extent."""
    return {a.name: a.extent for c in program.computes for a in (*c.axes, *c.reduce_axes)}


def simplified(program: Program, env: ShapeEnv) -> Program:
    """Index arithmetic in linear form, divisions cancelled where the axes' extents prove it."""
    ranges = Ranges(axis_extents(program), env)
    return map_bodies(lambda body: simplify(body, ranges), program)


# -- unit dims -------------------------------------------------------------------------------------------------

def drop_unit_dims(program: Program) -> Program:
    """Axes of extent 1 and buffer dims of extent 1 go away; a tensor keeps at least one dim and a reduction one reduce axis.
    What is carried stays as it is."""
    carried = {c.name for c in program.computes if c.carried is not None}
    computes = []
    for compute in program.computes:
        if compute.carried is not None:
            computes.append(replace(compute, body=map_loads(partial(_drop_units, but=carried), compute.body)))
            continue
        axes, target = compute.axes, compute.target
        if not axes:
            axes, target = (Axis(f"{target.name}.unit", ONE),), replace(target, shape=(ONE,))
        kept = [axes[k] for k in _kept([a.extent for a in axes])]
        reduced = [compute.reduce_axes[k] for k in _kept([a.extent for a in compute.reduce_axes])]
        names = {a.name for a in (*kept, *reduced)}
        zeros: dict[str, Expr] = {a.name: index(0) for a in (*axes, *compute.reduce_axes) if a.name not in names}
        computes.append(replace(
            compute, target=_without_units(target), axes=tuple(kept), reduce_axes=tuple(reduced),
            body=map_loads(partial(_drop_units, but=carried), substitute(compute.body, zeros))))
    inputs, outputs = (tuple(b if b.name in carried else _without_units(b) for b in buffers)
                       for buffers in (program.inputs, program.outputs))
    return replace(program, inputs=inputs, outputs=outputs, computes=tuple(computes))


def _kept(extents: list[SymExpr]) -> list[int]:
    found = [k for k, extent in enumerate(extents) if extent != ONE]
    return found or ([len(extents) - 1] if extents else [])


def _without_units(buffer: Buffer) -> Buffer:
    return replace(buffer, shape=tuple(buffer.shape[k] for k in _kept(list(buffer.shape))) or (ONE,))


def _drop_units(load: Load, but: Collection[str]) -> Expr:
    if load.buffer.name in but:
        return load
    kept = _kept(list(load.buffer.shape))
    return checking(Load(_without_units(load.buffer), tuple(load.index[k] for k in kept) or (index(0),)), load.index)


# -- divisions -------------------------------------------------------------------------------------------------

def merge_divisions(program: Program, env: ShapeEnv) -> Program:
    """Inputs are read through the views that make their indices affine: flat where adjacent dims are read at
    `(x // E, x % E)`, split where one dim is read at `a * E + b` with a symbolic E."""
    targets = {c.name for c in program.computes}
    ranges = Ranges(axis_extents(program), env)

    def merge(load: Load) -> Load:
        return load if load.buffer.name in targets else split(flattened(load, ranges), ranges)

    return map_bodies(lambda body: map_loads(merge, body), program)


def flattened(load: Load, ranges: Ranges) -> Load:
    """`load` with dims merged as long as an adjacent pair is a quotient and its remainder."""
    for d in range(len(load.index) - 1):
        inner, outer = load.buffer.shape[d + 1], load.buffer.shape[d]
        flat = _undivided(load.index[d], load.index[d + 1], inner, outer, ranges)
        if flat is not None:
            shape = (*load.buffer.shape[:d], ranges.env.canon(outer * inner), *load.buffer.shape[d + 2:])
            merged = Load(replace(load.buffer, shape=shape), (*load.index[:d], flat, *load.index[d + 2:]))
            return flattened(merged, ranges)
    return load


def split(load: Load, ranges: Ranges) -> Load:
    """`load` with each dim split that is read at `a * E + b`, where E is symbolic and `0 <= b < E`."""
    for d, position in enumerate(load.index):
        form = linear(position)
        for stride in (c for _, c in form.terms if c.as_int() is None):
            outer = Linear(tuple((a, c // stride) for a, c in form.terms if c % stride == ZERO))
            inner = Linear(tuple((a, c) for a, c in form.terms if c % stride != ZERO), form.constant)
            extent = load.buffer.shape[d]
            if extent % stride == ZERO and within(inner, stride, ranges):
                shape = (*load.buffer.shape[:d], ranges.env.canon(extent // stride), stride, *load.buffer.shape[d + 1:])
                index = (*load.index[:d], to_expr(outer), to_expr(inner), *load.index[d + 1:])
                return split(Load(replace(load.buffer, shape=shape), index), ranges)
    return load


def _undivided(quotient: Expr, remainder: Expr, inner: SymExpr, outer: SymExpr, ranges: Ranges) -> Expr | None:
    match remainder:
        case Call(fn="mod", args=(x, e)) if as_size(e) == inner:
            if simplify(call("floordiv", x, e), ranges) == quotient:
                return x
            whole = call("mod", x, index(inner * outer))
            if simplify(call("mod", call("floordiv", x, e), index(outer)), ranges) == quotient:
                return simplify(whole, ranges)
    return None


# -- sizes and names -------------------------------------------------------------------------------------------

def canonical(program: Program, env: ShapeEnv, accumulators: Sequence[str] = ()) -> Canonical:
    """Size parameters for all symbolic extents, unused buffers dropped, and names that depend on structure only.

    Buffers become t0, t1, ... (inputs by first use, then targets; the `accumulators` are acc, acc1, ...), axes i0, i1, ...,
    sizes s0, s1, ..., so that Programs equal up to names print the same text.
    """
    program = drop_unused(program)
    sizes, extents = _size_names(program, env)
    names = {expr: f"s{k}" for k, expr in enumerate(sizes)}
    axes = {a.name: f"i{k}" for k, a in enumerate(a for c in program.computes for a in (*c.axes, *c.reduce_axes))}
    special = {name: f"acc{k or ''}" for k, name in enumerate(accumulators)}
    buffers: dict[tuple[str, tuple[SymExpr, ...]], str] = {}
    for buffer in (*program.inputs, *(c.target for c in program.computes)):
        buffers[buffer.name, buffer.shape] = special.get(buffer.name, f"t{len(buffers)}")

    def rename_size(expr: SymExpr) -> SymExpr:
        return _renamed(expr, names)

    def rename_buffer(b: Buffer) -> Buffer:
        return Buffer(buffers[b.name, b.shape], b.dtype, tuple(map(rename_size, b.shape)), b.layout)

    def rename(expr: Expr) -> Expr:
        inner = map_children(rename, expr)
        match inner:
            case Var(name=name):
                return Var(axes[name])
            case Size(value=value):
                return index(rename_size(value))
            case Load(buffer=buffer, index=at):
                return Load(rename_buffer(buffer), at)
            case CheckedIndex(extent=extent):
                return replace(inner, extent=rename_size(extent))
        return inner

    def rename_axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axes[a.name], rename_size(a.extent)) for a in old)

    trips = {name: f"r{k}" for k, name in enumerate(dict.fromkeys(c.carried.name for c in program.computes if c.carried))}

    def rename_carried(carried: Carried | None) -> Carried | None:
        return carried and Carried(trips[carried.name], axes[carried.axis], carried.reverse)

    facts = size_facts(names, env, _scales(program), _reads_less(program))
    result = Program(
        tuple(map(rename_buffer, program.inputs)), tuple(map(rename_buffer, program.outputs)),
        tuple(replace(c, target=rename_buffer(c.target), axes=rename_axes(c.axes), body=rename(c.body),
                      reduce_axes=rename_axes(c.reduce_axes), carried=rename_carried(c.carried)) for c in program.computes),
        tuple(_bounded(_size_param(names[expr], expr, expr in extents, env), facts) for expr in sizes), facts)
    known = {rename_buffer(b).name: b.name for b in (*program.inputs, *program.outputs)}
    return Canonical(result, known, {names[expr]: expr for expr in sizes})


def _scales(program: Program) -> bool:
    """Whether an index is multiplied or divided by something symbolic: what it stays within are products of sizes."""
    return any(isinstance(node, Call) and node.fn in ("mul", "floordiv", "mod") and node.dtype == INDEX
               and any(size is not None and size.as_int() is None for size in map(as_size, node.args))
               for compute in program.computes for node in walk(compute.body))


def _reads_less(program: Program) -> bool:
    """Whether an axis runs along a dim that is a product, and has another extent."""
    extents = axis_extents(program)
    return any(isinstance(at, Var) and extents[at.name] != extent and any(len(monomial) > 1 for monomial, _ in extent.terms)
               for c in program.computes for load in loads(c.body) for at, extent in zip(load.index, load.buffer.shape))


def drop_unused(program: Program) -> Program:
    """Computes that no output needs go away; inputs are exactly the Buffers read, by first use."""
    computes = needed(program.computes, (b.name for b in program.outputs))
    targets = {c.name: c.target for c in computes}
    inputs = dict.fromkeys(x.buffer for c in computes for x in loads(c.body) if x.buffer.name not in targets)
    return Program(tuple(inputs), tuple(targets[b.name] for b in program.outputs), computes, program.sizes)


def _size_names(program: Program, env: ShapeEnv) -> tuple[list[SymExpr], set[SymExpr]]:
    """The expressions that become size parameters, by first use: monomials (negated where that makes them positive), or a whole
    expression whose monomials occur nowhere else. With them, the expressions that are extents, hence not negative."""
    found: dict[SymExpr, None] = {}
    extents: set[SymExpr] = set()

    def note(expr: SymExpr, is_extent: bool = True) -> None:
        if expr.as_int() is None:
            found.setdefault(expr)
            extents.update({expr} if is_extent else ())

    for compute in program.computes:
        for axis in (*compute.axes, *compute.reduce_axes):
            note(axis.extent)
        for node in walk(compute.body):
            match node:
                case Size(value=value):
                    note(value, is_extent=False)
                case CheckedIndex(extent=extent):
                    note(extent)
                case Load(buffer=buffer):
                    for extent in buffer.shape:
                        note(extent)
    homes: dict[Monomial, set[SymExpr]] = {}
    for expr in found:
        for monomial, _ in expr.terms:
            if monomial:
                homes.setdefault(monomial, set()).add(expr)
    result: dict[SymExpr, None] = {}
    for expr in found:
        own = [m for m, _ in expr.terms if m]
        if (len(expr.terms) > 1 or expr.terms[0][1] < 0) and all(homes[m] == {expr} for m in own):
            result.setdefault(expr)
        else:
            for monomial in own:
                positive = SymExpr(((monomial, 1),))
                low, high = env.bounds(positive)
                result.setdefault(-positive if low != 0 and high is not None and high <= 0 else positive)
    return list(result), extents


def _renamed(expr: SymExpr, names: dict[SymExpr, str]) -> SymExpr:
    if expr in names:
        return dim(names[expr])
    total = ZERO
    for monomial, coefficient in expr.terms:
        if not monomial:
            total = total + coefficient
            continue
        positive = SymExpr(((monomial, 1),))
        total = total + (dim(names[positive]) if positive in names else -dim(names[-positive])) * coefficient
    return total


def _size_param(name: str, expr: SymExpr, is_extent: bool, env: ShapeEnv) -> SizeParam:
    low, high = env.bounds(expr)
    if is_extent:
        low = max(low or 0, 0)
    divisor = next(d for d in (64, 32, 16, 8, 4, 2, 1) if env.prove_divides(d, expr))
    if (own := expr.as_dim()) is not None and own.name in env.ranges:
        divisor = lcm(divisor, env.ranges[own.name].divisor)  # what is declared may be what it is divided by
    return SizeParam(name, UNBOUNDED if low is None else low, divisor, None if high is None else min(high, GREATEST))


def _bounded(size: SizeParam, facts: Sequence[Fact]) -> SizeParam:
    """A size with what facts say of it alone: 16 rounded up to a multiple of something is at least 16."""
    least = [n for f in facts if f.relation == "<=" and f.right == dim(size.name) and (n := f.left.as_int()) is not None]
    low = -(-max(size.lo, *least) // size.divisor) * size.divisor if least else size.lo
    return replace(size, lo=low)
