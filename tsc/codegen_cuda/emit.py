"""emit_cuda: one CUDA kernel from one Func after `lower_gpu`, in the primitives of device/ alone. It decides nothing.

A block of the grid is a block of the Func; threads are numbered warp by warp. What stands between nests of warps and threads is
executed by all. Shared memory is addressed by its window, so that the emulator sees every access. Indices have 64 bits, places
in shared memory and registers 32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tsc.codegen_c.scalar import Dialect, Scope, offset_text, scalar, size_text
from tsc.codegen_c.types import C_TYPES, identifier, literal
from tsc.codegen_cuda.matrix import mma_lines
from tsc.codegen_cuda.narrow import comparison_text, place_text, quotient_text
from tsc.codegen_cuda.warp_group import wgmma_lines
from tsc.errors import InternalError, UnsupportedError
from tsc.loop_ir.facts import inside
from tsc.loop_ir.gpu.threads import WARP, block_threads, has_groups, nest_count, shared_places, trips
from tsc.loop_ir.gpu.widen import copied
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
    nest,
    walk,
)
from tsc.loop_ir.simplify import substitute_stmt
from tsc.sym import SymExpr, product
from tsc.te.compute import facts_of
from tsc.te.expr import Buffer, Call, CheckedIndex, Const, Expr, Load, call, index, item_bytes, substitute
from tsc.te.expr import walk as walk_expr
from tsc.te.index import to_sym
from tsc.te.intrinsics import EXPENSIVE

#: The fewest and most bytes of an asynchronous copy.
_COPIED = (4, 8, 16)
_TYPES = {**C_TYPES, "float16": "f16"}

#: Names that a kernel's own must not be.
_TAKEN = {name: name for name in ("thread", "outside", "scratch", "status", "a", "b", "c", "row")}

Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """The text of a kernel `name(buffers.., sizes.. as int64, scratch, status)`, the threads of a block (1: one of a warp does
    all), and the bytes of its shared memory. `scratch` has room for `Func.scratch` bytes a block, `status` is a word of 0."""

    name: str
    text: str
    threads: int
    shared: int


@dataclass(frozen=True)
class _Cuda(Dialect):
    """CUDA, where a buffer is in global memory and only read, in global memory and `written`, at an address in the `shared`
    window, or `own` registers of a thread. What `checked` indices say is in `outside`. `loops` are those that a thread goes
    through alone. Where `under` is some text, arguments are read where that holds."""

    written: frozenset[str]
    shared: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    loops: frozenset[str] = frozenset()
    under: str = ""

    def literal(self, value: int | float | bool, dtype: str) -> str:
        if dtype == "float16":
            return f"to_f16({literal(value, 'float32')})"
        if dtype.startswith("float") and not math.isfinite(value):
            bits = "0x7fc00000u" if math.isnan(value) else "0xff800000u" if value < 0 else "0x7f800000u"
            return f"static_cast<{_TYPES[dtype]}>(bits_float({bits}))"
        return literal(value, dtype)

    def load(self, load: Load, scope: Scope) -> str:
        buffer, name = load.buffer, scope.name(f"buffer {load.buffer.name}")
        if buffer.name in self.shared:
            return f"load_shared<{_TYPES[buffer.dtype]}>({_address(buffer, load.index, scope)})"
        if buffer.name in self.own:
            return f"{name}[{place_text(buffer, load.index, scope)}]"
        offset = offset_text(buffer, load.index, scope)
        if any(isinstance(e, CheckedIndex) for i in load.index for e in walk_expr(i)):
            return f"load_inside({name}, {offset}, outside)"
        if self.under and buffer.name not in self.written:
            place = f"static_cast<const {_TYPES[buffer.dtype]}*>(place_of({name}, {offset}))"
            return f"load_constant_or_zero({place}, {self.under})"
        return f"{'load_global' if buffer.name in self.written else 'load_constant'}({name} + {offset})"

    def cast(self, text: str, source: str, dtype: str) -> str:
        if source == "float16":
            return super().cast(f"to_float({text})", "float32", dtype) if dtype != "float32" else f"to_float({text})"
        if dtype == "float16":
            return f"to_f16({text if source in ('float32', 'float64') else super().cast(text, source, 'float32')})"
        return super().cast(text, source, dtype)

    def asks_both(self, expr: Call, scope: Scope) -> bool:
        """Threads that go apart at a condition take longer than one more comparison: where nothing is read or may be divided
        by 0, both are asked."""
        return all(not isinstance(e, Load | CheckedIndex) and (
            not isinstance(e, Call) or e.fn not in ("floordiv", "mod") or scope.facts.nonneg(to_sym(e.args[1], {}) - 1))
            for e in walk_expr(expr))

    def quotient(self, expr: Call, scope: Scope) -> str:
        return quotient_text(expr, scope)

    def comparison(self, expr: Call, scope: Scope) -> str:
        return comparison_text(expr, scope, self.loops)

    def choice(self, expr: Call, scope: Scope) -> str:
        """Threads of a warp that take turns take longer than one value more: of floats that are made of what is there in any
        case, both are computed. What is in global memory is read where the condition holds, else 0 is."""
        condition, yes, no = expr.args
        parts = [*walk_expr(yes), *walk_expr(no)]
        if expr.dtype != "float32" or not any(isinstance(e, Call) and e.fn in EXPENSIVE for e in parts) or any(
                isinstance(e, CheckedIndex) or (isinstance(e, Call) and e.fn in ("floordiv", "mod") and not (
                    e.dtype == "int64" and scope.facts.nonneg(to_sym(e.args[1], {}) - 1))) for e in parts):
            return ""
        absent = [e for e in parts if isinstance(e, Load) and not self._is_there(e, scope)]
        if any(e in walk_expr(no) or e.buffer.name in self.written | self.own | self.shared for e in absent):
            return ""
        held = scalar(condition, scope)
        within = replace(scope, dialect=replace(self, under=held)) if absent else scope
        return f"chosen({held}, {scalar(yes, within)}, {scalar(no, scope)})"

    def _is_there(self, load: Load, scope: Scope) -> bool:
        """Whether an element is one that there is, in registers or in shared memory."""
        if load.buffer.name not in self.own | self.shared:
            return False
        places = [to_sym(i, {}) for i in load.index]
        return all(scope.facts.nonneg(p) and scope.facts.nonneg(e - p - 1) for p, e in zip(places, load.buffer.shape))

    def checked(self, value: str, extent: str, code: int) -> str:
        return f"checked_index({value}, {extent}, {code}, status, outside)"


def emit_cuda(func: Func) -> CudaKernel:
    """CUDA C++ of `func`. Raises UnsupportedError for a dtype that kernels are not made for."""
    for buffer in func.buffers:
        if buffer.dtype not in _TYPES:
            raise UnsupportedError(f"the CUDA back end does not support dtype {buffer.dtype}; convert the model to float32")
    threads, (places, shared) = block_threads(func), shared_places(func)
    warped = any(isinstance(s, For) and s.kind == "warp" for s in walk(func.body))
    scope = Scope(facts_of(func.sizes), _TAKEN, func.messages, dialect=_Cuda(frozenset(func.outputs)))
    parameters = []
    for buffer in func.buffers:
        scope = scope.with_name("buffer", buffer.name)
        const = "" if buffer.name in func.outputs else "const "
        parameters.append(f"{const}{_TYPES[buffer.dtype]}* {scope.name(f'buffer {buffer.name}')}")
    for size in func.sizes:
        scope = scope.with_name("size", size.name)
        parameters.append(f"int64_t {scope.name(f'size {size.name}')}")
    alone = threads == 1  # nothing is spread over threads
    grouped = has_groups(func)
    body = _emit(func.body, scope, _Kernel(warped, threads, func.scratch, places, grouped), 1 + alone)
    name = identifier(func.name)
    include = ["tsc_device.cuh", *(["hopper.cuh"] if grouped else []), "scalar.cuh"]
    head = [*(f'#include "{file}"' for file in include), "", "using namespace tsc;", "",
            f"TSC_KERNEL({name}, {max(threads, WARP)}, 1, {', '.join([*parameters, 'u8* scratch', 'u32* status'])}) {{",
            "  begin_in_turn();",
            "  const int64_t thread = thread_index().x;",
            "  bool outside = false;",
            "  (void)thread, (void)outside, (void)scratch, (void)status;", *(["  if (thread == 0) {"] if alone else [])]
    lines = [*head, *(f"{'  ' * depth}{text}" for depth, text in body), *(["  }"] if alone else []), "}", ""]
    return CudaKernel(name, "\n".join(lines), threads, shared)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel in the making: whether its threads are numbered within warps, how many a block has, the scratch memory of a
    block, where its buffers in shared memory are, whether warp groups multiply in it, and the variables that number the threads
    and the warps here."""

    warped: bool
    threads: int
    scratch: SymExpr
    places: Mapping[str, int]
    grouped: bool
    lane: str = ""
    warps: Mapping[str, range] = field(default_factory=dict)


