"""The order of summation belongs to the Program: whatever sizes of tiles are chosen, every bit of the result is the same.
What is multiplied and added is rounded once or twice by the machine alone, not by where a compiler finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.codegen_c.test_scheduled import PROGRAMS, data
from tests.codegen_c.test_scheduled import made as default
from tests.loop_ir import funcs
from tests.poly import programs
from tests.poly.test_space import drawn, space_of
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.poly.schedule import schedule_program
from tsc.target import DeviceSpec
from tsc.te.compute import Compute, Program, SizeParam
from tsc.te.expr import Const, Expr, call

#: How many configs are drawn beside the default one; with `-m slow` more.
CONFIGS, MORE = 2, 8
Array = np.ndarray[Any, Any]


def _cases() -> Iterator[object]:
    """Programs in turn for this machine and for none in particular; with `-m slow` all for both, and more configs."""
    for number, name in enumerate(PROGRAMS):
        for target in ("host", "cpu-generic"):
            first = () if (target == "host") == (number % 2 == 0) else pytest.mark.slow
            yield pytest.param(name, CONFIGS, target, marks=first)
            yield pytest.param(name, MORE, target, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "count", "target"), tuple(_cases()))
def test_all_configs_give_the_same_bits(name: str, count: int, target: str) -> None:
    spec = host_spec() if target == "host" else CPU_SPECS[target]
    program, rng = PROGRAMS[name](), Random(name)
    space = space_of(program, spec)
    made, configs = [default(name, spec)], [space.default]
    while len(configs) <= count:
        config = drawn(space, rng)
        configs += [] if config is None else [config]
    made += [lower(schedule_program(program, spec, config, None, f"{name}_{k}").func, spec)
             for k, config in enumerate(configs[1:], 1)]
    kernels = funcs.load_kernels(made, spec, Options())
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


def three_of(dtype: str, body: Callable[[Expr, Expr, Expr], Expr]) -> Program:
    """Elementwise over three inputs of one length."""
    a, b, c, out = (programs.buffer(name, "N", dtype=dtype) for name in ("a", "b", "c", "out"))
    i = programs.axis("i", "N")
    made = Compute(out, (i,), body(*(programs.at(x, i) for x in (a, b, c))))
    return Program((a, b, c), (out,), (made,), (SizeParam("N"),))


def built(program: Program, spec: DeviceSpec) -> Callable[[dict[str, Array], int], Array]:
    """What makes `out` of inputs of a length."""
    func = lower(schedule_program(program, spec, None, None, "three").func, spec)
    kernel = funcs.load_kernel(func, spec, Options())

    def run(inputs: dict[str, Array], count: int) -> Array:
        out = np.full(count, 77, program.outputs[0].dtype)
        funcs.call_kernel(kernel, func, inputs | {"out": out}, {"N": count})
        return out

    return run


#: In vectors; element by element, which other checks may ask for; and without an instruction for both.
SPECS = (host_spec(), host_spec().scalar, CPU_SPECS["cpu-generic"])
FORMS: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "a * b + c": lambda a, b, c: call("add", call("mul", a, b), c),
    "c + a * b": lambda a, b, c: call("add", c, call("mul", a, b))}
DIFFERENCES: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
    "a * b - (-c)": lambda a, b, c: call("sub", call("mul", a, b), call("neg", c)),
    "c - (-a) * b": lambda a, b, c: call("sub", c, call("mul", call("neg", a), b))}


@pytest.mark.parametrize("spec", SPECS, ids=["host", "one by one", "generic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_multiplied_and_added_is_rounded_once_where_the_machine_can(form: str, dtype: str, spec: DeviceSpec) -> None:
    """Whole vectors, masked ones and single elements alike."""
    run = built(three_of(dtype, FORMS[form]), spec)
    tiny = {"float32": 2.0**-13, "float64": 2.0**-27}[dtype]  # its square is lost beside 1
    for count in range(1, 40):
        a = np.full(count, 1 + tiny, dtype)
        out = run({"a": a, "b": a, "c": np.full(count, -(1 + 2 * tiny), dtype)}, count)
        assert (out == (tiny * tiny if "fma" in spec.cpu_flags else 0)).all(), out


@pytest.mark.parametrize("spec", SPECS, ids=["host", "one by one", "generic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", DIFFERENCES)
def test_a_product_less_itself_is_nothing(form: str, dtype: str, spec: DeviceSpec) -> None:
    """As when it is the greatest of a row: a difference is rounded for itself on every machine."""
    run = built(three_of(dtype, DIFFERENCES[form]), spec)
    for count in range(1, 40):
        a, b = (np.random.default_rng(count + k).standard_normal(count).astype(dtype) * 1e18 for k in (0, 50))
        assert (run({"a": a, "b": b, "c": -(a * b)}, count) == 0).all()


@pytest.mark.parametrize("spec", SPECS, ids=["host", "one by one", "generic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS | DIFFERENCES)
def test_what_is_negated_then_has_the_sign_that_it_should(form: str, dtype: str, spec: DeviceSpec) -> None:
    """gcc takes -(a * b + c) for -a * b - c, which is another zero."""
    negations: list[Callable[[Expr], Expr]] = [lambda x: call("neg", x), lambda x: call("mul", x, Const(-1.0, dtype))]
    runs = [built(three_of(dtype, lambda a, b, c, by=by: by((FORMS | DIFFERENCES)[form](a, b, c))), spec) for by in negations]
    for count in (1, 3, 8, 21, 37):
        for a, b, c in ((0, -1, 0), (1, 1, -1), (1, -1, 1)):  # each makes a zero that is not negative
            inputs = {n: np.full(count, x, dtype) for n, x in (("a", a), ("b", b), ("c", c))}
            for run in runs:
                out = run(inputs, count)
                assert (out == 0).all() and np.signbit(out).all(), (count, a, b, c, out)
