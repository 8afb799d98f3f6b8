"""What the static check accepts runs clean: pipelines with random changes, at every trip count, in random orders of threads."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tests.loop_ir.funcs import buffer, c32, loop, size, store
from tsc.errors import InternalError
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.nodes import Allocate, Barrier, Commit, Func, If, Stmt, Store, Wait, block
from tsc.loop_ir.oracle.interpret import interpret
from tsc.loop_ir.verify import verify
from tsc.te.compute import SizeParam
from tsc.te.expr import Expr, Load, Var, add, call, index, mul

#: One step: what, and how many tiles ahead (or how many groups pending).
Op = tuple[str, int]
Plan = tuple[list[Op], list[Op], list[Op]]
KINDS = ("copy", "guarded", "fill", "read", "own", "commit", "wait", "block", "warp")


def good_plan(stages: int) -> Plan:
    """A pipeline: prologue, steady loop, what follows."""
    first = [op for n in range(stages - 1) for op in (("guarded", n), ("commit", 0))]
    steady = [("wait", max(0, stages - 2)), ("block", 0), ("guarded", stages - 1), ("commit", 0), ("read", 0)]
    if stages == 1:
        steady = [("block", 0), ("copy", 0), ("commit", 0), ("wait", 0), ("block", 0), ("read", 0)]
    return first, steady, []


def changed(plan: Plan, source: random.Random) -> Plan:
    parts = tuple(list(part) for part in plan)
    for _ in range(source.randrange(4)):
        part = source.choice(parts)
        at = source.randrange(len(part) + 1)
        what = source.randrange(4)
        if what == 0 or at == len(part):
            part.insert(at, (source.choice(KINDS), source.randrange(3)))
        elif what == 1:
            del part[at]
        elif what == 2:
            part[at] = (part[at][0], source.randrange(4))
        else:
            other = source.randrange(len(part))
            part[at], part[other] = part[other], part[at]
    return parts[0], parts[1], parts[2]


def kernel(plan: Plan, stages: int, ops_per_tile: int = 4) -> Func:
    """2 warps of 2 threads; tile k of x goes to stage k % stages and is summed up by other threads than copied it."""
    x, y, s, total = buffer("x", ops_per_tile), buffer("y", ops_per_tile), buffer("s", stages, ops_per_tile), buffer("total", 1)
    linear = add(mul(index(2), Var("w")), Var("t"))
    turned = call("mod", add(linear, index(1)), index(4))
    zero = (index(0),)

    def step(op: Op, tile: Expr) -> Stmt:
        what, number = op
        ahead = add(tile, index(number))
        stage = call("mod", ahead, index(stages))
        copy = Store(s, (stage, linear), Load(x, (linear,)), asynchronous=True)
        match what:
            case "copy":
                return copy
            case "guarded":
                return If(call("lt", ahead, size("N")), copy)
            case "fill":
                return store(s, (stage, linear), c32(1.0))
            case "read" | "own":
                read = Load(s, (stage, turned if what == "read" else linear))
                return store(total, zero, call("add", Load(total, zero), read))
            case "commit":
                return Commit()
            case "wait":
                return Wait(number)
        return Barrier("block" if what == "block" else "warp")

    def steps(ops: Sequence[Op], tile: Expr) -> list[Stmt]:
        return [step(op, tile) for op in ops]

    first, steady, last = plan
    body = block(store(total, zero, c32(0.0)), *steps(first, index(0)), loop("k", 0, size("N"), *steps(steady, Var("k"))),
                 *steps(last, index(0)), store(y, (linear,), Load(total, zero)))
    threads = loop("w", 0, 2, loop("t", 0, 2, Allocate(total, "register", body), kind="thread"), kind="warp")
    return Func("f", (x, y), ("y",), (SizeParam("N", 0),), Allocate(s, "shared", threads))


def runs_clean(func: Func) -> bool:
    for tiles in range(7):
        arrays = {"x": np.ones(4, np.float32), "y": np.full(4, np.nan, np.float32)}
        try:
            interpret(func, arrays, {"N": tiles}, seed=tiles)
        except InternalError:
            return False
    return True


def accepted(func: Func) -> bool:
    try:
        verify_synchronised(func)
    except InternalError:
        return False
    return True


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_what_is_accepted_runs_clean(stages: int) -> None:
    source = random.Random(stages)
    outcomes = {(True, True): 0, (False, False): 0, (False, True): 0}
    for _ in range(120):
        plan = changed(good_plan(stages), source)
        func = kernel(plan, stages)
        verify(func)
        outcome = accepted(func), runs_clean(func)
        assert outcome in outcomes, f"accepted, but does not run clean: {plan}"
        outcomes[outcome] += 1
    assert outcomes[True, True] > 20 and outcomes[False, False] > 40
    assert not outcomes[False, True], "the check refuses too much"
