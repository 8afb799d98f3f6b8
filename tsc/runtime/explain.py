"""The texts that describe an Executable: all of it (`explain`), or in few lines."""

from __future__ import annotations

from tsc.runtime.bind import Binding, format_spec
from tsc.runtime.package import Package
from tsc.runtime.plan import Launch, Plan
from tsc.sym import SymExpr


def explain(package: Package, target: str, threads: int, binding: Binding | None, peak: int | str) -> str:
    """Inputs, memory, guards, every launch, and the Decision log; expressions are evaluated when there is a `binding`."""
    plan = package.plan

    def number(expr: SymExpr) -> str:
        return str(expr if binding is None else expr.evaluate(binding.dims))

    weights = sum(array.nbytes for array in package.constants.values())
    at = "" if binding is None else " at " + ", ".join(f"{name}={size}" for name, size in binding.dims.items())
    lines = [f"tsc {package.version}, target {target}, {threads} threads{at}"]
    lines += [f"  input   {format_spec(spec)}" for spec in plan.inputs]
    lines += [f"  output  {format_spec(spec)}" for spec in plan.outputs]
    lines += [f"  dim     {name} in {known}" for name, known in plan.ranges.items()]
    lines += [f"  guard   {guard} ({guard.reason})" for guard in plan.guards]
    lines.append(f"  memory  weights {weights} bytes, arena {number(plan.arena_bytes)} bytes, peak {peak} bytes")
    lines.append(f"{len(plan.launches)} launches of {len({x.kernel for x in plan.launches})} kernels")
    for index, launch in enumerate(plan.launches):
        lines.append(f"  {index:3} {launch.kernel} (node '{launch.node}'): blocks {number(launch.blocks)}"
                     f", sizes {', '.join(map(number, launch.sizes)) or 'none'}, scratch {number(launch.scratch)}")
        others = [name for name in launch.nodes if name != launch.node]
        lines += [f"      with {', '.join(others)}"] if others else []
        lines.append("      " + ", ".join(_place(plan, launch, i, number(plan.storages[a].offset))
                                          for i, a in enumerate(launch.args)))
    names = [plan.outputs[plan.storages[c.target].index].name for c in plan.copies]
    lines += [f"  copy {number(c.bytes)} bytes to output '{name}'" for c, name in zip(plan.copies, names)]
    if package.log:
        lines += ["decisions", *(f"  {line}" for text in package.log for line in text.splitlines())]
    return "\n".join(lines)


def summary(package: Package, target: str, threads: int) -> str:
    """What it takes and gives, and what it is made of, in a line each."""
    plan = package.plan
    weights = sum(array.nbytes for array in package.constants.values())
    launches, kernels = len(plan.launches), len({launch.kernel for launch in plan.launches})
    lines = [f"tsc executable: target {target}, {threads} threads, {launches} launches of {kernels} kernels, {weights} bytes "
             "of weights"]
    lines += [f"  input  {format_spec(spec)}" for spec in plan.inputs]
    lines += [f"  output {format_spec(spec)}" for spec in plan.outputs]
    return "\n".join(lines)


def _place(plan: Plan, launch: Launch, argument: int, offset: str) -> str:
    storage = plan.storages[launch.args[argument]]
    match storage.kind:
        case "input":
            return f"input '{plan.inputs[storage.index].name}'"
        case "output":
            return f"output '{plan.outputs[storage.index].name}'"
        case "constant":
            return f"constant '{plan.constants[storage.index]}'"
    return f"arena+{offset}"
