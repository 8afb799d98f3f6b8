"""The interpreter: what a Func means, element by element, in NumPy scalars. The oracle of everything that comes after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InputError, InternalError
from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Instance, Intrin, Let, Stmt, Store
from tsc.te.expr import INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var
from tsc.te.intrinsics import MEANING

#: One executed statement instance: the statement's name and its index.
Trace = list[tuple[str, tuple[int, ...]]]
_Env = dict[str, int]
_Run = Callable[[_Env], None]
_Eval = Callable[[_Env], Any]

_INDEX_OPERATORS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max, "neg": lambda a: -a,
    "bitxor": lambda a, b: a ^ b}


@dataclass(slots=True)
class _Machine:
    func: Func
    arrays: dict[str, NDArray[Any]]
    sizes: Mapping[str, int]
    trace: Trace | None


def interpret(func: Func, buffers: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], trace: Trace | None = None,
              block_range: tuple[int, int] | None = None) -> None:
    """Run `func` on arrays of the buffers' plain shapes (outputs are written in place).

    `trace` receives every executed statement instance in order. `block_range` restricts a Func after `map_blocks` to some of
    its blocks. Raises InputError for an index that a CheckedIndex refuses, InternalError for an access out of bounds.
    """
    machine = _Machine(func, dict(buffers), sizes, trace)
    for buffer in func.buffers:
        expected = tuple(e.evaluate(sizes) for e in buffer.shape)
        if buffers[buffer.name].shape != expected:
            raise InternalError(f"kernel {func.name}: {buffer} is given an array of shape {buffers[buffer.name].shape}")
    begin, end = block_range if block_range is not None else (0, func.blocks.evaluate(sizes))
    with np.errstate(all="ignore"):
        _compile(func.body, machine)({BLOCK_BEGIN: begin, BLOCK_END: end})


def _compile(stmt: Stmt, machine: _Machine) -> _Run:
    match stmt:
        case Store(buffer=buffer, index=index, value=value, instance=instance):
            return _compile_store(buffer, index, value, instance, machine)
        case For():
            return _compile_for(stmt, machine)
        case If(condition=condition, then=then, otherwise=otherwise):
            test, yes = _evaluate(condition, machine), _compile(then, machine)
            no = _compile(Block(()) if otherwise is None else otherwise, machine)
            return lambda env: yes(env) if test(env) else no(env)
        case Let(var=var, value=value, body=body):
            get, run = _evaluate(value, machine), _compile(body, machine)

            def let(env: _Env) -> None:
                env[var] = get(env)
                run(env)
            return let
        case Block(body=body):
            parts = [_compile(s, machine) for s in body]

            def sequence(env: _Env) -> None:
                for part in parts:
                    part(env)
            return sequence
        case Allocate(buffer=buffer, body=body):
            run = _compile(body, machine)
            shape = tuple(e.evaluate(machine.sizes) for e in buffer.shape)

            def allocate(env: _Env) -> None:
                machine.arrays[buffer.name] = _uninitialised(shape, buffer.dtype)
                run(env)
            return allocate
        case Intrin(meaning=meaning):
            return _compile(meaning, machine)
    raise InternalError(f"cannot interpret {type(stmt).__name__}")


def _uninitialised(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Not zeros: a kernel that reads what it has not written must not look right."""
    poison = np.nan if dtype.startswith("float") else 1 if dtype == "bool" else 77
    return np.full(shape, poison, dtype)


def _compile_for(loop: For, machine: _Machine) -> _Run:
    lo, hi, run = _evaluate(loop.lo, machine), _evaluate(loop.hi, machine), _compile(loop.body, machine)

    def repeat(env: _Env) -> None:
        for value in range(lo(env), hi(env), loop.step):
            env[loop.var] = value
            run(env)
    return repeat


