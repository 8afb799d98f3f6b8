"""Tape: many SymExprs evaluated at once, each shared subexpression once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

from tsc.sym import Dim, SymExpr

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "max": max, "min": min}

_Key = int | str | tuple[str, int, int]


class Tape:
    """A straight-line program over the sizes of `dims` that computes `roots`.

    Slots hold the dims, then one value an operation; equal operations on equal slots are one.
    """

    __slots__ = ("_constants", "_dims", "_operations", "_roots")

    def __init__(self, dims: Sequence[str], roots: Iterable[SymExpr]) -> None:
        keys: dict[_Key, int] = {}
        self._dims = len(dims)
        for name in dims:
            keys[name] = len(keys)
        order: list[_Key] = []
        exprs = list(roots)
        for expr in exprs:
            for key in _constants_of(expr):
                keys.setdefault(key, len(keys))
        self._constants = [key for key in keys if isinstance(key, int)]

        def emit(fn: str, a: int, b: int) -> int:
            key = (fn, min(a, b), max(a, b)) if fn in ("+", "*") else (fn, a, b)
            if key not in keys:
                keys[key] = len(keys)
                order.append(key)
            return keys[key]

        known: dict[SymExpr, int] = {}
        self._roots = [_emit(expr, keys, emit, known) for expr in exprs]
        self._operations = [(_OPERATIONS[k[0]], k[1], k[2]) for k in order if isinstance(k, tuple)]

    def evaluate(self, sizes: Sequence[int]) -> list[int]:
        """The values of the roots, in order, for the dims' `sizes`. Raises ZeroDivisionError as the expressions would."""
        slots = [*sizes, *self._constants]
        append = slots.append
        for fn, a, b in self._operations:
            append(fn(slots[a], slots[b]))
        return [slots[r] for r in self._roots]


def _constants_of(expr: SymExpr) -> Iterable[int]:
    if not expr.terms:
        yield 0
    for monomial, coefficient in expr.terms:
        if coefficient != 1 or not monomial:
            yield coefficient
        for atom in monomial:
            if not isinstance(atom, Dim):
                for arg in atom.args:
                    yield from _constants_of(arg)


def _emit(expr: SymExpr, keys: dict[_Key, int], emit: Callable[[str, int, int], int], known: dict[SymExpr, int]) -> int:
    if expr in known:
        return known[expr]
    total: int | None = None
    for monomial, coefficient in expr.terms:
        slot: int | None = None
        for atom in monomial:
            if isinstance(atom, Dim):
                factor = keys[atom.name]
            else:
                args = [_emit(a, keys, emit, known) for a in atom.args]
                factor = args[0]
                for arg in args[1:]:
                    factor = emit(atom.fn, factor, arg)
            slot = factor if slot is None else emit("*", slot, factor)
        if slot is None:
            slot = keys[coefficient]
        elif coefficient != 1:
            slot = emit("*", slot, keys[coefficient])
        total = slot if total is None else emit("+", total, slot)
    known[expr] = keys[0] if total is None else total
    return known[expr]
