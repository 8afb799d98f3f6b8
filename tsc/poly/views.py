"""Views of inputs: an index that is affine in no coordinates that isl has is an exact cell of a view of the input.

`x // L` and `x % L` with a symbolic L, a product with a size, the scale of a resize: such an input is read through a view over
the axes that the index depends on, so that the access is exact, and what takes the view's cells to the input's is a Layout
outside of isl. It may take many cells to one (a window, a repeated row); that it stays within the extents is certified for all
sizes: each quotient, remainder and product becomes a coordinate of its own, whose bounds are known (polynomials in sizes are
integers that the Program names: `s2 == s0 * s1`), and in these coordinates the index is affine.

That `x` becomes a quotient and a remainder by L is no loss where `0 <= x < A * L`: `(x // L, x % L)` is then a bijection onto
`[0, A) x [0, L)`, whose inverse is `q * L + r`, at every L > 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import box_text, fact_texts, index_text, size_text
from tsc.poly.promotion.layout import Layout
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, dim, exact_quotient, product
from tsc.sym.expr import Apply, Atom, Monomial
from tsc.sym.identities import multiples
from tsc.te.compute import UNBOUNDED, Axis, Program
from tsc.te.expr import (
    INDEX,
    Call,
    Cast,
    CheckedIndex,
    Expr,
    Load,
    Var,
    add,
    as_size,
    call,
    index,
    map_children,
    mul,
    substitute,
    walk,
)
from tsc.te.linear import Ranges, interval, linear

#: isl operations that one access may take.
OPERATIONS = 60_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a Program in terms of those that are made from no others.

    `env`: the ranges of all names. `made`: what is a polynomial in others. `products`: the products of names that are affine in
    sizes and hidden names. `quotients`: those that are sizes.
    """

    env: ShapeEnv
    made: Mapping[str, SymExpr]
    products: Mapping[Monomial, SymExpr]
    quotients: Mapping[Atom, str]

    @staticmethod
    def of(program: Program) -> Sizes:
        """What a Program says of its sizes."""
        env, made = _ranges(program), dict[str, SymExpr]()
        for fact in program.facts:
            size, value = fact.left.as_dim(), fact.right.substitute(made)
            if fact.relation != "==" or size is None or size.name in made.keys() | value.dims() or _is_quotient(value):
                continue
            made = {name: old.substitute({size.name: value}) for name, old in made.items()} | {size.name: value}
        for param in program.sizes:  # a sum of names says less
            if param.name in made and len(made[param.name].terms) > 1:
                env.assume_le(param.lo, made[param.name], f"size {param.name}")
        named = {s.name for s in program.sizes}
        quotients = {fact.right.terms[0][0][0]: size.name for fact in program.facts if fact.relation == "==" and (
            size := fact.left.as_dim()) is not None and size.name in named and _is_one_quotient(fact.right)}
        return Sizes(env, made, _products(made), quotients)

    def expanded(self, expr: SymExpr) -> SymExpr:
        """`expr` without sizes that are polynomials in others."""
        return expr.substitute(self.made) if expr.dims() & self.made.keys() else expr

    def text(self, expr: SymExpr) -> str | None:
        """A polynomial as isl text, products and quotients as the sizes that they are; None where a product is no size."""
        found = ZERO
        for monomial, coefficient in expr.terms:
            found = found + product(dim(self.quotients[a]) if a in self.quotients else SymExpr((((a,), 1),))
                                    for a in monomial) * coefficient
        return size_text(_replaced(found, self.products))


def _ranges(program: Program) -> ShapeEnv:
    """The ranges of a Program's sizes and of the hidden names in its facts."""
    env = ShapeEnv()
    for size in program.sizes:
        env.declare(size.name, size.lo, size.hi, size.divisor)
    hidden = dict.fromkeys(name for fact in program.facts for name in sorted(fact.names()) if name not in env.ranges)
    for name in hidden:
        numbers = [(f.left.as_int(), f.right.as_int()) for f in program.facts
                   if f.relation == "<=" and dim(name) in (f.left, f.right)]
        lows, highs = ([n for n in side if n is not None] for side in zip(*numbers)) if numbers else ([], [])
        env.declare(name, max(lows, default=UNBOUNDED), min(highs, default=None))
    return env


