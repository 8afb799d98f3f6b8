"""Every kernel that the shared models need, three ways at odd shapes: te evaluator, loop-IR interpreter, compiled C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.run_graph import front_end
from tests.loop_ir import funcs
from tests.models.test_shared_models import FOLDER
from tsc.codegen_c.specs import host_spec
from tsc.config import Options
from tsc.graph.fusion.fuse import fuse
from tsc.graph.fusion.to_te import lower_group
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.schedule import schedule_program
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate
from tsc.te.expr import Buffer

NAMES = ("bert.ts", *(pytest.param(name, marks=pytest.mark.slow)
                      for name in ("gpt2.dynamo", "clip_text.ts", "albert.dynamo", "vit.dynamo")))
SHAPES = ({"first": 1, "second": 1}, {"first": 2, "second": 7}, {"first": 5, "second": 33})


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the shared models are not at {FOLDER}")
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_three_ways(name: str) -> None:
    graph, env = front_end(FOLDER / f"{name}.onnx")
    dims = sorted({d for i in graph.inputs for s in graph.types[i].shape for d in s.dims()})
    distinct = {str(g.program): g for g in (lower_group(group, graph, env) for group in fuse(graph, env, host_spec()))}
    spec = host_spec()
    made: list[tuple[Any, Func]] = []
    for number, lowered in enumerate(distinct.values()):
        constants = frozenset(b for b, value in lowered.values.items() if value in graph.constants)
        scheduled = schedule_program(lowered.program, spec, None, None, f"k{number}", constants)
        made.append((lowered, lower(scheduled.func, spec)))
    for (lowered, func), kernel in zip(made, funcs.load_kernels([func for _, func in made], spec, Options())):
        for number, shape in enumerate(SHAPES):
            at = dict(zip(dims, shape.values()))
            sizes = {n: e.evaluate(at) for n, e in lowered.sizes.items()}
            rng = np.random.default_rng(number)
            inputs = {b.name: data(b, sizes, rng, graph.constants.get(lowered.values[b.name])) for b in lowered.program.inputs}
            agree(lowered.program, func, kernel, inputs, sizes, interpreted=number < 2)


def data(buffer: Buffer, sizes: dict[str, int], rng: np.random.Generator, constant: Any) -> np.ndarray[Any, Any]:
    shape = tuple(e.evaluate(sizes) for e in buffer.shape)
    if constant is not None:
        return np.ascontiguousarray(constant).reshape(shape)
    if buffer.dtype == "bool":
        return rng.random(shape) > 0.4
    if buffer.dtype.startswith("int"):
        return rng.integers(-1, 1, shape).astype(buffer.dtype)  # indices that every extent has
    return rng.standard_normal(shape).astype(buffer.dtype)


def agree(program: Program, func: Func, kernel: Any, inputs: dict[str, Any], sizes: dict[str, int],
          interpreted: bool) -> None:
    expected = evaluate(program, inputs, sizes)
    ways: dict[str, Callable[[dict[str, Any]], object]] = {
        "compiled": lambda arrays: funcs.call_kernel(kernel, func, arrays, sizes)}
    if interpreted:
        ways["interpreted"] = lambda arrays: interpret(func, arrays, sizes)
    for what, run in ways.items():
        arrays = inputs | {b.name: np.full(expected[b.name].shape, 77, b.dtype) for b in program.outputs}
        run(arrays)
        for buffer in program.outputs:
            np.testing.assert_allclose(
                arrays[buffer.name], expected[buffer.name], rtol=1e-4, atol=1e-5, err_msg=f"{what} at {sizes}\n{program}")
