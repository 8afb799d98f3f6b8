"""vectorize: innermost loops become loops over whole vectors.

A loop of independent stores becomes a loop over vectors and one masked vector for the rest. A store that reduces into one
element gets an accumulator a lane, combined by a fixed tree, so that the result depends on the loop's length alone. What stays
scalar has a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tsc.loop_ir.cpu.vector_rules import (
    MASKED,
    Refused,
    check_load,
    check_value,
    lane_range,
    looks_at_data,
    split_point,
    unconditional,
    varies,
)
from tsc.loop_ir.facts import inside, trips
from tsc.loop_ir.marks import COPY, PLACE
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store, block, map_children, walk
from tsc.loop_ir.places import Place
from tsc.loop_ir.quotients import at_quotients
from tsc.loop_ir.simplify import simplify_stmt, substitute_stmt
from tsc.loop_ir.verify_reads import unproved
from tsc.sym import ONE, SymExpr
from tsc.sym.facts import Facts
from tsc.sym.identities import with_quotients
from tsc.target import DeviceSpec
from tsc.te.compute import Monoid, facts_of
from tsc.te.expr import BOOL, Buffer, Call, CheckedIndex, Const, Expr, Load, Var, add, call, index, item_bytes, loads, mul
from tsc.te.expr import map_children as map_operands
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_sym
from tsc.te.intrinsics import EXPENSIVE

_MAX_SPLITS = 3
_MIN_LANES = 4
#: Accumulators of a reduction, the least number of vectors for which they pay, and the operations an element may take.
_WAYS, _LONG, _CHEAP_CALLS = 4, 8, 8
_MONOIDS = frozenset({"add", "mul", "max", "min"})


def vectorize(func: Func, spec: DeviceSpec) -> tuple[Func, tuple[str, ...]]:
    """`func` with its innermost loops in vectors where that is legal, and for each loop left scalar the reason."""
    reasons: list[str] = []

    def visit(stmt: Stmt, place: Place) -> Stmt:
        match stmt:
            case Intrin():
                return stmt
            case For(kind="vector" | "unroll"):
                return stmt
            case For(mark=mark) if mark == PLACE and not any(isinstance(s, For) for s in walk(stmt.body)):
                return stmt  # of its places one is stored to (`store_at_spots`)
            case For() if stmt.kind == "serial" and not any(isinstance(s, (For, Allocate, Intrin)) for s in walk(stmt.body)):
                return _vectorize_loop(stmt, place, spec, reasons, _MAX_SPLITS)
            case For() | Let():
                inner = replace(place, facts=inside(place.facts, stmt))
                return map_children(lambda s: visit(s, inner), stmt)
            case If():
                return _on_each_side(visit, stmt, place)
        return map_children(lambda s: visit(s, place), stmt)

    return replace(func, body=visit(func.body, Place(facts_of(func.sizes)))), tuple(dict.fromkeys(reasons))


def _vectorize_loop(loop: For, place: Place, spec: DeviceSpec, reasons: list[str], splits: int) -> Stmt:
    facts = place.facts
    by_quotient = at_quotients(loop, facts)
    if by_quotient is not None:
        outer, run = by_quotient
        short = replace(run, mark="")  # its edges are not worth loops of their own
        return replace(outer, body=_vectorize_loop(short, replace(place, facts=inside(facts, outer)), spec, reasons, splits))
    try:
        stores = _stores(loop)
        lanes = _lanes(loop, stores, spec, facts)
        made = _filled(loop, stores, lanes, place, spec) if loop.mark == COPY else None
        if made is None:  # a copy is cut at the edges of what it copies, so that its vectors need no masks
            reduced = _check(loop, lanes, stores, place, spec, spec.masks and (loop.mark != COPY or not splits))
            made = (_in_one_vector(loop, stores, lanes) if not reduced and _is_short(loop, stores, lanes, facts) else
                    _in_vectors(loop, stores, reduced, lanes, _ways(loop, stores, reduced, lanes, facts)))
        complaint = unproved(simplify_stmt(made, facts, keep_marked=True), place)
        if complaint is not None:
            raise Refused(complaint)
    except Refused as refused:
        parts = _split(loop, facts) if splits else None
        if parts is not None:
            return _map_loops(lambda p, own: _vectorize_loop(p, own, spec, reasons, splits - 1), parts, place)
        if loop.mark == COPY and splits:
            return _vectorize_loop(loop, place, spec, reasons, 0)
        reasons.append(f"loop {loop.var}{f' ({loop.mark})' if loop.mark else ''} stays scalar: {refused}")
        return loop
    return _hoist_checks(made, loop, facts)


def _stores(loop: For) -> tuple[Store, ...]:
    """The statements of the loop, its Lets substituted."""
    if loop.step != 1:
        raise Refused("its step is not 1")
    found: list[Store] = []

    def collect(stmt: Stmt) -> None:
        match stmt:
            case Store():
                found.append(stmt)
            case Block(body=body):
                for part in body:
                    collect(part)
            case Let(var=var, value=value, body=body):
                collect(substitute_stmt(body, {var: value}))
            case _:
                raise Refused(f"it holds a {type(stmt).__name__}")

    collect(loop.body)
    if not found:
        raise Refused("it is empty")
    return tuple(found)


# -- legality --------------------------------------------------------------------------------------------------

def _lanes(loop: For, stores: tuple[Store, ...], spec: DeviceSpec, facts: Facts) -> int:
    """How many iterations a vector takes: a register of the narrowest element stored, or less for a short loop."""
    lanes = spec.vector_bytes // max(4, min(item_bytes(s.buffer.dtype) for s in stores))
    if not lanes:
        raise Refused("there are no vectors")
    trip = facts.reduce(trips(loop)).as_int()
    while trip is not None and lanes > trip:
        lanes //= 2
    if lanes < _MIN_LANES:
        raise Refused(f"it runs {trip} times, less than a vector")
    return lanes


def _ways(loop: For, stores: tuple[Store, ...], reduced: frozenset[Buffer], lanes: int, facts: Facts) -> int:
    """How many vectors of accumulators a reduction has: several where one would wait for itself, that is where little is
    computed for an element and the loop is long."""
    trip = facts.reduce(trips(loop)).as_int()
    calls = [n for s in stores for n in walk_expr(s.value) if isinstance(n, Call)]
    costly = len(calls) > _CHEAP_CALLS or any(n.fn in EXPENSIVE for n in calls)
    return 1 if not reduced or costly or (trip is not None and trip < _LONG * lanes) else _WAYS


def _check(loop: For, lanes: int, stores: tuple[Store, ...], place: Place, spec: DeviceSpec, masks: bool) -> frozenset[Buffer]:
    """The buffers that the loop reduces into. Raises Refused where vectors would not mean the same."""
    inner = inside(place.facts, loop)
    reduced: set[Buffer] = set()
    for store in stores:
        if store.buffer.dtype == "float16":
            raise Refused("float16 has no vectors")
        if any(varies(i, loop.var) for i in store.index):
            _check_contiguous(store, loop.var)
            check_value(store.value, loop, lanes, inner, spec, masks, place.known)
        else:
            operand = reduction_operand(store)
            if operand is None:
                raise Refused(f"{store.buffer.name} is written at one place again and again")
            check_value(operand, loop, lanes, inner, spec, masks, place.known)
            if isinstance(store.value, Call) and (store.value.fn, store.buffer.dtype) not in spec.vector_calls:
                raise Refused(f"{store.value.fn} on {store.buffer.dtype} has no vector form")
            reduced.add(store.buffer)
    for store in stores:
        _check_dependences(store, stores, reduced, loop.var)
    leaves: dict[str, Expr] = {}
    if place.facts.divisor(to_sym(loop.lo, leaves)) % 2 and any(
            check_load(x, loop.var) == "twice" for s in stores for x in loads(s.value)):
        raise Refused("it reads elements twice, and may begin between two of one")
    return frozenset(reduced)


def _check_contiguous(store: Store, var: str) -> None:
    if store.buffer.panel is not None:
        raise Refused(f"{store.buffer.name} is stored in panels")
    if check_load(Load(store.buffer, store.index), var) != "contiguous":
        raise Refused(f"{store.buffer.name} is not written contiguously")


def _check_dependences(store: Store, stores: tuple[Store, ...], reduced: set[Buffer], var: str) -> None:
    """Every other access to what `store` writes is at the same element of the same iteration, or apart from all that any
    iteration writes."""
    accesses = [s.index for s in stores if s.buffer == store.buffer]
    accesses += [x.index for s in stores for e in (*s.index, s.value) for x in loads(e) if x.buffer == store.buffer]
    if any(i != store.index and not _is_apart(i, store.index, var) for i in accesses):
        raise Refused(f"{store.buffer.name} is accessed at different places")
    if store.buffer in reduced and len(accesses) != 2:
        raise Refused(f"the running value of {store.buffer.name} is used within its loop")


def _is_apart(a: tuple[Expr, ...], b: tuple[Expr, ...], var: str) -> bool:
    """Whether two places differ in a dim that does not vary with the loop, in each of its iterations."""
    leaves: dict[str, Expr] = {}
    return any(not varies(i, var) and not varies(j, var) and (to_sym(i, leaves) - to_sym(j, leaves)).as_int() not in (None, 0)
               for i, j in zip(a, b))


def reduction_operand(store: Store) -> Expr | None:
    """`e` where the store is `b[i] = op(b[i], e)` with a declared monoid, else None."""
    match store.value:
        case Call(fn=fn, args=(Load(buffer=buffer, index=place), operand)) if fn in _MONOIDS:
            return operand if buffer == store.buffer and place == store.index else None
    return None


# -- splitting -------------------------------------------------------------------------------------------------

def _split(loop: For, facts: Facts) -> Stmt | None:
    """The loop cut where a condition of one of its selects changes, or under a condition that does not, so that each part has
    none; None where there is none."""
    inner = inside(facts, loop)
    for stmt in walk(loop.body):
        if not isinstance(stmt, Store):
            continue
        for node in walk_expr(stmt.value):
            if not (isinstance(node, Call) and node.fn == "select"):
                continue
            condition = node.args[0]
            if not varies(condition, loop.var) and not looks_at_data(condition):
                sides = (replace(loop, body=_decided(loop.body, condition, value)) for value in (True, False))
                return If(condition, *(simplify_stmt(s, facts, keep_marked=True) for s in sides))
            found = split_point(condition, loop.var, inner, facts)
            if found is not None:
                changing, point, below = found
                cut = _whole_steps(loop, call("max", loop.lo, call("min", point, loop.hi)))
                known = (inside(facts, replace(loop, hi=call("min", point, loop.hi))),
                         inside(facts, replace(loop, lo=call("max", point, loop.lo))))
                bodies = [simplify_stmt(_decided(loop.body, changing, value), own, keep_marked=True)  # other conditions as well
                          for value, own in zip((below, not below), known)]
                parts = replace(loop, hi=cut, body=bodies[0]), replace(loop, lo=cut, body=bodies[1])
                return block(*(simplify_stmt(p, facts, keep_marked=True) for p in parts))
    return None


def _whole_steps(loop: For, place: Expr) -> Expr:
    """The first value that the loop takes at `place` or behind it; `place` is not before its begin."""
    if loop.step == 1:
        return place
    ahead = call("floordiv", add(call("sub", place, loop.lo), index(loop.step - 1)), index(loop.step))
    return add(loop.lo, mul(ahead, index(loop.step)))


def _map_loops(change: Callable[[For, Place], Stmt], stmt: Stmt, place: Place) -> Stmt:
    """`stmt`, which stands at `place`, with its outermost loops changed."""
    match stmt:
        case For():
            return change(stmt, place)
        case If():
            return _on_each_side(lambda s, own: _map_loops(change, s, own), stmt, place)
    return map_children(lambda s: _map_loops(change, s, place), stmt)


def _on_each_side(change: Callable[[Stmt, Place], Stmt], stmt: If, place: Place) -> If:
    """A choice with its sides changed, on each of which its condition is known."""
    def side(part: Stmt, holds: Expr) -> Stmt:
        return change(part, replace(place, known=(*place.known, holds)))

    otherwise = None if stmt.otherwise is None else side(stmt.otherwise, Call("not", (stmt.condition,), BOOL))
    return If(stmt.condition, side(stmt.then, stmt.condition), otherwise)


def _decided(stmt: Stmt, condition: Expr, value: bool) -> Stmt:
    def decide(expr: Expr) -> Expr:
        return Const(value, "bool") if expr == condition else map_operands(decide, expr)

    if isinstance(stmt, Store):
        return replace(stmt, value=decide(stmt.value))
    return map_children(lambda s: _decided(s, condition, value), stmt)


# -- building --------------------------------------------------------------------------------------------------

def _is_short(loop: For, stores: tuple[Store, ...], lanes: int, facts: Facts) -> bool:
    """Whether a loop whose trips nobody knows has never more than a vector has lanes."""
    trip = facts.reduce(trips(loop))
    return trip.as_int() is None and facts.nonneg(lanes - trip) and _are_masked(loop, stores)


def _are_masked(loop: For, stores: tuple[Store, ...]) -> bool:
    """Whether a vector of the loop touches the memory of active lanes alone."""
    return all(check_load(x, loop.var) in MASKED for s in stores for e in (*s.index, s.value) for x in loads(e))


def _in_one_vector(loop: For, stores: tuple[Store, ...], lanes: int) -> Stmt:
    """Of a loop of at most so many trips, one vector whose lanes beyond the end are masked."""
    lane = f"{loop.var}_l"
    place = add(loop.lo, Var(lane))
    moved = block(*(substitute_stmt(s, {loop.var: place}) for s in stores))
    return If(call("lt", loop.lo, loop.hi), _vector(lane, lanes, If(call("lt", place, loop.hi), moved)))


def _in_vectors(loop: For, stores: tuple[Store, ...], reduced: frozenset[Buffer], lanes: int, ways: int) -> Stmt:
    """Whole vectors, then what is left: one more vector with the lanes beyond the end masked, or scalars. A reduction takes
    `ways` vectors at once as long as there are so many, each with accumulators of its own, folded before the last vectors."""
    outer, lane, middle = f"{loop.var}_v", f"{loop.var}_l", f"{loop.var}_m"
    names = sorted(reduced, key=lambda b: b.name)
    each = [{b: Buffer(f"{b.name}_lanes{w or ''}", b.dtype, (SymExpr.of(lanes),)) for b in names} for w in range(ways)]
    accumulators = each[0]

    def at(place: Expr, own: dict[Buffer, Buffer] = accumulators) -> Stmt:
        return block(*(_moved(s, loop.var, add(place, Var(lane)), own, lane) for s in stores))

    def main(start: Expr, end: Expr, together: int) -> Stmt:
        bodies = (_vector(lane, lanes, at(add(Var(outer), index(w * lanes)), each[w])) for w in range(together))
        return For(outer, start, end, block(*bodies), step=together * lanes, mark=loop.mark)

    before, *others = ([_vector(lane, lanes, Store(local, (Var(lane),), _identity(s))) for s, local in _reductions(stores, own)]
                       for own in each)
    wide: list[Stmt] = []
    start = loop.lo
    if ways > 1:
        start = Var(f"{loop.var}_w")
        several = block(*(s for own in others for s in own), main(loop.lo, start, ways), *_folded(stores, each, lane, lanes))
        wide = [If(call("lt", loop.lo, start), several)]
    after = (_combine(s, local, lane, lanes) for s, local in _reductions(stores, accumulators))
    if _are_masked(loop, stores):
        masked = _vector(lane, lanes, If(call("lt", add(Var(middle), Var(lane)), loop.hi), at(Var(middle))))
        made = block(*before, *wide, main(start, Var(middle), 1), If(call("lt", Var(middle), loop.hi), masked), *after)
    else:
        made = block(*before, *wide, main(start, Var(middle), 1), *after, replace(loop, lo=Var(middle)))
    for local in (local for own in each for local in own.values()):
        made = Allocate(local, "register", made)
    if ways > 1:
        made = Let(f"{loop.var}_w", add(loop.lo, _whole(loop, ways * lanes)), made)
    return Let(middle, add(loop.lo, _whole(loop, lanes)), made)


def _filled(loop: For, stores: tuple[Store, ...], lanes: int, place: Place, spec: DeviceSpec) -> Stmt | None:
    """A copy of whole vectors of which what is behind some element is filled with zeros: all of them are read with masks and
    stored whole. (Vectors that need none in a loop of their own took longer: of few elements by a third, of many no less.) None
    where a loop is no such copy."""
    match stores:
        case (Store(value=Call(fn="select", args=(condition, Load() as load, Const(value=0)))) as store,) if (
                spec.masks and place.facts.divisor(with_quotients(trips(loop))) % lanes == 0
                and check_load(load, loop.var) == "contiguous"):
            kept = lane_range(condition, loop.var)
        case _:
            return None
    if kept is None or kept.lows or kept.others:
        return None
    _check(loop, lanes, stores, place, spec, masks=True)
    outer, lane = f"{loop.var}_v", f"{loop.var}_l"
    body = _vector(lane, lanes, substitute_stmt(store, {loop.var: add(Var(outer), Var(lane))}))
    return For(outer, loop.lo, loop.hi, body, step=lanes, mark=loop.mark)


def _whole(loop: For, count: int) -> Expr:
    """How many iterations whole groups of `count` are."""
    # A loop may be empty with hi far below lo (a fill behind a full tile); the rest must not begin before lo then.
    groups = call("max", index(0), call("floordiv", call("sub", loop.hi, loop.lo), index(count)))
    return call("mul", groups, index(count))


def _folded(stores: tuple[Store, ...], each: list[dict[Buffer, Buffer]], lane: str, lanes: int) -> list[Stmt]:
    """All accumulators folded into the first ones, in pairs."""
    steps: list[Stmt] = []
    distance = len(each) // 2
    while distance:
        for own, other in zip(each[:distance], each[distance:2 * distance]):
            for (store, local), (_, more) in zip(_reductions(stores, own), _reductions(stores, other)):
                fn = store.value.fn if isinstance(store.value, Call) else ""
                pair = (Load(local, (Var(lane),)), Load(more, (Var(lane),)))
                steps.append(_vector(lane, lanes, Store(local, (Var(lane),), Call(fn, pair, local.dtype))))
        distance //= 2
    return steps


def _reductions(stores: tuple[Store, ...], accumulators: dict[Buffer, Buffer]) -> list[tuple[Store, Buffer]]:
    return [(s, accumulators[s.buffer]) for s in stores if s.buffer in accumulators]


def _moved(store: Store, var: str, place: Expr, accumulators: dict[Buffer, Buffer], lane: str) -> Stmt:
    """`store` at another value of its loop's variable; a reduction goes into its lane."""
    shifted = substitute_stmt(store, {var: place})
    local = accumulators.get(store.buffer)
    if local is None or not isinstance(shifted, Store) or not isinstance(shifted.value, Call):
        return shifted
    value = Call(shifted.value.fn, (Load(local, (Var(lane),)), shifted.value.args[1]), local.dtype)
    return replace(shifted, buffer=local, index=(Var(lane),), value=value)