def _products(made: Mapping[str, SymExpr]) -> dict[Monomial, SymExpr]:
    """What each product of names is, as far as one definition after the other gives one."""
    found: dict[Monomial, SymExpr] = {}
    left = dict(made)
    while left:
        for name, value in left.items():
            rest = _replaced(value, found)
            unknown = [(monomial, times) for monomial, times in rest.terms if len(monomial) > 1]
            if len(unknown) == 1 and abs(unknown[0][1]) == 1:
                (monomial, times), = unknown
                found[monomial] = (dim(name) - rest) * times + SymExpr(((monomial, 1),))
            if len(unknown) < 2:
                del left[name]
                break
        else:
            break
    return found


def _replaced(expr: SymExpr, products: Mapping[Monomial, SymExpr]) -> SymExpr:
    total = ZERO
    for monomial, coefficient in expr.terms:
        total = total + products.get(monomial, SymExpr(((monomial, 1),))) * coefficient
    return total


def _is_quotient(expr: SymExpr) -> bool:
    """Whether it is one quotient, or the like, or a multiple of it: no product and no sum."""
    return len(expr.terms) == 1 and len(expr.terms[0][0]) == 1 and any(isinstance(atom, Apply) for atom in expr.atoms())


def _is_one_quotient(expr: SymExpr) -> bool:
    match expr.terms:
        case (((Apply(fn="//"),), 1),):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Coordinate:
    """What stands for an index that is not affine, and what is known of it. `product`: it is that index times that size, of
    which the second text is the greatest value, the third that of the whole."""

    name: str
    where: tuple[str, ...]
    product: tuple[Expr, str, str, str] | None = None


