"""Tape: many SymExprs evaluated at once, each shared subexpression once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from tsc.sym import Dim, SymExpr

_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "max": max, "min": min}
#: What can be done to two numbers; an operation is known by its place here.
OPERATIONS = tuple(_FUNCTIONS)
_COMPUTE = tuple(_FUNCTIONS.values())


class Assembly:
    """A straight-line program over whole numbers, as it grows. Each number has a slot: what is given, constants, and what is
    computed of two others; equal ones are one. `values` holds the constants (0 elsewhere), `operations` what is computed, in
    order: the operation, the slot of its result, those of its operands."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.operations: list[tuple[int, int, int, int]] = []
        self._constants: dict[int, int] = {}
        self._known: dict[tuple[str, int, int], int] = {}

    def given(self) -> int:
        """A slot for a number from outside."""
        self.values.append(0)
        return len(self.values) - 1

    def constant(self, value: int) -> int:
        """The slot of a constant."""
        slot = self._constants.get(value)
        if slot is None:
            slot = self._constants[value] = len(self.values)
            self.values.append(value)
        return slot

    def apply(self, operation: str, a: int, b: int) -> int:
        """The slot of what an operation makes of two slots."""
        key = (operation, min(a, b), max(a, b)) if operation in ("+", "*") else (operation, a, b)
        slot = self._known.get(key)
        if slot is None:
            slot = self._known[key] = self.given()
            self.operations.append((OPERATIONS.index(operation), slot, a, b))
        return slot

    def product(self, slots: Iterable[int], factor: int = 1) -> int:
        """The slot of `factor` times all of `slots`."""
        made = self.constant(factor)
        for slot in slots:
            made = self.apply("*", made, slot)
        return made


def run_operations(operations: Iterable[tuple[int, int, int, int]], slots: list[int]) -> None:
    """Compute what an Assembly's `operations` say, in place. Raises ZeroDivisionError as the expressions would."""
    for number, result, a, b in operations:
        slots[result] = _COMPUTE[number](slots[a], slots[b])


class Names:
    """SymExprs in an Assembly, over names that each have a slot."""

    def __init__(self, assembly: Assembly, slots: Mapping[str, int]) -> None:
        self._assembly, self._slots = assembly, slots
        self._known: dict[SymExpr, int] = {}

    def emit(self, expr: SymExpr) -> int:
        """The slot of an expression's value."""
        slot = self._known.get(expr)
        if slot is None:
            slot = self._known[expr] = self._emit(expr)
        return slot

    def _emit(self, expr: SymExpr) -> int:
        assembly, total = self._assembly, None
        for monomial, coefficient in expr.terms:
            slot: int | None = None
            for atom in monomial:
                if isinstance(atom, Dim):
                    factor = self._slots[atom]
                else:
                    factor, *others = [self.emit(a) for a in atom.args]
                    for other in others:
                        factor = assembly.apply(atom.fn, factor, other)
                slot = factor if slot is None else assembly.apply("*", slot, factor)
            if slot is None:
                slot = assembly.constant(coefficient)
            elif coefficient != 1:
                slot = assembly.apply("*", slot, assembly.constant(coefficient))
            total = slot if total is None else assembly.apply("+", total, slot)
        return assembly.constant(0) if total is None else total


class Tape:
    """A straight-line program over the sizes of `dims` that computes `roots`."""

    __slots__ = ("_operations", "_rest", "_roots")

    def __init__(self, dims: Sequence[str], roots: Iterable[SymExpr]) -> None:
        assembly = Assembly()
        names = Names(assembly, {name: assembly.given() for name in dims})
        self._roots = [names.emit(expr) for expr in roots]
        self._rest = assembly.values[len(dims):]
        self._operations = assembly.operations

    def evaluate(self, sizes: Sequence[int]) -> list[int]:
        """The values of the roots, in order, for the dims' `sizes`. Raises ZeroDivisionError as the expressions would."""
        slots = [*sizes, *self._rest]
        run_operations(self._operations, slots)
        return [slots[r] for r in self._roots]
