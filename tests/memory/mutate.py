"""Kernels broken after every check of the compiler: what the guarded mode and the sanitizers must find."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from tests.memory.cases import Case
from tsc.config import Options
from tsc.kernels import workshop
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Stmt, Store, map_children, map_exprs, walk
from tsc.pipeline import build_package
from tsc.runtime.package import Package
from tsc.target import DeviceSpec
from tsc.te.expr import INDEX, Call, Const, Expr, Load, add, map_loads

Mutation = Callable[[Func], Func]


def built(case: Case, target: str, mutation: Mutation) -> Package:
    """A Case compiled for a target, each kernel's loops changed just before they are printed as C."""
    shop = workshop(target, Options(use_cache=False))

    def emit(func: Func, spec: DeviceSpec, prefetch: int) -> str:
        return shop.device.emit(mutation(func), spec, prefetch)

    return build_package(case.source, case.dims, replace(shop, device=replace(shop.device, emit=emit)))


def shift_loads(func: Func, by: int) -> Func:
    """Loads of inputs are `by` elements off."""
    return _shifted_loads(func, {b.name for b in func.buffers} - set(func.outputs), by)


def shift_scratch(func: Func, by: int) -> Func:
    """Loads of scratch are `by` elements off."""
    scratch = {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope == "scratch"}
    return _shifted_loads(func, scratch, by)


def _shifted_loads(func: Func, names: Collection[str], by: int) -> Func:

    def shifted(load: Load) -> Expr:
        return replace(load, index=_moved(load.index, by)) if load.buffer.name in names else load

    return replace(func, body=map_exprs(partial(map_loads, shifted), func.body))


def shift_stores(func: Func, by: int) -> Func:
    """Stores to outputs are `by` elements off."""
    def shifted(stmt: Stmt) -> Stmt:
        mine = isinstance(stmt, Store) and stmt.buffer.name in func.outputs
        return replace(stmt, index=_moved(stmt.index, by)) if mine else stmt

    return replace(func, body=_everywhere(shifted, func.body))


def move_masks(func: Func, by: int) -> Func:
    """Masks of vector loops leave `by` lanes more active."""
    def moved(stmt: Stmt) -> Stmt:
        match stmt:
            case For(kind="vector", body=If(condition=Call("lt", (place, end), dtype)) as masked):
                wide = Call("lt", (place, add(end, Const(by, INDEX))), dtype)
                return replace(stmt, body=replace(masked, condition=wide))
        return stmt

    return replace(func, body=_everywhere(moved, func.body))


def _moved(index: tuple[Expr, ...], by: int) -> tuple[Expr, ...]:
    return (*index[:-1], add(index[-1], Const(by, INDEX))) if index else index


def _everywhere(fn: Callable[[Stmt], Stmt], stmt: Stmt) -> Stmt:
    return fn(map_children(partial(_everywhere, fn), stmt))


def forget_starts(func: Func) -> Func:
    """Constants are not stored to what lies on the stack."""
    names = {s.buffer.name for s in walk(func.body) if isinstance(s, Allocate) and s.scope in ("stack", "register")}

    def without(stmt: Stmt) -> Stmt:
        match stmt:
            case Store(buffer=buffer, value=Const()) if buffer.name in names:
                return Block(())
        return stmt

    return replace(func, body=_everywhere(without, func.body))
