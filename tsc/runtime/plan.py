"""Plan: what an Executable does for any shape. Types only, with their JSON form; all sizes are SymExprs of the input Dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tsc.sym import ZERO, Guard, Range, SymExpr, parse

PLAN_VERSION = 3


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A named model input or output."""

    name: str
    dtype: str
    shape: tuple[SymExpr, ...]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a value lives: the feed or result number `index`, constant number `index`, or `bytes` bytes of the arena from
    `offset` on. Only the arena's need both."""

    kind: Literal["input", "output", "constant", "arena"]
    index: int = 0
    offset: SymExpr = ZERO
    bytes: SymExpr = ZERO


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel call. `args` index `Plan.storages`; `sizes` are the kernel's integer parameters in order; `blocks` its block
    count; `scratch` the bytes each worker needs; `messages[i]` is the data error that status code i+1 stands for; `nodes` are
    all that the kernel computes, `node` the one that it is named after."""

    kernel: str
    args: tuple[int, ...]
    sizes: tuple[SymExpr, ...]
    blocks: SymExpr
    scratch: SymExpr
    node: str
    messages: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """An output that no kernel writes: a copy of another storage (an input or a constant passed through)."""

    source: int
    target: int
    bytes: SymExpr


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything needed to run: names and types, the facts to check, the memory plan, and the launches in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: dict[str, Range]
    guards: tuple[Guard, ...]
    storages: tuple[Storage, ...]
    constants: tuple[str, ...]
    launches: tuple[Launch, ...]
    copies: tuple[Copy, ...]
    arena_bytes: SymExpr


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A JSON-ready dict; `plan_from_json` reads it back to an equal Plan."""
    return {
        "version": PLAN_VERSION,
        "inputs": [_spec_to_json(s) for s in plan.inputs],
        "outputs": [_spec_to_json(s) for s in plan.outputs],
        "ranges": {name: [r.lo, r.hi, r.divisor] for name, r in plan.ranges.items()},
        "guards": [[g.relation, str(g.left), str(g.right), g.reason] for g in plan.guards],
        "storages": [[s.kind, s.index, str(s.offset), str(s.bytes)] for s in plan.storages],
        "constants": list(plan.constants),
        "launches": [
            {"kernel": x.kernel, "args": list(x.args), "sizes": [str(s) for s in x.sizes], "blocks": str(x.blocks),
             "scratch": str(x.scratch), "node": x.node, "messages": list(x.messages),
             "nodes": list(x.nodes)} for x in plan.launches],
        "copies": [[c.source, c.target, str(c.bytes)] for c in plan.copies],
        "arena_bytes": str(plan.arena_bytes),
    }


def plan_from_json(data: dict[str, Any]) -> Plan:
    """The Plan that `plan_to_json` described. Raises KeyError, TypeError or ValueError on malformed data."""
    if data["version"] != PLAN_VERSION:
        raise ValueError(f"plan version {data['version']}, expected {PLAN_VERSION}")
    return Plan(
        inputs=tuple(map(_spec_from_json, data["inputs"])),
        outputs=tuple(map(_spec_from_json, data["outputs"])),
        ranges={name: Range(*values) for name, values in data["ranges"].items()},
        guards=tuple(Guard(rel, parse(a), parse(b), reason) for rel, a, b, reason in data["guards"]),
        storages=tuple(Storage(kind, index, parse(offset), parse(size))
                       for kind, index, offset, size in data["storages"]),
        constants=tuple(data["constants"]),
        launches=tuple(
            Launch(x["kernel"], tuple(x["args"]), tuple(map(parse, x["sizes"])), parse(x["blocks"]), parse(x["scratch"]),
                   x["node"], tuple(x["messages"]), tuple(x["nodes"])) for x in data["launches"]),
        copies=tuple(Copy(source, target, parse(size)) for source, target, size in data["copies"]),
        arena_bytes=parse(data["arena_bytes"]),
    )


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.dtype, [str(s) for s in spec.shape]]


def _spec_from_json(data: list[Any]) -> TensorSpec:
    name, dtype, shape = data
    return TensorSpec(name, dtype, tuple(map(parse, shape)))