@dataclass(slots=True)
class Lifting:
    """The index arithmetic of one statement over `axes`, and coordinates for what is not affine in it."""

    axes: Sequence[Axis]
    program: Program
    coordinates: dict[Expr, _Coordinate] = field(default_factory=dict)

    @property
    def own(self) -> dict[str, str]:
        """The axes, as `index_text` wants them."""
        return {a.name: a.name for a in self.axes}

    @property
    def names(self) -> dict[str, str]:
        """Axes and coordinates, as `index_text` wants them."""
        return self.own | {c.name: c.name for c in self.coordinates.values()}

    def lifted(self, expr: Expr) -> Expr:
        """`expr` with coordinates for all index arithmetic in it that depends on no data and is not affine."""
        if expr.dtype == INDEX and index_text(expr, self.own) is not None:
            return expr
        terms = None if depends_on_data(expr) else _terms(expr)  # a Load that is multiplied out would be several
        if terms is not None:
            return self.lifted(terms)
        inner = map_children(self.lifted, expr)
        if expr.dtype != INDEX or index_text(inner, self.names) is not None or depends_on_data(expr):
            return inner
        match inner:
            case Call(fn="floordiv" | "mod" | "mul") | Cast() | CheckedIndex():
                return self._named(expr, inner)
        return inner

    def _named(self, expr: Expr, inner: Expr) -> Var:
        """The coordinate of `expr`, which is `inner` over coordinates."""
        if expr not in self.coordinates:
            self.coordinates[expr] = self._coordinate(f"c{len(self.coordinates)}_", expr, inner)
        return Var(self.coordinates[expr].name)

    def _coordinate(self, name: str, expr: Expr, inner: Expr) -> _Coordinate:
        """The coordinate of a quotient, a remainder or a product: `expr` over axes, `inner` over coordinates."""
        if isinstance(expr, CheckedIndex):
            return _Coordinate(name, (box_text((expr.extent,), [name]),))
        operands = [as_size(a) for a in expr.args] if isinstance(expr, Call) and expr.fn in ("floordiv", "mod", "mul") else []
        if not isinstance(expr, Call) or not isinstance(inner, Call) or all(size is None for size in operands):
            return _Coordinate(name, ())
        sizes = Sizes.of(self.program)
        for axis in self.axes:  # where one has no elements nothing is read
            if not sizes.env.prove_le(sizes.expanded(axis.extent), 0):
                sizes.env.assume_le(1, sizes.expanded(axis.extent), f"axis {axis}")
        left = operands[0] is not None and expr.fn == "mul"
        by = sizes.expanded((operands[0] if left else operands[1]) or ZERO)
        if not sizes.env.prove_le(0, by):
            return _Coordinate(name, ())
        ranges = Ranges({a.name: sizes.expanded(a.extent) for a in self.axes}, sizes.env)
        low, high = (None if end is None else sizes.expanded(end) for end in _ends(expr.args[1 if left else 0], ranges))
        bounds: list[tuple[SymExpr | None, SymExpr | None]] = []  # from, and below
        match expr.fn:
            case "mod":
                bounds.append((ZERO, by))
            case "floordiv":
                bounds.append((_least_quotient(low, by, sizes.env), _behind_quotients(high, by, sizes.env)))
            case "mul" if low is not None and high is not None:
                bounds.append((low * by, high * by + 1))
        texts = [] if low is None or not sizes.env.prove_le(0, low) else _no_more(name, inner, self.names)
        texts += [f"{text} {sign} {name}" for pair in bounds for end, sign in zip(pair, ("<=", ">"))
                 if end is not None and (text := sizes.text(end)) is not None]
        if expr.fn == "mul" and high is not None:
            texts += _quotient_text(high, by, name, sizes)
        if expr.fn != "mul":
            divisor = sizes.text(by)  # nothing divides by zero: what has no elements is not read
            return _Coordinate(name, (*texts, f"1 <= {divisor}") if divisor is not None else ())
        ends = [None if high is None else sizes.text(e) for e in (by, high or ZERO, (high or ZERO) * by)]
        by_text, most, whole = ends
        if by_text is None or most is None or whole is None:
            return _Coordinate(name, tuple(texts))
        return _Coordinate(name, tuple(texts), (inner.args[1 if left else 0], by_text, most, whole))

    def stays(self, load: Load, domain: str, conditions: Iterable[str], params: str, known: isl.Set) -> bool:
        """Whether it is proved that a lifted Load, where `domain` and the conditions hold, stays within its buffer's extents at
        all sizes in `known`; what depends on data does, by its check."""
        if not self.coordinates:
            return False
        given = list(conditions)
        # most often the loops say it alone, and what conditions have of remainders and alternatives costs isl the most
        return any(self._proved(load, domain, some, params, known) for some in ([], given)[:1 + bool(given)])

    def _proved(self, load: Load, domain: str, conditions: Iterable[str], params: str, known: isl.Set) -> bool:
        try:
            with isl.budget(OPERATIONS):
                return self._stays(load, domain, conditions, params, known)
        except PatternMismatch:  # sums of products of many sizes
            return False

    def _stays(self, load: Load, domain: str, conditions: Iterable[str], params: str, known: isl.Set) -> bool:
        names = self.names
        some, where = self._known(domain, conditions)
        where += self._scaled([*where], ", ".join(some), params, known)
        cells = [f"d{i}_" for i in range(len(load.index))]
        for cell, position, extent in zip(cells, load.index, load.buffer.shape):
            text = index_text(position, names)
            where.append(f"{cell} = {text}" if text is not None else box_text((extent,), [cell]))
        # that there is no such point is easier to tell than which cells there are
        where.append(f"not ({box_text(load.buffer.shape, cells)})")
        outside = isl.Set(f"{params} -> {{ [{', '.join([*some, *cells])}] : {' and '.join(where)} }}")
        return bool(outside.intersect_params(known).is_empty())

    def _known(self, domain: str, conditions: Iterable[str]) -> tuple[list[str], list[str]]:
        """The names of axes, coordinates and what facts hide, and all that is known of them."""
        whole = list(self._whole())
        hidden, facts = fact_texts(self.program)
        where = [domain, *(text for c in self.coordinates.values() for text in c.where), *conditions]
        where += facts if hidden else []  # without such names they are what is known
        return [*self.names, *hidden], where + whole

    def _whole(self) -> Iterator[str]:
        """That a quotient times its divisor and the remainder are what was divided, where both are coordinates."""
        for expr, rest in [*self.coordinates.items()]:
            match expr:
                case Call(fn="mod", args=(x, by)):
                    quotient = call("floordiv", x, by)
                    parts = {self.coordinates.get(mul(*pair)) for pair in ((quotient, by), (by, quotient))} - {None}
                    text = index_text(self.lifted(x), self.names)
                    yield from (f"{part.name} + {rest.name} = {text}" for part in parts if part and text is not None)

    def bounded(self, load: Load, domain: str, conditions: Iterable[str], params: str, known: isl.Set) -> bool:
        """Whether each index of a Load that has no formula stays within its extent whatever data says: by a check of its own,
        or by ends that it is held between."""
        own = Lifting(self.axes, self.program, dict(self.coordinates))
        pairs = [(own._free(place), extent) for place, extent in zip(load.index, load.buffer.shape)
                 if index_text(place, self.own) is None]
        some, where = own._known(domain, conditions)
        try:
            with isl.budget(OPERATIONS):
                for place, extent in pairs:
                    outside = f"i_ = {index_text(place, own.names)} and not ({box_text((extent,), ['i_'])})"
                    points = f"{params} -> {{ [{', '.join([*some, 'i_'])}] : {' and '.join([*where, outside])} }}"
                    if not isl.Set(points).intersect_params(known).is_empty():
                        return False
        except PatternMismatch:
            return False
        return True

    def _free(self, expr: Expr) -> Expr:
        """An index as affine in axes and coordinates: one more for each part that is not, of which nothing is known if it is
        data (a remainder by a size that is 0 is one of nothing)."""
        if expr in self.coordinates:
            return Var(self.coordinates[expr].name)
        if index_text(expr, self.own) is not None:
            return expr
        inner = map_children(self._free, expr) if isinstance(expr, Call) and expr.dtype == INDEX else expr
        if index_text(inner, self.names) is not None:
            return inner
        if isinstance(expr, CheckedIndex) or not depends_on_data(expr):
            return self._named(expr, inner)
        free = self.coordinates[expr] = _Coordinate(f"c{len(self.coordinates)}_", ())
        return Var(free.name)

    def _scaled(self, where: Sequence[str], some: str, params: str, known: isl.Set) -> list[str]:
        """What is known of a size times an index where the index stays away from its ends by numbers."""
        found = []

        def least(text: str) -> int | None:
            points = isl.Set(f"{params} -> {{ [v] : exists ({some} : v = {text} and {' and '.join(where)}) }}")
            return isl.least(points.intersect_params(known))

        for coordinate in self.coordinates.values():
            if coordinate.product is not None:
                of, by, most, whole = coordinate.product
                text = index_text(of, self.names)
                low, slack = (None, None) if text is None else (least(text), least(f"{most} - ({text})"))
                found += [] if low is None else [f"{low} * ({by}) <= {coordinate.name}"]
                found += [] if slack is None else [f"{coordinate.name} <= {whole} - {slack} * ({by})"]
        return found


