"""Transposes in tiles of shared memory: values three ways, what they move, and what is left to others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.codegen_cuda.generated import check, launched, load, printed
from tests.poly import programs
from tests.poly.programs import at, axis, buffer, f32, v
from tests.poly.support import check_values, inputs_for, on_gpu
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Barrier, Func, Store, Wait, walk
from tsc.poly import PatternMismatch
from tsc.poly.pattern.turned import match_turned
from tsc.poly.scop import build_scop
from tsc.poly.tile import TileConfig
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.expr import Load, call, index, select

CONFIG = TileConfig(block_tile=(64, 64), warp_tile=(8, 64))
FLAT = TileConfig(block_tile=(32, 64), warp_tile=(16, 64))


def turned(dtype: str = "float32", lo: int = 1) -> Program:
    """out[j, i] = x[i, j]."""
    x, out, i, j = buffer("x", "M", "N", dtype=dtype), buffer("out", "N", "M", dtype=dtype), axis("i", "M"), axis("j", "N")
    return Program((x,), (out,), (Compute(out, (j, i), at(x, i, j)),), (SizeParam("M", lo=lo), SizeParam("N", lo=lo)))


def with_epilogue() -> Program:
    """out[b, j, i] = max(x[b, i, j] + z[b, i, j] + y[b, j, i] * c[i], 0): two tiles, and reads that need none."""
    x, z, y = buffer("x", "B", "M", "N"), buffer("z", "B", "M", "N"), buffer("y", "B", "N", "M")
    c, out = buffer("c", "M"), buffer("out", "B", "N", "M")
    b, i, j = axis("b", "B"), axis("i", "M"), axis("j", "N")
    value = call("add", call("add", at(x, b, i, j), at(z, b, i, j)), call("mul", at(y, b, j, i), at(c, i)))
    return Program((x, z, y, c), (out,), (Compute(out, (b, j, i), call("max", value, f32(0.0))),),
                   tuple(SizeParam(s) for s in "BMN"))


def lowered(program: Program, config: TileConfig = CONFIG) -> Func:
    return lower_gpu(on_gpu(program, config).func, 1)


CASES: dict[str, tuple[Callable[[], Program], list[dict[str, int]]]] = {
    "plain": (turned, [{"M": 1, "N": 1}, {"M": 65, "N": 63}, {"M": 64, "N": 128}, {"M": 3, "N": 131}]),
    "empty": (lambda: turned(lo=0), [{"M": 0, "N": 3}, {"M": 3, "N": 0}, {"M": 1, "N": 70}]),
    "epilogue": (with_epilogue, [{"B": 2, "M": 3, "N": 67}, {"B": 1, "M": 65, "N": 2}]),
    "batch": (lambda: programs.transpose(("B", "L", 20)), [{"B": 3, "L": 1}, {"B": 2, "L": 70}])}


@pytest.mark.parametrize("config", [CONFIG, FLAT], ids=["square", "flat"])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, config: TileConfig) -> None:
    make, cases = CASES[name]
    program = make()
    func = lowered(program, config)
    assert [s.pending for s in walk(func.body) if isinstance(s, Wait)] == [0]
    assert [s.team for s in walk(func.body) if isinstance(s, Barrier)] == ["block"]
    kernels, text = printed({"kernel": func})
    for sizes in cases:
        for mode in ("fast", "lazy", "race"):
            check(func, kernels["kernel"], load(text), program, sizes, mode)
    check_values(func, program, cases[0])


@pytest.mark.parametrize("dtype", ["bool", "float16", "float64", "int8", "int32"])
def test_other_types(dtype: str) -> None:
    """Those of less than four bytes are copied by their threads, whatever they are told."""
    program = turned(dtype)
    func = lowered(program)
    kernels, text = printed({"kernel": func})
    check(func, kernels["kernel"], load(text), program, {"M": 67, "N": 5}, "race")


def test_what_it_moves() -> None:
    """Every sector once, and no two lanes to one bank."""
    func, program = lowered(turned()), turned()
    kernels, text = printed({"kernel": func})
    sizes = {"M": 128, "N": 192}
    report, _, _ = launched(func, kernels["kernel"], load(text), inputs_for(program, sizes), sizes, count=True)
    assert report is not None and not report.bank_conflicts
    assert report.global_sectors == report.ideal_sectors == 2 * 128 * 192 * 4 // 32


def test_copies_are_asynchronous() -> None:
    stores = [s for s in walk(lowered(with_epilogue()).body) if isinstance(s, Store) and s.asynchronous]
    assert {s.buffer.name for s in stores} == {"out_tile0", "out_tile1"}


def repeated() -> Program:
    """out[j, i] = x[2 * i, j]: not what follows each other along j in the last dim alone."""
    x, out, i, j = buffer("x", "M", "N"), buffer("out", "N", "M"), axis("i", "M"), axis("j", "N")
    return Program((x,), (out,), (Compute(out, (j, i), Load(x, (v(i), call("floordiv", v(j), index(2))))),),
                   (SizeParam("M"), SizeParam("N")))


def chosen() -> Program:
    """out[j, i] = x[i, j] where i < 3, and 0 elsewhere: what is read under a condition need not be there."""
    x, out, i, j = buffer("x", 3, "N"), buffer("out", "N", "M"), axis("i", "M"), axis("j", "N")
    value = select(call("lt", v(i), index(3)), at(x, i, j), f32(0.0))
    return Program((x,), (out,), (Compute(out, (j, i), value),), (SizeParam("M"), SizeParam("N")))


@pytest.mark.parametrize(("make", "reason"), [
    (chosen, "along an axis that is not its last"),
    (lambda: programs.softmax(), "more to do than one statement"),
    (lambda: programs.concat(), "along an axis that is not its last"),
    (lambda: programs.transpose(("B", "L", 6)), "along an axis that is not its last"),  # six rows would leave a tile empty
    (repeated, "along an axis that is not its last")])
def test_what_is_left_to_others(make: Callable[[], Program], reason: str) -> None:
    with pytest.raises(PatternMismatch, match=reason):
        match_turned(build_scop(make()))
