"""Models of bfloat16: what goes in and comes out are ml_dtypes' arrays or bits, and kernels compute in float32."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.graph.test_halves import parsed, widened
from tests.models.test_shared_models import ENTRIES, FOLDER, RECIPES

BFLOAT = np.dtype(ml_dtypes.bfloat16)
#: Every bfloat16.
EVERY = np.arange(2**16, dtype=np.uint16).view(BFLOAT)


def edges() -> np.ndarray[Any, Any]:
    """Floats in the middle between two bfloat16, and the numbers beside those."""
    bits = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([bits, bits | 0x8000, bits | 0x7FFF, bits | 0x8001]).view(np.float32)


CONVERT = {
    "widened": ("y = Cast<to = 1>(x)", "bfloat16[n] x", "float[n] y", EVERY),
    "rounded": ("y = Cast<to = 16>(x)", "float[n] x", "bfloat16[n] y", edges()),
    "doubles": ("y = Cast<to = 16>(x)", "double[n] x", "bfloat16[n] y", np.arange(-300, 300, 1 / 7)),
    "integers": ("y = Cast<to = 16>(x)", "int32[n] x", "bfloat16[n] y", np.arange(-70000, 70000, 7, np.int32)),
    "halves": ("y = Cast<to = 16>(x)", "float16[n] x", "bfloat16[n] y", np.arange(2**16, dtype=np.uint16).view(np.float16)),
    "like": ("y = CastLike(x, one)", "float[n] x", "bfloat16[n] y", edges())}


@pytest.mark.parametrize("target", ["cpu", "cpu-generic", "emu:sm_80"])
@pytest.mark.parametrize("name", CONVERT)
def test_conversions(name: str, target: str) -> None:
    """As ml_dtypes has them: to the nearest, ties to even, infinite beyond the range."""
    body, inputs, outputs, given = CONVERT[name]
    held = "bfloat16 one = {16256}" if name == "like" else ""
    got, = tsc.compile(parsed(body, inputs, outputs, held), target=target).run(None, {"x": given})
    with np.errstate(all="ignore"):
        expected = given.astype(got.dtype)
    assert got.dtype == (np.float32 if name == "widened" else BFLOAT)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
    numbers = ~np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_only_conversions_see_bits() -> None:
    graph = widened(parsed("h = MatMul(x, w) g = Add(h, b) y = Relu(g)", "bfloat16[n, 2] x",
                           "bfloat16[n, 2] y, bfloat16[n, 2] g",
                           "bfloat16[2, 2] w = {16256, 16384, 0, 1}, bfloat16[2] b = {16128, 1}"))
    seen = {value for node in graph.nodes for value in (*node.inputs, *node.outputs) if graph.types[value].dtype == "uint16"}
    assert seen == {"x", "y", "g"} == set(graph.outside)
    assert {node.op for node in graph.nodes if {*node.inputs, *node.outputs} & seen} == {"FromBfloat", "ToBfloat"}
    assert all(array.dtype == np.float32 for array in graph.constants.values())


def test_what_goes_in_may_come_out() -> None:
    """An input, a constant and a view of an input that are outputs; a conversion to halves that something reads."""
    model = parsed("v = Reshape(x, flat) r = Identity(x) q = Identity(w) c = Cast<to = 16>(f) d = Mul(c, c)",
                   "bfloat16[n, 2] x, float[n] f", "bfloat16[m] v, bfloat16[n, 2] r, bfloat16[2] q, bfloat16[n] d",
                   "bfloat16[2] w = {16256, 48896}, int64[1] flat = {-1}")
    x = np.array([[1, 3e38], [np.inf, 1e-40], [np.nan, -0.0]], BFLOAT)
    f = np.array([1 / 3, -2.7, 1e20], np.float32)
    with np.errstate(over="ignore"):
        squares = (f.astype(BFLOAT).astype(np.float32)**2).astype(BFLOAT)
    wanted = x.ravel(), x, np.array([1, -0.5], BFLOAT), squares
    for array, expected in zip(tsc.compile(model).run(None, {"x": x, "f": f}), wanted):
        assert array.dtype == BFLOAT
        np.testing.assert_array_equal(array.astype(np.float32), expected.astype(np.float32))


def test_other_makers_are_refused_by_name() -> None:
    with pytest.raises(tsc.UnsupportedError, match=r"\(EyeLike\) makes bfloat16 of other types.*float32"):
        tsc.compile(parsed("y = EyeLike<dtype = 16>(x)", "float[n, m] x", "bfloat16[n, m] y"))


def test_wrong_arrays_are_refused_by_name() -> None:
    executable = tsc.compile(parsed("y = Exp(x)", "bfloat16[n] x", "bfloat16[n] y"))
    with pytest.raises(tsc.InputError, match=r"'x'.*float32.*bfloat16"):
        executable.run(None, {"x": np.zeros(3, np.float32)})
    assert "bfloat16" in str(executable.inputs)


def test_without_ml_dtypes_arrays_are_bits(tmp_path: Path) -> None:
    """Where NumPy is all there is."""
    tsc.compile(parsed("y = Mul(x, x)", "bfloat16[n] x", "bfloat16[n] y")).save(tmp_path / "square.tscpack")
    code = ("import sys; sys.modules['ml_dtypes'] = None\n"
            "import numpy as np, tsc\n"
            "y, = tsc.load(sys.argv[1]).run(None, {'x': np.array([0x4040, 0xbf80], np.uint16)})\n"
            "print(y.dtype, *map(hex, y))")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "square.tscpack")], capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.stdout.split() == ["uint16", "0x4110", "0x3f80"], done.stderr  # 9 and 1


# -- whole models ----------------------------------------------------------------------------------------------

def in_bfloats(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A model of float32 as exporters write it in bfloat16 (weights, inputs, outputs, constants and conversions), and one of
    float32 with the same numbers."""
    rounded, plain = onnx.ModelProto(), onnx.ModelProto()
    for made, number in ((rounded, TensorProto.BFLOAT16), (plain, TensorProto.FLOAT)):
        made.CopyFrom(model)
        del made.graph.value_info[:]
        held = [a.t for n in made.graph.node for a in n.attribute if a.type == onnx.AttributeProto.TENSOR]
        for tensor in (*made.graph.initializer, *held):
            if tensor.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(tensor).astype(BFLOAT).astype(helper.tensor_dtype_to_np_dtype(number))
                tensor.CopyFrom(helper.make_tensor(tensor.name, number, array.shape, array.tobytes(), raw=True))
    for value in (*rounded.graph.input, *rounded.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for node in rounded.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.BFLOAT16
    return rounded, plain


@pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize("name", ["bert.ts", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt2.ts", "t5.dynamo"))])
def test_models(name: str) -> None:
    """The same numbers in float32 give the same, rounded once at the end; a mask that a Cast makes is rounded as well."""
    entry = ENTRIES[name]
    executable, plain = map(tsc.compile, in_bfloats(onnx.load(FOLDER / entry["file"])))
    for shape in entry["shapes"][:2]:
        feeds = RECIPES.feeds(entry, shape, seed=3)
        given = {k: v.astype(BFLOAT) if v.dtype == np.float32 else v for k, v in feeds.items()}
        same = {k: v.astype(np.float32) if v.dtype == BFLOAT else v for k, v in given.items()}
        for got, expected in zip(executable.run(None, given), plain.run(None, same), strict=True):
            assert got.dtype == (BFLOAT if expected.dtype == np.float32 else expected.dtype)
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2**-8, atol=1e-5 * np.abs(expected).max())