def _emit(stmt: Stmt, scope: Scope, kernel: _Kernel, depth: int) -> Lines:
    match stmt:
        case Store():
            yield depth, _store(stmt, scope)
        case For(kind="block", var=var, body=body):
            inner = replace(scope.with_name("var", var), facts=inside(scope.facts, replace(stmt, lo=index(0))))
            yield depth, f"const int64_t {inner.name(f'var {var}')} = block_index().x;"
            yield from _emit(body, inner, kernel, depth)
        case For(kind="warp" | "thread"):
            yield from _emit_team(stmt, scope, kernel, depth)
        case For(kind="vector"):
            yield from ((depth, line) for line in _wide(stmt, scope))
        case For(var=var, lo=Const(value=lo), kind="unroll", body=Intrin() as body):
            for number in range(trips(stmt) or 0):  # so that what is constant in an address is
                now = substitute_stmt(body, {var: index(int(lo) + number * stmt.step)})
                yield from _emit(now, scope, kernel, depth)
        case For(var=var, lo=lo, hi=hi, body=body, step=step):
            inner = replace(scope.with_name("var", var), facts=inside(scope.facts, stmt))
            inner = replace(inner, dialect=replace(_dialect(scope), loops=_dialect(scope).loops | {var}))
            name = inner.name(f"var {var}")
            if stmt.kind == "unroll":
                yield depth, "TSC_UNROLL"
            yield depth, f"for (int64_t {name} = {scalar(lo, scope)}; {name} < {scalar(hi, scope)}; {name} += {step}) {{"
            yield from _emit(body, inner, kernel, depth + 1)
            yield depth, "}"
        case If(condition=condition, then=then, otherwise=otherwise):
            yield depth, f"if ({scalar(condition, scope)}) {{"
            yield from _emit(then, scope, kernel, depth + 1)
            if otherwise is not None:
                yield depth, "} else {"
                yield from _emit(otherwise, scope, kernel, depth + 1)
            yield depth, "}"
        case Let(var=var, value=value, body=body):
            inner = replace(scope.with_name("var", var), facts=inside(scope.facts, stmt))
            yield depth, "{"
            yield depth + 1, f"const int64_t {inner.name(f'var {var}')} = {scalar(value, scope)};"
            yield from _emit(body, inner, kernel, depth + 1)
            yield depth, "}"
        case Block(body=body):
            for part in body:
                yield from _emit(part, scope, kernel, depth)
        case Allocate():
            yield from _emit_allocate(stmt, scope, kernel, depth)
        case Intrin(name=name, meaning=meaning, team=team):
            lines = mma_lines(name, meaning, kernel.lane, scope) if team == "warp" else (
                wgmma_lines(name, meaning, kernel.lane, kernel.warps, scope))
            yield from ((depth, line) for line in lines)
        case Barrier(team=team):
            if kernel.grouped:
                yield depth, "fence_async_shared();"
            yield depth, f"{team}_sync();"
        case Commit():
            yield depth, "cp_async_commit();"
        case Wait(pending=pending):
            yield depth, f"cp_async_wait<{pending}>();"


