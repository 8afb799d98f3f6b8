"""verify: a Func keeps the rules of the loop IR, or InternalError says which one it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.loop_ir.cpu.verify_lanes import verify_lanes
from tsc.loop_ir.gpu.verify_threads import verify_threads
from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.nodes import Allocate, Block, For, Func, If, Intrin, Let, Stmt, Store
from tsc.te.expr import BOOL, INDEX, Buffer, Call, CheckedIndex, Const, Expr, Load, Size, Var, format_expr, walk
from tsc.te.intrinsics import MEANING


@dataclass(frozen=True, slots=True)
class _Scope:
    func: str
    names: frozenset[str]
    sizes: frozenset[str]
    buffers: dict[str, Buffer]
    outer: bool = True


def verify(func: Func) -> None:
    """Names are bound once, ranks and dtypes agree, local extents are constant where they must be, block loops are outermost;
    warps and threads keep the rules of `verify_threads`, lanes those of `verify_lanes`. Raises InternalError."""
    sizes = frozenset(s.name for s in func.sizes)
    if len({b.name for b in func.buffers}) != len(func.buffers):
        raise InternalError(f"kernel {func.name}: two buffers have one name")
    unknown = set(func.outputs) - {b.name for b in func.buffers}
    if unknown:
        raise InternalError(f"kernel {func.name}: outputs {sorted(unknown)} are not among its buffers")
    for buffer in func.buffers:
        _check_sizes(func.name, buffer, sizes)
    scope = _Scope(func.name, frozenset(), sizes, {b.name: b for b in func.buffers})
    _verify_stmt(func.body, scope)
    verify_threads(func)
    verify_lanes(func)


def _fail(scope: _Scope, text: str) -> InternalError:
    return InternalError(f"kernel {scope.func}: {text}")


def _check_sizes(name: str, buffer: Buffer, sizes: frozenset[str]) -> None:
    for extent in buffer.shape:
        if not extent.dims() <= sizes:
            raise InternalError(f"kernel {name}: the shape of {buffer} uses sizes that the kernel does not have")


def _verify_stmt(stmt: Stmt, scope: _Scope) -> None:
    match stmt:
        case Store(buffer=buffer, index=index, value=value):
            _check_access(buffer, index, scope)
            _verify_expr(value, scope)
            if value.dtype != buffer.dtype:
                raise _fail(scope, f"a {value.dtype} is stored to {buffer}: {format_expr(value)}")
        case For(var=var, lo=lo, hi=hi, body=body, step=step, kind=kind):
            bounds = scope
            if kind == "block":
                if not scope.outer:
                    raise _fail(scope, f"block loop {var} is inside other statements")
                bounds = replace(scope, names=scope.names | {BLOCK_BEGIN, BLOCK_END})
            _verify_index(lo, bounds)
            _verify_index(hi, bounds)
            if step < 1:
                raise _fail(scope, f"loop {var} has step {step}")
            if kind in ("warp", "thread", "vector", "unroll") and not (isinstance(lo, Const) and isinstance(hi, Const)):
                raise _fail(scope, f"{kind} loop {var} from {format_expr(lo)} to {format_expr(hi)} has no constant trip count")
            _verify_stmt(body, _bind(var, replace(scope, outer=scope.outer and kind == "block")))
        case If(condition=condition, then=then, otherwise=otherwise):
            _verify_expr(condition, scope)
            if condition.dtype != BOOL:
                raise _fail(scope, f"a condition is {condition.dtype}: {format_expr(condition)}")
            _verify_stmt(then, replace(scope, outer=False))
            if otherwise is not None:
                _verify_stmt(otherwise, replace(scope, outer=False))
        case Let(var=var, value=value, body=body):
            _verify_index(value, scope)
            _verify_stmt(body, _bind(var, replace(scope, outer=False)))
        case Block(body=body):
            for part in body:
                _verify_stmt(part, replace(scope, outer=False))
        case Allocate(buffer=buffer, scope=where, body=body):
            if buffer.name in scope.buffers:
                raise _fail(scope, f"buffer {buffer.name} is allocated where that name is in use")
            _check_sizes(scope.func, buffer, scope.sizes)
            if where != "scratch" and any(e.as_int() is None for e in buffer.shape):
                raise _fail(scope, f"{where} buffer {buffer} has extents that are not constant")
            _verify_stmt(body, replace(scope, outer=False, buffers={**scope.buffers, buffer.name: buffer}))
        case Intrin(meaning=meaning):
            _verify_stmt(meaning, replace(scope, outer=False))


def _bind(name: str, scope: _Scope) -> _Scope:
    if name in scope.names or name in scope.sizes:
        raise _fail(scope, f"variable {name} is bound twice")
    return replace(scope, names=scope.names | {name})


def _verify_index(expr: Expr, scope: _Scope) -> None:
    _verify_expr(expr, scope)
    if expr.dtype != INDEX:
        raise _fail(scope, f"an index is {expr.dtype}: {format_expr(expr)}")


def _check_access(buffer: Buffer, index: tuple[Expr, ...], scope: _Scope) -> None:
    if scope.buffers.get(buffer.name) != buffer:
        raise _fail(scope, f"{buffer} is accessed where it is not in scope")
    if len(index) != len(buffer.shape):
        raise _fail(scope, f"{buffer} is accessed with {len(index)} indices")
    for i in index:
        _verify_index(i, scope)


def _verify_expr(expr: Expr, scope: _Scope) -> None:
    for node in walk(expr):
        match node:
            case Var(name=name) if name not in scope.names:
                raise _fail(scope, f"variable {name} is used outside its scope in {format_expr(expr)}")
            case Size(value=value) if not value.dims() <= scope.sizes:
                raise _fail(scope, f"<{value}> uses sizes that the kernel does not have")
            case Load(buffer=buffer, index=index):
                _check_access(buffer, index, scope)
            case Call(fn=fn, args=args):
                _check_call(fn, args, node, scope)
            case CheckedIndex(value=value, extent=extent) if value.dtype != INDEX or not extent.dims() <= scope.sizes:
                raise _fail(scope, f"{format_expr(node)} does not check an int64 against the kernel's sizes")


def _check_call(fn: str, args: tuple[Expr, ...], node: Expr, scope: _Scope) -> None:
    if fn not in MEANING:
        raise _fail(scope, f"unknown intrinsic {fn!r}")
    same = args[1:] if fn == "select" else args
    if len({a.dtype for a in same}) > 1:
        raise _fail(scope, f"operands differ in dtype: {format_expr(node)}")
    if fn == "select" and args[0].dtype != BOOL:
        raise _fail(scope, f"select on a {args[0].dtype}: {format_expr(node)}")
