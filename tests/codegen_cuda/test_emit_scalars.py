"""Every function of the expression language and every conversion in printed CUDA, in the emulator, beside NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes  # noqa: F401  NumPy then knows its types by name
import numpy as np
import pytest

from tests.codegen_cuda.generated import launched, load
from tests.loop_ir import funcs
from tsc.codegen_cuda.emit import emit_cuda
from tsc.loop_ir.nodes import Block, Func
from tsc.te.compute import SizeParam
from tsc.te.expr import Call, Cast, Expr, Load, Var
from tsc.te.intrinsics import MEANING, converted

FLOATS, INTEGERS = ("float32", "float64"), ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
BOTH = ("add", "sub", "mul", "div", "floordiv", "mod", "fmod", "pow", "min", "max", *COMPARED)
OF_FLOATS = ("neg", "abs", "sign", "reciprocal", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos", "floor", "ceil", "round",
             "isnan", "isinf")
#: Floats are not divided with a remainder: the tensor DSL refuses that.
FUNCTIONS = {**{dtype: (*(fn for fn in BOTH if fn != "floordiv"), *OF_FLOATS) for dtype in FLOATS},
             **{dtype: (*BOTH, "neg", "abs", "sign", "bitand", "bitor", "bitxor", "shl", "shr") for dtype in INTEGERS},
             "bool": ("and", "or", "xor", "not", "eq", "ne")}
UNARY = {*OF_FLOATS, "not"}


def values(dtype: str) -> np.ndarray[Any, Any]:
    """Small numbers and the ends of a type; of floats no infinities, which have tests of their own."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype.startswith("float"):
        return np.array([0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7.25, -7.25, 100.5, 1e-3, -1e-3], dtype)
    info = np.iinfo(dtype)
    return np.array(sorted({info.min, info.max, 0, 1, 2, 3, 7, 100} | ({-1, -3, -7} if info.min else set())), dtype)


def kernel(name: str, inputs: dict[str, str], made: dict[str, Expr]) -> Func:
    """y_k[i] = value k, of inputs x[i] of some types, in one kernel."""
    at = (Var("i"),)
    outputs = {key: funcs.buffer(f"y_{key}", "N", dtype=value.dtype) for key, value in made.items()}
    body = tuple(funcs.loop("i", 0, funcs.size("N"), funcs.store(outputs[key], at, value)) for key, value in made.items())
    buffers = (*(funcs.buffer(x, "N", dtype=dtype) for x, dtype in inputs.items()), *outputs.values())
    return Func(name, buffers, tuple(b.name for b in outputs.values()), (SizeParam("N"),), Block(body))


def ran(func: Func, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    made = emit_cuda(func)
    report, found, status = launched(func, made, load(made.text), arrays, {"N": len(next(iter(arrays.values())))})
    assert report is not None and report.ended == "ok" and not status, report and report.text
    return {name.removeprefix("y_"): array for name, array in found.items()}


def load_of(name: str, dtype: str) -> Expr:
    return Load(funcs.buffer(name, "N", dtype=dtype), (Var("i"),))


@pytest.mark.parametrize("dtype", FUNCTIONS)
def test_functions(dtype: str) -> None:
    a, b = (x.ravel() for x in np.meshgrid(values(dtype), values(dtype)))
    x = load_of("a", dtype), load_of("b", dtype)
    made = {fn: Call(fn, x[:1] if fn in UNARY or fn == "neg" else x,
                     "bool" if fn in COMPARED or fn.startswith("is") else dtype) for fn in FUNCTIONS[dtype]}
    found = ran(kernel(f"functions_{dtype}", {"a": dtype, "b": dtype}, made), {"a": a, "b": b})
    for fn, call in made.items():
        defined = np.ones(len(a), bool) if dtype.startswith("float") or fn not in ("div", "floordiv", "mod", "fmod") else b != 0
        if fn == "pow":
            defined &= (b >= 0) & (b < 8) if not dtype.startswith("float") else a > 0
        with np.errstate(all="ignore"):
            want = MEANING[fn](*(x[defined] for x in (a, b)[:len(call.args)]))
        got = found[fn][defined]
        if dtype.startswith("float") and want.dtype != bool:
            tolerance = 1e-6 if dtype == "float32" else 1e-14
            np.testing.assert_allclose(got, want.astype(dtype), rtol=tolerance, atol=tolerance * 1e-2, err_msg=fn)
        else:
            np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=fn)


@pytest.mark.parametrize("source", [*FLOATS, "float16", *INTEGERS, "bool"])
def test_conversions(source: str) -> None:
    x = values(source)
    made = {dtype: Cast(load_of("x", source), dtype) for dtype in (*FLOATS, "float16", *INTEGERS, "bool") if dtype != source}
    found = ran(kernel(f"from_{source}", {"x": source}, made), {"x": x})
    with np.errstate(all="ignore"):
        for dtype in made:
            wide = x.astype(np.float32) if source == "float16" or dtype == "float16" else x  # halves go through float32
            np.testing.assert_array_equal(found[dtype], converted(wide, np.dtype(dtype)), err_msg=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values(dtype: str) -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0], dtype)
    a, b = (np.array(x, dtype) for x in zip(*itertools.product(special, special)))
    x = load_of("a", dtype), load_of("b", dtype)
    made = {fn: Call(fn, x, dtype) for fn in ("add", "sub", "mul", "div", "min", "max")}
    made |= {fn: Call(fn, x[:1], dtype if fn[:2] != "is" else "bool") for fn in ("neg", "abs", "sign", "isnan", "isinf")}
    found = ran(kernel(f"special_{dtype}", {"a": dtype, "b": dtype}, made), {"a": a, "b": b})
    with np.errstate(all="ignore"):
        for fn, call in made.items():
            want = MEANING[fn](*(a, b)[:len(call.args)])
            np.testing.assert_array_equal(found[fn], want, err_msg=fn)
            if want.dtype != bool and fn not in ("min", "max"):  # of two zeros either is the extremum
                np.testing.assert_array_equal(np.signbit(found[fn][want == 0]), np.signbit(want[want == 0]), err_msg=fn)
