"""The texts that describe an Executable: all of it (`explain`), or in few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from tsc.runtime.bind import Binding, format_spec
from tsc.runtime.cost import total
from tsc.runtime.package import Package
from tsc.runtime.plan import Axis, Bind, Copy, Element, Eval, If, Launch, Loop, Plan, Region, expressions_of
from tsc.runtime.select import WORTH, least, terms_at
from tsc.sym import ZERO, Guard, SymExpr


def explain(package: Package, target: str, threads: int, binding: Binding | None, peak: int | str) -> str:
    """Inputs, memory, guards, every step, and the Decision log; expressions are evaluated when there is a `binding`, as far as
    shapes tell them."""
    plan, names = package.plans[target], {} if binding is None else binding.names
    weights = sum(package.constants[name].nbytes for name in plan.constants)
    at = "" if binding is None else " at " + ", ".join(f"{name}={size}" for name, size in binding.dims.items())
    lines = [f"tsc {package.version}, target {target}, {threads} threads{at}"]
    lines += [f"  input   {format_spec(spec)}" for spec in plan.inputs]
    lines += [f"  output  {format_spec(spec)}" for spec in plan.outputs]
    lines += [f"  dim     {name} in {known}" for name, known in plan.ranges.items()]
    lines += [f"  guard   {guard} ({guard.reason})" for guard in plan.guards]
    lines.append(f"  memory  weights {weights} bytes, arena {_number(plan.arena_bytes, names)} bytes, peak {peak} bytes")
    lines.append(f"{len(plan.launches)} launches of {len({x.kernel for x in plan.launches})} kernels")
    told = (step for step in plan.body if not isinstance(step, Guard) and not (
        isinstance(step, Bind) and isinstance(step.source, Axis)))
    lines += _steps(plan, tuple(told), names, threads, count(), "  ")
    if package.log:
        lines += ["decisions", *(f"  {line}" for text in package.log for line in text.splitlines())]
    return "\n".join(lines)


def _number(expr: SymExpr, names: Mapping[str, int]) -> str:
    return str(expr.evaluate(names) if expr.dims() <= names.keys() else expr)


def _steps(plan: Plan, region: Region, names: Mapping[str, int], threads: int, numbers: Iterator[int],
           indent: str) -> Iterator[str]:
    """Lines for each step of a region, launches numbered on, what is inside a step below it."""
    for step in region:
        match step:
            case Bind(name=name, source=source):
                most = "" if step.bound is None else f", at most {_number(step.bound, names)}"
                reason = f" ({step.reason})" if step.reason else ""
                yield f"{indent}bind {name} in {step.range}{most}: {_source(plan, source)}{reason}"
            case Eval(name=name, value=value):
                yield f"{indent}let {name} = {_number(value, names)}"
            case Guard():
                yield f"{indent}guard {step} ({step.reason})"
            case Launch():
                sizes = ", ".join(_number(s, names) for s in step.sizes) or "none"
                for k, variant in enumerate(step.variants):
                    what = f"{indent}    or" if k else f"{indent}{next(numbers):3} {step.kernel} (node '{step.node}'):"
                    for call in variant.calls:
                        scratch = _number(call.scratch, names)
                        yield f"{what} blocks {_number(call.blocks, names)}, sizes {sizes}, scratch {scratch}"
                        what = f"{indent}    then"
                    yield from _expected(step, k, names, threads, f"{indent}      ")
                    yield from (f"{indent}      by way of {_number(size, names)} bytes at {_place(plan, storage, names)}"
                                for size, storage in zip(variant.temporaries, step.temporaries))
                others = [name for name in step.nodes if name != step.node]
                yield from [f"{indent}    with {', '.join(others)}"] if others else []
                yield f"{indent}    " + ", ".join(_place(plan, storage, names) for storage in step.args)
            case Copy(source=source, target=target, bytes=size, at=at):
                on = f" from byte {_number(at, names)} on" if at != ZERO else ""
                where = f"{_place(plan, target, names)}{on} from {_place(plan, source, names)}"
                yield f"{indent}copy {_number(size, names)} bytes to {where}"
            case If(condition=condition, then=then, otherwise=otherwise):
                yield f"{indent}if {condition if isinstance(condition, str) else _source(plan, condition)}"
                yield from _steps(plan, then, names, threads, numbers, indent + "  ")
                yield from [f"{indent}else"] if otherwise else []
                yield from _steps(plan, otherwise, names, threads, numbers, indent + "  ")
            case Loop(index=index, trips=trips, body=body, condition=ends):
                known = "" if ends is None else f" while {_source(plan, ends)}"
                yield f"{indent}loop {index} < {_number(trips, names)}{known}"
                yield from (f"{indent}  carry {_place(plan, c.current, names)} from {_place(plan, c.start, names)}, next in "
                            f"{_place(plan, c.next, names)}" for c in step.carried)
                yield from _steps(plan, body, names, threads, numbers, indent + "  ")


def _expected(launch: Launch, number: int, names: Mapping[str, int], threads: int, indent: str) -> Iterator[str]:
    """What one of several Variants is expected to take, what that is made of, and how far it is from the best of the others."""
    if not launch.selects or not frozenset().union(*(e.dims() for e in expressions_of(launch))) <= names.keys():
        return
    terms = [terms_at(variant, names, threads) for variant in launch.variants]
    totals = [sum(map(total, calls)) for calls in terms]
    others = min(time for k, time in enumerate(totals) if k != number)
    parts = ", ".join(f"{what} {time / 1e9:.3f}" for calls in terms[number] for what, time in calls.items())
    verdict = "does not run" if least(totals) != number else "runs" if totals[number] <= others else (
        f"runs: the first one does where another is not {WORTH / 10:g} % faster")
    yield f"{indent}expected {totals[number] / 1e9:.3f} us ({parts}), the best other {others / 1e9:.3f}: {verdict}"


def _source(plan: Plan, source: Axis | Element) -> str:
    match source:
        case Axis(input=number, axis=axis):
            return f"axis {axis} of input '{plan.inputs[number].name}'"
        case Element(storage=storage, dtype=dtype, index=index):
            return f"{dtype} {index} of {_place(plan, storage, {})}"


def summary(package: Package, target: str, threads: int) -> str:
    """What it takes and gives, and what it is made of, in a line each."""
    plan = package.plans[target]
    weights = sum(package.constants[name].nbytes for name in plan.constants)
    launches, kernels = len(plan.launches), len({launch.kernel for launch in plan.launches})
    lines = [f"tsc executable: target {target}, {threads} threads, {launches} launches of {kernels} kernels, {weights} bytes "
             "of weights"]
    lines += [f"  input  {format_spec(spec)}" for spec in plan.inputs]
    lines += [f"  output {format_spec(spec)}" for spec in plan.outputs]
    return "\n".join(lines)


def _place(plan: Plan, number: int, names: Mapping[str, int]) -> str:
    storage = plan.storages[number]
    match storage.kind:
        case "input":
            return f"input '{plan.inputs[storage.index].name}'"
        case "output":
            return f"output '{plan.outputs[storage.index].name}'"
        case "constant":
            return f"constant '{plan.constants[storage.index]}'"
    return f"arena+{_number(storage.offset, names)}"