def _no_more(name: str, inner: Call, names: Mapping[str, str]) -> list[str]:
    """That a quotient or a remainder is no more than its dividend, which is not negative, by what divides something."""
    text = index_text(inner.args[0], names)
    return [] if inner.fn == "mul" or text is None else [f"{name} <= {text}"]


def _quotient_text(high: SymExpr, by: SymExpr, name: str, sizes: Sizes) -> list[str]:
    """What `name <= high * by` says where `high` has a quotient `e // n` by a number in it: it is no more than `e / n`."""
    for monomial, times in high.terms:
        match monomial:
            case (Apply(fn="//", args=(whole, divisor)),) if times > 0 and (n := divisor.as_int() or 0) > 0:
                rest = high - SymExpr(((monomial, times),))
                text = sizes.text((rest * n + whole * times) * by)
                return [] if text is None else [f"{n} * {name} <= {text}"]
    return []


def _least_quotient(low: SymExpr | None, by: SymExpr, env: ShapeEnv) -> SymExpr | None:
    """A lower bound of `x // by`, where `low <= x` and `by` is positive."""
    if low is None:
        return None
    return ZERO if env.prove_le(0, low) else exact_quotient(low, by)


def _behind_quotients(high: SymExpr | None, by: SymExpr, env: ShapeEnv) -> SymExpr | None:
    """What is greater than `x // by`, where `x <= high` and `by` is positive."""
    if high is None:
        return None
    whole, rest = multiples(high, by)  # high == whole * by + rest
    if not env.prove_lt(rest, by):
        exact, behind = exact_quotient(high, by), exact_quotient(high + 1, by)
        return behind if exact is None else exact + 1
    for _ in range(3):
        if env.prove_lt(rest, 0):
            whole, rest = whole - 1, rest + by
    return whole + 1


