"""The loop IR: a few statements over the expressions of `te/expr.py`. Everything is frozen.

Every statement has a meaning that the interpreter runs. `For.kind` and `Intrin` only say how a back end renders it:
a `vector` loop has a constant trip count and independent iterations; an `Intrin` means its `meaning`, no more and no less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tsc.sym import ONE, ZERO, SymExpr
from tsc.te.compute import SizeParam
from tsc.te.expr import Buffer, Expr

LoopKind = Literal["serial", "block", "vector", "unroll"]
Scope = Literal["register", "stack", "scratch"]


@dataclass(frozen=True, slots=True)
class Instance:
    """Which statement instance of the Scop a Store executes: `statement[index]`. What the trace prints."""

    statement: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value`."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    instance: Instance | None = None


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
    """A local buffer, uninitialised, living within `body`: `register` and `stack` have constant shapes, `scratch` may be
    symbolic and is carved from the kernel's scratch memory (one region a worker), `offset` bytes from its start."""

    buffer: Buffer
    scope: Scope
    body: Stmt
    offset: SymExpr = ZERO


@dataclass(frozen=True, slots=True)
class Intrin:
    """A tensor intrinsic: `meaning` is what it does; the back end's TensorIntrin of that `name` says how to render it."""

    name: str
    meaning: Stmt


Stmt = Store | For | If | Let | Block | Allocate | Intrin


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
    """The same statement over `fn` of each child."""
    match stmt:
        case For() | Let() | Allocate():
            return replace(stmt, body=fn(stmt.body))
        case If(then=then, otherwise=otherwise):
            return replace(stmt, then=fn(then), otherwise=None if otherwise is None else fn(otherwise))
        case Block(body=body):
            return Block(tuple(fn(s) for s in body))
        case Intrin(meaning=meaning):
            return replace(stmt, meaning=fn(meaning))
    return stmt


def map_exprs(fn: Callable[[Expr], Expr], stmt: Stmt) -> Stmt:
    """`fn` over every expression directly in `stmt`, and in all its children."""
    inner = map_children(lambda s: map_exprs(fn, s), stmt)
    match inner:
        case Store(index=index, value=value):
            return replace(inner, index=tuple(map(fn, index)), value=fn(value))
        case For(lo=lo, hi=hi):
            return replace(inner, lo=fn(lo), hi=fn(hi))
        case If(condition=condition):
            return replace(inner, condition=fn(condition))
        case Let(value=value):
            return replace(inner, value=fn(value))
    return inner


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, parents first."""
    yield stmt
    for child in children(stmt):
        yield from walk(child)


def block(*stmts: Stmt) -> Stmt:
    """A flat Block; a single statement stays itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.body if isinstance(stmt, Block) else (stmt,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))
