"""The math functions against NumPy in float64, scalar and in vectors: accuracy in the last place, and special values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import tsc
from tests.loop_ir import funcs
from tests.machine import runnable
from tsc.codegen_c.build import build_module
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import CPU_SPECS, host_spec
from tsc.config import Options
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.target import DeviceSpec
from tsc.te.compute import SizeParam
from tsc.te.expr import Call, Cast, Load, Var
from tsc.te.intrinsics import converted

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72, 88.73,
           -87.4, -103.9, -104.1, 0.5, -0.5, 1.5, 2.5, -2.5, 8388607.5, 16777216.0, 1.0, -1.0, 4.0, -4.0, 10.0, 0.925, 0.625]
ORACLE: dict[str, Any] = {
    "exp": np.exp, "log": np.log, "erf": np.vectorize(math.erf, otypes=[np.float64]), "tanh": np.tanh, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "abs": np.abs, "sign": np.sign, "reciprocal": np.reciprocal,
    "sin": np.sin, "cos": np.cos}
ULPS = {"exp": 2.5, "log": 2, "erf": 2, "tanh": 2.5, "sin": 2, "cos": 2}


def elementwise(fn: str, dtype: str, arguments: int = 1) -> Func:
    inputs = [funcs.buffer(f"x{i}", "N", dtype=dtype) for i in range(arguments)]
    y = funcs.buffer("y", "N", dtype=dtype)
    value = Call(fn, tuple(Load(x, (Var("i"),)) for x in inputs), dtype)
    body = funcs.loop("i", 0, funcs.size("N"), funcs.store(y, (Var("i"),), value), mark="inner")
    return Func(f"{fn}_{dtype}", (*inputs, y), ("y",), (SizeParam("N"),), body)


def apply(fn: str, dtype: str, *arrays: np.ndarray[Any, Any], spec: Any = None) -> np.ndarray[Any, Any]:
    spec = spec or host_spec()
    func = lower(elementwise(fn, dtype, len(arrays)), spec)
    out = np.empty_like(arrays[0])
    funcs.run_compiled(func, spec, {**{f"x{i}": a for i, a in enumerate(arrays)}, "y": out}, {"N": len(out)})
    return out


@pytest.fixture(scope="module", autouse=True)
def built_together() -> None:
    """Compile every function at once, in parallel; the cache then has each object."""
    spec = host_spec()
    build_module({f"{fn}_float32": emit_c(lower(elementwise(fn, "float32"), spec), spec) for fn in ORACLE}, spec, Options())


@pytest.mark.parametrize("fn", sorted(ORACLE))
def test_float32(fn: str) -> None:
    rng = np.random.default_rng(0)
    spread = [rng.uniform(-s, s, 4000) for s in (0.1, 1, 5, 100)] + [np.exp(rng.uniform(-87, 88, 4000)), SPECIAL * 2]
    x = np.concatenate(spread).astype(np.float32)
    if fn in ("sin", "cos"):
        x = x[np.abs(x) < 1e6]
    x = x[:len(x) // 16 * 16 + 16 - 3]  # a rest that is not a whole vector: the scalar form
    got = apply(fn, "float32", x)
    with np.errstate(all="ignore"):
        exact = ORACLE[fn](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(got[special], rounded[special])
    np.testing.assert_array_equal(np.signbit(got[rounded == 0]), np.signbit(rounded[rounded == 0]))
    ulp = np.abs(got[~special] - exact[~special]) / np.spacing(np.minimum(np.abs(rounded[~special]), np.float32(3e38)))
    assert ulp.max(initial=0) <= ULPS.get(fn, 0.5), f"at {x[~special][np.argmax(ulp)]}"


def test_vector_and_scalar_forms_are_one_definition() -> None:
    x = np.random.default_rng(1).uniform(-5, 5, 33).astype(np.float32)
    for fn in ("exp", "erf", "tanh"):
        whole, single = apply(fn, "float32", x), np.concatenate([apply(fn, "float32", x[i:i + 1]) for i in range(33)])
        np.testing.assert_array_max_ulp(whole, single, 1)  # contraction into FMA may differ


@pytest.mark.parametrize("fn", ["max", "min"])
def test_extrema_keep_nan(fn: str) -> None:
    a = np.tile(np.array([1, np.nan, 2, np.nan, -np.inf, 0], np.float32), 5)
    b = np.tile(np.array([np.nan, 1, 3, np.nan, 7, -2], np.float32), 5)
    np.testing.assert_array_equal(apply(fn, "float32", a, b), getattr(np, f"{fn}imum")(a, b))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("fn", ["floordiv", "mod", "fmod", "div", "add", "sub", "mul", "min", "max", "pow"])
def test_integers(fn: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    values = np.array(sorted({info.min, info.max, 0, 1, 2, 3, 7, 100} | ({-1, -3, -7} if info.min else set())), dtype)
    a, b = (m.ravel() for m in np.meshgrid(values, values))
    if fn == "pow":
        a, b = a[(b >= 0) & (b < 8)], b[(b >= 0) & (b < 8)]
    if fn in ("floordiv", "mod", "fmod", "div"):
        a, b = a[b != 0], b[b != 0]
    exact = [python_value(fn, int(x), int(y)) for x, y in zip(a, b)]
    expected = np.array([(v - info.min) % 2**info.bits + info.min for v in exact], dtype)
    np.testing.assert_array_equal(apply(fn, dtype, a.copy(), b.copy(), spec=CPU_SPECS["cpu-generic"]), expected)


def python_value(fn: str, x: int, y: int) -> int:
    match fn:
        case "floordiv":
            return x // y
        case "mod":
            return x % y
        case "fmod":
            return int(math.copysign(1, x)) * (abs(x) % abs(y))
        case "div":
            return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        case "pow":
            return x**y
    return {"add": x + y, "sub": x - y, "mul": x * y, "min": min(x, y), "max": max(x, y)}[fn]


def test_dividing_integers_by_zero_does_not_trap() -> None:
    zeros = np.zeros(3, np.int32)
    np.testing.assert_array_equal(apply("div", "int32", np.array([1, -1, 0], np.int32), zeros), zeros)


@pytest.mark.parametrize("fn", ["mod", "fmod", "pow", "exp", "sqrt", "floor"])
def test_float64(fn: str) -> None:
    x, y = np.random.default_rng(3).uniform(0.1, 9, (2, 19))
    arguments = (x, y) if fn in ("mod", "fmod", "pow") else (x,)
    expected = {"pow": np.power, "mod": np.mod, "fmod": np.fmod}.get(fn) or getattr(np, fn)
    np.testing.assert_allclose(apply(fn, "float64", *arguments), expected(*arguments), rtol=1e-15)


@pytest.mark.parametrize("target", [spec.name for spec in runnable()])
@pytest.mark.parametrize("body", ["Add(zero, n)", "Sub(zero, f)", "Sub(n, less)"])
def test_sums_with_zeros_have_the_sign_of_the_sum(body: str, target: str) -> None:
    """gcc 12 makes -x of 0.0 + -x and 0.0 - x, also where x is a converted 0."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (int64[3] i) => (float[3] y)
        <float zero = {{0.0}}, float less = {{-0.0}}> {{ f = Cast <to = 1> (i) n = Neg (f) y = {body} }}""")
    i = np.array([0, 1, -2])
    wanted, = onnx.reference.ReferenceEvaluator(model).run(None, {"i": i})
    found, = tsc.compile(model, target=target, options=tsc.Options(use_cache=False)).run(None, {"i": i})
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("spec", runnable(), ids=lambda spec: spec.name)
def test_floats_to_whole_numbers(spec: DeviceSpec) -> None:
    """As `converted` says, which is NumPy's meaning: also for what no int32 equals."""
    ends = [k + d for k in (-2.0**31, -2.0**15, -2.0**7, 0.0, 2.0**7, 2.0**8, 2.0**15, 2.0**16, 2.0**31)
            for d in (-1.5, -0.5, 0.0, 0.5, 1.0)]
    given = np.array([*SPECIAL, *ends, -2147483904.0, 2147483520.0, 1e30, -1e30] * 3, np.float32)
    made = {dtype: lower(cast("float32", dtype), spec) for dtype in WIDTHS}
    build_module({func.name: emit_c(func, spec) for func in made.values()}, spec, Options())
    for dtype, func in made.items():
        for x in (given, given[:-1], given[:3]):
            out = np.empty(x.shape, dtype)
            funcs.run_compiled(func, spec, {"x": x, "y": out}, {"N": len(x)})
            np.testing.assert_array_equal(out, converted(x, np.dtype(dtype)), err_msg=f"to {dtype}")


