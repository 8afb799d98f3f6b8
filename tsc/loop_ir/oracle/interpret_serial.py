"""What the statements and expressions of one thread mean: closures over its variables. See `interpret` for whole kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError
from tsc.loop_ir.gpu.races import Memory
from tsc.loop_ir.nodes import Allocate, Block, Commit, For, Func, If, Intrin, Let, Stmt, Store, Wait
from tsc.te.expr import INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var
from tsc.te.intrinsics import MEANING, converted

#: One executed statement instance: the statement's name and its index.
Trace = list[tuple[str, tuple[int, ...]]]
Env = dict[str, int]
Run = Callable[[Env], None]
_Eval = Callable[[Env], Any]

_INDEX_OPERATORS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,  # as the C says
    "min": min, "max": max, "neg": lambda a: -a, "bitxor": lambda a, b: a ^ b}
#: What NumPy's scalars mean by an operator is what its function means, without the time that a function of arrays takes.
_SCALAR_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


@dataclass(slots=True)
class Machine:
    """What a kernel runs on. `memory` watches the threads of a kernel that has any; `loops` are those around the statement
    that is being compiled."""

    func: Func
    arrays: dict[str, NDArray[Any]]
    sizes: Mapping[str, int]
    trace: Trace | None
    memory: Memory | None = None
    loops: tuple[str, ...] = ()


def compile_stmt(stmt: Stmt, machine: Machine) -> Run:
    """What runs a statement that no other thread takes part in."""
    memory = machine.memory
    match stmt:
        case Store():
            return _compile_store(stmt, machine)
        case For():
            return _compile_for(stmt, machine)
        case If(condition=condition, then=then, otherwise=otherwise):
            test, yes = evaluate(condition, machine), compile_stmt(then, machine)
            no = compile_stmt(Block(()) if otherwise is None else otherwise, machine)
            return lambda env: yes(env) if test(env) else no(env)
        case Let(var=var, value=value, body=body):
            get, run = evaluate(value, machine), compile_stmt(body, machine)

            def let(env: Env) -> None:
                env[var] = get(env)
                run(env)
            return let
        case Block(body=body):
            parts = [compile_stmt(s, machine) for s in body]

            def sequence(env: Env) -> None:
                for part in parts:
                    part(env)
            return sequence
        case Allocate(buffer=buffer, body=body):
            run = compile_stmt(body, machine)
            shape = tuple(max(e.evaluate(machine.sizes), 0) for e in buffer.shape)  # less than none where nothing is kept

            def allocate(env: Env) -> None:
                machine.arrays[buffer.name] = uninitialised(shape, buffer.dtype)
                run(env)
            return allocate
        case Intrin(meaning=meaning):
            return compile_stmt(meaning, machine)
        case Commit() if memory is not None:
            return lambda env: memory.commit()
        case Wait(pending=pending) if memory is not None:
            return lambda env: memory.wait(pending)
    raise InternalError(f"cannot interpret {type(stmt).__name__}")


def uninitialised(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Not zeros: a kernel that reads what it has not written must not look right."""
    poison = np.nan if dtype.startswith("float") else 1 if dtype == "bool" else 77
    return np.full(shape, poison, dtype)


def _compile_for(loop: For, machine: Machine) -> Run:
    lo, hi = evaluate(loop.lo, machine), evaluate(loop.hi, machine)
    run = compile_stmt(loop.body, replace(machine, loops=(*machine.loops, loop.var)))

    def repeat(env: Env) -> None:
        for value in range(lo(env), hi(env), loop.step):
            env[loop.var] = value
            run(env)
    return repeat


def _compile_store(stmt: Store, machine: Machine) -> Run:
    place, get = _compile_index(stmt.index, machine), evaluate(stmt.value, machine)
    buffer, instance, trace, memory, loops = stmt.buffer, stmt.instance, machine.trace, machine.memory, machine.loops
    position = None if instance is None or trace is None else _compile_index(instance.index, machine)

    def store(env: Env) -> None:
        array, at, result = machine.arrays[buffer.name], place(env), get(env)
        if not _within(at, array.shape):
            raise InternalError(f"kernel {machine.func.name}: a store to {buffer} at {at} is out of bounds")
        if buffer.dtype == INDEX:
            result = _wrapped(result)
        if memory is None:
            array[at] = result
        elif stmt.asynchronous:
            memory.copy(buffer.name, at, loops, array, result)
        else:
            memory.write(buffer.name, at, loops)
            array[at] = result
        if trace is not None and position is not None and instance is not None:
            trace.append((instance.statement, position(env)))
    return store