def _compile_store(buffer: Buffer, index: tuple[Expr, ...], value: Expr, instance: Instance | None, machine: _Machine) -> _Run:
    place, get = _compile_index(index, machine), _evaluate(value, machine)
    name, trace = buffer.name, machine.trace
    position = None if instance is None or trace is None else _compile_index(instance.index, machine)

    def store(env: _Env) -> None:
        array, at, result = machine.arrays[name], place(env), get(env)
        if not _within(at, array.shape):
            raise InternalError(f"kernel {machine.func.name}: a store to {buffer} at {at} is out of bounds")
        array[at] = _wrapped(result) if buffer.dtype == INDEX else result
        if trace is not None and position is not None and instance is not None:
            trace.append((instance.statement, position(env)))
    return store


def _compile_index(index: tuple[Expr, ...], machine: _Machine) -> Callable[[_Env], tuple[int, ...]]:
    parts = [_evaluate(i, machine) for i in index]
    return lambda env: tuple(int(p(env)) for p in parts)


def _within(at: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(0 <= i < n for i, n in zip(at, shape))


def _wrapped(value: int) -> int:
    return (int(value) + 2**63) % 2**64 - 2**63


def _evaluate(expr: Expr, machine: _Machine) -> _Eval:
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
            test, then, otherwise = (_evaluate(a, machine) for a in (condition, yes, no))
            return lambda env: then(env) if test(env) else otherwise(env)
        case Call(fn=fn, args=args):
            return _evaluate_call(fn, [_evaluate(a, machine) for a in args], expr.dtype, args)
        case Cast(value=value, dtype=dtype):
            return _evaluate_cast(_evaluate(value, machine), dtype)
        case CheckedIndex(value=value, extent=extent, what=what):
            return _evaluate_checked(_evaluate(value, machine), extent.evaluate(machine.sizes), what)
    raise InternalError(f"cannot interpret {expr!r}")


def _evaluate_load(buffer: Buffer, index: tuple[Expr, ...], machine: _Machine) -> _Eval:
    place, name = _compile_index(index, machine), buffer.name
    padding = np.dtype(buffer.dtype).type(0)

    def load(env: _Env) -> Any:
        array, at = machine.arrays[name], place(env)
        if not _within(at, array.shape):
            if buffer.panel is not None and _within(at, _padded(array.shape, buffer.panel)):
                return padding
            raise InternalError(f"kernel {machine.func.name}: a load of {buffer} at {at} is out of bounds")
        return int(array[at]) if buffer.dtype == INDEX else array[at]
    return load


def _padded(shape: tuple[int, ...], panel: tuple[int, int]) -> tuple[int, ...]:
    axis, width = panel
    return tuple(-(-n // width) * width if i == axis else n for i, n in enumerate(shape))


def _evaluate_call(fn: str, parts: list[_Eval], dtype: str, args: tuple[Expr, ...]) -> _Eval:
    if dtype == INDEX and fn in _INDEX_OPERATORS and all(a.dtype == INDEX for a in args):
        operate: Callable[..., Any] = _INDEX_OPERATORS[fn]
    else:
        meaning, convert = MEANING[fn], np.dtype(dtype).type

        def operate(*values: Any) -> Any:
            return convert(meaning(*values))
    if len(parts) == 2:
        first, second = parts
        return lambda env: operate(first(env), second(env))
    return lambda env: operate(*(p(env) for p in parts))


def _evaluate_cast(get: _Eval, dtype: str) -> _Eval:
    if dtype == "bool":
        return lambda env: np.bool_(get(env) != 0)
    if dtype == INDEX:
        return lambda env: int(np.int64(get(env)))
    kind = np.dtype(dtype)
    return lambda env: np.asarray(get(env)).astype(kind)[()]


def _evaluate_checked(get: _Eval, extent: int, what: str) -> _Eval:
    def checked(env: _Env) -> int:
        value = int(get(env))
        if not -extent <= value < extent:
            raise InputError(f"index {value} into {what} is out of bounds; give indices within [-{extent}, {extent})")
        return value + extent if value < 0 else value
    return checked
