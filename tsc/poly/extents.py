"""That every element which a user's definition reads exists: proved by isl before anything is scheduled."""

from __future__ import annotations

from tsc.errors import ShapeError
from tsc.poly.scop import escapes
from tsc.sym import ShapeEnv
from tsc.te.assemble import Definition
from tsc.te.compute import Program
from tsc.te.transform import canonical


def check_extents(definition: Definition, env: ShapeEnv, where: str = "") -> None:
    """Raise ShapeError, with the user's line and an example, for a read that can leave its tensor's extents.

    `where` is named first: the node that the definition is of.
    """
    compute = definition.compute
    renamed = canonical(Program((), (compute.target,), (compute,), ()), env)
    for found, number, example in escapes(renamed.program):
        axes = zip((*found.axes, *found.reduce_axes), (*compute.axes, *compute.reduce_axes))
        names = {s: str(expr) for s, expr in renamed.sizes.items()} | {a.name: old.name.rpartition(".")[2] for a, old in axes}
        text, place = definition.reads[number]
        at = ", ".join(f"{names[name]} = {value}" for name, value in example.items())
        start = f"{where}: {place}" if where else place
        raise ShapeError(f"{start}: {text} reads outside the tensor, for example at {at}; correct the index, or guard it with "
                         "te.where over a condition of indices and sizes")