def _emit_team(loop: For, scope: Scope, kernel: _Kernel, depth: int) -> Lines:
    """A nest over warps or threads: each has its own iteration, row-major; those beyond the last have none."""
    loops, body = nest(loop)
    total, inner = nest_count(loops), scope
    if total is None:
        raise InternalError(f"a nest over {loop.kind}s has no constant bounds")
    number = f"thread / {WARP}" if loop.kind == "warp" else f"thread % {WARP}" if kernel.warped else "thread"
    yield depth, "{"
    below = total
    for level in loops:
        count = trips(level) or 1
        below //= count
        inner = replace(inner.with_name("var", level.var), facts=inside(inner.facts, level))
        place = number if below == 1 and count == total else f"({number}) / {below} % {count}"
        text = f"{scalar(level.lo, scope)} + ({place}) * {level.step}"
        yield depth + 1, f"const int64_t {inner.name(f'var {level.var}')} = {text};"
    everybody = total == (kernel.threads // WARP if loop.kind == "warp" else WARP if kernel.warped else kernel.threads)
    if not everybody:
        if any(isinstance(s, Intrin) or (isinstance(s, Barrier) and (loop.kind == "thread" or s.team == "block"))
               for s in walk(body)):
            raise InternalError(f"of {loop.kind}s that wait for each other only {total} take part")
        yield depth + 1, f"if ({number} < {total}) {{"
    within = replace(kernel, lane=loop.var) if loop.kind == "thread" else replace(kernel, warps=dict(map(_values, loops)))
    yield from _emit(body, inner, within, depth + 1 + (not everybody))
    if not everybody:
        yield depth + 1, "}"
    yield depth, "}"


def _values(loop: For) -> tuple[str, range]:
    assert isinstance(loop.lo, Const) and isinstance(loop.hi, Const)
    return loop.var, range(int(loop.lo.value), int(loop.hi.value), loop.step)


def _emit_allocate(stmt: Allocate, scope: Scope, kernel: _Kernel, depth: int) -> Lines:
    buffer = stmt.buffer
    inner = scope.with_name("buffer", buffer.name)
    name, kind, dialect = inner.name(f"buffer {buffer.name}"), _TYPES[buffer.dtype], _dialect(scope)
    yield depth, "{"
    if stmt.scope == "scratch":
        if kernel.lane:
            raise InternalError(f"{buffer} is in scratch memory of a thread's own, which there is none of")
        place = f"block_index().x * {size_text(kernel.scratch, scope)} + {size_text(stmt.offset, scope)}"
        yield depth + 1, f"{kind}* {name} = reinterpret_cast<{kind}*>(scratch + {place});"
        dialect = replace(dialect, written=dialect.written | {buffer.name})
    elif stmt.scope == "shared":
        yield depth + 1, f"const u32 {name} = shared_base() + {kernel.places[buffer.name]}u;"
        dialect = replace(dialect, shared=dialect.shared | {buffer.name})
    else:
        yield depth + 1, f"{kind} {name}[{_elements(buffer)}];"
        dialect = replace(dialect, own=dialect.own | {buffer.name})
    yield from _emit(stmt.body, replace(inner, dialect=dialect), kernel, depth + 1)
    yield depth, "}"


def _store(stmt: Store, scope: Scope) -> str:
    buffer, dialect = stmt.buffer, _dialect(scope)
    name = scope.name(f"buffer {buffer.name}")
    if stmt.asynchronous and item_bytes(buffer.dtype) in _COPIED and (found := copied(stmt.value)) is not None:
        return _copy(stmt, found, scope)
    value = scalar(stmt.value, scope)
    if buffer.name in dialect.shared:
        return f"store_shared<{_TYPES[buffer.dtype]}>({_address(buffer, stmt.index, scope)}, {value});"
    if buffer.name in dialect.own:
        return f"{name}[{place_text(buffer, stmt.index, scope)}] = {value};"
    return f"store_global<{_TYPES[buffer.dtype]}>({name} + {offset_text(buffer, stmt.index, scope)}, {value});"


def _copy(stmt: Store, found: tuple[tuple[Expr, ...], Load], scope: Scope, count: int = 1) -> str:
    """A copy of neighbours beside the thread; where its conditions do not hold, of zeros."""
    (conditions, load), target = found, _address(stmt.buffer, stmt.index, scope)
    name, offset = scope.name(f"buffer {load.buffer.name}"), offset_text(load.buffer, load.index, scope)
    size = count * item_bytes(stmt.buffer.dtype)
    if not conditions:
        return f"cp_async<{size}>({target}, {name} + {offset});"
    held = scalar(functools.reduce(lambda one, other: call("and", one, other), conditions), scope)
    return f"cp_async<{size}>({target}, place_of({name}, {offset}), {held});"


def _wide(loop: For, scope: Scope) -> Iterator[str]:
    """A "vector" loop as one access: an asynchronous copy, a read into registers, or a store of what is computed."""
    stmt = substitute_stmt(loop.body, {loop.var: loop.lo})
    if not isinstance(stmt, Store) or not isinstance(loop.hi, Const):
        raise InternalError(f"vector loop {loop.var} is no access")
    count, source, dialect = int(loop.hi.value), stmt.value, _dialect(scope)
    name, kind = scope.name(f"buffer {stmt.buffer.name}"), _TYPES[stmt.buffer.dtype]
    if stmt.asynchronous and (found := copied(stmt.value)) is not None:
        yield _copy(stmt, found, scope, count)
    elif stmt.buffer.name in dialect.own and isinstance(source, Load):
        target, held = f"{name} + {place_text(stmt.buffer, stmt.index, scope)}", source.buffer.name
        if held in dialect.shared:
            yield f"load_shared_row<{count}>({target}, {_address(source.buffer, source.index, scope)});"
        else:
            place = f"{scope.name(f'buffer {held}')} + {offset_text(source.buffer, source.index, scope)}"
            yield f"{'load_global' if held in dialect.written else 'load_constant'}_row<{count}>({target}, {place});"
    else:
        values = [scalar(substitute(_stored(loop).value, {loop.var: index(number)}), scope) for number in range(count)]
        yield "{"
        yield f"  const {kind} row[{count}] = {{{', '.join(values)}}};"
        if stmt.buffer.name in dialect.shared:
            yield f"  store_shared_row({_address(stmt.buffer, stmt.index, scope)}, row);"
        else:
            yield f"  store_global_row({name} + {offset_text(stmt.buffer, stmt.index, scope)}, row);"
        yield "}"


def _stored(loop: For) -> Store:
    assert isinstance(loop.body, Store)
    return loop.body


def _address(buffer: Buffer, at: tuple[Expr, ...], scope: Scope) -> str:
    return f"{scope.name(f'buffer {buffer.name}')} + {place_text(buffer, at, scope, item_bytes(buffer.dtype))}"


def _elements(buffer: Buffer) -> int:
    count = product(buffer.shape).as_int()
    if count is None:
        raise InternalError(f"{buffer} is in registers, but has no constant shape")
    return count


def _dialect(scope: Scope) -> _Cuda:
    assert isinstance(scope.dialect, _Cuda)
    return scope.dialect
