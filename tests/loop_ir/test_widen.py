"""Copies of 16 bytes: where they are made, where they must not be, and what they compute."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.codegen_cuda.generated import check, load, printed
from tests.poly import programs
from tests.poly.support import on_gpu
from tests.poly.test_gpu import ONE_WARP
from tsc.loop_ir.gpu.threads import trips
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import For, Func, Store, walk
from tsc.poly.tile import TileConfig
from tsc.te.compute import Program


def lowered(program: Program, config: TileConfig) -> Func:
    return lower_gpu(on_gpu(program, config).func, 2)


def wide(func: Func) -> Counter[str]:
    """How many copies of 16 bytes there are from each input, by its name."""
    found: Counter[str] = Counter()
    for stmt in walk(func.body):
        if isinstance(stmt, For) and stmt.kind == "vector" and isinstance(stmt.body, Store) and stmt.body.asynchronous:
            assert trips(stmt) == 4
            found[str(stmt.body.value).partition("Buffer(name='")[2].partition("'")[0]] += 1
    return found


@pytest.mark.parametrize(("n", "k", "expected"), [
    (32, 16, {"a", "w"}),    # whole tiles of both
    (32, 9, {"w"}),          # rows of a begin anywhere
    (24, 16, {"a", "w"}),    # a part of a tile of columns is outside, all of a copy or none
    (25, 16, {"a"}),
    ("N", 16, {"a"}), (32, "K", {"w"}), ("N", "K", set())])
def test_where_copies_are_wide(n: int | str, k: int | str, expected: set[str]) -> None:
    program = programs.gemm("M", n, k)
    func = lowered(program, ONE_WARP)
    assert wide(func).keys() == expected
    sizes = {"M": 5, "N": 7, "K": 19}
    kernels, text = printed({"kernel": func})
    assert text.count("cp_async<16>") == sum(wide(func).values())
    for mode in ("fast", "lazy", "race"):
        check(func, kernels["kernel"], load(text), program, {s.name: sizes[s.name] for s in func.sizes}, mode)
