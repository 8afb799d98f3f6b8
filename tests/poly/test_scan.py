"""The scan pattern: recurrences along an axis, either way, of one state or several, with contractions inside."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.loop_ir import funcs
from tests.poly.recurrences import EXAMPLES, Example
from tests.poly.support import SMALL, run, scheduled
from tests.poly.test_schedule import Overriding
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.errors import InputError
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import For, Func, walk
from tsc.poly.analyse import analyse, normalised
from tsc.poly.pattern.scan import Scan
from tsc.poly.proof.presburger import prover
from tsc.poly.proof.refine import check_lowered
from tsc.poly.schedule import ScheduledProgram, schedule_program
from tsc.target import DeviceSpec
from tsc.te.evaluate import evaluate
from tsc.validate import check_values

SIZES = ((1, 1), (1, 7), (7, 1), (5, 6), (70, 3), (3, 70))


def sizes_of(example: Example) -> list[dict[str, int]]:
    first, second = (s.name for s in example.program.sizes)
    return [{first: a, second: b} for a, b in SIZES]


@cache
def made(name: str, spec: DeviceSpec) -> tuple[ScheduledProgram, Func]:
    result = schedule_program(EXAMPLES[name]().program, spec, None, None, name)
    assert result.scop is not None
    return result, lower(result.func, spec, None, prover(result.scop.known))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_evaluator_goes_from_trip_to_trip(name: str) -> None:
    example = EXAMPLES[name]()
    for sizes in sizes_of(example):
        inputs = {n: x.astype(np.float64) for n, x in example.inputs(sizes).items()}
        found = evaluate(example.program, inputs, sizes, "float64")
        for output, expected in example.meaning(inputs).items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "spec"), [
    pytest.param(name, spec, id=f"{name}-{spec.name}",
                 marks=pytest.mark.slow if name == "wide_cell" and spec.name in ("cpu-avx2", "cpu-generic") else ())
    for name in EXAMPLES for spec in (SMALL, *CPU_SPECS.values())])
def test_loops(name: str, spec: DeviceSpec) -> None:
    """In the interpreter, and proved: read back at all sizes, and what they mean."""
    example, (result, func) = EXAMPLES[name](), made(name, spec)
    assert result.scop is not None and check_lowered(result.func, func, result.scop, result.edges) == ()
    assert check_values(example.program, func, result.scop.program).undecided is None
    for sizes in sizes_of(example):
        inputs = example.inputs(sizes)
        found = run(func, example.program, sizes, inputs)
        for output, expected in example.meaning({n: x.astype(np.float64) for n, x in inputs.items()}).items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_compiled(name: str) -> None:
    example, spec = EXAMPLES[name](), host_spec()
    func = made(name, spec)[1]
    kernel = funcs.load_kernel(func, spec, Options())
    for sizes in sizes_of(example):
        arrays = example.inputs(sizes)
        expected = example.meaning({n: x.astype(np.float64) for n, x in arrays.items()})
        for buffer in example.program.outputs:
            arrays[buffer.name] = np.full(expected[buffer.name].shape, np.nan, np.float32)
        assert funcs.call_kernel(kernel, func, arrays, sizes) == 0
        for output, values in expected.items():
            np.testing.assert_allclose(arrays[output], values, rtol=1e-5, atol=1e-4)


def test_rows_are_what_no_trip_mixes() -> None:
    rows = {name: analyse(normalised(EXAMPLES[name]().program)).found for name in EXAMPLES}
    assert {name: found.matrix.names for name, found in rows.items() if isinstance(found, Scan)} == {
        "sum_of_rows": ("r",), "sum_of_columns": ("t",), "sum_backwards": ("r",), "columns_backwards": ("t",), "cell": ("b",),
        "wide_cell": ("b",), "cell_backwards": ("b",), "gated": ("b",), "between": ("r1",), "both_ways": ("r0",)}


@pytest.mark.parametrize(("name", "change"), [
    ("sum_of_rows", ("s_store[r, t] -> [(t)]", "s_store[r, t] -> [(-t)]")),            # from the last trip down
    ("sum_backwards", ("s_store[r, t] -> [(-t)]", "s_store[r, t] -> [(t)]")),
    ("cell", ("h_store[u, c, j] -> [(u)]", "h_store[u, c, j] -> [(u - 1)]")),            # a state before what it is made of
    ("gated", ("s_store[t1, b1, i1] -> [(t1)]", "s_store[t1, b1, i1] -> [(t1 + 1)]")),   # a trip too late
])
def test_trips_in_another_order_are_refused(name: str, change: tuple[str, str]) -> None:
    program = EXAMPLES[name]().program
    tree = scheduled(program).tree
    assert change[0] in tree, tree
    with pytest.raises(InputError, match="dependences"):
        scheduled(program, recorder=Overriding(tree.replace(*change)))


@pytest.mark.parametrize("name", EXAMPLES)
def test_blocks_have_rows_of_their_own_and_trips_do_not_run_in_parallel(name: str) -> None:
    result = scheduled(EXAMPLES[name]().program)
    loops = [s for s in walk(result.func.body) if isinstance(s, For)]
    assert [s.kind for s in loops if s.mark == "trip"] == ["serial"] * sum(s.mark == "trip" for s in loops) != []
    assert sum(s.kind == "block" for s in loops) == 1
