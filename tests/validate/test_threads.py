"""Values of a GPU's loops, in which threads fill tiles that others read: right ones pass, broken ones are named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from tests.fuzz import break_loops
from tests.loop_ir import funcs, gpu_funcs
from tests.poly import programs
from tests.poly.support import on_gpu
from tsc.errors import InternalError
from tsc.loop_ir.gpu.mma import MMA_TF32
from tsc.loop_ir.lower import lower_gpu
from tsc.loop_ir.nodes import Func, Intrin, Stmt, Store, map_children
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.tile import TileConfig
from tsc.te.compute import SUM, Axis, Compute, Program, SizeParam
from tsc.te.expr import Buffer, Call, Load, Var, add, index, loads, map_loads, mul
from tsc.validate import check, check_values


def matmul_program() -> Program:
    """What `gpu_funcs.gemm` computes."""
    x, w, b, y = (Buffer(n, "float32", funcs.buffer(n, *s).shape) for n, s in (
        ("x", ("M", "K")), ("w", ("K", "N")), ("b", ("N",)), ("y", ("M", "N"))))
    m, n, k = (Axis(a, funcs.dim(a.upper())) for a in "mnk")
    acc = Buffer("t", "float32", y.shape)
    product = Compute(acc, (m, n), mul(Load(x, (Var("m"), Var("k"))), Load(w, (Var("k"), Var("n")))), (k,), SUM)
    p, q = Axis("p", m.extent), Axis("q", n.extent)
    body = Call("max", (add(Load(acc, (Var("p"), Var("q"))), Load(b, (Var("q"),))), funcs.c32(0)), "float32")
    return Program((x, w, b), (y,), (product, Compute(y, (p, q), body)), tuple(SizeParam(s) for s in "KMN"))


def test_threads() -> None:
    func = gpu_funcs.gemm()
    assert check_values(matmul_program(), func, sizes=[{"M": 5, "N": 7, "K": 4}, {"M": 4, "N": 4, "K": 3}]).undecided is None


@pytest.mark.parametrize("kind", ["swapped coordinates", "dropped statement", "written neighbour"])
def test_threads_broken(kind: str) -> None:
    func, refused, tried = gpu_funcs.gemm(), 0, 0
    for seed in range(12):
        broken = break_loops.broken(func, kind, Random(seed))
        if broken is None or broken == func:
            continue
        tried += 1
        try:
            assert check_values(matmul_program(), broken, sizes=[{"M": 5, "N": 7, "K": 4}]).undecided is None
        except InternalError:
            refused += 1
        else:  # it must be right then
            sizes = {"M": 5, "N": 7, "K": 4}
            arrays = gpu_funcs.gemm_arrays(sizes)
            try:
                interpret(broken, arrays, sizes)
            except InternalError as race:  # here threads run abreast: what orders them is for `verify_sync` to prove
                assert "barrier" in str(race)
                continue
            np.testing.assert_allclose(arrays["y"], gpu_funcs.gemm_expected(arrays), rtol=1e-4, atol=1e-4)
    assert tried and refused


@cache
def matrix_instructions() -> Func:
    config = TileConfig((16, 8, 16), block_tile=(16, 16, 16), warp_tile=(16, 16))
    return lower_gpu(on_gpu(programs.gemm(), config).func, 1, (MMA_TF32,))


def test_a_matrix_instruction_whose_tile_is_transposed() -> None:
    func, sizes = matrix_instructions(), [{"M": 17, "N": 18, "K": 19}]
    assert check_values(programs.gemm(), func, sizes=sizes).undecided is None
    intrins = [(place, s) for place, s in break_loops._statements(func.body) if isinstance(s, Intrin)]
    assert intrins

    def transposed(stmt: Stmt) -> Stmt:
        """The first operand of two coordinates or more that each Store of a meaning loads, its last two exchanged."""
        if not isinstance(stmt, Store):
            return map_children(transposed, stmt)
        load = next((x for x in loads(stmt.value) if x.buffer != stmt.buffer and len(x.index) > 1), None)
        if load is None:
            return stmt
        swapped = replace(load, index=(*load.index[:-2], load.index[-1], load.index[-2]))
        return replace(stmt, value=map_loads(lambda x: swapped if x == load else x, stmt.value))

    broken = [replace(func, body=break_loops._at(func.body, place, transposed)) for place, _ in intrins]
    broken = [one for one in broken if one != func]
    assert broken
    for one in broken:
        with pytest.raises(InternalError, match="is not what its Program means"):
            check_values(programs.gemm(), one, sizes=sizes)


# -- long products: elements and terms are sampled, whoever copied them ------------------------------------------------

#: So many columns and terms that no size can be tried in whole.
LONG = 512


@cache
def long_product() -> tuple[Program, Program, Func]:
    """A product, the Program of its Scop, and its loops in two stages."""
    program = programs.gemm("M", LONG, LONG)
    made = on_gpu(program, TileConfig((8, 16, 1), block_tile=(64, 64, 16), warp_tile=(32, 32), stages=2))
    assert made.scop is not None
    return program, made.scop.program, lower_gpu(made.func, 2)


def test_a_long_product_is_decided_by_samples() -> None:
    program, scheduled, func = long_product()
    found = check_values(program, func, scheduled)
    assert found.undecided is None and not found.missed
    assert len({sizes["M"] for sizes in found.sizes}) > 1


def test_what_is_too_much_without_samples_is_not_begun() -> None:
    """A convolution of a fixed large image on a GPU was interpreted for minutes before that was found."""
    program, _, func = long_product()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(check, "_compared_in_rounds", None)
        assert "would have to be looked at" in (check_values(program, func, sizes=[{"M": LONG}]).undecided or "")


def _beside(store: Stmt) -> Stmt:
    """A Store that loads the element behind the one that it should, along the last dim."""
    assert isinstance(store, Store)

    def behind(load: Load) -> Load:
        own = load.buffer == store.buffer or not load.index
        return load if own else Load(load.buffer, (*load.index[:-1], add(load.index[-1], index(1))))

    return replace(store, value=map_loads(behind, store.value))


def test_every_copy_and_every_product_that_reads_beside_is_found() -> None:
    program, scheduled, func = long_product()
    stores = [(place, s) for place, s in break_loops._statements(func.body) if isinstance(s, Store) and _beside(s) != s]
    assert len({s.buffer.name for _, s in stores} - set(func.outputs)) > 2, "tiles that threads share are among them"
    for place, _ in stores:
        broken = replace(func, body=break_loops._at(func.body, place, _beside))
        with pytest.raises(InternalError, match="is not what its Program means"):
            check_values(program, broken, scheduled, sizes=[{"M": 5}])


def test_terms_of_a_rounded_tile_are_zeros_though_the_array_goes_on() -> None:
    """A tile of terms goes beyond the last column that is read, where zeros stand in for what the array has there. They are
    summed, whether or not anybody asks for the elements that they stand in for."""
    depth = 8
    q, out = programs.buffer("q", "L", 2 * depth), programs.buffer("out", "L", "L")
    i, j, d = programs.axis("i", "L"), programs.axis("j", "L"), programs.axis("d", depth)
    product = mul(Load(q, (Var("i"), Var("d"))), Load(q, (Var("j"), Var("d"))))
    program = Program((q,), (out,), (Compute(out, (i, j), product, (d,), SUM),), (SizeParam("L"),))
    made = on_gpu(program, TileConfig((16, 8, 16), block_tile=(16, 16, 16), warp_tile=(16, 16)))
    assert made.scop is not None
    assert check_values(program, lower_gpu(made.func, 1), made.scop.program, sizes=[{"L": 2}, {"L": 17}]).undecided is None
