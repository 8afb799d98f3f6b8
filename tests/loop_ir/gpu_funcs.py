"""Hand-written Funcs for GPUs: threads, shared memory, and (where asked for) the barriers that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.loop_ir.funcs import buffer, c32, loop, minimum, size, store, sub
from tsc.loop_ir.nodes import Allocate, Barrier, Block, For, Func, If, Stmt, Store, block
from tsc.te.compute import SizeParam
from tsc.te.expr import Buffer, Call, Expr, Load, Var, add, call, index, mul, select

NOTHING = Block(())


@dataclass(frozen=True, slots=True)
class Tile:
    """A contraction's mapping: `warps` x 1 warps of `rows` x `columns` threads, each with `height` x `width` elements, over k
    tiles of `depth`."""

    warps: int = 2
    rows: int = 2
    columns: int = 2
    height: int = 1
    width: int = 2
    depth: int = 3

    @property
    def block(self) -> tuple[int, int]:
        return self.warps * self.rows * self.height, self.columns * self.width

    @property
    def threads(self) -> int:
        return self.warps * self.rows * self.columns


def warps(count: int, *body: Stmt, var: str = "wm") -> For:
    return loop(var, 0, count, *body, kind="warp")


def threads(rows: int, columns: int, *body: Stmt) -> For:
    return loop("tm", 0, rows, loop("tn", 0, columns, *body, kind="thread"), kind="thread")


def shared_copy(target: Buffer, source: Buffer, origin: tuple[Expr, ...], extents: tuple[Expr, Expr], thread: Expr,
                count: int, batch: tuple[Expr, ...] = ()) -> Stmt:
    """Element after element of a tile, dealt to the threads in turn; zeros where the source ends."""
    rows, columns = (e.as_int() or 0 for e in target.shape)
    name = f"{target.name}_c"
    row, column = call("floordiv", Var(name), index(columns)), call("mod", Var(name), index(columns))
    at = (add(origin[0], row), add(origin[1], column))
    inside = call("and", call("lt", at[0], extents[0]), call("lt", at[1], extents[1]))
    value = select(inside, Load(source, (*batch, *at)), c32(0.0))
    return loop(name, thread, rows * columns, Store(target, (row, column), value), step=count, mark="copy")


def gemm(tile: Tile | None = None, batched: bool = False, barriers: bool = True) -> Func:
    """y[B, M, N] = max(x[B, M, K] @ w[K, N] + b[N], 0), with or without the B; whole threads outside, k tiles within."""
    tile = tile or Tile()
    high, wide = tile.block
    lead = ("B",) if batched else ()
    x, w, b, y = buffer("x", *lead, "M", "K"), buffer("w", "K", "N"), buffer("b", "N"), buffer("y", *lead, "M", "N")
    left, right = buffer("left", high, tile.depth), buffer("right", tile.depth, wide)
    acc = buffer("acc", tile.height, tile.width)
    m1, n1, k1, i, j, k, wm, tm, tn = (Var(v) for v in ("m1", "n1", "k1", "i", "j", "k", "wm", "tm", "tn"))
    batch: tuple[Expr, ...] = (Var("batch"),) if batched else ()
    thread = add(mul(index(tile.rows * tile.columns), wm), add(mul(index(tile.columns), tm), tn))
    row = add(mul(index(tile.height), add(mul(index(tile.rows), wm), tm)), i)
    column = add(mul(index(tile.width), tn), j)
    m, n = add(m1, row), add(n1, column)

    def tiled(*body: Stmt, mark: str) -> Stmt:
        return loop("i", 0, tile.height, loop("j", 0, tile.width, *body, mark=mark), mark=mark)

    init = tiled(store(acc, (i, j), c32(0.0), "init", traced=(*batch, m, n)), mark="init")
    copies = (shared_copy(left, x, (m1, k1), (size("M"), size("K")), thread, tile.threads, batch),
              shared_copy(right, w, (k1, n1), (size("K"), size("N")), thread, tile.threads))
    product = call("mul", Load(left, (row, k)), Load(right, (k, column)))
    update = store(acc, (i, j), call("add", Load(acc, (i, j)), product), "update", traced=(*batch, m, n, add(k1, k)))
    compute = loop("k", 0, tile.depth, tiled(update, mark="i"), mark="k")
    barrier: Stmt = Barrier() if barriers else NOTHING
    k_tile = loop("k1", 0, size("K"), *copies, barrier, compute, barrier, mark="k_tile", step=tile.depth)
    value = call("max", call("add", Load(acc, (i, j)), Load(b, (n,))), c32(0.0))
    guard = call("and", call("lt", m, size("M")), call("lt", n, size("N")))
    out = tiled(If(guard, store(y, (*batch, m, n), value, "out")), mark="epilogue")
    body: Stmt = warps(tile.warps, threads(tile.rows, tile.columns, Allocate(acc, "register", block(init, k_tile, out))))
    body = Allocate(left, "shared", Allocate(right, "shared", body))
    body = loop("m1", 0, size("M"), loop("n1", 0, size("N"), body, kind="block", step=wide), kind="block", step=high)
    if batched:
        body = loop("batch", 0, size("B"), body, kind="block")
    return Func("gemm", (x, w, b, y), ("y",), tuple(SizeParam(s) for s in (*lead, "M", "N", "K")), body)


def gemm_arrays(sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random operands of `gemm`."""
    random = np.random.default_rng(seed)
    lead = (sizes["B"],) if "B" in sizes else ()
    shapes = {"x": (*lead, sizes["M"], sizes["K"]), "w": (sizes["K"], sizes["N"]), "b": (sizes["N"],)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {"y": np.full((*lead, sizes["M"], sizes["N"]), np.nan, np.float32)}


def gemm_expected(arrays: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.maximum(arrays["x"].astype(np.float64) @ arrays["w"] + arrays["b"], 0)


def softmax(rows: int = 2, lanes: int = 4, barriers: bool = True) -> Func:
    """y[R, C] = softmax(x[R, C]): a warp a row, each lane a part of it, the parts folded through shared memory in halves."""
    x, y = buffer("x", "R", "C"), buffer("y", "R", "C")
    top, total = buffer("top", rows, lanes), buffer("total", rows, lanes)
    part = buffer("part", 1)
    w, lane, c, rb = Var("w"), Var("t"), Var("c"), Var("rb")
    row = minimum(add(rb, w), sub(size("R"), index(1)))  # warps past the end repeat the last row
    zero = (index(0),)
    barrier: Stmt = Barrier("warp") if barriers else NOTHING

    def over(value: Expr, fn: str, where: Buffer, identity: float, name: str) -> Stmt:
        whole = loop(name, lane, size("C"), Store(part, zero, call(fn, Load(part, zero), value)), step=lanes)
        steps: list[Stmt] = [Store(part, zero, c32(identity)), whole, Store(where, (w, lane), Load(part, zero)), barrier]
        width = lanes // 2
        while width:
            other = Load(where, (w, add(lane, index(width))))
            fold = Store(where, (w, lane), call(fn, Load(where, (w, lane)), other))
            steps += [If(call("lt", lane, index(width)), fold), barrier]
            width //= 2
        return block(*steps)

    def shifted(name: str) -> Expr:
        return Call("exp", (call("sub", Load(x, (row, Var(name))), Load(top, (w, index(0)))),), "float32")

    inside = call("lt", add(rb, w), size("R"))
    quotient = call("div", shifted("c"), Load(total, (w, index(0))))
    out = loop("c", lane, size("C"), If(inside, store(y, (add(rb, w), c), quotient)), step=lanes)
    body = block(over(Load(x, (row, Var("c0"))), "max", top, float("-inf"), "c0"),
                 over(shifted("c1"), "add", total, 0.0, "c1"), out)
    body = loop("w", 0, rows, loop("t", 0, lanes, Allocate(part, "register", body), kind="thread"), kind="warp")
    body = Allocate(top, "shared", Allocate(total, "shared", body))
    return Func("softmax", (x, y), ("y",), (SizeParam("R"), SizeParam("C")),
                loop("rb", 0, size("R"), body, kind="block", step=rows))


