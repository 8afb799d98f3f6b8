"""What a notebook shows for an Executable: its inputs and outputs, memory, and its kernels with what flows between them."""

from __future__ import annotations

from tsc.draw import Box, chart, page, table
from tsc.runtime.package import Package
from tsc.runtime.plan import Launch, Plan, TensorSpec


def executable_html(package: Package, target: str, threads: int, peak: int | str) -> str:
    """One self-contained `div` with inline SVG, names escaped, of bounded size."""
    plan = package.plans[target]
    weights = sum(package.constants[name].nbytes for name in plan.constants)
    launches, kernels = len(plan.launches), len({x.kernel for x in plan.launches})
    rows = [("input", spec.name, _type(spec)) for spec in plan.inputs]
    rows += [("output", spec.name, _type(spec)) for spec in plan.outputs]
    rows += [("dim", name, str(known)) for name, known in plan.ranges.items()]
    return page(
        "tsc executable",
        [f"target {target}, {threads} threads", f"{launches} launches of {kernels} kernels",
         f"memory: weights {weights} bytes, peak {peak} bytes beside inputs and outputs"],
        [table(("", "name", "type"), rows), chart(*_flow(plan), "launches and outputs")])


def _type(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _flow(plan: Plan) -> tuple[list[Box], list[tuple[int, int]]]:
    """Inputs, launches and outputs as boxes, and from which to which values flow."""
    boxes = [Box(f"input {spec.name}", (_type(spec),), "input") for spec in plan.inputs]
    boxes += [_launch(plan, number, launch) for number, launch in enumerate(plan.launches)]
    # storage -> the box that it comes from
    made = {s: place.index for s, place in enumerate(plan.storages) if place.kind == "input"}
    edges: list[tuple[int, int]] = []
    for number, launch in enumerate(plan.launches, len(plan.inputs)):
        for storage in launch.args:  # who names a storage first writes it
            if plan.storages[storage].kind != "constant" and made.setdefault(storage, number) != number:
                edges.append((made[storage], number))
    copied = {c.target: c.source for c in plan.copies}
    for storage, place in enumerate(plan.storages):
        source = copied.get(storage, storage)
        if place.kind == "output" and source in made:
            edges.append((made[source], len(boxes) + place.index))
    return [*boxes, *(Box(f"output {spec.name}", (_type(spec),), "output") for spec in plan.outputs)], edges


def _launch(plan: Plan, number: int, launch: Launch) -> Box:
    others = [n for n in launch.nodes if n != launch.node]
    constants = sum(plan.storages[a].kind == "constant" for a in launch.args)
    lines = [f"node {launch.node}"]
    lines += [f"with {', '.join(others)}"] if others else []
    lines.append(f"sizes {', '.join(map(str, launch.sizes)) or 'none'}" + (f"; {constants} weights" if constants else ""))
    for call in launch.calls:
        scratch = f", scratch {call.scratch} bytes" if call.scratch.as_int() != 0 else ""
        lines.append(f"{call.blocks} blocks{scratch}")
    return Box(f"{number} {launch.kernel}", tuple(lines))