def _compile_index(index: tuple[Expr, ...], machine: Machine) -> Callable[[Env], tuple[int, ...]]:
    parts = [evaluate(i, machine) for i in index]
    if len(parts) == 1:
        only = parts[0]
        return lambda env: (int(only(env)),)
    if len(parts) == 2:
        first, second = parts
        return lambda env: (int(first(env)), int(second(env)))
    return lambda env: tuple([int(p(env)) for p in parts])


def _within(at: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    for i, n in zip(at, shape):  # noqa: SIM110 (asked for every access: a generator takes three times as long)
        if not 0 <= i < n:
            return False
    return True


def _wrapped(value: int) -> int:
    return (int(value) + 2**63) % 2**64 - 2**63


def evaluate(expr: Expr, machine: Machine) -> _Eval:
    match expr:
        case Var(name=name):
            return lambda env: env[name]
        case Const(value=value, dtype=dtype):
            constant = int(value) if dtype == INDEX else np.dtype(dtype).type(value)
            return lambda env: constant
        case Size(value=value):
            known = value.evaluate(machine.sizes)
            return lambda env: known
        case Load(buffer=buffer, index=index):
            return _evaluate_load(buffer, index, machine)
        case Call(fn="select", args=(condition, yes, no)):
            test, then, otherwise = (evaluate(a, machine) for a in (condition, yes, no))
            return lambda env: then(env) if test(env) else otherwise(env)
        case Call(fn=fn, args=args):
            return _evaluate_call(fn, [evaluate(a, machine) for a in args], expr.dtype, args)
        case Cast(value=value, dtype=dtype):
            return _evaluate_cast(evaluate(value, machine), dtype)
        case CheckedIndex(value=value, extent=extent, what=what):
            return _evaluate_checked(evaluate(value, machine), extent.evaluate(machine.sizes), what)
    raise InternalError(f"cannot interpret {expr!r}")


def _evaluate_load(buffer: Buffer, index: tuple[Expr, ...], machine: Machine) -> _Eval:
    place, name, memory, loops = _compile_index(index, machine), buffer.name, machine.memory, machine.loops
    padding = np.dtype(buffer.dtype).type(0)

    def load(env: Env) -> Any:
        array, at = machine.arrays[name], place(env)
        if not _within(at, array.shape):
            if buffer.panel is not None and _within(at, _padded(array.shape, buffer.panel)):
                return padding
            raise InternalError(f"kernel {machine.func.name}: a load of {buffer} at {at} is out of bounds")
        if memory is not None:
            memory.read(name, at, loops)
        return int(array[at]) if buffer.dtype == INDEX else array[at]
    return load


def _padded(shape: tuple[int, ...], panel: tuple[int, int]) -> tuple[int, ...]:
    axis, width = panel
    return tuple(-(-n // width) * width if i == axis else n for i, n in enumerate(shape))


def _evaluate_call(fn: str, parts: list[_Eval], dtype: str, args: tuple[Expr, ...]) -> _Eval:
    if dtype == INDEX and fn in _INDEX_OPERATORS and all(a.dtype == INDEX for a in args):
        operate: Callable[..., Any] = _INDEX_OPERATORS[fn]
    elif fn in _SCALAR_OPERATORS and all(a.dtype.startswith("float") for a in args):
        operate = _SCALAR_OPERATORS[fn]
    else:
        meaning, convert = MEANING[fn], np.dtype(dtype).type

        def operate(*values: Any) -> Any:
            return convert(meaning(*values))
    if len(parts) == 2:
        first, second = parts
        return lambda env: operate(first(env), second(env))
    return lambda env: operate(*(p(env) for p in parts))


def _evaluate_cast(get: _Eval, dtype: str) -> _Eval:
    kind = np.dtype(dtype)
    if dtype == INDEX:
        return lambda env: int(converted(get(env), kind))
    return lambda env: converted(get(env), kind)[()]


def _evaluate_checked(get: _Eval, extent: int, what: str) -> _Eval:
    def checked(env: Env) -> int:
        value = int(get(env))
        if not -extent <= value < extent:
            raise InputError(f"index {value} into {what} is out of bounds; give indices within [-{extent}, {extent})")
        return value + extent if value < 0 else value
    return checked
