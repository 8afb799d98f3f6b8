"""Kernels with threads: each warp and thread runs alone from one barrier to the next, in an order drawn from a seed.

A statement in which threads meet becomes steps: a generator that yields the Barrier it waits at and is resumed when all have
come. Everything else runs as one thread's statements do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tsc.errors import InternalError
from tsc.loop_ir.gpu.races import Memory, Thread
from tsc.loop_ir.nodes import Allocate, Barrier, Block, For, If, Intrin, Let, Stmt, nest, walk
from tsc.loop_ir.oracle.interpret_serial import Env, Machine, compile_stmt, evaluate, uninitialised

Steps = Callable[[Env], Iterator[Barrier]]


@dataclass(frozen=True, slots=True)
class _Context:
    machine: Machine
    memory: Memory
    order: Random

    def inside(self, loop: For) -> _Context:
        return replace(self, machine=replace(self.machine, loops=(*self.machine.loops, loop.var)))


def run_threads(stmt: Stmt, machine: Machine, memory: Memory, seed: int, env: Env) -> None:
    """Run a kernel's body. Raises InternalError for a race, and where threads wait at different barriers."""
    run = _steps(stmt, _Context(machine, memory, Random(seed)))(env)
    for _ in run if isinstance(stmt, For) and stmt.kind == "block" else _one_block(run, memory):
        raise InternalError(f"kernel {memory.name}: a barrier outside of all blocks")


def _one_block(run: Iterator[Barrier], memory: Memory) -> Iterator[Barrier]:
    memory.begin_block()
    for barrier in run:
        memory.release(barrier.team)
    memory.end_block()
    return iter(())


def meets(stmt: Stmt) -> bool:
    """Whether threads start or meet within `stmt`."""
    return any(isinstance(s, Barrier) or (isinstance(s, For) and s.kind in ("block", "warp", "thread")) for s in walk(stmt))


def _steps(stmt: Stmt, context: _Context) -> Steps:
    machine = context.machine
    if not meets(stmt):
        run_alone = compile_stmt(stmt, machine)

        def alone(env: Env) -> Iterator[Barrier]:
            run_alone(env)
            return iter(())
        return alone
    match stmt:
        case Barrier():
            here = replace(stmt)  # its own identity: threads must meet at one statement, not at equal ones
            return lambda env: iter((here,))
        case For(kind="warp" | "thread"):
            return _parallel(stmt, context)
        case For(var=var, step=step):
            lo, hi = evaluate(stmt.lo, machine), evaluate(stmt.hi, machine)
            run = _steps(stmt.body, context.inside(stmt))
            innermost = stmt.kind == "block" and not (isinstance(stmt.body, For) and stmt.body.kind == "block")

            def repeat(env: Env) -> Iterator[Barrier]:
                for value in range(lo(env), hi(env), step):
                    env[var] = value
                    yield from _one_block(run(env), context.memory) if innermost else run(env)
            return repeat
        case If(condition=condition, then=then, otherwise=otherwise):
            test, yes = evaluate(condition, machine), _steps(then, context)
            no = _steps(Block(()) if otherwise is None else otherwise, context)
            return lambda env: yes(env) if test(env) else no(env)
        case Let(var=var, value=value, body=body):
            get, run_let = evaluate(value, machine), _steps(body, context)

            def let(env: Env) -> Iterator[Barrier]:
                env[var] = get(env)
                yield from run_let(env)
            return let
        case Block(body=parts):
            sequence = [_steps(s, context) for s in parts]
            return lambda env: itertools.chain.from_iterable(s(env) for s in sequence)
        case Allocate():
            return _allocate(stmt, context)
        case Intrin():
            raise InternalError(f"kernel {machine.func.name}: threads meet within intrinsic {stmt.name}")
    raise InternalError(f"cannot interpret {type(stmt).__name__}")


def _allocate(stmt: Allocate, context: _Context) -> Steps:
    run, machine, buffer = _steps(stmt.body, context), context.machine, stmt.buffer
    shape = tuple(max(e.evaluate(machine.sizes), 0) for e in buffer.shape)

    def allocate(env: Env) -> Iterator[Barrier]:
        own = uninitialised(shape, buffer.dtype)
        machine.arrays[buffer.name] = own
        for barrier in run(env):
            yield barrier
            machine.arrays[buffer.name] = own  # others may have run in between, with theirs
    return allocate


def _parallel(stmt: For, context: _Context) -> Steps:
    """The warps of a block, or the threads of a warp or block, each with its own variables."""
    loops, body = nest(stmt)
    inner = context
    for loop in loops:
        inner = inner.inside(loop)
    run, machine, memory = _steps(body, inner), context.machine, context.memory
    bounds = [(loop.var, evaluate(loop.lo, machine), evaluate(loop.hi, machine), loop.step) for loop in loops]

    def member(env: Env, who: Thread) -> Iterator[Barrier]:
        memory.current = who
        for barrier in run(env):
            if stmt.kind == "warp" and barrier.team == "warp":
                memory.current = who
                memory.release("warp")
            else:
                yield barrier
            memory.current = who

    def parallel(env: Env) -> Iterator[Barrier]:
        outer = memory.current
        places = itertools.product(*(range(lo(env), hi(env), step) for _, lo, hi, step in bounds))
        waiting = []
        for number, place in enumerate(places):
            who = outer._replace(warp=number) if stmt.kind == "warp" else outer._replace(warp=max(outer.warp, 0), lane=number)
            waiting.append(member({**env, **dict(zip((b[0] for b in bounds), place))}, who))
        while True:
            context.order.shuffle(waiting)
            reached = [next(thread, None) for thread in waiting]
            memory.current = outer
            barrier = reached[0] if reached else None
            if any(other is not barrier for other in reached):
                raise InternalError(f"kernel {memory.name}: the {stmt.kind}s of loop {stmt.var} wait at different barriers")
            if barrier is None:
                return
            yield barrier
    return parallel