def _ends(expr: Expr, ranges: Ranges) -> tuple[SymExpr | None, SymExpr | None]:
    """A lower and an upper bound of an index, where they are known."""
    match expr:
        case Call(fn="min" | "max" as fn, args=(a, b)):
            (low, high), (least, most) = _ends(a, ranges), _ends(b, ranges)
            if fn == "min":
                positive = low is not None and least is not None and all(ranges.env.prove_le(0, x) for x in (low, least))
                return (ZERO if positive else None), most if high is None or most is not None else high
            return low if least is None else least, None
    found = interval(linear(expr), ranges)
    return (None, None) if found is None else found


def _terms(expr: Expr) -> Expr | None:
    """An index times a polynomial in sizes as a sum of multiples of it times products of sizes, whose sign is known; None where
    it is no such product, or one term already."""
    if not isinstance(expr, Call) or expr.fn != "mul" or expr.dtype != INDEX:
        return None
    for one, other in (expr.args, expr.args[::-1]):
        size = as_size(other)
        if size is not None and (len(size.terms) > 1 or any(monomial and times != 1 for monomial, times in size.terms)):
            total = index(0)
            for monomial, times in size.terms:
                total = add(total, mul(mul(one, index(SymExpr(((monomial, 1),)))), index(times)))
            return total
    return None


def depends_on_data(expr: Expr) -> bool:
    """Whether an index or a condition depends on elements of tensors."""
    return any(isinstance(node, Load) for node in walk(expr))


def view_of(load: Load, axes: Sequence[Axis]) -> tuple[Layout, tuple[Expr, ...]]:
    """The view through which an input is read at an index that is not affine, and the cell that is read, in the axes: where the
    index is affine it is itself a coordinate, and so is each axis that the rest of the index depends on."""
    own = {a.name: a.name for a in axes}
    cell: list[Expr] = []
    box: list[SymExpr] = []
    places: list[Expr | None] = []
    for position, extent in zip(load.index, load.buffer.shape):
        if index_text(position, own) is None:
            places.append(None)
            continue
        places.append(Var(f"i{len(cell)}"))
        cell.append(position)
        box.append(extent)
    rest = [p for p, place in zip(load.index, places) if place is None]
    used = {node.name for position in rest for node in walk(position) if isinstance(node, Var)}
    over: dict[str, Expr] = {}
    for axis in axes:
        if axis.name in used:
            over[axis.name] = Var(f"i{len(cell)}")
            cell.append(Var(axis.name))
            box.append(axis.extent)
    where = tuple(substitute(p, over) if place is None else place for p, place in zip(load.index, places))
    return Layout(f"view of {load.buffer.name}", tuple(box) or (ONE,), load.buffer.shape, where), tuple(cell)

