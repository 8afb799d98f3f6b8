"""Layouts of Buffers: where memory has their elements, as data that Programs, kernels and the build cache carry.

A layout is a sequence of combinators, each of which changes the one before, the first the row-major one of a shape. Each is a
bijection at every size, but for places that it pads, so that whatever they compose is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tsc.errors import InternalError
from tsc.sym import SymExpr, ceildiv, exact_quotient, parse


@dataclass(frozen=True, slots=True)
class Permute:
    """Dimension k of the storage is dimension `order[k]` of what it was: a bijection, `order` being one."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Dimension `dim`, of extent A * `size`, becomes two: x -> (x // size, x % size), from [0, A * size) to [0, A) x [0, size).
    That is a bijection at every size > 0, constant or not: q * size + r is its inverse, since x = x // size * size + x % size
    and 0 <= x % size < size, so that 0 <= x < A * size just where 0 <= x // size < A."""

    dim: int
    size: SymExpr


@dataclass(frozen=True, slots=True)
class Merge:
    """Dimensions `dim` and `dim + 1` become one: (q, r) -> q * E + r, E being the extent of r, constant or not. The inverse of
    Split by E, hence a bijection."""

    dim: int


@dataclass(frozen=True, slots=True)
class RoundUp:
    """The extent of dimension `dim` is rounded up to a multiple: x -> x, which gives no two elements one place. The places past
    the old extent are padding, hold zeros, and are the only ones that are left over."""

    dim: int
    multiple: int


Combinator: TypeAlias = Permute | Split | Merge | RoundUp
Combinators: TypeAlias = tuple[Combinator, ...]


def extents_of(shape: Sequence[SymExpr], step: Combinator) -> tuple[SymExpr, ...]:
    """The extents of a storage that a combinator has changed. Raises InternalError where it does not apply."""
    match step:
        case Permute(order=order) if sorted(order) == list(range(len(shape))):
            return tuple(shape[d] for d in order)
        case Split(dim=d, size=size) if d < len(shape) and (count := exact_quotient(shape[d], size)) is not None:
            return (*shape[:d], count, size, *shape[d + 1:])
        case Merge(dim=d) if d + 1 < len(shape):
            return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2:])
        case RoundUp(dim=d, multiple=multiple) if d < len(shape) and multiple > 0:
            return (*shape[:d], ceildiv(shape[d], multiple) * multiple, *shape[d + 1:])
    raise InternalError(f"{step} does not apply to a storage of {[str(e) for e in shape]}")


def stored(shape: Sequence[SymExpr], layout: Combinators) -> tuple[SymExpr, ...]:
    """The extents in memory, slowest first. Raises InternalError where a combinator does not apply."""
    found = tuple(shape)
    for step in layout:
        found = extents_of(found, step)
    return found


#: An axis, and how many neighbours along it are side by side; its extent is a multiple of that.
Beside: TypeAlias = tuple[int, int]
#: How many neighbours code can read so.
BESIDE = (2, 4)


def panels(rank: int, axis: int, width: int, beside: Beside | None = None) -> Combinators:
    """`axis`, padded to a multiple of `width` and split by it, the quotient first and the remainder last: W[K, N] in panels
    of 64 along axis 1 is stored as [ceil(N/64)][K][64]; with two neighbours along axis 0 `beside` each other as
    [ceil(N/64)][K/2][64][2]."""
    rest = (d + (d > axis) for d in range(rank) if d != axis)
    plain = RoundUp(axis, width), Split(axis, SymExpr.of(width)), Permute((axis, *rest, axis + 1))
    if beside is None:
        return plain
    along, count = beside
    at = along + (along < axis)  # where it is behind the panels' own axis
    return *plain, Split(at, SymExpr.of(count)), Permute((*range(at + 1), *range(at + 2, rank + 2), at + 1))


def panel_of(rank: int, layout: Combinators) -> tuple[int, int, Beside | None] | None:
    """The axis, the width and what is side by side of a layout that is `panels`, None of the plain one. Raises InternalError
    for any other."""
    found = _panel(rank, layout)
    if layout and found is None:
        raise InternalError(f"no code reads the layout {layout}")
    return found


def text(rank: int, layout: Combinators) -> str:
    """A layout that is not plain, in words."""
    found = _panel(rank, layout)
    if found is None:
        return ", ".join(map(str, layout))
    axis, width, beside = found
    return f"panel({axis}, {width})" + ("" if beside is None else f", {beside[1]} along {beside[0]} side by side")


@lru_cache(maxsize=1024)
def _panel(rank: int, layout: Combinators) -> tuple[int, int, Beside | None] | None:
    match layout:
        case (RoundUp(dim=axis, multiple=width), *_):
            ways = (None, *((d, count) for d in range(rank) if d != axis for count in BESIDE))
            return next(((axis, width, beside) for beside in ways if layout == panels(rank, axis, width, beside)), None)
    return None


# -- JSON ------------------------------------------------------------------------------------------------------

def to_json(layout: Combinators) -> list[list[Any]]:
    """A JSON-ready list that `from_json` reads back."""
    made: list[list[Any]] = []
    for step in layout:
        match step:
            case Permute(order=order):
                made.append(["permute", *order])
            case Split(dim=d, size=size):
                made.append(["split", d, str(size)])
            case Merge(dim=d):
                made.append(["merge", d])
            case RoundUp(dim=d, multiple=multiple):
                made.append(["round_up", d, multiple])
    return made


def from_json(data: Any) -> Combinators:
    """What `to_json` wrote. Raises ValueError or TypeError on anything else."""
    made: list[Combinator] = []
    for step in data:
        match step:
            case ["permute", *order] if all(isinstance(d, int) for d in order):
                made.append(Permute(tuple(order)))
            case ["split", int(d), str(size)]:
                made.append(Split(d, parse(size)))
            case ["merge", int(d)]:
                made.append(Merge(d))
            case ["round_up", int(d), int(multiple)]:
                made.append(RoundUp(d, multiple))
            case _:
                raise ValueError(f"{step!r} is no step of a layout")
    return tuple(made)
