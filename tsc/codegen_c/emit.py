"""emit_c: one C translation unit from one Func. Generic over every kernel: there is no text for any operator here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tsc.codegen_c.edges import asked_once
from tsc.codegen_c.intrinsics import INTRINSICS, render_rows
from tsc.codegen_c.rows import chosen_rows
from tsc.codegen_c.scalar import Scope, offset_text, scalar, size_text, sym_text
from tsc.codegen_c.types import c_type, identifier, vector_type
from tsc.codegen_c.vector import Lanes, store
from tsc.errors import InternalError
from tsc.loop_ir.facts import inside
from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.marks import SQUARES
from tsc.loop_ir.nodes import (
    Allocate,
    Barrier,
    Block,
    Commit,
    For,
    Func,
    If,
    Intrin,
    Let,
    Stmt,
    Store,
    Wait,
    children,
    expressions,
    walk,
)
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym import ZERO, SymExpr, product
from tsc.sym.expr import coefficient_of
from tsc.target import DeviceSpec
from tsc.te.compute import facts_of
from tsc.te.expr import INDEX, Buffer, Call, Const, Expr, Load, variables
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_sym

_ACTIVE = "tsc_active"
#: What is printed: how deep each line stands, and its text.
Lines = list[tuple[int, str]]


def emit_c(func: Func, spec: DeviceSpec, prefetch: int = 0) -> str:
    """C source of `func` (after `lower`): one function `int32_t NAME(const tsc_args *, int64_t, int64_t, void *)`. The columns
    of a matrix product are asked for so many bytes ahead, where they lie in panels: that means nothing, and is no loop IR.
    Raises UnsupportedError for a dtype that C code is not made for."""
    func = asked_once(func)
    scope = Scope(facts_of(func.sizes), {f"var {BLOCK_BEGIN}": BLOCK_BEGIN, f"var {BLOCK_END}": BLOCK_END}, func.messages,
                  prefetch=prefetch)
    intrinsics = {s.name for s in walk(func.body) if isinstance(s, Intrin)}
    squares = {lanes for lanes, name in SQUARES.items() if name in intrinsics}
    widths = {int(s.hi.value) for s in walk(func.body) if isinstance(s, For) and s.kind == "vector" and isinstance(s.hi, Const)}
    lines = [f"/* {func.name} for {spec.name} */", *headers(widths, squares)]
    parameters = f"const tsc_args *args, int64_t {BLOCK_BEGIN}, int64_t {BLOCK_END}, void *scratch"
    tiled = "TSC_TILED " if not intrinsics <= {*SQUARES.values()} else ""
    lines += ["", f"{tiled}int32_t {identifier(func.name)}({parameters}) {{"]
    for number, buffer in enumerate(func.buffers):
        scope = scope.with_name("buffer", buffer.name)
        const, kind = "" if buffer.name in func.outputs else "const ", c_type(buffer.dtype)
        lines.append(f"  {const}{kind} *restrict const {scope.name(f'buffer {buffer.name}')} = args->buffers[{number}];")
    for number, size in enumerate(func.sizes):
        scope = scope.with_name("size", size.name)
        lines.append(f"  const int64_t {scope.name(f'size {size.name}')} = args->sizes[{number}];")
    if not any(isinstance(s, Allocate) and s.scope == "scratch" for s in walk(func.body)):
        lines.append("  (void)scratch;")
    body: Lines = []
    _emit(func.body, scope, 1, body)
    lines += [f"{'  ' * depth}{text}" for depth, text in body]
    return "\n".join([*lines, "  return 0;", "}", ""])


def headers(widths: Collection[int], squares: Collection[int]) -> list[str]:
    """What kernels with vectors of so many lanes, and squares of so many rows, begin with."""
    lines = ['#include "tsc_kernel.h"']
    for width in sorted({*widths, *squares}):
        own = ['#include "tsc_square.h"'] if width in squares else []
        lines += [f"#define TSC_LANES {width}", '#include "tsc_math.h"', *own, "#undef TSC_LANES"]
    return lines


def _emit(stmt: Stmt, scope: Scope, depth: int, out: Lines) -> None:
    match stmt:
        case Store(asynchronous=True) | For(kind="warp" | "thread") | Allocate(scope="shared"):
            raise InternalError(f"a {type(stmt).__name__} for threads, which C code does not have")
        case Store(buffer=buffer, index=index, value=value):
            target = f"{scope.name(f'buffer {buffer.name}')}[{offset_text(buffer, index, scope)}]"
            out.append((depth, f"{target} = {scalar(value, scope)};"))
        case For(kind="vector", var=var, hi=Const(value=count), body=body):
            _emit_lanes(body, Lanes(var, int(count)), replace(scope, facts=inside(scope.facts, stmt)), depth, out)
        case For(kind="unroll", var=var, lo=Const(value=lo), hi=Const(value=hi), step=step, body=body):
            for number in range(int(lo), int(hi), step):
                _emit(substitute_stmt(body, {var: Const(number, INDEX)}), scope, depth, out)
        case For() if (rows := chosen_rows(stmt, scope)) is not None:
            out += render_rows(rows, scope, depth)
        case For(var=var, lo=lo, hi=hi, body=body, step=step):
            inner = replace(scope.with_name("var", var), facts=inside(scope.facts, stmt))
            name = inner.name(f"var {var}")
            first, end = scalar(lo, scope), scalar(hi, scope)
            out.append((depth, f"for (int64_t {name} = {first}; {name} < {end}; {name} += {step}) {{"))
            _emit(body, inner, depth + 1, out)
            out.append((depth, "}"))
        case If(condition=condition, then=then, otherwise=otherwise):
            out.append((depth, f"if ({scalar(condition, scope)}) {{"))
            _emit(then, scope, depth + 1, out)
            if otherwise is not None:
                out.append((depth, "} else {"))
                _emit(otherwise, scope, depth + 1, out)
            out.append((depth, "}"))
        case Let(var=var, value=value, body=body):
            inner = replace(scope.with_name("var", var), facts=inside(scope.facts, stmt))
            out.append((depth, "{"))
            out.append((depth + 1, f"const int64_t {inner.name(f'var {var}')} = {scalar(value, scope)};"))
            _emit(body, inner, depth + 1, out)
            out.append((depth, "}"))
        case Block(body=body):
            for part in body:
                _emit(part, scope, depth, out)
        case Allocate():
            _emit_allocate(stmt, scope, depth, out)
        case Intrin(name=name, meaning=meaning):
            out += INTRINSICS[name].render(meaning, scope, depth)
        case Barrier() | Commit() | Wait():
            raise InternalError(f"a {type(stmt).__name__} is for threads, which C code does not have")


def _emit_lanes(body: Stmt, lanes: Lanes, scope: Scope, depth: int, out: Lines) -> None:
    match body:
        case Block(body=parts):
            for part in parts:
                _emit_lanes(part, lanes, scope, depth, out)
        case Store(buffer=buffer, index=index, value=value):
            out.append((depth, store(buffer, index, value, lanes, scope)))
        case If(condition=condition, then=then, otherwise=None) if not lanes.active:
            out.append((depth, "{"))
            out.append((depth + 1, f"const int64_t {_ACTIVE} = {_active_lanes(condition, lanes, scope)};"))
            _emit_lanes(then, replace(lanes, active=_ACTIVE), scope, depth + 1, out)
            out.append((depth, "}"))
        case _:
            raise InternalError(f"a vector loop holds a {type(body).__name__}")


def _active_lanes(condition: Expr, lanes: Lanes, scope: Scope) -> str:
    """How many lanes a mask leaves active: the condition is `place + lane < end`."""
    leaves: dict[str, Expr] = {}
    if isinstance(condition, Call) and condition.fn == "lt":
        first, end = (to_sym(a, leaves) for a in condition.args)
        if coefficient_of(end - first, lanes.var) == SymExpr.of(-1):
            return sym_text(scope.facts.reduce((end - first).substitute({lanes.var: ZERO})), leaves, scope)
    raise InternalError("a vector loop's mask is not `place + lane < end`")


def _emit_allocate(stmt: Allocate, scope: Scope, depth: int, out: Lines) -> None:
    buffer = stmt.buffer
    inner = scope.with_name("buffer", buffer.name)
    name = inner.name(f"buffer {buffer.name}")
    kind, count = c_type(buffer.dtype), product(buffer.shape)
    lanes = _register_lanes(stmt) if stmt.scope == "register" else None
    out.append((depth, "{"))
    if lanes is not None:
        whole = count.as_int() or 0
        names = ", ".join(f"{name}_{i}" for i in range(whole // lanes))
        out.append((depth + 1, f"{vector_type(buffer.dtype, lanes)} {names};"))
        inner = replace(inner, registers={**scope.registers, buffer.name: lanes})
    elif stmt.scope == "scratch":
        place = size_text(stmt.offset, scope)
        out.append((depth + 1, f"{kind} *restrict const {name} = ({kind} *)((char *)scratch + {place});"))
    else:
        out.append((depth + 1, f"{kind} {name}[{size_text(count, scope)}] __attribute__((aligned(64)));"))
    _emit(stmt.body, inner, depth + 1, out)
    out.append((depth, "}"))


def _register_lanes(stmt: Allocate) -> int | None:
    """The lanes of every access, when each is one whole vector at a place that is constant once loops are unrolled; else the
    buffer is an array."""
    widths: set[int | None] = set()
    _collect_accesses(stmt.body, stmt.buffer, frozenset(), None, widths)
    if len(widths) != 1 or None in widths:
        return None
    (width,) = widths
    row = stmt.buffer.shape[-1].as_int() if stmt.buffer.shape else None
    return width if width is not None and row is not None and row % width == 0 else None


def _collect_accesses(stmt: Stmt, buffer: Buffer, unrolled: frozenset[str], lanes: Lanes | None,
                      widths: set[int | None]) -> None:
    if isinstance(stmt, For):
        if stmt.kind == "unroll":
            unrolled = unrolled | {stmt.var}
        elif stmt.kind == "vector" and isinstance(stmt.hi, Const):
            lanes = Lanes(stmt.var, int(stmt.hi.value))
    accesses = [stmt.index] if isinstance(stmt, Store) and stmt.buffer == buffer else []
    accesses += [n.index for e in expressions(stmt) for n in walk_expr(e) if isinstance(n, Load) and n.buffer == buffer]
    widths.update(_access_width(index, unrolled, lanes) for index in accesses)
    for child in children(stmt):
        _collect_accesses(child, buffer, unrolled, lanes, widths)


def _access_width(index: tuple[Expr, ...], unrolled: frozenset[str], lanes: Lanes | None) -> int | None:
    if lanes is None or not index:
        return None
    names = [variables(i) for i in index]
    whole = set().union(*names[:-1]) <= unrolled and names[-1] <= unrolled | {lanes.var} and lanes.var in names[-1]
    return lanes.count if whole else None
