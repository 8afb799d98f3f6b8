"""The order of summation belongs to the Program: whatever sizes of tiles are chosen, every bit of the result is the same.
What is multiplied and added is rounded once or twice by the machine alone, not by where a compiler finds it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.codegen_c.test_scheduled import PROGRAMS, data
from tests.loop_ir import funcs
from tests.poly.test_space import drawn, space_of
from tsc.codegen_c.build import build_module
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.poly.schedule import schedule_program

CONFIGS = 3


@pytest.mark.parametrize("target", ["host", "cpu-generic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_configs_give_the_same_bits(name: str, target: str) -> None:
    spec = host_spec() if target == "host" else CPU_SPECS[target]
    program, rng = PROGRAMS[name](), Random(name)
    space = space_of(program, spec)
    configs = [space.default]
    while len(configs) <= CONFIGS:
        config = drawn(space, rng)
        configs += [] if config is None else [config]
    made: list[Func] = [lower(schedule_program(program, spec, config, None, f"{name}_{k}").func, spec)
                        for k, config in enumerate(configs)]
    build_module({func.name: emit_c(func, spec) for func in made}, spec, Options())
    kernels = [funcs.load_kernel(func, spec, Options()) for func in made]
    for seed in (1, 5, 19, 40):
        sizes = {s.name: -(-max(s.lo, seed + 3 * i) // s.divisor) * s.divisor for i, s in enumerate(program.sizes)}
        inputs = {b.name: data(b, sizes, np.random.default_rng(seed)) for b in program.inputs}
        results = []
        for func, kernel in zip(made, kernels):
            outputs = {b.name: np.full([e.evaluate(sizes) for e in b.shape], 77, b.dtype) for b in program.outputs}
            funcs.call_kernel(kernel, func, inputs | outputs, sizes)
            results.append({n: a.tobytes() for n, a in outputs.items()})
        differing = [config for config, found in zip(configs, results) if found != results[0]]
        assert not differing, f"at {sizes}: {differing} and {configs[0]}"
