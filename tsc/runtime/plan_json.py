"""The JSON form of a Plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

from tsc.runtime import schema
from tsc.runtime.cost import Cost, cost_from_json, cost_to_json
from tsc.runtime.plan import (
    MAX_CALLS,
    MAX_NAMES,
    MAX_NESTING,
    MAX_SHARED,
    MAX_STEPS,
    MAX_THREADS,
    MAX_VARIANTS,
    PLAN_VERSION,
    Axis,
    Bind,
    Call,
    Carried,
    Copy,
    Element,
    Eval,
    If,
    Kind,
    Launch,
    Loop,
    Plan,
    Region,
    Step,
    Storage,
    TensorSpec,
    Variant,
    steps_of,
)
from tsc.sym import Guard, Range, SymExpr

_STEPS: dict[str, type[Step]] = {kind.__name__.lower(): kind for kind in (Bind, Eval, Guard, Launch, Copy, If, Loop)}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A JSON-ready dict; `plan_from_json` reads it back to an equal Plan."""
    return {"version": PLAN_VERSION} | {f.name: _plain(getattr(plan, f.name)) for f in fields(Plan)}


def _plain(value: Any) -> Any:
    """Expressions as text, steps as tables with their kind, other dataclasses as lists of their fields."""
    match value:
        case SymExpr():
            return str(value)
        case Cost():
            return cost_to_json(value)
        case tuple():
            return [_plain(v) for v in value]
        case dict():
            return {key: _plain(v) for key, v in value.items()}
        case Bind() | Eval() | Guard() | Launch() | Copy() | If() | Loop():
            return {"step": type(value).__name__.lower()} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
        case Axis() | Element() | Storage() | TensorSpec() | Carried() | Range() | Variant() | Call():
            return [_plain(getattr(value, f.name)) for f in fields(value)]
    return value


def plan_from_json(data: Any) -> Plan:
    """The Plan that `plan_to_json` described. Raises ValueError saying what is malformed; what the parts say of each other is
    left to `check.check_plan`."""
    version = schema.table(data, "the plan").get("version")
    if version != PLAN_VERSION:
        raise ValueError(f"plan version {schema.shown(version)}, expected {PLAN_VERSION}")
    known = schema.table(data, "the plan", ("version", *(f.name for f in fields(Plan))))
    lists = {name: schema.items(known[name], name) for name in ("inputs", "outputs", "storages", "constants")}
    arenas = schema.table(known["arenas"], "arenas")
    for name, rows in (*lists.items(), ("arenas", arenas)):
        if len(rows) > (MAX_STEPS if name in ("storages", "constants") else MAX_NAMES):
            raise ValueError(f"it has {len(rows)} {name}, more than any model")
    plan = Plan(
        inputs=tuple(map(_spec, lists["inputs"])),
        outputs=tuple(map(_spec, lists["outputs"])),
        storages=tuple(map(_storage, lists["storages"])),
        constants=schema.texts(known["constants"], "constants"),
        arenas={space: schema.size(size, f"the arena of '{space}'") for space, size in arenas.items()},
        body=_region(known["body"], "the plan's body", MAX_NESTING))
    if sum(1 for _ in steps_of(plan.body)) > MAX_STEPS:
        raise ValueError(f"it has more than {MAX_STEPS} steps, more than any model")
    return plan


def _region(data: Any, what: str, levels: int) -> Region:
    if levels == 0:
        raise ValueError(f"{what} is nested deeper than {MAX_NESTING} regions")
    rows = schema.items(data, what)
    if len(rows) > MAX_STEPS:
        raise ValueError(f"{what} has {len(rows)} steps, more than any model")
    return tuple(_step(row, levels) for row in rows)


def _step(data: Any, levels: int) -> Step:
    name = schema.table(data, "a step").get("step")
    kind = _STEPS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"a step is {schema.shown(name)}, expected one of {', '.join(_STEPS)}")
    x = schema.table(data, f"a step '{name}'", ("step", *(f.name for f in fields(kind))))
    if kind is If:
        condition = x["condition"] if isinstance(x["condition"], str) else _element(x["condition"])
        return If(condition, *(_region(x[branch], "a branch", levels - 1) for branch in ("then", "otherwise")))
    if kind is Loop:
        return Loop(schema.text(x["index"], "a loop's index"), schema.size(x["trips"], "a loop's trips"),
                    _region(x["body"], "a loop's body", levels - 1),
                    tuple(map(_carried, schema.items(x["carried"], "what a loop carries"))),
                    None if x["condition"] is None else _element(x["condition"]),
                    tuple(schema.whole(s, "a storage") for s in schema.items(x["filled"], "what a loop fills")))
    return _PLAIN_STEPS[kind](x)


def _bind(x: dict[str, Any]) -> Bind:
    source = x["source"]
    axis = isinstance(source, list) and len(source) == 2
    name = schema.text(x["name"], "a name")
    return Bind(name, Axis(*(schema.whole(part, "an axis") for part in source)) if axis else _element(source),
                schema.limits(x["range"], f"the range of '{name}'"),
                None if x["bound"] is None else schema.size(x["bound"], f"the bound of '{name}'"),
                schema.text(x["reason"], "a reason"))


