"""Dividing axes, the inverse of collapsing: where a target is read at quotients and remainders of an axis, by constants or
sizes, the axis becomes several. So does an axis of a sum of products whose groups share an operand (a grouped convolution):
what is left of it within a group is then an axis of one operand alone, as in any contraction.

A window partition reads `acc[4 * b + i // 64, i // 16 % 4, ..]`: with `i` divided into parts of 4, 4, 4 and 4 it permutes axes.
What the parts are is read off the accesses; the memory of a divided target is the same, row-major.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, exact_quotient, product
from tsc.te.compute import SUM, Axis, Compute, Program
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, as_size, call, index, loads, map_children, mul, substitute, walk
from tsc.te.linear import Linear, Ranges, linear, simplify, within

#: Groups stay as they are where fewer than `SHARED` results share an operand, of which up to `SMALL_SUM` elements are summed:
#: a panel costs more than it saves then.
SHARED, SMALL_SUM = 8, 64


@dataclass(frozen=True, slots=True)
class _Cut:
    """Axis `axis` of a Compute becomes two: quotient and remainder by `size`, which divides its extent."""

    compute: str
    axis: Axis
    size: SymExpr


_Finder = Callable[[Program, ShapeEnv], list[_Cut]]


def divide(program: Program, env: ShapeEnv) -> Program:
    """`program` with axes divided until no target is read at quotients or remainders of one, as far as that is possible; then
    the targets that are read at `a * size + b` of the new axes are divided in the same way."""
    divided = _exhausted(program, env, lambda p, e: [*_from_divisions(p, e), *_from_groups(p, e)])
    if divided is program:
        return program
    return _exhausted(divided, env, lambda p, e: [*_from_divisions(p, e), *_from_sums(p, e)])


def _exhausted(program: Program, env: ShapeEnv, find: _Finder) -> Program:
    changed = True
    while changed:
        changed = False
        for cut in sorted(find(program, env), key=_coarseness):  # coarse cuts first: what is left is a smaller division
            made = _applied(program, cut, env)
            if made is not None:
                program, changed = made, True
                break
    return program


def _coarseness(cut: _Cut) -> tuple[bool, int]:
    size = cut.size.as_int()
    return size is not None, -(size or 0)


# -- finding cuts ----------------------------------------------------------------------------------------------

def _from_divisions(program: Program, env: ShapeEnv) -> list[_Cut]:
    return [_Cut(compute.name, axis, size) for compute, load in _target_loads(program)
            for axis, size in _divisions(compute, load) if env.prove_le(1, size)]


def _from_groups(program: Program, env: ShapeEnv) -> list[_Cut]:
    """The axes of sums of products at whose quotients an operand's groups are read, elements of them being summed."""
    return [_Cut(compute.name, axis, size) for compute in program.computes if compute.monoid == SUM
            for load in loads(compute.body) for axis, size in _divisions(compute, load, {a.name for a in compute.reduce_axes})
            if (many := size.as_int()) is not None and (many >= SHARED or not _is_small(compute))]


def _is_small(compute: Compute) -> bool:
    elements = product(a.extent for a in compute.reduce_axes).as_int()
    return elements is not None and elements <= SMALL_SUM


def _target_loads(program: Program) -> Iterator[tuple[Compute, Load]]:
    targets = {c.name for c in program.computes}
    for compute in program.computes:
        yield from ((compute, load) for load in loads(compute.body) if load.buffer.name in targets)


def _divisions(compute: Compute, load: Load, beside: Collection[str] = ()) -> Iterator[tuple[Axis, SymExpr]]:
    """The axes at whose quotients or remainders `load` reads, with the divisors; only where axes `beside` are added, if any."""
    axes = {a.name: a for a in (*compute.axes, *compute.reduce_axes)}
    added = [p for p in load.index if not beside or any(isinstance(n, Var) and n.name in beside for n in walk(p))]
    for node in (node for position in added for node in walk(position)):
        match node:
            case Call(fn="floordiv" | "mod", args=(Var(name=name), divisor)) if name in axes:
                size = as_size(divisor)
                if size is not None and _cuts(axes[name].extent, size):
                    yield axes[name], size


def _from_sums(program: Program, env: ShapeEnv) -> list[_Cut]:
    computes = {c.name: c for c in program.computes}
    found = []
    for reader, load in _target_loads(program):
        ranges = _ranges(reader, env)
        for axis, position in zip(computes[load.buffer.name].axes, load.index):
            form = linear(position)
            for size in {c for _, c in form.terms if c.as_int() is not None}:
                if _cuts(axis.extent, size) and within(_rest(form, size), size, ranges):
                    found.append(_Cut(load.buffer.name, axis, size))
    return found


def _rest(form: Linear, size: SymExpr) -> Linear:
    return Linear(tuple((a, c) for a, c in form.terms if c % size != ZERO), form.constant)


def _cuts(extent: SymExpr, size: SymExpr) -> bool:
    return size != ONE and extent != size and (size.as_int() or 2) > 1 and exact_quotient(extent, size) is not None


# -- making one cut --------------------------------------------------------------------------------------------

def _applied(program: Program, cut: _Cut, env: ShapeEnv) -> Program | None:
    """The Program after a cut; None when a reader of the target would have to divide something else than an axis."""
    outer, inner = (Axis(f"{cut.axis.name}/{cut.size}", exact_quotient(cut.axis.extent, cut.size) or ZERO),
                    Axis(f"{cut.axis.name}%{cut.size}", cut.size))
    computes = {c.name: c for c in program.computes}
    owner = computes[cut.compute]
    if owner.along == cut.axis.name:
        return None
    whole: Expr = add(mul(Var(outer.name), index(cut.size)), Var(inner.name))
    dim = owner.axes.index(cut.axis) if cut.axis in owner.axes else None

    def replaced(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(part for axis in axes for part in ((outer, inner) if axis == cut.axis else (axis,)))

    def reshaped(buffer: Buffer) -> Buffer:
        if dim is None or buffer.name != owner.name:
            return buffer
        return replace(buffer, shape=(*buffer.shape[:dim], outer.extent, inner.extent, *buffer.shape[dim + 1:]))

    def read(expr: Expr) -> Expr:
        expr = map_children(read, expr)
        if dim is None or not isinstance(expr, Load) or expr.buffer.name != owner.name:
            return expr
        parts = (call(fn, expr.index[dim], index(cut.size)) for fn in ("floordiv", "mod"))
        return Load(reshaped(expr.buffer), (*expr.index[:dim], *parts, *expr.index[dim + 1:]))

    result = []
    for compute in program.computes:
        body = read(substitute(compute.body, {cut.axis.name: whole}) if compute is owner else compute.body)
        made = replace(compute, target=reshaped(compute.target), axes=replaced(compute.axes), body=body,
                       reduce_axes=replaced(compute.reduce_axes))
        made = replace(made, body=simplify(body, _ranges(made, env)))
        if _awkward(made, owner.name) and not _awkward(compute, owner.name):
            return None
        result.append(made)
    return replace(program, computes=tuple(result), outputs=tuple(map(reshaped, program.outputs)))


def _ranges(compute: Compute, env: ShapeEnv) -> Ranges:
    return Ranges({a.name: a.extent for a in (*compute.axes, *compute.reduce_axes)}, env)


def _awkward(compute: Compute, target: str) -> bool:
    """Whether `target` is read at a quotient or remainder of something else than one axis."""
    indices = [position for load in loads(compute.body) if load.buffer.name == target for position in load.index]
    return any(isinstance(node, Call) and node.fn in ("floordiv", "mod") and not isinstance(node.args[0], Var)
               for position in indices for node in walk(position))
