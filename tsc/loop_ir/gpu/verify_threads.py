"""The rules of kernels with threads: how loops nest, where stores and locals stand, and that barriers are reached by all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.gpu.threads import Level, nest_count, nests, team_sizes
from tsc.loop_ir.nodes import Allocate, Barrier, Commit, For, Func, If, Intrin, Let, Stmt, Store, Wait, children, walk
from tsc.te.expr import Call, Const, Expr, Load, Var, format_expr
from tsc.te.expr import walk as walk_expr


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands: which variables differ between warps and between lanes, and what around it depends on them."""

    func: Func
    level: Level = "block"
    in_warp: bool = False
    in_intrin: bool = False
    between_warps: frozenset[str] = frozenset()
    between_lanes: frozenset[str] = frozenset()
    warps_part: str = ""
    lanes_part: str = ""
    shared: frozenset[str] = frozenset()


def verify_threads(func: Func) -> None:
    """Raise InternalError where warps, threads, shared memory, asynchronous copies or barriers are misused.

    Warps stand within a block and threads within a warp (or, without warp loops, within a block), in perfect nests of equal
    counts. Stores are made by threads, or by an Intrin of a whole warp. Shared memory belongs to a block. What all must reach
    stands under no condition and in no loop that differs between them.
    """
    if team_sizes(func.body) is None:
        for stmt in walk(func.body):
            if isinstance(stmt, (Barrier, Commit, Wait)) or (isinstance(stmt, Store) and stmt.asynchronous):
                raise _fail(func, f"a {type(stmt).__name__} is for threads, and there are none")
            if isinstance(stmt, Allocate) and stmt.scope == "shared":
                raise _fail(func, f"{stmt.buffer} is shared, but there are no threads")
        return
    for kind in ("warp", "thread"):
        counts = {nest_count(loops) for loops in nests(func.body, kind)}
        if len(counts) > 1 or counts & {0, None}:
            raise _fail(func, f"nests of {kind} loops run {sorted(map(str, counts))} times: they must be the same {kind}s")
    _verify(func.body, _Place(func))


def _fail(func: Func, text: str) -> InternalError:
    return InternalError(f"kernel {func.name}: {text}")


def _verify(stmt: Stmt, place: _Place) -> None:
    func = place.func
    match stmt:
        case For(kind="warp" | "thread"):
            _verify_parallel(stmt, place)
            return
        case For(var=var, lo=lo, hi=hi):
            place = _bound(var, (lo, hi), _parted((lo, hi), f"loop {var}", place))
        case Let(var=var, value=value):
            place = _bound(var, (value,), place)
        case If(condition=condition):
            place = _parted((condition,), f"the condition {format_expr(condition)}", place)
        case Allocate(buffer=buffer, scope=scope):
            _verify_allocate(stmt, place)
            if scope == "shared":
                place = replace(place, shared=place.shared | {buffer.name})
        case Store():
            _verify_store(stmt, place)
        case Intrin(name=name, team=team):
            parts = place.lanes_part or (place.warps_part if team == "block" else "")
            if team is not None and parts:
                raise _fail(func, f"{name} is not reached by a whole {team} alike: {parts} differs between threads")
            if team is not None and not place.in_warp:
                raise _fail(func, f"{name} is not within a warp")
            place = replace(place, in_intrin=True)
        case Barrier(team="warp") if not place.in_warp:
            raise _fail(func, "a warp barrier is not within a warp")
        case Barrier() | Commit() | Wait() if place.in_intrin:
            raise _fail(func, f"a {type(stmt).__name__} stands within an intrinsic")
        case Wait(pending=pending) if pending < 0:
            raise _fail(func, f"a Wait for {pending} pending groups")
        case Barrier() | Commit() | Wait():
            parts = place.lanes_part or ("" if isinstance(stmt, Barrier) and stmt.team == "warp" else place.warps_part)
            if parts:
                raise _fail(func, f"a {type(stmt).__name__} is not reached by all alike: {parts} differs between threads")
    for child in children(stmt):
        _verify(child, place)


def _verify_parallel(loop: For, place: _Place) -> None:
    func, kind = place.func, loop.kind
    if place.in_intrin:
        raise _fail(func, f"{kind} loop {loop.var} stands within an intrinsic")
    if kind == "warp" and place.level != "block":
        raise _fail(func, f"warp loop {loop.var} stands within a {place.level}")
    if kind == "thread" and place.level == "thread":
        raise _fail(func, f"thread loop {loop.var} stands within a thread")
    if kind == "thread" and place.level == "block" and nests(func.body, "warp"):
        raise _fail(func, f"thread loop {loop.var} stands outside of the warps")
    body: Stmt = loop
    while isinstance(body, For) and body.kind == kind:
        place = replace(place, between_warps=place.between_warps | {body.var})
        if kind == "thread":
            place = replace(place, between_lanes=place.between_lanes | {body.var})
        body = body.body
    level: Level = "warp" if kind == "warp" else "thread"
    _verify(body, replace(place, level=level, in_warp=place.in_warp or kind == "warp"))


def _bound(var: str, sources: tuple[Expr, ...], place: _Place) -> _Place:
    """`var` differs where what it is made from does."""
    warps, lanes = (_differs(sources, names) for names in (place.between_warps, place.between_lanes))
    return replace(place, between_warps=place.between_warps | ({var} if warps else set()),
                   between_lanes=place.between_lanes | ({var} if lanes else set()))


def _parted(exprs: tuple[Expr, ...], what: str, place: _Place) -> _Place:
    return replace(place, warps_part=place.warps_part or (what if _differs(exprs, place.between_warps) else ""),
                   lanes_part=place.lanes_part or (what if _differs(exprs, place.between_lanes) else ""))


def _differs(exprs: tuple[Expr, ...], names: frozenset[str]) -> bool:
    """What is loaded may differ, too: only variables and sizes are known to be alike."""
    return any(isinstance(n, Load) or (isinstance(n, Var) and n.name in names) for e in exprs for n in walk_expr(e))


def _verify_allocate(stmt: Allocate, place: _Place) -> None:
    inside = place.level if not place.in_intrin else "intrinsic"
    if stmt.scope in ("shared", "scratch") and inside != "block":
        raise _fail(place.func, f"{stmt.scope} buffer {stmt.buffer} is allocated within a {inside}; it belongs to a block")


def _verify_store(stmt: Store, place: _Place) -> None:
    func = place.func
    if place.level != "thread" and not (place.level == "warp" and place.in_intrin):
        raise _fail(func, f"a store to {stmt.buffer.name} is made by a whole {place.level}; threads and warp intrinsics store")
    if not stmt.asynchronous:
        return
    if place.in_intrin or stmt.buffer.name not in place.shared:
        raise _fail(func, f"an asynchronous copy to {stmt.buffer.name}: threads copy so into shared memory only")
    if not can_be_asynchronous(stmt.value, func):
        raise _fail(func, f"an asynchronous copy of {format_expr(stmt.value)}: only elements of inputs, or zero, are copied so")


def can_be_asynchronous(value: Expr, func: Func) -> bool:
    """Whether `value` is an element of an input, or zero where conditions do not hold."""
    match value:
        case Load(buffer=source):
            return source in func.buffers and source.name not in func.outputs
        case Call(fn="select", args=(_, inner, Const(value=0))):
            return can_be_asynchronous(inner, func)
        case Const(value=0):  # conditions that never hold
            return True
    return False