def _eval(x: dict[str, Any]) -> Eval:
    return Eval(schema.text(x["name"], "a name"), schema.size(x["value"], "a value"))


def _guard(x: dict[str, Any]) -> Guard:
    if x["relation"] not in ("==", "<="):
        raise ValueError(f"a guard's relation is {schema.shown(x['relation'])}")
    return Guard(x["relation"], schema.size(x["left"], "a guard"), schema.size(x["right"], "a guard"),
                 schema.text(x["reason"], "a guard's reason"))


def _launch(x: dict[str, Any]) -> Launch:
    return Launch(
        schema.text(x["kernel"], "a kernel"), _numbers(x["args"], "an argument"),
        tuple(schema.size(s, "a kernel's size") for s in schema.items(x["sizes"], "a kernel's sizes")),
        variants_from_json(x["variants"]), schema.text(x["node"], "a node"), schema.texts(x["messages"], "messages"),
        schema.texts(x["nodes"], "nodes"), schema.text(x["device"], "a device"), _after(x["after"]),
        _numbers(x["temporaries"], "a temporary"))


def variants_to_json(variants: tuple[Variant, ...]) -> Any:
    """A JSON-ready list that `variants_from_json` reads back."""
    return _plain(variants)


def variants_from_json(value: Any) -> tuple[Variant, ...]:
    """The Variants of a kernel, one at least, all calls of functions of their own."""
    found = tuple(map(_variant, schema.items(value, "a kernel's variants")))
    functions = [call.function for variant in found for call in variant.calls]
    if not 0 < len(found) <= MAX_VARIANTS or len(functions) > len(set(functions)):
        raise ValueError(f"a kernel has {len(found)} variants, expected 1 to {MAX_VARIANTS} of different functions")
    return found


def _variant(data: Any) -> Variant:
    calls, temporaries = (schema.items(part, "a part of a variant") for part in schema.items(data, "a variant", 2))
    if not 0 < len(calls) <= MAX_CALLS or len(temporaries) > MAX_CALLS:
        raise ValueError(f"a variant has {len(calls)} calls and {len(temporaries)} temporaries, expected 1 to {MAX_CALLS}")
    return Variant(tuple(map(_call, calls)), tuple(schema.size(t, "a temporary") for t in temporaries))


def _call(data: Any) -> Call:
    function, blocks, args, scratch, cost, threads, shared = schema.items(data, "a call", 7)
    return Call(schema.text(function, "a function"), schema.size(blocks, "blocks"), _numbers(args, "a call's argument"),
                schema.size(scratch, "scratch"), cost_from_json(cost), schema.whole(threads, "threads", 1, MAX_THREADS),
                schema.whole(shared, "shared bytes", 0, MAX_SHARED))


def _copy(x: dict[str, Any]) -> Copy:
    return Copy(schema.whole(x["source"], "a copy's source"), schema.whole(x["target"], "a copy's target"),
                schema.size(x["bytes"], "a copy's bytes"), _after(x["after"]),
                schema.size(x["at"], "where a copy begins"))


_PLAIN_STEPS: dict[type[Step], Callable[[dict[str, Any]], Step]] = {
    Bind: _bind, Eval: _eval, Guard: _guard, Launch: _launch, Copy: _copy}


def _after(value: Any) -> tuple[int, ...] | None:
    return None if value is None else _numbers(value, "a step to wait for")


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    return tuple(schema.whole(v, what) for v in schema.items(value, f"{what} list"))


def _carried(data: Any) -> Carried:
    start, current, following = schema.items(data, "what a loop carries", 3)
    return Carried(*(schema.whole(s, "a storage") for s in (start, current, following)))


def _element(data: Any) -> Element:
    storage, dtype, index = schema.items(data, "an element", 3)
    return Element(schema.whole(storage, "a storage"), schema.dtype(dtype, "an element's dtype"),
                   schema.size(index, "an element's index"))


def _storage(data: Any) -> Storage:
    kind, index, offset, size, space = schema.items(data, "a storage", 5)
    if kind not in get_args(Kind):
        raise ValueError(f"a storage's kind is {schema.shown(kind)}")
    return Storage(kind, schema.whole(index, "a storage's index"), schema.size(offset, "a storage's offset"),
                   schema.size(size, "a storage's bytes"), schema.text(space, "a storage's memory"))


def _spec(data: Any) -> TensorSpec:
    name, dtype, shape, contents, steps = schema.items(data, "an input or output", 5)
    what = f"'{schema.text(name, 'a name')}'"
    told = schema.items(contents, f"the contents of {what}")
    if len(told) > MAX_NAMES:
        raise ValueError(f"{what} has {len(told)} elements that sizes depend on, more than any model")
    return TensorSpec(name, schema.dtype(dtype, f"the dtype of {what}"), schema.shape(shape, f"the shape of {what}"),
                      tuple(schema.size(size, f"the contents of {what}") for size in told),
                      schema.whole(steps, f"the steps of {what}"))
