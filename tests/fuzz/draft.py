"""Draft: random pieces of te.Programs, in extents by construction. `generate.py` puts them together.

Everything is drawn from a `random.Random`, so that a number names a program and hypothesis can shrink one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tsc.sym import SymExpr, ceildiv, dim, exact_quotient
from tsc.te.compute import Axis, Compute, Monoid, SizeParam
from tsc.te.expr import BOOL, INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, add, call, index, select

ONE = SymExpr.of(1)
PLACES = [*["plain"] * 7, "shift", "reverse", "stride", "sum", "quotient", "remainder", "clamp", "pad", "data", "constant"]


def f32(value: float) -> Const:
    return Const(float(value), "float32")


def sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


@dataclass
class Place:
    """One dimension of a read: its index, the extent that the buffer needs there, and what must hold for it to be inside."""

    index: Expr
    extent: SymExpr
    conditions: tuple[Expr, ...] = ()


@dataclass
class Draft:
    """A Program in the making. `real` allows functions that round; `loose` allows extents that are products of sizes; `divided`
    also draws quotients and remainders by sizes, as a Reshape makes them.

    `rare` draws large numbers in comparisons and as ends of sizes; `picks` holds, for each input of indices, the extent that
    they index into.
    """

    rng: Random
    real: bool
    loose: bool
    sizes: dict[str, SizeParam] = field(default_factory=dict)
    inputs: list[Buffer] = field(default_factory=list)
    computes: list[Compute] = field(default_factory=list)
    picks: dict[str, SymExpr] = field(default_factory=dict)
    axis_count: int = 0
    divided: bool = False
    rare: Random | None = None  # draws what programs had not at first: those found by number stay as they are

    # -- sizes and axes ----------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def size(self) -> SymExpr:
        """A symbolic size: mostly from 1, sometimes from 0 or bounded, sometimes with a divisor."""
        if self.sizes and (len(self.sizes) >= 4 or self.chance(0.5)):
            return dim(self.rng.choice(list(self.sizes)))
        name, divisor = f"n{len(self.sizes)}", self.rng.choice([1, 1, 1, 1, 2, 4])
        lo = self.rng.choice([0, 1, 1, 1, 1, 3])
        hi = self.rng.choice([None, None, None, 12])
        if self.rare is not None and self.rare.random() < 0.2:
            hi = hi or self.rare.choice([700, 2**47])
        self.sizes[name] = SizeParam(name, -(-lo // divisor) * divisor, divisor, hi)
        return dim(name)

    def extent(self) -> SymExpr:
        if self.divided and self.chance(0.3):
            return self.size() * self.size()
        kind = self.rng.random()
        if kind < 0.55:
            return self.size()
        if kind < 0.63:
            return self.size() + self.rng.choice([1, 2])
        if kind < 0.68:
            return self.size() * self.rng.choice([2, 3])
        if kind < 0.74 and self.loose:
            return self.size() * self.size()
        return SymExpr.of(self.rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 9, 16]))

    def extents(self, low: int, high: int) -> list[SymExpr]:
        return [self.extent() for _ in range(self.rng.randint(low, high))]

    def axes(self, extents: Sequence[SymExpr]) -> tuple[Axis, ...]:
        made = tuple(Axis(f"a{self.axis_count + k}", e) for k, e in enumerate(extents))
        self.axis_count += len(made)
        return made

    def not_empty(self, extent: SymExpr) -> bool:
        """Whether an extent is at least 1 at all sizes."""
        low = {name: size.lo for name, size in self.sizes.items()}
        return extent.evaluate(low) >= 1

    def factor(self, extent: SymExpr) -> SymExpr | None:
        """A size that divides an extent, None where there is none, or else sometimes any that is not zero."""
        names = [name for name in sorted(extent.dims()) if exact_quotient(extent, dim(name)) is not None]
        if names and self.chance(0.8):
            return dim(self.rng.choice(names))
        size = self.size()
        return size if self.not_empty(size) else None

    # -- computes ----------------------------------------------------------------------------------------------

    def input(self, dtype: str, shape: Sequence[SymExpr]) -> Buffer:
        made = Buffer(f"x{len(self.inputs)}", dtype, tuple(shape))
        self.inputs.append(made)
        return made

    def define(self, axes: Sequence[Axis], body: Expr, reduce_axes: Sequence[Axis] = (),
               monoid: Monoid | None = None) -> Buffer:
        target = Buffer(f"t{len(self.computes)}", body.dtype, tuple(a.extent for a in axes))
        self.computes.append(Compute(target, tuple(axes), body, tuple(reduce_axes), monoid if reduce_axes else None))
        return target

    # -- reading an input: indices first, then a buffer that they fit -------------------------------------------

    def place(self, axes: Sequence[Axis]) -> Place:
        """A random affine or quasi-affine index of one dimension."""
        axis = self.rng.choice(axes)
        var, extent, c = Var(axis.name), axis.extent, self.rng.choice([1, 2, 3])
        if self.divided and self.chance(0.3) and (by := self.factor(extent)) is not None:
            if self.chance(0.5):
                return Place(call("mod", var, index(by)), by)
            return Place(call("floordiv", var, index(by)), exact_quotient(extent, by) or extent)
        match self.rng.choice(PLACES):
            case "shift":
                return Place(add(var, index(c)), extent + c)
            case "reverse":
                return Place(sub(index(extent - 1), var), extent)
            case "stride":
                return Place(add(call("mul", var, index(c + 1)), index(c - 1)), extent * (c + 1) + c)
            case "sum":
                other = self.rng.choice(axes)
                return Place(add(var, call("mul", Var(other.name), index(c))), extent + other.extent * c)
            case "quotient":
                return Place(call("floordiv", var, index(c + 1)), ceildiv(extent, c + 1) if self.chance(0.7) else extent)
            case "remainder":
                return Place(call("mod", var, index(c + 1)), SymExpr.of(c + 1))
            case "clamp":
                return Place(call("min", add(var, index(c)), index(extent - 1)), extent)
            case "pad":
                moved = sub(var, index(c)) if self.chance(0.5) else add(var, index(c))
                inside = [call("ge", moved, index(0))] if self.chance(0.8) or moved == sub(var, index(c)) else []
                return Place(moved, extent, (*inside, call("lt", moved, index(extent))))
            case "data":
                return self.picked(axes)
            case "constant":
                return Place(index(c - 1), SymExpr.of(c))
        return Place(var, extent)

    def picked(self, axes: Sequence[Axis], extent: SymExpr | None = None) -> Place:
        """An index that data decides, into a dimension that is never empty."""
        if extent is None:
            extent = self.extent()
            extent = extent if self.not_empty(extent) else extent + 1
        used = self.rng.sample(list(axes), self.rng.randint(0, min(2, len(axes))))
        ids = self.input("int64", [a.extent for a in used])
        self.picks[ids.name] = extent
        return Place(CheckedIndex(Load(ids, tuple(Var(a.name) for a in used)), extent, ids.name), extent)

    def read(self, axes: Sequence[Axis], dtype: str = "float32", every: bool = False) -> Expr:
        """A read of a new input at some (or `every`) of `axes`, in any order; guarded where an index may be outside."""
        axes = list(axes)
        if not axes:
            return Load(self.input(dtype, ()), ())
        if every or self.chance(0.5):
            used = self.rng.sample(axes, len(axes)) if self.chance(0.4) else axes
            places = [self.place([a]) if self.chance(0.3) and not every else Place(Var(a.name), a.extent) for a in used]
        else:
            places = [self.place(axes) for _ in range(self.rng.randint(1, min(3, len(axes) + 1)))]
        if self.chance(0.35 if self.divided else 0.08):
            places = self.split(places)
        elif self.chance(0.35 if self.divided else 0.08):
            places = self.flattened(places)
        return self.guarded(places, dtype)

    def guarded(self, places: Sequence[Place], dtype: str = "float32") -> Expr:
        load = Load(self.input(dtype, [p.extent for p in places]), tuple(p.index for p in places))
        conditions = [c for p in places for c in p.conditions]
        if not conditions:
            return load
        condition = conditions[0]
        for other in conditions[1:]:
            condition = Call("and", (condition, other), BOOL)
        outside = Const(0.0 if dtype.startswith("float") else False if dtype == BOOL else 0, dtype)
        if self.chance(0.2):
            return select(Call("not", (condition,), BOOL), outside, load)
        return select(condition, load, outside)

    def split(self, places: list[Place]) -> list[Place]:
        """One index as its quotient and remainder."""
        k = self.rng.randrange(len(places))
        old, width = places[k], self.size() if self.loose and self.chance(0.5) else SymExpr.of(self.rng.choice([2, 3, 4]))
        if self.divided:
            width = self.factor(old.extent) or width
        if not (self.not_empty(width) or exact_quotient(old.extent, width)) or old.conditions:
            return places
        parts = [Place(call("floordiv", old.index, index(width)), ceildiv(old.extent, width)),
                 Place(call("mod", old.index, index(width)), width)]
        return [*places[:k], *parts, *places[k + 1:]]

    def flattened(self, places: list[Place]) -> list[Place]:
        """Two neighbouring indices as one into their product."""
        if len(places) < 2:
            return places
        k = self.rng.randrange(len(places) - 1)
        a, b = places[k], places[k + 1]
        if b.extent.as_int() is None and not self.loose:
            return places
        flat = Place(add(call("mul", a.index, index(b.extent)), b.index), a.extent * b.extent, a.conditions + b.conditions)
        return [*places[:k], flat, *places[k + 2:]]

    # -- reading a target: indices that its shape allows ---------------------------------------------------------

    def read_target(self, target: Buffer, axes: Sequence[Axis], plain: bool = False) -> Expr | None:
        """A read of an earlier target; None where no index is known to be inside."""
        found: list[Expr] = []
        free = list(axes)
        for extent in target.shape:
            same = [a for a in free if a.extent == extent] or [a for a in axes if a.extent == extent]
            if same:
                axis = same[0] if plain or self.chance(0.8) else self.rng.choice(same)
                free = [a for a in free if a is not axis]
                var: Expr = Var(axis.name)
                if not plain and self.chance(0.08):
                    var = sub(index(extent - 1), var)
                found.append(var)
            elif not self.not_empty(extent):
                return None
            elif extent == ONE or self.chance(0.4):
                found.append(index(0))
            elif axes and self.chance(0.7):
                found.append(call("min", Var(self.rng.choice(axes).name), index(extent - 1)))
            else:
                found.append(self.picked(axes, extent).index)
        return Load(target, tuple(found))

    # -- values ------------------------------------------------------------------------------------------------

    def value(self, axes: Sequence[Axis], depth: int = 2) -> Expr:
        """A float32 expression over `axes`; integers as long as inputs are and the draft is not `real`."""
        if depth == 0 or self.chance(0.25):
            return self.leaf(axes)
        return self.combine(self.value(axes, depth - 1), axes, depth)

    def leaf(self, axes: Sequence[Axis]) -> Expr:
        kind = self.rng.random()
        if kind < 0.65:
            return self.read(axes)
        if kind < 0.72 and axes:
            return Cast(self.index_value(axes), "float32")
        if kind < 0.80:
            return Cast(self.read(axes, self.rng.choice([BOOL, "int64", "int32", "float64", "uint8"])), "float32")
        if kind < 0.86:
            return Cast(self.whole(axes), "float32")
        return f32(self.rng.randint(-3, 3))

    def index_value(self, axes: Sequence[Axis]) -> Expr:
        """Arithmetic of axes, small in value."""
        var = Var(self.rng.choice(axes).name)
        other = Var(self.rng.choice(axes).name)
        if self.divided and self.chance(0.4):
            size = self.size()
            by = index(size if self.not_empty(size) else size + 1)
            return call(self.rng.choice(["mod", "floordiv"]), add(var, other), by)
        return self.rng.choice([var, sub(var, other), call("mod", add(var, other), index(3)), call("floordiv", var, index(2)),
                                call("max", var, other), call("abs", sub(var, index(2)))])

    def whole(self, axes: Sequence[Axis]) -> Expr:
        """Integer arithmetic on data."""
        data = self.read(axes, "int64")
        c = Const(self.rng.choice([2, 3, 5]), INDEX)
        return self.rng.choice([
            Call("floordiv", (data, c), INDEX), Call("mod", (data, c), INDEX), Call("div", (data, c), INDEX),
            Call("mul", (data, data), INDEX), Call("max", (data, c), INDEX), Call("neg", (data,), INDEX)])

    def condition(self, axes: Sequence[Axis]) -> Expr:
        kind = self.rng.random()
        if kind < 0.5 and axes:
            fn = self.rng.choice(["lt", "le", "gt", "ge", "eq", "ne"])
            axis = self.rng.choice(axes)
            right = self.rng.choice([index(2), Size(axis.extent - 1), Var(self.rng.choice(axes).name), index(1)])
            left = self.index_value(axes)
            if self.rare is not None and self.rare.random() < 0.1:  # beyond what a double holds exactly, within int64
                by = self.rare.choice([2**31 - 1, 2**45 + 1, 2**51 + 1, 2**51 + 3])
                left, right = (call("mul", x, index(by)) for x in (left, right))
                left = add(left, index(self.rare.choice([-1, 0, 1])))
            return Call(fn, (left, right), BOOL)
        if kind < 0.8:
            return call(self.rng.choice(["lt", "ge", "eq"]), self.read(axes), f32(self.rng.randint(-1, 1)))
        if kind < 0.9:
            return self.read(axes, BOOL)
        pair = (self.condition(axes), self.condition(axes))
        return Call(self.rng.choice(["and", "or", "xor"]), pair, BOOL)

    def combine(self, x: Expr, axes: Sequence[Axis], depth: int = 1) -> Expr:
        """`x` put into a random operation."""
        other = self.value(axes, depth - 1)
        kind = self.rng.choice(["add", "sub", "mul", "min", "max", "neg", "abs", "choose", "choose", "real", "real"])
        if kind == "real" and self.real:
            return self.rng.choice([
                call("exp", call("min", x, f32(2))), call("tanh", x), call("sqrt", call("abs", x)), call("erf", x),
                call("div", x, add(call("abs", other), f32(1)))])
        match kind:
            case "neg" | "abs":
                return call(kind, x)
            case "choose":
                return select(self.condition(axes), x, other) if self.chance(0.7) else select(self.condition(axes), other, x)
            case "real":
                return call("floor", call("mul", x, f32(0.5)))
        return call(kind, x, other)