WIDTHS = ("int8", "uint8", "int16", "uint16", "int32", "int64")


def cast(source: str, dtype: str) -> Func:
    x, y = funcs.buffer("x", "N", dtype=source), funcs.buffer("y", "N", dtype=dtype)
    value = Cast(Load(x, (Var("i"),)), dtype)
    body = funcs.loop("i", 0, funcs.size("N"), funcs.store(y, (Var("i"),), value), mark="inner")
    return Func(f"cast_{source}_{dtype}", (x, y), ("y",), (SizeParam("N"),), body)


@pytest.mark.parametrize("spec", runnable(), ids=lambda spec: spec.name)
def test_conversions_of_whole_numbers(spec: DeviceSpec) -> None:
    """All bytes, in whole vectors and in what is left; what is beyond a narrower type keeps its low bits, as in C."""
    bits = np.arange(-700, 700, dtype=np.int64) * 97
    made = {(a, b): lower(cast(a, b), spec) for a in WIDTHS for b in (*WIDTHS, "float32", "float64") if a != b}
    build_module({func.name: emit_c(func, spec) for func in made.values()}, spec, Options())
    for (source, dtype), func in made.items():
        given = np.concatenate([np.arange(-128, 256), bits])[:-3].astype(source)
        out = np.empty(given.shape, dtype)
        funcs.run_compiled(func, spec, {"x": given, "y": out}, {"N": len(given)})
        np.testing.assert_array_equal(out, given.astype(dtype), err_msg=f"{source} to {dtype}")
