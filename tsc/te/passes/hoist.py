"""Hoisting: a factor or divisor that does not vary with the reduce axes leaves a sum.

`sum_k (e[k] / s) * v[k]` becomes `(sum_k e[k] * v[k]) / s`: exact over the reals; over floats it rounds once instead of once a
term. What a local was stored for alone is then read in its place, so that a softmax's exponentials are a contraction's operand
as they are and the division happens once an output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tsc.sym import ShapeEnv
from tsc.te.compute import SUM, Compute, Program
from tsc.te.expr import Call, Expr, Load, Var, call, loads, map_loads, substitute, walk

#: Floats wide enough that a sum before scaling cannot overflow where the scaled one did not, short of the type's own limits.
_WIDE = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Scaled:
    """`core`, then multiplied or divided by each of `scales` in turn; a scale is `(intrinsic, operand)`."""

    core: Expr
    scales: tuple[tuple[str, Expr], ...]


def hoist(program: Program, sums: Collection[str], env: ShapeEnv) -> Program:
    """`program` with every scale that does not vary with the reduce axes moved from the named sums to what reads them.

    A sum keeps its name; locals that only scaled another value for it are left unread. Sums that are outputs, that are no sums
    of wide floats, that may be empty (nothing divided by nothing is no zero), or whose terms have no such scale, stay as they
    are.
    """
    for name in sums:
        program = _hoisted(program, name, env)
    return program


def _hoisted(program: Program, name: str, env: ShapeEnv) -> Program:
    compute = next((c for c in program.computes if c.name == name), None)
    if (compute is None or compute.monoid != SUM or compute.carried is not None or compute.target.dtype not in _WIDE
            or compute.target in program.outputs or not all(env.prove_le(1, a.extent) for a in compute.reduce_axes)):
        return program
    reduced = {a.name for a in compute.reduce_axes}
    found = split_scales(_through_locals(program, compute, reduced), reduced)
    if not found.scales:
        return program
    axes = [a.name for a in compute.axes]

    def scaled(load: Load) -> Expr:
        if load.buffer.name != name:
            return load
        return apply_scales(load, found.scales, dict(zip(axes, load.index)))

    computes = (replace(compute, body=found.core) if c is compute else replace(c, body=map_loads(scaled, c.body))
                for c in program.computes)
    return replace(program, computes=tuple(computes))


def split_scales(expr: Expr, varying: Collection[str]) -> Scaled:
    """`expr` as a value that varies with the axes `varying`, scaled by what does not; without scales if nothing varies."""
    if not _varies(expr, varying):
        return Scaled(expr, ())
    match expr:
        case Call(fn="mul" | "div" as fn, args=(a, b)) if not _varies(b, varying) and b.dtype == expr.dtype:
            inner = split_scales(a, varying)
            return Scaled(inner.core, (*inner.scales, (fn, b)))
        case Call(fn="mul", args=(a, b)) if not _varies(a, varying) and a.dtype == expr.dtype:
            inner = split_scales(b, varying)
            return Scaled(inner.core, (*inner.scales, ("mul", a)))
        case Call(fn="mul", args=(a, b)) if expr.dtype in _WIDE:
            left, right = split_scales(a, varying), split_scales(b, varying)
            return Scaled(call("mul", left.core, right.core), (*left.scales, *right.scales))
        case Call(fn="div", args=(a, b)) if expr.dtype in _WIDE:
            inner = split_scales(a, varying)
            return Scaled(call("div", inner.core, b), inner.scales)
    return Scaled(expr, ())


def _through_locals(program: Program, compute: Compute, reduced: Collection[str]) -> Expr:
    """The sum's terms with each local read through that only scales another stored value, for this sum alone."""
    stored = {c.name: c for c in program.computes if c.target not in program.outputs and c.monoid is None and c.carried is None}
    reads = [load.buffer.name for c in program.computes for load in loads(c.body)]

    def through(load: Load) -> Expr:
        local = stored.get(load.buffer.name)
        if local is None or reads.count(local.name) != 1:
            return load
        body = substitute(local.body, dict(zip((a.name for a in local.axes), load.index)))
        found = split_scales(body, reduced)
        return body if found.scales and isinstance(found.core, Load) else load

    return map_loads(through, compute.body)


def apply_scales(value: Expr, scales: Sequence[tuple[str, Expr]], at: dict[str, Expr]) -> Expr:
    """`value` times or over each scale in turn, its variables replaced."""
    for fn, operand in scales:
        value = call(fn, value, substitute(operand, at))
    return value


def _varies(expr: Expr, varying: Collection[str]) -> bool:
    return any(isinstance(e, Var) and e.name in varying for e in walk(expr))
