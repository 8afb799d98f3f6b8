"""te.Compute: one tensor defined element by element, with declared reduce axes and a declared monoid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from tsc.sym import SymExpr
from tsc.sym.facts import Facts, Range
from tsc.te.expr import Buffer, Expr, format_expr, loads

#: The least value of a size that is no extent and has no known bound.
UNBOUNDED = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Axis:
    """A named index running over `0 .. extent-1`. Names are unique within a Program."""

    name: str
    extent: SymExpr

    def __str__(self) -> str:
        return f"{self.name}<{self.extent}"


@dataclass(frozen=True, slots=True)
class Monoid:
    """A reduction operator declared associative and commutative: intrinsic `fn` with its identity by dtype.

    Only these declarations allow the scheduler to drop a reduction's dependence on itself.
    """

    fn: str  # "add", "mul", "max", "min", "and", "or"

    def identity(self, dtype: str) -> int | float | bool:
        """The neutral element for values of `dtype`."""
        floating = dtype.startswith(("float", "bfloat"))
        match self.fn:
            case "add" | "or":
                return False if dtype == "bool" else 0.0 if floating else 0
            case "mul" | "and":
                return True if dtype == "bool" else 1.0 if floating else 1
            case "max":
                return float("-inf") if floating else False if dtype == "bool" else _int_range(dtype)[0]
            case "min":
                return float("inf") if floating else True if dtype == "bool" else _int_range(dtype)[1]
        raise ValueError(f"unknown monoid {self.fn!r}")


SUM, PROD, MAX, MIN = Monoid("add"), Monoid("mul"), Monoid("max"), Monoid("min")


@dataclass(frozen=True, slots=True)
class Carried:
    """That a Compute is part of the step of the recurrence `name`, a trip of which is made at each value of `axis`, one of the
    Compute's own: upwards, or downwards where it is in `reverse`."""

    name: str
    axis: str
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """`target[axes] = body`, or with reduce axes `target[axes] = monoid over reduce_axes of body`.

    The write is always the identity: `target.shape` equals the extents of `axes`, in order. Where it is `carried`, it may read
    what earlier trips made, its own target among that.
    """

    target: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    monoid: Monoid | None = None
    carried: Carried | None = None

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def along(self) -> str:
        """The axis that it is carried along, "" where it is not."""
        return "" if self.carried is None else self.carried.axis

    def __str__(self) -> str:
        left = f"{self.target.name}[{', '.join(map(str, self.axes))}]"
        if self.carried is not None:
            left = f"{self.carried.name} {'down' if self.carried.reverse else 'along'} {self.carried.axis}: {left}"
        if self.monoid is None:
            return f"{left} = {format_expr(self.body)}"
        return f"{left} = {self.monoid.fn} over {', '.join(map(str, self.reduce_axes))}: {format_expr(self.body)}"


@dataclass(frozen=True, slots=True)
class Program:
    """What one kernel computes: Computes in an order in which each reads only inputs and earlier targets. The Computes of one
    recurrence follow each other: they make a trip together, one after the other, before the next trip begins.

    `outputs` are the targets that live on after the kernel; other targets are local to it. `sizes` are the kernel's integer
    parameters: the names of every Dim occurring in its shapes, each with its provable lower bound (0 or 1) and divisor.
    `facts` relate them to each other (`s1 == (s0 - 3) // 2 + 1` for a strided window).
    """

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    computes: tuple[Compute, ...]
    sizes: tuple[SizeParam, ...]
    facts: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        lines = [f"sizes {', '.join(map(str, self.sizes))}"]
        lines += [f"with {fact}" for fact in self.facts]
        lines += [f"in  {b}" for b in self.inputs] + [f"out {b}" for b in self.outputs]
        return "\n".join(lines + [str(c) for c in self.computes]) + "\n"


def runs(computes: Iterable[Compute]) -> Iterator[tuple[Compute, ...]]:
    """The Computes in order, those of one recurrence together, each other alone."""
    for name, found in groupby(computes, lambda c: c.carried and c.carried.name):
        group = tuple(found)
        yield from ((c,) for c in group) if name is None else (group,)


def needed(computes: Iterable[Compute], names: Iterable[str]) -> tuple[Compute, ...]:
    """Those of `computes`, in order, that the targets `names` are made from."""
    known = {c.name: c for c in computes}
    pending, living = list(names), set[str]()
    while pending:
        name = pending.pop()
        if name in known and name not in living:
            living.add(name)
            pending += (load.buffer.name for load in loads(known[name].body))
    return tuple(c for c in known.values() if c.name in living)


@dataclass(frozen=True, slots=True)
class SizeParam:
    """An integer parameter of a kernel: `lo <= name <= hi` (None: unbounded), and `name` is divisible by `divisor`."""

    name: str
    lo: int = 1
    divisor: int = 1
    hi: int | None = None

    def __str__(self) -> str:
        upper = "" if self.hi is None else f" <={self.hi}"
        return f"{self.name}>={self.lo}{upper}" + (f" by {self.divisor}" if self.divisor > 1 else "")


def ranges_of(sizes: Iterable[SizeParam]) -> dict[str, Range]:
    """What is known of each size by its name."""
    return {s.name: Range(s.lo, s.hi, s.divisor) for s in sizes}


def facts_of(sizes: Iterable[SizeParam]) -> Facts:
    """What is known of sizes, for proofs."""
    return Facts.of(ranges_of(sizes))


@dataclass(frozen=True, slots=True)
class Fact:
    """`left relation right` holds at every call. A name that is no size of the Program stands for some integer, the same one in
    all facts."""

    left: SymExpr
    relation: str  # "==" or "<="
    right: SymExpr

    def names(self) -> frozenset[str]:
        """All names that occur."""
        return self.left.dims() | self.right.dims()

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


def _int_range(dtype: str) -> tuple[int, int]:
    bits = int("".join(ch for ch in dtype if ch.isdigit()))
    return (0, 2**bits - 1) if dtype.startswith("uint") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
