"""Random te.Programs by recipe: one a family of kernels, each with random extents, axis orders, indices and bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from tests.fuzz.draft import Draft, Place, f32, sub
from tests.fuzz.trips import trips
from tsc.sym import ShapeEnv, SymExpr, exact_quotient, product
from tsc.te.compute import MAX, MIN, SUM, Axis, Monoid, Program, needed
from tsc.te.expr import (
    BOOL,
    Buffer,
    Cast,
    CheckedIndex,
    Expr,
    Load,
    Size,
    Var,
    add,
    call,
    index,
    loads,
    mul,
    select,
    walk,
)


@dataclass(frozen=True)
class Case:
    """A random Program and where it comes from. `loose`: over model Dims, to be lowered by te.transform. `picks`: what the
    inputs of indices index into. `real`: it rounds, so that results are compared with a tolerance. `divided`: it reads at
    quotients and remainders by sizes. `configs`: it gets random sizes of tiles in place of those that its pattern has."""

    program: Program
    kind: str
    loose: bool
    real: bool
    picks: Mapping[str, SymExpr]
    divided: bool = False
    configs: bool = False

    def env(self) -> ShapeEnv:
        env = ShapeEnv()
        for size in self.program.sizes:
            env.declare(size.name, size.lo, size.hi, size.divisor)
        return env


def cases() -> st.SearchStrategy[Case]:
    """Random Cases; hypothesis chooses and shrinks what the recipes draw."""
    return st.randoms(use_true_random=False).map(random_case)


def random_case(rng: Random, divided: bool = False, carried: bool = False, rare: Random | None = None) -> Case:
    """`divided`: one that reads at quotients and remainders by sizes; `carried`: one with recurrences; `rare` as in Draft."""
    recipes = {"trips": trips} if carried else DIVIDED if divided else RECIPES
    kind = rng.choice(list(recipes))
    draft = Draft(rng, real=rng.random() < 0.3, loose=rng.random() < 0.35 or divided, divided=divided, rare=rare)
    recipes[kind](draft)
    kept = [c.target for c in draft.computes[:-1] if draft.chance(0.15)] + [draft.computes[-1].target]
    program = _needed(draft, kept)
    return Case(program, kind.rstrip("0123456789"), draft.loose, draft.real, draft.picks, divided)


def _needed(draft: Draft, outputs: Sequence[Buffer]) -> Program:
    """The Program of `outputs`, without what they do not need."""
    computes = needed(draft.computes, (b.name for b in outputs))
    living = {load.buffer.name for c in computes for load in loads(c.body)}
    names: set[str] = set()
    for compute in computes:
        for axis in (*compute.axes, *compute.reduce_axes):
            names |= axis.extent.dims()
        for node in walk(compute.body):
            if isinstance(node, CheckedIndex):
                names |= node.extent.dims()
            elif isinstance(node, Size):
                names |= node.value.dims()
            elif isinstance(node, Load):
                names |= {n for e in node.buffer.shape for n in e.dims()}
    inputs = tuple(b for b in draft.inputs if b.name in living)
    return Program(inputs, tuple(c.target for c in computes if c.target in outputs), computes,
                   tuple(s for s in draft.sizes.values() if s.name in names))


# -- recipes ---------------------------------------------------------------------------------------------------

def _operand(d: Draft, axes: Sequence[Axis], plain: bool = False) -> Expr:
    """An earlier target, if one can be read, else something new; perhaps with more arithmetic."""
    found = None
    if d.computes and d.chance(0.85):
        found = d.read_target(d.rng.choice(d.computes[-2:]).target, axes, plain)
    if found is None:
        return d.value(axes)
    if found.dtype != "float32":
        found = Cast(found, "float32")
    return d.combine(found, axes) if d.chance(0.7) else found


def _monoid(d: Draft) -> Monoid:
    return d.rng.choice([SUM, SUM, SUM, MAX, MIN])


def elementwise(d: Draft) -> None:
    """Injective kernels: one to three stores, permuted or equal shapes, any reads."""
    shape = d.extents(0, 4)
    for _ in range(d.rng.randint(1, 3)):
        axes = d.axes(d.rng.sample(shape, len(shape)) if d.chance(0.3) else shape)
        body = _operand(d, axes)
        if d.chance(0.1):
            body = Cast(body, "float64" if d.real else d.rng.choice(["int32", "int64", "float64"]))
        elif d.chance(0.07) and not d.real:
            body = call("lt", body, f32(1))
        d.define(axes, body)


def rows(d: Draft) -> None:
    """Reductions and injective statements that share rows: softmax, norms and what nobody named."""
    outer, inner = d.extents(0, 3), d.extents(1, 2)
    for _ in range(d.rng.randint(1, 5)):
        axes, extra = d.axes(outer), d.axes(inner)
        if d.chance(0.5):
            body = _operand(d, (*axes, *extra), plain=True)
            d.define(axes, body, extra, _monoid(d))
        else:
            wide = d.chance(0.6)
            axes = (*axes, *extra) if wide else axes
            d.define(axes, _operand(d, axes, plain=True))


def columns(d: Draft) -> None:
    """Reductions over the leading dims of what they read, full ones, and ones over empty or unit axes."""
    reduced, kept = d.extents(1, 3), d.extents(0, 2)
    over, axes = d.axes(reduced), d.axes(kept)
    if d.chance(0.1):
        condition = d.condition((*over, *axes))
        d.define(axes, condition, over, Monoid(d.rng.choice(["and", "or"])))
        return
    if d.chance(0.1):
        d.define(axes, d.read((*over, *axes), "int64"), over, d.rng.choice([SUM, MAX, MIN]))
        return
    read = Load(d.input("float32", [a.extent for a in (*over, *axes)]), tuple(Var(a.name) for a in (*over, *axes)))
    d.define(axes, d.combine(read, (*over, *axes)) if d.chance(0.5) else read, over, _monoid(d))
    if d.chance(0.5):
        out = d.axes(kept)
        d.define(out, _operand(d, out))


def _factor(d: Draft, axes: Sequence[Axis], windowed: Sequence[tuple[Axis, Axis]] = ()) -> Expr:
    """One factor of a product: a read at `axes` in any order; `windowed` pairs share a dimension, perhaps padded."""
    pairs = {a.name: b for a, b in windowed}
    inside = {b.name for _, b in windowed}
    places = []
    for axis in d.rng.sample(list(axes), len(axes)) if d.chance(0.4) else axes:
        if axis.name in inside:
            continue
        if axis.name in pairs:
            places.append(_window(d, axis, pairs[axis.name]))
        elif d.chance(0.08):
            places.append(d.place([axis]))
        else:
            places.append(Place(Var(axis.name), axis.extent))
    if d.divided:
        places = d.split(places) if d.chance(0.5) else d.flattened(places)
    kind = d.rng.choice(["float32"] * 8 + ["int64", BOOL])
    read = d.guarded(places, kind)
    read = read if kind == "float32" else Cast(read, "float32")
    if d.chance(0.2):
        read = d.rng.choice([
            call("max", read, f32(0)), add(read, d.read(axes)), select(d.condition(axes), read, f32(0)) if axes else read])
    return read


def _window(d: Draft, axis: Axis, tap: Axis) -> Place:
    """`stride * axis + dilation * tap - before` into a dimension that is as wide as needed less the padding."""
    stride, dilation, before = d.rng.choice([1, 1, 2]), d.rng.choice([1, 1, 2]), d.rng.choice([0, 0, 1, 2])
    moved = add(call("mul", Var(axis.name), index(stride)), call("mul", Var(tap.name), index(dilation)))
    if not before:
        return Place(moved, axis.extent * stride + tap.extent * dilation)
    extent = axis.extent * stride + d.rng.choice([0, 1])
    moved = sub(moved, index(before))
    return Place(moved, extent, (call("ge", moved, index(0)), call("lt", moved, index(extent))))


def contraction(d: Draft) -> None:
    """A sum of products with batch axes, any axis order, windows, casts, prologues, and up to two epilogues."""
    batch, left, right = d.axes(d.extents(0, 2)), d.axes(d.extents(0, 2)), d.axes(d.extents(0, 2))
    over = d.axes(d.extents(1, 3))
    windows = [(left[0], over[-1])] if left and d.chance(0.2) else []
    product = mul(_factor(d, (*batch, *left, *over), windows), _factor(d, (*batch, *right, *over)))
    if d.chance(0.05):
        product = Cast(product, "float64")
    axes = (*batch, *left, *right)
    axes = tuple(d.rng.sample(axes, len(axes))) if d.chance(0.3) else axes
    d.define(axes, product, over, SUM)
    _epilogues(d, d.rng.randint(0, 2))


def _epilogues(d: Draft, count: int) -> None:
    for _ in range(count):
        last = d.computes[-1].target
        axes = d.axes(last.shape)
        at: list[Expr] = [Var(a.name) for a in axes]
        constant = [k for k, e in enumerate(last.shape) if (e.as_int() or 0) in (4, 8, 9, 16)]
        if constant and d.chance(0.2):  # an axis split into heads
            k = constant[0]
            whole = last.shape[k].as_int() or 0
            width = 3 if whole == 9 else 2 if d.chance(0.5) else 4
            heads = d.axes([SymExpr.of(whole // width), SymExpr.of(width)])
            at[k] = add(call("mul", Var(heads[0].name), index(width)), Var(heads[1].name))
            axes = (*axes[:k], *heads, *axes[k + 1:])
        if d.divided and axes and d.chance(0.5):
            axes, at = _recut(d, last.shape)
        axes = tuple(d.rng.sample(axes, len(axes))) if d.chance(0.3) else axes
        read: Expr = Load(last, tuple(at))
        d.define(axes, d.combine(read if last.dtype == "float32" else Cast(read, "float32"), axes))


def _recut(d: Draft, shape: Sequence[SymExpr]) -> tuple[tuple[Axis, ...], list[Expr]]:
    """Axes over a shape with one dim split by a size, or two neighbours flattened, and the place there."""
    k = d.rng.randrange(len(shape))
    by = d.factor(shape[k])
    outer = None if by is None else exact_quotient(shape[k], by)
    if by is not None and outer is not None:
        axes = d.axes([*shape[:k], outer, by, *shape[k + 1:]])
        split = add(call("mul", Var(axes[k].name), index(by)), Var(axes[k + 1].name))
        return axes, [*(Var(a.name) for a in axes[:k]), split, *(Var(a.name) for a in axes[k + 2:])]
    k = min(k, len(shape) - 2)
    if k < 0:
        axes = d.axes(shape)
        return axes, [Var(a.name) for a in axes]
    axes = d.axes([*shape[:k], shape[k] * shape[k + 1], *shape[k + 2:]])
    at: list[Expr] = [Var(a.name) for a in axes]
    return axes, [*at[:k], call("floordiv", at[k], index(shape[k + 1])), call("mod", at[k], index(shape[k + 1])), *at[k + 1:]]


def chain(d: Draft) -> None:
    """Two contractions with row statistics between them, as attention and MLPs have, with parts left out at random."""
    batch, m, long, n = d.axes(d.extents(0, 2)), d.axes(d.extents(1, 1)), d.axes(d.extents(1, 1)), d.axes(d.extents(1, 1))
    k = d.axes(d.extents(1, 1))
    d.define((*batch, *m, *long), mul(_factor(d, (*batch, *m, *k)), _factor(d, (*batch, *long, *k))), k, SUM)
    _epilogues_of_equal_shape(d, d.rng.randint(0, 1))
    scores = d.computes[-1].target
    for _ in range(d.rng.randint(0, 2)):
        rows_, over = d.axes([a.extent for a in (*batch, *m)]), d.axes([long[0].extent])
        statistic = d.define(rows_, Load(scores, tuple(Var(a.name) for a in (*rows_, *over))), over, _monoid(d))
        axes = d.axes(scores.shape)
        value: Expr = Load(scores, tuple(Var(a.name) for a in axes))
        value = sub(value, Load(statistic, tuple(Var(a.name) for a in axes[:-1])))
        scores = d.define(axes, call("exp", call("min", value, f32(1))) if d.real else call("max", value, f32(-4)))
    batch, m, over = d.axes([a.extent for a in batch]), d.axes([m[0].extent]), d.axes([long[0].extent])
    left = Load(scores, tuple(Var(a.name) for a in (*batch, *m, *over)))
    d.define((*batch, *m, *n), mul(left, _factor(d, (*batch, *over, *n))), over, SUM)
    _epilogues(d, d.rng.randint(0, 1))


def _epilogues_of_equal_shape(d: Draft, count: int) -> None:
    for _ in range(count):
        last = d.computes[-1].target
        axes = d.axes(last.shape)
        d.define(axes, d.combine(Load(last, tuple(Var(a.name) for a in axes)), axes))


def stencil(d: Draft) -> None:
    """Sums of shifted reads of one input, written out or as a reduction over a window, perhaps two in a row."""
    shape = d.extents(1, 3)
    axes = d.axes(shape)
    source = d.input("float32", shape)
    if d.chance(0.5):
        taps = d.axes([SymExpr.of(d.rng.choice([1, 2, 3]))])
        places = [Place(Var(a.name), a.extent) for a in axes[:-1]] + [_window(d, axes[-1], taps[0])]
        d.define(axes, d.guarded(places), taps, _monoid(d))
        return
    for _ in range(d.rng.randint(1, 2)):
        axes = d.axes(shape)
        total: Expr | None = None
        for _ in range(d.rng.randint(2, 4)):
            part = _shifted(d, source, axes)
            total = part if total is None else call(d.rng.choice(["add", "max", "sub"]), total, part)
        assert total is not None
        source = d.define(axes, total)


def _shifted(d: Draft, source: Buffer, axes: Sequence[Axis]) -> Expr:
    at: list[Expr] = [Var(a.name) for a in axes]
    k, c = d.rng.randrange(len(axes)), d.rng.choice([-2, -1, 1, 2])
    at[k] = add(at[k], index(c)) if c > 0 else sub(at[k], index(-c))
    inside = call("lt", at[k], index(axes[k].extent)) if c > 0 else call("ge", at[k], index(0))
    if d.chance(0.3):
        edge = index(axes[k].extent - 1)
        at[k] = call("min", at[k], edge) if c > 0 else call("max", at[k], index(0))
        return Load(source, tuple(at))
    return select(inside, Load(source, tuple(at)), f32(d.rng.choice([0, 0, 1])))


def mixed(d: Draft) -> None:
    """Anything: each Compute has a shape of its own or an earlier one, and may reduce."""
    shapes = [d.extents(0, 3) for _ in range(2)]
    for _ in range(d.rng.randint(1, 4)):
        axes = d.axes(d.rng.choice(shapes))
        over = d.axes(d.extents(1, 2)) if d.chance(0.3) else ()
        if over and d.computes and d.chance(0.5):
            over = d.axes(d.computes[-1].target.shape[-1:])
        d.define(axes, _operand(d, (*axes, *over)), over, _monoid(d))


def concat(d: Draft) -> None:
    """Pieces side by side, chosen by a condition on the axis."""
    shape = d.extents(1, 3)
    k = d.rng.randrange(len(shape))
    parts = [shape[k], d.extent(), *([d.extent()] if d.chance(0.3) else [])]
    whole = SymExpr.of(0)
    for part in parts:
        whole = whole + part
    axes = d.axes([*shape[:k], whole, *shape[k + 1:]])
    at: list[Expr] = [Var(a.name) for a in axes]
    start = whole
    body: Expr = f32(0)
    for number, part in reversed(list(enumerate(parts))):
        end, start = start, start - part
        source = d.input("float32", [*shape[:k], part, *shape[k + 1:]])
        piece: Expr = Load(source, (*at[:k], sub(at[k], index(start)), *at[k + 1:]))
        body = piece if number == len(parts) - 1 else select(call("lt", at[k], index(end)), piece, body)
    d.define(axes, body)
    _epilogues(d, d.rng.randint(0, 1))


def reshaped(d: Draft) -> None:
    """The same elements in one shape after another: dims flattened, read back, cut elsewhere and turned, perhaps summed."""
    extents = [d.size() + d.rng.choice([0, 0, 0, 1]) if d.chance(0.8) else SymExpr.of(d.rng.choice([1, 2, 3, 4]))
               for _ in range(d.rng.randint(2, 4))]
    order = list(range(len(extents)))
    source: tuple[Buffer, list[list[int]]] | None = None
    for _ in range(d.rng.randint(1, 3)):
        groups = _grouped(d, order)
        axes = d.axes([_size(extents, g) for g in groups])
        digits = {k: digit for axis, group in zip(axes, groups) for k, digit in _digits(Var(axis.name), extents, group)}
        turned = d.rng.sample(order, len(order)) if d.chance(0.5) else order
        where = _grouped(d, turned) if source is None or d.chance(0.4) else source[1]
        read: Expr | None = None
        if source is None or where is not source[1]:
            made = d.input("float32", [_size(extents, g) for g in where])
            read = Load(made, tuple(_position(digits, extents, g) for g in where))
        if source is not None:
            stored = Load(source[0], tuple(_position(digits, extents, g) for g in source[1]))
            read = stored if read is None else call(d.rng.choice(["add", "sub", "max"]), stored, read)
        assert read is not None
        body = d.combine(read, axes) if d.chance(0.4) else read
        if d.chance(0.25):
            over = d.rng.randrange(len(axes))
            kept = (*axes[:over], *axes[over + 1:])
            d.define(kept, body, [axes[over]], _monoid(d))
            if d.chance(0.5):
                _epilogues(d, 1)
            return
        source = d.define(axes, body), groups
        order = turned if d.chance(0.5) else order


def _grouped(d: Draft, order: Sequence[int]) -> list[list[int]]:
    """Neighbours in an order, put together at random."""
    groups = [[order[0]]]
    for k in order[1:]:
        if d.chance(0.5):
            groups[-1].append(k)
        else:
            groups.append([k])
    return groups


def _size(extents: Sequence[SymExpr], group: Sequence[int]) -> SymExpr:
    return product(extents[k] for k in group)


def _digits(place: Expr, extents: Sequence[SymExpr], group: Sequence[int]) -> Iterator[tuple[int, Expr]]:
    """The index of each extent in a group of which `place` is the flat index."""
    for n, k in enumerate(group):
        digit = place if n == len(group) - 1 else call("floordiv", place, index(_size(extents, group[n + 1:])))
        yield k, digit if n == 0 else call("mod", digit, index(extents[k]))


def _position(digits: Mapping[int, Expr], extents: Sequence[SymExpr], group: Sequence[int]) -> Expr:
    place: Expr = index(0)
    for k in group:
        place = add(call("mul", place, index(extents[k])), digits[k])
    return place


RECIPES: dict[str, Callable[[Draft], None]] = {
    f.__name__: f for f in (elementwise, rows, columns, contraction, chain, stencil, mixed, concat)}

#: Those of a draft that divides by sizes; most read whole shapes in another.
DIVIDED: dict[str, Callable[[Draft], None]] = {**RECIPES, **{f"reshaped{k or ''}": reshaped for k in range(6)}}
