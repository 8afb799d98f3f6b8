"""Straight Plans by their parts: what is checked, launched and copied, one after the other; and interfaces of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from tsc.runtime.executable import Executable
from tsc.runtime.interface import BufferUse, KernelInterface
from tsc.runtime.interpret import Run
from tsc.runtime.package import Package
from tsc.runtime.places import binds_of
from tsc.runtime.plan import HOST, Axis, Bind, Call, Copy, Element, Eval, Launch, Plan, Step, Storage, TensorSpec, Variant
from tsc.sym import ONE, ZERO, Guard, Range, SymExpr


def straight(inputs: Sequence[TensorSpec] = (), outputs: Sequence[TensorSpec] = (), ranges: dict[str, Range] | None = None,
             guards: Sequence[Guard] = (), storages: Sequence[Storage] = (), constants: Sequence[str] = (),
             launches: Sequence[Launch] = (), copies: Sequence[Copy] = (), arena_bytes: SymExpr = ZERO) -> Plan:
    """A Plan without regions, its dims in the order of `ranges`."""
    binds = sorted(binds_of(inputs, ranges or {}), key=lambda bind: list(ranges or {}).index(bind.name))
    return Plan(tuple(inputs), tuple(outputs), tuple(storages), tuple(constants), {HOST: arena_bytes},
                (*binds, *guards, *launches, *copies))


def plan_of(package: Package) -> Plan:
    """The Plan of a Package for one target."""
    (plan,) = package.plans.values()
    return plan


def counts_of(package: Package, feeds: Mapping[str, Any]) -> dict[str, int]:
    """The names of a Plan that only the data tell, at these: a run finds them. Raises what `Executable.run` does."""
    if not any(map(_is_told, plan_of(package).body)):
        return {}
    found: dict[str, int] = {}
    read = Run._read

    def reading(run: Run, bind: Bind, source: Element) -> int:
        found[bind.name] = read(run, bind, source)
        return found[bind.name]

    with mock.patch.object(Run, "_read", reading):
        Executable(package).run(None, feeds)
    return found


def settled(package: Package, counts: Mapping[str, int]) -> Package:
    """A Package whose Plan is straight, since what the data told is said in it."""
    plan = plan_of(package)
    return with_plan(package, replace(plan, body=tuple(
        Eval(step.name, SymExpr.of(counts[step.name])) if isinstance(step, Bind) and _is_told(step) else step
        for step in plan.body))) if counts else package


def _is_told(step: Step) -> bool:
    return isinstance(step, Bind) and isinstance(step.source, Element)


def with_plan(package: Package, plan: Plan) -> Package:
    """A Package with another Plan for each of its targets."""
    return replace(package, plans=dict.fromkeys(package.plans, plan))


def changed(plan: Plan, **changes: Any) -> Plan:
    """A straight Plan with other parts, by the names that `straight` has for them."""
    binds = [step for step in plan.body if isinstance(step, Bind) and isinstance(step.source, Axis)]
    for name, known in changes.pop("ranges", {}).items():
        binds = [replace(bind, range=known) if bind.name == name else bind for bind in binds]
    named = [changes.pop(name, getattr(plan, name)) for name in ("guards", "launches", "copies")]
    parts: list[Sequence[Step]] = [binds, *named]
    if "arena_bytes" in changes:
        changes["arenas"] = {HOST: changes.pop("arena_bytes")}
    return replace(plan, body=tuple(step for part in parts for step in part), **changes)


def interface(function: str, *buffers: tuple[str, SymExpr, bool], sizes: tuple[str, ...] = (), blocks: SymExpr = ONE,
              scratch: SymExpr = ZERO) -> KernelInterface:
    """One Variant; buffers are (dtype, elements, written); sizes may be 0 and more."""
    uses = tuple(BufferUse(dtype, count * np.dtype(dtype).itemsize, written) for dtype, count, written in buffers)
    return KernelInterface(
        uses, tuple((name, Range(0)) for name in sizes), (), (one_call(function, blocks, len(uses), scratch),))


def one_call(function: str, blocks: SymExpr, buffers: int, scratch: SymExpr = ZERO) -> Variant:
    """A Variant of one Call, of all of the kernel's buffers."""
    return Variant((Call(function, blocks, tuple(range(buffers)), scratch),))


def launched(kernel: str, args: tuple[int, ...], sizes: tuple[SymExpr, ...], blocks: SymExpr, scratch: SymExpr, *more: Any,
             **others: Any) -> Launch:
    """A Launch of the one Variant of a kernel, a function of its name."""
    return Launch(kernel, args, sizes, (one_call(kernel, blocks, len(args), scratch),), *more, **others)


def with_calls(launch: Launch, **changes: Any) -> Launch:
    """Other blocks, arguments or scratch, or another function."""
    return replace(launch, variants=tuple(
        replace(variant, calls=tuple(replace(call, **changes) for call in variant.calls)) for variant in launch.variants))