def _identity(store: Store) -> Const:
    fn = store.value.fn if isinstance(store.value, Call) else ""
    return Const(Monoid(fn).identity(store.buffer.dtype), store.buffer.dtype)


def _vector(lane: str, lanes: int, *body: Stmt) -> Stmt:
    return For(lane, index(0), index(lanes), block(*body), kind="vector")


def _combine(store: Store, local: Buffer, lane: str, lanes: int) -> Stmt:
    """The lanes folded in halves, then into the element itself."""
    fn = store.value.fn if isinstance(store.value, Call) else ""
    folded = Buffer(f"{store.buffer.name}_folded", local.dtype, local.shape)
    steps = [_vector(lane, lanes, Store(folded, (Var(lane),), Load(local, (Var(lane),))))]
    width = lanes // 2
    while width > 1:
        pair = (Load(folded, (Var(lane),)), Load(folded, (add(Var(lane), index(width)),)))
        steps.append(_vector(lane, width, Store(folded, (Var(lane),), Call(fn, pair, local.dtype))))
        width //= 2
    last = Call(fn, (Load(folded, (index(0),)), Load(folded, (index(1),))), local.dtype)
    total = Call(fn, (Load(store.buffer, store.index), last), local.dtype)
    return Allocate(folded, "stack", block(*steps, Store(store.buffer, store.index, total)))


def _hoist_checks(made: Stmt, loop: For, facts: Facts) -> Stmt:
    """Checks of data-dependent indices that are the same in every iteration are made once, where the loop surely runs."""
    if not facts.nonneg(trips(loop) - ONE):
        return made
    checks = dict.fromkeys(n for s in walk(loop.body) if isinstance(s, Store) for e in (*s.index, s.value)
                           for n in unconditional(e) if isinstance(n, CheckedIndex) and not varies(n, loop.var))
    for number, check in enumerate(checks):
        name = f"{loop.var}_at{number}"
        made = Let(name, check, _replaced(made, check, Var(name)))
    return made


def _replaced(stmt: Stmt, old: Expr, new: Expr) -> Stmt:
    def swap(expr: Expr) -> Expr:
        return new if expr == old else map_operands(swap, expr)

    if isinstance(stmt, Store):
        return replace(stmt, index=tuple(map(swap, stmt.index)), value=swap(stmt.value))
    return map_children(lambda s: _replaced(s, old, new), stmt)

