"""Programs equal up to constant sizes: one Program for all of them, with a size parameter where they differ.

A constant may become a size where it is an extent, a dimension, or a term of an index, and large: a small one decides how
code is made (a window's taps, a vector's lanes), and a divisor or a factor has to be a number. What is the same in all Programs
stays the constant that it is, and constants that grow together are one size: where a concatenation gets longer by 32 channels a
layer, its output has `s` of them and its input `s - 32`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd

from tsc.sym import SymExpr, dim
from tsc.te.compute import Axis, Fact, Program, SizeParam
from tsc.te.expr import INDEX, Buffer, Call, CheckedIndex, Const, Expr, Load, index, map_children

#: Constants below this stay what they are: they decide how code is made (taps, lanes, register tiles of up to 64 columns).
#: Larger ones end loops; where they end one of a block tile (up to 1024, see poly/tile.py), a size costs one bound a block.
LEAST = 64
#: Fewer different Programs than this each keep code of their own.
FEWEST = 4
_TERMS = frozenset({"add", "sub", "neg", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"})


@dataclass(frozen=True, slots=True)
class Shared:
    """A Program that several stand for, and the values of the sizes that it has more than one of them."""

    program: Program
    values: Mapping[str, int]


def share(programs: Iterable[Program]) -> dict[Program, Shared]:
    """For each Program that at least FEWEST different ones are equal to but for constants: the one that stands for all."""
    alike: dict[str, dict[tuple[int, ...], Program]] = {}
    for program in dict.fromkeys(programs):
        form, constants = _form(program)
        alike.setdefault(form, {})[constants] = program
    result: dict[Program, Shared] = {}
    for members in alike.values():
        if len(members) >= FEWEST:
            result |= _general(members)
    return result


def _form(program: Program) -> tuple[str, tuple[int, ...]]:
    """The text of a Program without the constants that may become sizes, and those."""
    found: list[int] = []

    def note(value: int) -> SymExpr:
        found.append(value)
        return dim("?")

    return str(_mapped(program, note)), tuple(found)


def _general(members: Mapping[tuple[int, ...], Program]) -> dict[Program, Shared]:
    """The Program of all `members` (by their constants, in order of occurrence)."""
    first = next(iter(members.values()))
    sizes: dict[tuple[int, ...], str] = {}
    values = iter([_expression(column, sizes, len(first.sizes)) for column in zip(*members)])
    program = _mapped(first, lambda _: next(values))
    made = tuple(SizeParam(name, LEAST, gcd(*column, 64)) for column, name in sizes.items())
    facts = tuple(dict.fromkeys((*first.facts, *_facts(sizes))))
    program = replace(program, sizes=(*first.sizes, *made), facts=facts)
    return {member: Shared(program, {name: column[k] for column, name in sizes.items()})
            for k, member in enumerate(members.values())}


def _facts(sizes: Mapping[tuple[int, ...], str]) -> Iterable[Fact]:
    """What holds for the sizes of all members: the range of each, and of the sum and the difference of each two. An offset and
    a width that end within a tensor for each member then do so for all of them."""
    for (a, name), (b, other) in combinations(sizes.items(), 2):
        for sign in (1, -1):
            both = [x + sign * y for x, y in zip(a, b)]
            expr = dim(name) + dim(other) * sign
            yield from (Fact(SymExpr.of(min(both)), "<=", expr), Fact(expr, "<=", SymExpr.of(max(both))))
    for column, name in sizes.items():
        yield from (Fact(SymExpr.of(min(column)), "<=", dim(name)), Fact(dim(name), "<=", SymExpr.of(max(column))))


def _expression(column: tuple[int, ...], sizes: dict[tuple[int, ...], str], taken: int) -> SymExpr:
    """One constant of all members: itself, a multiple of a size plus a constant, or a new size."""
    if len(set(column)) == 1:
        return SymExpr.of(column[0])
    for known, name in sizes.items():
        a, b = next((i, j) for i in range(len(known)) for j in range(i) if known[i] != known[j])
        factor = (column[a] - column[b]) // (known[a] - known[b])
        offset = column[a] - factor * known[a]
        if factor and all(c == factor * k + offset for c, k in zip(column, known)):
            return dim(name) * factor + offset
    magnitude = tuple(map(abs, column))
    sizes[magnitude] = f"s{taken + len(sizes)}"
    return _expression(column, sizes, taken) if magnitude != column else dim(sizes[column])


# -- constants in order ----------------------------------------------------------------------------------------

Choose = Callable[[int], SymExpr]


def _mapped(program: Program, choose: Choose) -> Program:
    """`program` with `choose` of every constant that may become a size, in a fixed order."""
    computes = []
    for c in program.computes:
        axes, reduce_axes = _axes(c.axes, choose), _axes(c.reduce_axes, choose)
        target, body = _buffer(c.target, choose), _expr(c.body, choose)
        computes.append(replace(c, target=target, axes=axes, body=body, reduce_axes=reduce_axes))
    inputs, outputs = (tuple(_buffer(b, choose) for b in buffers) for buffers in (program.inputs, program.outputs))
    return replace(program, inputs=inputs, outputs=outputs, computes=tuple(computes))


def _axes(axes: tuple[Axis, ...], choose: Choose) -> tuple[Axis, ...]:
    return tuple(replace(a, extent=_extent(a.extent, choose)) for a in axes)


def _buffer(buffer: Buffer, choose: Choose) -> Buffer:
    return replace(buffer, shape=tuple(_extent(e, choose) for e in buffer.shape))


def _extent(extent: SymExpr, choose: Choose) -> SymExpr:
    value = extent.as_int()
    return extent if value is None or value < LEAST else choose(value)


def _expr(expr: Expr, choose: Choose, is_term: bool = False) -> Expr:
    match expr:
        case Const(value=value, dtype=dtype) if is_term and dtype == INDEX and abs(int(value)) >= LEAST:
            return index(choose(int(value)))
        case Load(buffer=buffer, index=place):
            return Load(_buffer(buffer, choose), tuple(_expr(i, choose, True) for i in place))
        case CheckedIndex(value=value, extent=extent):
            return replace(expr, value=_expr(value, choose), extent=_extent(extent, choose))
        case Call(fn=fn):
            return map_children(lambda c: _expr(c, choose, fn in _TERMS), expr)
    return map_children(lambda c: _expr(c, choose), expr)
