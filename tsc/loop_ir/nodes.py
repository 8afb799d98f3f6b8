"""The loop IR: a few statements over the expressions of `te/expr.py`. Everything is frozen.

Every statement has a meaning that the interpreter runs. `For.kind` and `Intrin` only say how a back end renders it:
a `vector` loop has a constant trip count and independent iterations; an `Intrin` means its `meaning`, no more and no less.

Kernels for GPUs. Nests of `warp` and, within them, `thread` loops run their iterations in parallel. The loops of a nest count
its warps or threads row-major, the outermost slowest, and iteration n of every such nest is the same warp or thread, wherever
the nest stands; what is between nests is executed by all alike. Nothing orders two threads but a Barrier. Where there are such
loops, stores stand within thread loops or within an Intrin that a whole warp executes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import is_
from typing import Literal

from tsc.errors import InternalError
from tsc.sym import ONE, ZERO, SymExpr
from tsc.te.compute import SizeParam
from tsc.te.expr import Buffer, Expr, substitute

LoopKind = Literal["serial", "block", "warp", "thread", "vector", "unroll"]
Scope = Literal["register", "stack", "scratch", "shared"]
Team = Literal["warp", "block"]


@dataclass(frozen=True, slots=True)
class Instance:
    """Which statement instance of the Scop a Store executes: `statement[index]`. Every pass keeps it; what a pass adds
    of its own (a fold over lanes, a tile written back) has none."""

    statement: str
    index: tuple[Expr, ...]

    def at(self, values: Mapping[str, Expr]) -> Instance:
        """The instance where the variables have these values."""
        return Instance(self.statement, tuple(substitute(i, values) for i in self.index))


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`.

    An `asynchronous` one copies from global into shared memory beside the thread that issues it, as part of the thread's open
    group: `value` is a Load of an input, or `select(condition, .., zero)` of that. Its target must not be touched until that
    thread has waited for the group, and by other threads not before a Barrier after that.
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    instance: Instance | None = None
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class For:
    """`for (var = lo; var < hi; var += step) body`. `mark` names its role in the schedule (e.g. "k", "init", "epilogue")."""

    var: str
    lo: Expr
    hi: Expr
    body: Stmt
    step: int = 1
    kind: LoopKind = "serial"
    mark: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """`if (condition) then; else otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Let:
    """`var = value` (int64, immutable) within `body`."""

    var: str
    value: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Allocate:
    """A local buffer, uninitialised, living within `body`: `register`, `stack` and `shared` have constant shapes, `scratch` may
    be symbolic and is carved from the kernel's scratch memory (one region a worker), `offset` bytes from its start. A block's
    threads have `shared` in common; `register` and `stack` are a thread's own, or, outside of thread loops, spread over the
    threads of the warp or block: no element is touched by two threads."""

    buffer: Buffer
    scope: Scope
    body: Stmt
    offset: SymExpr = ZERO


@dataclass(frozen=True, slots=True)
class Intrin:
    """A tensor intrinsic: `meaning` is what it does; the back end's TensorIntrin of that `name` says how to render it. One of a
    `team` is executed by all its threads together, `meaning` being each one's part."""

    name: str
    meaning: Stmt
    team: Team | None = None


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every thread of the team waits here for all others of it, and then sees what they did before."""

    team: Team = "block"


@dataclass(frozen=True, slots=True)
class Commit:
    """Each thread closes its open group of asynchronous copies; an empty group is a group."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Each thread waits until at most `pending` of its newest closed groups are under way."""

    pending: int


Stmt = Store | For | If | Let | Block | Allocate | Intrin | Barrier | Commit | Wait


@dataclass(frozen=True, slots=True)
class Func:
    """A kernel. `buffers` are its arguments in call order (inputs, then outputs); `sizes` its integer parameters.

    Its blocks are independent and numbered `0 .. blocks-1`; one call runs `[block_begin, block_end)`. Before the `map_blocks`
    pass the body is a perfect nest of `block` loops; after it, one `block` loop from Var("block_begin") to Var("block_end").
    `messages[i]` is what status code i+1 means (a data error found by a CheckedIndex).
    """

    name: str
    buffers: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    sizes: tuple[SizeParam, ...]
    body: Stmt
    blocks: SymExpr = ONE
    scratch: SymExpr = ZERO
    messages: tuple[str, ...] = ()


def children(stmt: Stmt) -> tuple[Stmt, ...]:
    """Direct sub-statements (an Intrin's meaning counts as one)."""
    match stmt:
        case For(body=body) | Let(body=body) | Allocate(body=body):
            return (body,)
        case If(then=then, otherwise=otherwise):
            return (then,) if otherwise is None else (then, otherwise)
        case Block(body=body):
            return body
        case Intrin(meaning=meaning):
            return (meaning,)
    return ()


def map_children(fn: Callable[[Stmt], Stmt], stmt: Stmt) -> Stmt:
    """The same statement over `fn` of each child; the statement itself when nothing changed."""
    old = children(stmt)
    if not old:
        return stmt
    new = tuple(map(fn, old))
    if all(map(is_, old, new)):
        return stmt
    match stmt:
        case For() | Let() | Allocate():
            return replace(stmt, body=new[0])
        case If(condition=condition):
            return If(condition, *new)
        case Block():
            return Block(new)
        case Intrin():
            return replace(stmt, meaning=new[0])
    raise InternalError(f"{type(stmt).__name__} has no children")


def map_exprs(fn: Callable[[Expr], Expr], stmt: Stmt) -> Stmt:
    """`fn` over every expression directly in `stmt`, and in all its children."""
    inner = map_children(lambda s: map_exprs(fn, s), stmt)
    match inner:
        case Store(index=index, value=value):
            place, new = tuple(map(fn, index)), fn(value)
            return inner if new is value and all(map(is_, place, index)) else replace(inner, index=place, value=new)
        case For(lo=lo, hi=hi):
            first, end = fn(lo), fn(hi)
            return inner if first is lo and end is hi else replace(inner, lo=first, hi=end)
        case If(condition=condition):
            return replace(inner, condition=fn(condition))
        case Let(value=value):
            return replace(inner, value=fn(value))
    return inner


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, parents first."""
    left = [stmt]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(children(node)))


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions directly in `stmt`."""
    match stmt:
        case Store(index=index, value=value):
            yield from (*index, value)
        case For(lo=lo, hi=hi):
            yield from (lo, hi)
        case If(condition=value) | Let(value=value):
            yield value


def until_bound(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement in which the variables mean what they mean here: loops and Lets, but not what is within them."""
    left = [stmt]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (For, Let)):
            left.extend(reversed(children(node)))


def block(*stmts: Stmt) -> Stmt:
    """A flat Block; a single statement stays itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.body if isinstance(stmt, Block) else (stmt,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def nest(loop: For) -> tuple[tuple[For, ...], Stmt]:
    """The perfect nest of loops of one kind that starts with `loop`, outermost first, and the body within."""
    loops: list[For] = []
    body: Stmt = loop
    while isinstance(body, For) and body.kind == loop.kind:
        loops.append(body)
        body = body.body
    return tuple(loops), body
