"""Casts of floats that no integer of the type equals: open in the standard's text, one meaning here on every target.

The oracles are ONNX Runtime and NumPy (which the reference evaluator casts with) on x86, where both agree on all of these.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tsc
from tests.ops.test_compiled_samples import model
from tsc.te.intrinsics import converted

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
VALUES = [np.nan, np.inf, -np.inf, 300.7, -1.9, -0.5, -129.0, 40000.0, 70000.0, 3e9, -3e9, 5e9, 1e19, -1e19, 2e20, 2.0**31,
          -2.0**31, 2.0**31 - 1, 2.0**63, -2.0**63, 2.0**64, 127.9, 255.9]
X86 = platform.machine() == "x86_64"


def casts(source: str) -> tuple[onnx.ModelProto, np.ndarray[Any, Any]]:
    """One model of a Cast to each integer type; the values fill whole vectors and leave some."""
    x = np.array(VALUES * 2, source)
    numbers = {d: helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in DTYPES}
    nodes = [helper.make_node("Cast", ["x"], [d], f"to_{d}", to=n) for d, n in numbers.items()]
    outputs = [helper.make_tensor_value_info(d, n, ["n"]) for d, n in numbers.items()]
    return model(nodes, {"x": x}, {"x": ["n"]}, {}, outputs, 21), x


@pytest.mark.defect(13)
@pytest.mark.skipif(not X86, reason="the oracles are of x86")
@pytest.mark.parametrize(("source", "target"), [("float32", "cpu"), ("float64", "cpu-generic"),
                                                pytest.param("float32", "cpu-avx2", marks=pytest.mark.slow)])
def test_compiled_casts_are_those_of_the_runtime_and_of_numpy(source: str, target: str) -> None:
    made, x = casts(source)
    got = tsc.compile(made, target=target, threads=1).run(None, {"x": x})
    runtime = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for dtype, own, other in zip(DTYPES, got, runtime):
        np.testing.assert_array_equal(own, converted(x, np.dtype(dtype)), err_msg=dtype)
        np.testing.assert_array_equal(own, other, err_msg=dtype)


@pytest.mark.defect(13)
@pytest.mark.skipif(not X86, reason="NumPy converts as the machine does")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_meaning_of_a_cast_is_numpys(dtype: str) -> None:
    for source in ("float32", "float64"):
        with np.errstate(invalid="ignore"):
            x = np.array(VALUES, source)
            np.testing.assert_array_equal(converted(x, np.dtype(dtype)), x.astype(dtype))


def test_integers_wrap_around_and_all_but_zero_is_true() -> None:
    assert converted(np.int64(300), np.dtype("uint8")) == 44 and converted(np.int32(-1), np.dtype("uint64")) == 2**64 - 1
    assert converted(np.float64("nan"), np.dtype("bool")) and not converted(np.float32(-0.0), np.dtype("bool"))
