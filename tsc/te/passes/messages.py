"""The data errors of a Program: what a CheckedIndex that fails means, and the status codes of a kernel, the same for whatever
loops compute it.

A message names inputs and sizes as `{t0}` and `{s0}`: a kernel serves many calls, and each fills in its own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tsc.sym import dim
from tsc.te.compute import Program
from tsc.te.expr import CheckedIndex, Expr, loads, map_children, walk


def with_messages(program: Program) -> Program:
    """`program`, in which every CheckedIndex says what its failure means."""
    sources: dict[str, tuple[str, ...]] = {b.name: (b.name,) for b in program.inputs}  # the inputs that a value is made from
    computes = []
    for compute in program.computes:
        computes.append(replace(compute, body=_explained(compute.body, sources)))
        sources[compute.name] = _inputs(compute.body, sources)
    return replace(program, computes=tuple(computes))


def messages_of(program: Program) -> tuple[str, ...]:
    """What the CheckedIndexes of `program` say, in order of appearance: status code i+1 of its kernel is the i-th of them."""
    found = (node.what for compute in program.computes for node in walk(compute.body) if isinstance(node, CheckedIndex))
    return tuple(dict.fromkeys(found))


def _explained(expr: Expr, sources: Mapping[str, tuple[str, ...]]) -> Expr:
    inner = map_children(lambda part: _explained(part, sources), expr)
    return replace(inner, what=_message(inner, sources)) if isinstance(inner, CheckedIndex) else inner


def _message(check: CheckedIndex, sources: Mapping[str, tuple[str, ...]]) -> str:
    holder = " and ".join(f"'{{{name}}}'" for name in _inputs(check.value, sources)) or check.what
    size = check.extent.as_int()
    if size is not None:
        return f"{holder} holds an index that is out of bounds; give indices from {-size} to {size - 1}"
    extent = check.extent.substitute({name: dim(f"{{{name}}}") for name in check.extent.dims()})
    return f"{holder} holds an index that is out of bounds; give indices from -({extent}) to {extent} - 1"


def _inputs(expr: Expr, sources: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for load in loads(expr) for name in sources.get(load.buffer.name, ())))
