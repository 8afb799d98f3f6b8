"""te.Compute: one tensor defined element by element, with declared reduce axes and a declared monoid."""

from __future__ import annotations

from dataclasses import dataclass

from tsc.sym import SymExpr
from tsc.te.expr import Buffer, Expr, format_expr

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
class Compute:
    """`target[axes] = body`, or with reduce axes `target[axes] = monoid over reduce_axes of body`.

    The write is always the identity: `target.shape` equals the extents of `axes`, in order.
    """

    target: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    reduce_axes: tuple[Axis, ...] = ()
    monoid: Monoid | None = None

    @property
    def name(self) -> str:
        return self.target.name

    def __str__(self) -> str:
        left = f"{self.target.name}[{', '.join(map(str, self.axes))}]"
        if self.monoid is None:
            return f"{left} = {format_expr(self.body)}"
        return f"{left} = {self.monoid.fn} over {', '.join(map(str, self.reduce_axes))}: {format_expr(self.body)}"


@dataclass(frozen=True, slots=True)
class Program:
    """What one kernel computes: Computes in an order in which each reads only inputs and earlier targets.

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
