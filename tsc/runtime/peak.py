"""How much memory a plan needs over the ranges of its dims, as an expression or at most."""

from __future__ import annotations

from collections.abc import Mapping

from tsc.runtime.memory import PAGE
from tsc.runtime.plan import Axis, Bind, Eval, Loop, Plan, steps_of
from tsc.runtime.schema import LEAST_NUMBER
from tsc.sym import ZERO, Range, ShapeEnv, SymExpr, ceildiv, sym_max


def upper_bound(plan: Plan, expr: SymExpr, dims: Mapping[str, int] | None = None) -> int | None:
    """The most that an expression of a plan's names can be, at these sizes of the inputs' dims or at all in range; None where
    that has no end."""
    return _ranges(plan, dims).bounds(expr)[1]


def _ranges(plan: Plan, dims: Mapping[str, int] | None) -> ShapeEnv:
    """The values that each name of a plan can have."""
    env = ShapeEnv()
    for step in steps_of(plan.body):
        match step:
            case Bind(name=name, source=Axis()) if dims is not None:
                env.ranges[name] = Range(dims[name], dims[name])
            case Bind(name=name, range=known, bound=bound):
                ends = [end for end in (known.hi, None if bound is None else env.bounds(bound)[1]) if end is not None]
                env.ranges[name] = Range(known.lo, max(known.lo, min(ends)) if ends else None)
            case Eval(name=name, value=value):
                low, high = env.bounds(value)
                env.ranges[name] = Range(LEAST_NUMBER if low is None else low, high)
            case Loop(index=index, trips=trips):
                high = env.bounds(trips)[1]
                env.ranges[index] = Range(0, None if high is None else max(0, high - 1))
    return env


def scratch_bytes(plan: Plan, together: bool = False) -> SymExpr:
    """The bytes of scratch memory that each thread needs or, `together`, all blocks of a launch, as on a GPU."""
    used = [call.scratch * call.blocks if together else call.scratch
            for launch in plan.launches for call in launch.calls if call.scratch.as_int() != 0]
    return ceildiv(sym_max(*used), 64) * 64 if used else ZERO


def pages(size: SymExpr) -> SymExpr:
    """What `memory.footprint` says of an expression."""
    return size if size.as_int() == 0 else ceildiv(size, PAGE) * PAGE
