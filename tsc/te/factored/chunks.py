"""Programs whose long axes are walked in chunks: two kernels of one, locals stored chunk by chunk, guards behind the end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tsc.sym import ZERO, SymExpr
from tsc.te.compute import SUM, Axis, Compute, Monoid, Program, needed
from tsc.te.expr import (
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Size,
    Var,
    add,
    call,
    index,
    loads,
    map_children,
    mul,
    select,
    substitute,
    variables,
    walk,
)
from tsc.te.passes.products import PRODUCTS


def cut(program: Program, names: Collection[str]) -> tuple[Program, Program]:
    """Two Programs, one to be run after the other: all that the targets `names` need, and the rest, which reads them."""
    first = needed(program.computes, names)
    second = tuple(c for c in program.computes if c not in first)
    read = {load.buffer.name for c in second for load in loads(c.body)}
    kept = tuple(c.target for c in first if c.name in read or c.target in program.outputs)
    rest = tuple(b for b in program.outputs if b not in kept)
    return _kernel(program, program.inputs, first, kept), _kernel(program, (*program.inputs, *kept), second, rest)


def _kernel(program: Program, inputs: tuple[Buffer, ...], computes: tuple[Compute, ...],
            outputs: tuple[Buffer, ...]) -> Program:
    read = {load.buffer.name for c in computes for load in loads(c.body)}
    inputs = tuple(b for b in inputs if b.name in read)
    used = {d for b in (*inputs, *outputs) for e in b.shape for d in e.dims()}
    used |= {d for c in computes for a in (*c.axes, *c.reduce_axes) for d in a.extent.dims()}
    used |= {d for c in computes for e in walk(c.body) if isinstance(e, Size) for d in e.value.dims()}
    return replace(program, inputs=inputs, outputs=outputs, computes=computes,
                   sizes=tuple(s for s in program.sizes if s.name in used))


# -- locals ----------------------------------------------------------------------------------------------------

def chunk_locals(program: Program) -> Program:
    """`program` with locals that are only read at `k*n + j`, element j of chunk k, stored as [chunk, ..., element]: a kernel
    whose rows include the chunk computes them where it reads them."""
    kept = {b.name for b in program.outputs}
    for compute in reversed(program.computes):
        if compute.name in kept:
            continue
        for position in range(len(compute.axes)):
            found = _chunks(program, compute, position)
            if found is not None:
                program = _chunked(program, compute, position, *found)
                break
    return program


def _chunks(program: Program, compute: Compute, position: int) -> tuple[SymExpr, int] | None:
    """How many chunks of which size all reads of one dim of a local walk in, None where some do not."""
    found: set[tuple[SymExpr, int]] = set()
    for reader in program.computes:
        extents = {a.name: a.extent for a in (*reader.axes, *reader.reduce_axes)}
        for load in loads(reader.body):
            if load.buffer.name != compute.name:
                continue
            match load.index[position]:
                case Call(fn="add", args=(Call(fn="mul", args=(Var(name=k), Const(value=size))), Var(name=j))) if (
                        k in extents and j in extents and extents[j] == SymExpr.of(int(size))):
                    found.add((extents[k], int(size)))
                case _:
                    return None
    return found.pop() if len(found) == 1 else None


def _chunked(program: Program, compute: Compute, position: int, chunks: SymExpr, size: int) -> Program:
    old = compute.axes[position]
    k, j = (Axis(unused(program, f"{old.name}_{part}"), e) for part, e in (("k", chunks), ("j", SymExpr.of(size))))
    place = add(mul(Var(k.name), index(size)), Var(j.name))
    body = substitute(compute.body, {old.name: place})
    if old.extent % size != ZERO:
        body = guarded(body, compute.monoid or SUM, call("lt", place, index(old.extent)), ())
    shape = compute.target.shape
    target = replace(compute.target, shape=(chunks, *shape[:position], SymExpr.of(size), *shape[position + 1:]))

    def moved(expr: Expr) -> Expr:
        inner = map_children(moved, expr)
        if not isinstance(inner, Load) or inner.buffer.name != compute.name:
            return inner
        at = inner.index[position]
        chunk, element = (at.args[0].args[0], at.args[1]) if isinstance(at, Call) and isinstance(at.args[0], Call) else (at, at)
        return Load(target, (chunk, *inner.index[:position], element, *inner.index[position + 1:]))

    axes = (k, *compute.axes[:position], j, *compute.axes[position + 1:])
    own = replace(compute, target=target, axes=axes, body=body)
    return replace(program, computes=tuple(
        own if c.name == compute.name else replace(c, body=moved(c.body)) for c in program.computes))


def guarded(body: Expr, monoid: Monoid, inside: Expr, whole: Collection[str]) -> Expr:
    """`body` where `inside` holds, else the monoid's identity. In a sum of products each factor that depends on it is guarded
    for itself, so that it stays one; `whole` are buffers that hold zeros behind the end."""
    names = variables(inside)

    def guard(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer.name in whole:
            return e
        if monoid == SUM and isinstance(e, Call) and e.fn in PRODUCTS and e.args[0] != e.args[1] and all(
                any(loads(a)) for a in e.args):
            return call(e.fn, *(
                guard(a) if any(isinstance(x, Var) and x.name in names for x in walk(a)) else a for a in e.args))
        return select(inside, e, Const(monoid.identity(e.dtype), e.dtype))

    return guard(body)


# -- shared ----------------------------------------------------------------------------------------------------

def unused(program: Program, name: str) -> str:
    """`name`, or what begins with it, unless the Program has it already."""
    taken = {b.name for b in program.inputs} | {s.name for s in program.sizes}
    taken |= {n for c in program.computes for n in (c.name, *(a.name for a in (*c.axes, *c.reduce_axes)))}
    while name in taken:
        name += "_"
    return name


def without_unread(program: Program) -> Program:
    """`program` without the Computes that nothing reads."""
    return replace(program, computes=needed(program.computes, (b.name for b in program.outputs)))
