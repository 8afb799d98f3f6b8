"""That every element which a user's definition reads exists: proved by isl before anything is scheduled."""

from __future__ import annotations

from collections.abc import Sequence

from tsc.errors import ModelError, ShapeError
from tsc.poly.deps import too_early
from tsc.poly.scop import build_scop, escapes
from tsc.sym import ShapeEnv
from tsc.te.compute import Program, runs
from tsc.te.dsl.assemble import Definition
from tsc.te.expr import loads
from tsc.te.passes.transform import canonical


def check_reads(definitions: Sequence[Definition], env: ShapeEnv, where: str = "") -> None:
    """Raise ShapeError, with the user's line and an example, for a read that can leave its tensor's extents, and ModelError for
    one in a recurrence of what is made in a later trip.

    `where` is named first: the node that the definitions are of.
    """
    start = f"{where}: " if where else ""
    for definition in definitions:
        _check_extents(definition, env, start)
    _check_trips(definitions, env, start)


def _check_trips(definitions: Sequence[Definition], env: ShapeEnv, start: str) -> None:
    by_name = {d.compute.name: d for d in definitions}
    for group in runs(d.compute for d in definitions):
        if group[0].carried is None:
            continue
        program = canonical(Program((), tuple(c.target for c in group), group, ()), env).program
        own = {made.name: by_name[c.name] for made, c in zip(program.computes, group)}
        for statement, buffer in too_early(build_scop(program)):
            found = own[statement.compute.name]
            text, place = next(
                read for read, load in zip(found.reads, loads(statement.compute.body)) if load.buffer.name == buffer.name)
            raise ModelError(f"{start}{place}: {text} is not there yet when the element of '{found.compute.name}' is made of "
                             "it; read what earlier trips made of a state")


def _check_extents(definition: Definition, env: ShapeEnv, start: str) -> None:
    compute = definition.compute
    renamed = canonical(Program((), (compute.target,), (compute,), ()), env)
    for found, number, example in escapes(renamed.program):
        axes = zip((*found.axes, *found.reduce_axes), (*compute.axes, *compute.reduce_axes))
        names = {s: str(expr) for s, expr in renamed.sizes.items()} | {a.name: old.name.rpartition(".")[2] for a, old in axes}
        text, place = definition.reads[number]
        at = ", ".join(f"{names[name]} = {value}" for name, value in example.items())
        raise ShapeError(f"{start}{place}: {text} reads outside the tensor, for example at {at}; correct the index, or guard "
                         "it with te.where over a condition of indices and sizes")
