"""Plan: what an Executable does for any shape. Types only, with their JSON form; all sizes are SymExprs of the input Dims."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tsc.runtime import schema
from tsc.sym import ZERO, Guard, Range, SymExpr

PLAN_VERSION = 3
#: No Plan has more storages or launches; nor more inputs, outputs, dims or guards.
MAX_STEPS, MAX_NAMES = 1 << 16, 1 << 12

Kind = Literal["input", "output", "constant", "arena"]


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

    kind: Kind
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


def plan_from_json(data: Any) -> Plan:
    """The Plan that `plan_to_json` described. Raises ValueError saying what is malformed; what the parts say of each other is
    left to `check.check_plan`."""
    known = schema.table(data, "the plan", ("version", *(f.name for f in fields(Plan))))
    if known["version"] != PLAN_VERSION:
        raise ValueError(f"plan version {schema.shown(known['version'])}, expected {PLAN_VERSION}")
    names = ("inputs", "outputs", "guards", "storages", "launches", "copies")
    lists = {name: schema.items(known[name], name) for name in names}
    ranges = schema.table(known["ranges"], "ranges")
    for name, rows in (*lists.items(), ("ranges", ranges)):
        if len(rows) > (MAX_STEPS if name in ("storages", "launches") else MAX_NAMES):
            raise ValueError(f"it has {len(rows)} {name}, more than any model")
    return Plan(
        inputs=tuple(map(_spec_from_json, lists["inputs"])),
        outputs=tuple(map(_spec_from_json, lists["outputs"])),
        ranges={name: schema.limits(values, f"the range of '{name}'") for name, values in ranges.items()},
        guards=tuple(map(_guard_from_json, lists["guards"])),
        storages=tuple(map(_storage_from_json, lists["storages"])),
        constants=schema.texts(known["constants"], "constants"),
        launches=tuple(map(_launch_from_json, lists["launches"])),
        copies=tuple(map(_copy_from_json, lists["copies"])),
        arena_bytes=schema.size(known["arena_bytes"], "arena_bytes"),
    )


def _guard_from_json(data: Any) -> Guard:
    relation, left, right, reason = schema.items(data, "a guard", 4)
    if relation not in ("==", "<="):
        raise ValueError(f"a guard's relation is {schema.shown(relation)}")
    return Guard(relation, schema.size(left, "a guard"), schema.size(right, "a guard"), schema.text(reason, "a guard's reason"))


def _storage_from_json(data: Any) -> Storage:
    kind, index, offset, size = schema.items(data, "a storage", 4)
    if kind not in get_args(Kind):
        raise ValueError(f"a storage's kind is {schema.shown(kind)}")
    return Storage(kind, schema.whole(index, "a storage's index"), schema.size(offset, "a storage's offset"),
                   schema.size(size, "a storage's bytes"))


def _launch_from_json(data: Any) -> Launch:
    x = schema.table(data, "a launch", [f.name for f in fields(Launch)])
    args = tuple(schema.whole(a, "an argument") for a in schema.items(x["args"], "arguments"))
    return Launch(
        schema.text(x["kernel"], "a kernel"), args,
        tuple(schema.size(s, "a kernel's size") for s in schema.items(x["sizes"], "a kernel's sizes")),
        schema.size(x["blocks"], "blocks"), schema.size(x["scratch"], "scratch"), schema.text(x["node"], "a node"),
        schema.texts(x["messages"], "messages"), schema.texts(x["nodes"], "nodes"))


def _copy_from_json(data: Any) -> Copy:
    source, target, size = schema.items(data, "a copy", 3)
    return Copy(schema.whole(source, "a copy's source"), schema.whole(target, "a copy's target"),
                schema.size(size, "a copy's bytes"))


def _spec_to_json(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.dtype, [str(s) for s in spec.shape]]


def _spec_from_json(data: Any) -> TensorSpec:
    name, dtype, shape = schema.items(data, "an input or output", 3)
    what = f"'{schema.text(name, 'a name')}'"
    return TensorSpec(name, schema.dtype(dtype, f"the dtype of {what}"), schema.shape(shape, f"the shape of {what}"))
