"""Hand-written Funcs in the forms that the polyhedral stage makes, and a way to run them as compiled C."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tsc.codegen_c.build import build_module
from tsc.codegen_c.emit import emit_c
from tsc.config import Options
from tsc.loop_ir.nodes import Allocate, For, Func, Instance, Stmt, Store, block
from tsc.sym import SymExpr, dim
from tsc.target import DeviceSpec
from tsc.te import layout as layouts
from tsc.te.compute import SizeParam
from tsc.te.expr import Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, add, call, index, select


def c32(value: float) -> Const:
    return Const(float(value), "float32")


def size(name: str) -> Expr:
    return Size(dim(name))


def buffer(name: str, *shape: str | int, dtype: str = "float32", panel: tuple[int, int] | None = None) -> Buffer:
    layout = () if panel is None else layouts.panels(len(shape), *panel)
    return Buffer(name, dtype, tuple(dim(s) if isinstance(s, str) else SymExpr.of(s) for s in shape), layout)


def loop(var: str, lo: Expr | int, hi: Expr | int, *body: Stmt, mark: str = "", step: int = 1, kind: Any = "serial") -> For:
    lo, hi = (index(x) if isinstance(x, int) else x for x in (lo, hi))
    return For(var, lo, hi, block(*body), step, kind, mark)


def store(target: Buffer, at: tuple[Expr, ...], value: Expr, name: str = "S", *,
          traced: tuple[Expr, ...] | None = None) -> Store:
    return Store(target, at, value, Instance(name, at if traced is None else traced))


def minimum(a: Expr, b: Expr) -> Expr:
    return call("min", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return call("sub", a, b)


def gelu(x: Expr) -> Expr:
    erf = Call("erf", (Call("mul", (x, c32(0.7071067811865476)), "float32"),), "float32")
    return Call("mul", (Call("mul", (x, c32(0.5)), "float32"), Call("add", (erf, c32(1.0)), "float32")), "float32")


def contraction_tile(acc: Buffer, rows: Expr, columns: Expr, depth: Expr, product: Expr, epilogue: Stmt,
                     origin: tuple[Expr, Expr]) -> Stmt:
    i, j = Var("i"), Var("j")
    where = (add(origin[0], i), add(origin[1], j))
    zero = store(acc, (i, j), c32(0.0), "init", traced=where)
    init = loop("i", 0, rows, loop("j", 0, columns, zero, mark="init"), mark="init")
    update = store(acc, (i, j), call("add", Load(acc, (i, j)), product), "update", traced=(*where, Var("k")))
    k = loop("k", 0, depth, loop("i", 0, rows, loop("j", 0, columns, update, mark="j"), mark="i"), mark="k")
    out = loop("i", 0, rows, loop("j", 0, columns, epilogue, mark="epilogue"), mark="epilogue")
    return Allocate(acc, "register", block(init, k, out))


def gemm_gelu(columns: str | int, depth: str | int, mr: int, nr: int, packed: bool = True) -> Func:
    """y[M, N] = gelu(x[M, K] @ w[K, N] + b[N])."""
    x, b, y = buffer("x", "M", depth), buffer("b", columns), buffer("y", "M", columns)
    w = buffer("w", depth, columns, panel=(1, nr) if packed else None)
    wide, deep = (size(v) if isinstance(v, str) else index(v) for v in (columns, depth))
    m1, n1, i, j, k = Var("m1"), Var("n1"), Var("i"), Var("j"), Var("k")
    m, n = add(m1, i), add(n1, j)
    acc = buffer("acc", mr, nr)
    product = call("mul", Load(x, (m, k)), Load(w, (k, n)))
    out = store(y, (m, n), gelu(call("add", Load(acc, (i, j)), Load(b, (n,)))), "out")
    high, broad = minimum(index(mr), sub(size("M"), m1)), minimum(index(nr), sub(wide, n1))
    tile = contraction_tile(acc, high, broad, deep, product, out, (m1, n1))
    mb, nb = Var("mb"), Var("nb")
    inner = loop("n1", nb, minimum(add(nb, index(2 * nr)), wide),
                 loop("m1", mb, minimum(add(mb, index(2 * mr)), size("M")), tile, mark="instr_m", step=mr),
                 mark="instr_n", step=nr)
    body = loop("mb", 0, size("M"), loop("nb", 0, wide, inner, kind="block", step=2 * nr), kind="block", step=2 * mr)
    names = ["M", *(v for v in (columns, depth) if isinstance(v, str))]
    return Func("gemm_gelu", (x, w, b, y), ("y",), tuple(SizeParam(n) for n in names), body)


def scores(depth: int, mr: int, nr: int) -> Func:
    """s[H, Q, S] = q[H, Q, D] @ transpose(k[H, S, D]), the keys promoted to a zero-filled panel."""
    q, keys, out = buffer("q", "H", "Q", depth), buffer("kt", "H", "S", depth), buffer("s", "H", "Q", "S")
    h, m1, n1, i, j, k = (Var(v) for v in ("h", "m1", "n1", "i", "j", "k"))
    panel, acc = buffer("panel", depth, nr), buffer("acc", mr, nr)
    c, p = Var("c"), Var("p")
    filled = select(call("lt", add(n1, p), size("S")), Load(keys, (h, add(n1, p), c)), c32(0.0))
    copy = loop("c", 0, depth, loop("p", 0, nr, Store(panel, (c, p), filled), mark="copy"), mark="copy")
    product = call("mul", Load(q, (h, add(m1, i), k)), Load(panel, (k, j)))
    epilogue = store(out, (h, add(m1, i), add(n1, j)), Call("mul", (Load(acc, (i, j)), c32(0.125)), "float32"), "out",
                     traced=(h, add(m1, i), add(n1, j)))
    high, broad = minimum(index(mr), sub(size("Q"), m1)), minimum(index(nr), sub(size("S"), n1))
    tile = contraction_tile(acc, high, broad, index(depth), product, epilogue, (m1, n1))
    rows = loop("m1", 0, size("Q"), tile, mark="instr_m", step=mr)
    inner = Allocate(panel, "scratch", block(copy, rows))
    body = loop("h", 0, size("H"), loop("n1", 0, size("S"), inner, kind="block", step=nr), kind="block")
    return Func("scores", (q, keys, out), ("s",), (SizeParam("H"), SizeParam("Q"), SizeParam("S")), body)


def softmax(rows: int) -> Func:
    """y[R, C] = softmax(x[R, C]), row statistics in constant-size locals and one row buffer in scratch."""
    x, y = buffer("x", "R", "C"), buffer("y", "R", "C")
    top, total, row = buffer("top", rows), buffer("total", rows), buffer("row", rows, "C")
    rb, r, c = Var("rb"), Var("r"), Var("c")
    at, high = add(rb, r), minimum(index(rows), sub(size("R"), rb))

    def over(mark: str, *body: Stmt) -> Stmt:
        return loop("c", 0, size("C"), *body, mark=mark)

    body = loop(
        "r", 0, high,
        store(top, (r,), c32(float("-inf")), "top_init", traced=(at,)),
        over("reduce", store(top, (r,), call("max", Load(top, (r,)), Load(x, (at, c))), "top", traced=(at, c))),
        over("inner", store(row, (r, c), Call("exp", (call("sub", Load(x, (at, c)), Load(top, (r,))),), "float32"), "row",
                            traced=(at, c))),
        store(total, (r,), c32(0.0), "total_init", traced=(at,)),
        over("reduce", store(total, (r,), call("add", Load(total, (r,)), Load(row, (r, c))), "total", traced=(at, c))),
        over("inner", store(y, (at, c), call("div", Load(row, (r, c)), Load(total, (r,))), "y", traced=(at, c))))
    local = Allocate(top, "stack", Allocate(total, "register", Allocate(row, "scratch", body)))
    blocks = loop("rb", 0, size("R"), local, kind="block", step=rows)
    return Func("softmax", (x, y), ("y",), (SizeParam("R"), SizeParam("C")), blocks)


def transpose_add() -> Func:
    """y[A, B] = transpose(x[B, A]) + z[A, B] where z > 0, else x: strided loads, a select over loads."""
    x, z, y = buffer("x", "B", "A"), buffer("z", "A", "B"), buffer("y", "A", "B")
    a, b = Var("a"), Var("b")
    value = Load(z, (a, b))
    chosen = select(call("gt", value, c32(0.0)), call("add", Load(x, (b, a)), value), Load(x, (b, a)))
    body = loop("ab", 0, size("A"), loop("a", Var("ab"), minimum(add(Var("ab"), index(4)), size("A")),
                                         loop("b", 0, size("B"), store(y, (a, b), chosen), mark="inner")), kind="block", step=4)
    return Func("transpose_add", (x, z, y), ("y",), (SizeParam("A"), SizeParam("B")), body)


def gather(width: str | int) -> Func:
    """y[N, W] = table[V, W][ids[N]] * mask[N, W], indices checked."""
    ids, table = buffer("ids", "N", dtype="int64"), buffer("table", "V", width)
    mask, y = buffer("mask", "N", width, dtype="bool"), buffer("y", "N", width)
    n, w = Var("n"), Var("w")
    row = CheckedIndex(Load(ids, (n,)), dim("V"), "table")
    value = call("mul", Load(table, (row, w)), Cast(Load(mask, (n, w)), "float32"))
    wide = size(width) if isinstance(width, str) else index(width)
    body = loop("n", 0, size("N"), loop("w", 0, wide, store(y, (n, w), value), mark="inner"), kind="block")
    names = ["N", "V", *([width] if isinstance(width, str) else [])]
    return Func("gather", (ids, table, mask, y), ("y",), tuple(SizeParam(s) for s in names), body, messages=("table",))


def shifted_blocks() -> Func:
    """y[N] = x[N] doubled, over two nested block loops whose starts are not 0: what map_blocks decodes."""
    x, y = buffer("x", 3, "N"), buffer("y", 3, "N")
    a, b, n = Var("a"), Var("b"), Var("n")
    inner = loop("n", b, minimum(add(b, index(5)), size("N")), store(y, (a, n), call("add", Load(x, (a, n)), Load(x, (a, n)))),
                 mark="inner")
    body = loop("a", 1, 3, loop("b", 0, size("N"), inner, kind="block", step=5), kind="block")
    return Func("shifted", (x, y), ("y",), (SizeParam("N"),), body)


def panels(array: np.ndarray[Any, Any], axis: int, width: int) -> np.ndarray[Any, Any]:
    """`array` in the panel layout of Buffer.panel."""
    whole = -(-array.shape[axis] // width) * width
    padding = [(0, whole - n if d == axis else 0) for d, n in enumerate(array.shape)]
    split = np.moveaxis(np.pad(array, padding), axis, 0)
    split = split.reshape(whole // width, width, *split.shape[1:])
    return np.ascontiguousarray(np.moveaxis(split, 1, -1))


def run_compiled(func: Func, spec: DeviceSpec, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int],
                 options: Options | None = None) -> int:
    """Run a lowered Func as compiled C on arrays of plain shapes; the status it returns. Outputs are written in place."""
    kernel = load_kernel(func, spec, options or Options())
    return call_kernel(kernel, func, arrays, sizes)


#: The C of a Func, made once by a test that compiles many together and then loads each.
source = lru_cache(maxsize=256)(emit_c)


def load_kernel(func: Func, spec: DeviceSpec, options: Options) -> Any:
    return load_kernels([func], spec, options)[0]


def load_kernels(made: Sequence[Func], spec: DeviceSpec, options: Options) -> list[Any]:
    """Functions of different names, compiled side by side into one module."""
    module = build_module({func.name: source(func, spec) for func in made}, spec, options)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        Path(file.name).write_bytes(module)
        library = ctypes.CDLL(file.name)
    return [getattr(library, func.name) for func in made]


class Args(ctypes.Structure):
    _fields_ = (("buffers", ctypes.c_void_p), ("sizes", ctypes.c_void_p))


def call_kernel(kernel: Any, func: Func, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int],
                blocks: tuple[int, int] | None = None) -> int:
    """Run all blocks, or those from `blocks[0]` up to `blocks[1]`; the status."""
    stored = [panels(arrays[b.name], *b.panel) if b.panel is not None else arrays[b.name] for b in func.buffers]
    buffers = np.array([a.ctypes.data for a in stored], np.uintp)
    numbers = np.array([sizes[s.name] for s in func.sizes], np.int64)
    scratch = np.empty(func.scratch.evaluate(sizes) + 64, np.uint8)
    start = scratch.ctypes.data
    start += -start % 64
    kernel.restype = ctypes.c_int32
    args = Args(buffers.ctypes.data, numbers.ctypes.data)
    begin, end = blocks if blocks is not None else (0, func.blocks.evaluate(sizes))
    return int(kernel(ctypes.byref(args), ctypes.c_int64(begin), ctypes.c_int64(end), ctypes.c_void_p(start)))


