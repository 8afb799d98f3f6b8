"""Dims that are not what the file's names suggest: what is assumed, what the error says mends it, and that it does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tsc
from tests.graph.models import model
from tsc import te

Refused = Callable[..., AbstractContextManager[None]]


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.defect(6)
@pytest.mark.parametrize("sign", ["?", "*", "-1", "None", "_", "", " "])
def test_dims_without_a_name_are_not_taken_for_equal(sign: str) -> None:
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3, sign, sign]) for n in ("x", "y")]
    proto = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", shapes[:1], shapes[1:]),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = tsc.compile(proto)
    x = floats(2, 3, 48, 192)
    np.testing.assert_array_equal(executable.run(None, {"x": x})[0], np.maximum(x, 0))
    assert [str(size) for size in executable.inputs[0].shape] == ["N", "3", "x_2", "x_3"]


@pytest.mark.defect(6)
def test_dims_named_alike_are_equal_unless_the_user_names_them_apart(refused: Refused) -> None:
    proto = model("y = Relu(x)", "float[N, S, S] x", "float[N, S, S] y")
    with refused(tsc.ShapeError, "'x' has size 5 at axis 2, expected S = 4", "dims={'x': (…)}"):
        tsc.compile(proto).run(None, {"x": floats(2, 4, 5)})
    x = floats(2, 4, 5)
    np.testing.assert_array_equal(tsc.compile(proto, dims={"x": ("N", "H", "W")}).run(None, {"x": x})[0], np.maximum(x, 0))


@pytest.mark.defect(6)
def test_dims_that_meet_in_a_broadcast_are_taken_for_equal_unless_the_user_says_1(refused: Refused) -> None:
    proto = model("y = Add(x, z)", "float[a, 3] x, float[b, 3] z", "float[c, 3] y")
    x, z = floats(5, 3), floats(1, 3)
    with refused(tsc.ShapeError, "size 1", "dims={'z': (…)}", "always is 1"):
        tsc.compile(proto).run(None, {"x": x, "z": z})
    for dims in ({"b": 1}, {"z": (1, 3)}):
        np.testing.assert_allclose(tsc.compile(proto, dims=dims).run(None, {"x": x, "z": z})[0], x + z)


@pytest.mark.defect(8)
def test_a_limit_of_the_model_itself_is_not_blamed_on_the_range(refused: Refused) -> None:
    """513 tokens of a table of 512 positions: no wider compilation helps; 65 of a batch given as 1 to 64 it does."""
    body = "s = Shape<start = 1>(ids)\n z = Constant<value_ints = [0]>()\n p = Slice(table, z, s)\n f = Cast<to = 1>(ids)\n" \
           "y = Add(f, p)"
    proto = model(body, "int64[batch, seq] ids", "float[batch, seq] y")
    proto.graph.initializer.append(helper.make_tensor("table", TensorProto.FLOAT, [12], np.arange(12, dtype=np.float32)))
    executable = tsc.compile(proto, dims={"batch": (1, 64), "seq": (1, None)})
    assert executable.run(None, {"ids": np.ones((2, 12), np.int64)})[0].shape == (2, 12)
    with refused(tsc.ShapeError, "seq", "12", "the model needs"):
        executable.run(None, {"ids": np.ones((2, 13), np.int64)})
    with refused(tsc.ShapeError, "batch", "compile a wider one"):
        executable.run(None, {"ids": np.ones((65, 2), np.int64)})


@pytest.mark.defect(5)
def test_dims_that_no_input_tells(refused: Refused) -> None:
    n, m, q = te.dim("n"), te.dim("m"), te.dim("q")
    x = te.placeholder((n * m,), "float32", "x")
    with refused(tsc.ShapeError, "m, n"):
        tsc.build(te.compute((n * m,), lambda i: x[i] + 1.0, "y"))
    k = te.reduce_axis(q, "k")
    z = te.placeholder((n,), "float32", "z")
    with refused(tsc.ShapeError, "q"):
        tsc.build(te.compute((n,), lambda i: te.sum(z[i], axis=k), "y"))


@pytest.mark.defect(5)
def test_element_types_that_nobody_has_name_the_node(refused: Refused) -> None:
    with refused(tsc.UnsupportedError, "input 'x'", "COMPLEX64"):
        tsc.compile(model("y = Identity(x)", "complex64[n] x", "complex64[n] y"))
    with refused(tsc.UnsupportedError, "node 'EyeLike_0' (EyeLike)", "bfloat16", "float32"):
        tsc.compile(model("y = EyeLike<dtype = 16>(x)", "float[n, m] x", "bfloat16[n, m] y"))
    with refused(tsc.UnsupportedError, "node 'Cast_1' (Cast)", "type 17"):
        tsc.compile(model("a = Relu(x)\n y = Cast<to = 17>(a)", "float[n] x", "float8e4m3fn[n] y"))
