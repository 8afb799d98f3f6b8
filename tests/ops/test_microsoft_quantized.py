"""ONNX Runtime's operators on numbers of few bits, beyond their samples: constant weights, ties, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tsc
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.rewriting import fold

FLOAT = np.float32


def model(op: str, feeds: dict[str, tuple[Any, ...]], arrays: dict[str, np.ndarray[Any, Any]], fixed: tuple[str, ...] = (),
          outputs: int = 1, **attrs: Any) -> onnx.ModelProto:
    """One node of the inputs `arrays`, in this order; those that are `fixed` are constants, of others `feeds` says the dims."""
    made = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, [*arrays], made, name="node", domain="com.microsoft", **attrs)
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), feeds.get(n, x.shape))
             for n, x in arrays.items() if n not in fixed]
    graph = helper.make_graph([node], "graph", given, [helper.make_value_info(n, onnx.TypeProto()) for n in made],
                              [numpy_helper.from_array(arrays[n], n) for n in fixed])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=10))


def expected(proto: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # several threads bring some rows of a batch each to 8 bits, on their own
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize(("op", "steps"), [("QLinearAdd", (0.5, 0.25, 1.0)), ("QLinearMul", (0.25, 0.5, 8.0))])
def test_ties_of_sums_and_products_go_to_the_even_with_the_zero_point(op: str, steps: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, 4096).astype(np.uint8) for _ in range(2))
    points = (np.array(z, np.uint8) for z in (3, 10, 7))
    arrays = {name: value for k, step, zero in zip("abc", steps, points) for name, value in (
        (k, {"a": a, "b": b}.get(k)), (f"{k}_scale", np.array(step, FLOAT)), (f"{k}_zero", zero)) if value is not None}
    fixed = tuple(name for name in arrays if len(name) > 1)
    proto = model(op, {"a": ("n",), "b": ("n",)}, arrays, fixed)
    np.testing.assert_array_equal(tsc.compile(proto).run(None, {"a": a, "b": b})[0], expected(proto, {"a": a, "b": b})[0])


@pytest.mark.parametrize("target", ["cpu", "cpu-generic"])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_constant_weights_of_few_bits(bits: int, large: bool, target: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones stay as they are, in panels, and are brought to floats where a product copies them."""
    if large:
        monkeypatch.setattr(fold, "MOST_BYTES", 0)
    rng, n, k, block = np.random.default_rng(bits), 33, 80, 32
    blocks = -(-k // block)
    w = {"w": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
         "scale": rng.uniform(0.01, 0.1, (n, blocks)).astype(FLOAT),
         "zero": rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)}
    proto = model("MatMulNBits", {"x": ("b", "m", k)}, {"x": np.zeros((1, 1, k), FLOAT), **w}, (*w,), N=n, K=k, bits=bits,
                  block_size=block)
    executable = tsc.compile(proto, target=target)
    assert len(executable.launches) == 1
    for batch, rows in ((1, 1), (2, 17), (3, 50)):
        x = rng.standard_normal((batch, rows, k)).astype(FLOAT)
        want = expected(proto, {"x": x})[0]
        np.testing.assert_allclose(executable.run(None, {"x": x})[0], want, rtol=1e-4, atol=2e-6 * np.abs(want).max())


def test_rows_of_a_constant_table_of_few_bits() -> None:
    rng = np.random.default_rng(4)
    table = {"data": rng.integers(0, 256, (50, 48)).astype(np.uint8)}
    steps = {"scale": rng.uniform(0.01, 0.1, (50, 3)).astype(FLOAT), "zero": rng.integers(0, 256, (50, 2)).astype(np.uint8)}
    ids = rng.integers(0, 50, (3, 7))
    proto = model("GatherBlockQuantized", {"ids": ("b", "n")}, {**table, "ids": ids, **steps}, (*table, *steps), block_size=32)
    np.testing.assert_allclose(tsc.compile(proto).run(None, {"ids": ids})[0], expected(proto, {"ids": ids})[0], rtol=1e-6)


@pytest.mark.parametrize("mask", [(3, 5, 4, 1, 0, 2), (1, 5, 5, 0, 4, 0)])
def test_keys_that_begin_and_end_somewhere(mask: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    arrays = {"x": rng.integers(0, 256, (3, 5, 6)).astype(np.uint8), "w": rng.integers(-60, 60, (6, 24)).astype(np.int8),
              "bias": rng.standard_normal(24).astype(FLOAT), "x_scale": np.array(0.01, FLOAT),
              "w_scale": np.array(0.01, FLOAT), "mask": np.array(mask, np.int32)}
    proto = model("QAttention", {}, arrays, num_heads=2)
    np.testing.assert_allclose(tsc.compile(proto).run(None, arrays)[0], expected(proto, arrays)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("change", "says"), [
    ({"bits": 3}, r"weights of 3 bits"), ({"block_size": 24}, r"block_size of 24"), ({"N": 6}, r"node 'node'"),
    ({"weight_prepacked": 1}, r"weight_prepacked"), ({"g": 1}, r"g_idx")])
def test_weights_that_are_refused(change: dict[str, int], says: str) -> None:
    arrays = {"x": np.zeros((3, 32), FLOAT), "w": np.zeros((5, 2, 8), np.uint8), "scale": np.ones((5, 2), FLOAT)}
    attrs = {"N": 5, "K": 32, "block_size": 16, **change}
    if attrs.pop("g", 0):
        arrays |= {"zero": np.zeros((5, 1), np.uint8), "g": np.zeros(32, np.int32)}
    with pytest.raises((ModelError, UnsupportedError, tsc.ShapeError), match=says):
        tsc.compile(model("MatMulNBits", {}, arrays, **attrs))


@pytest.mark.parametrize(("axes", "says"), [((1, 1), r"looks up along axis 1"), ((0, 0), r"blocks along axis 0")])
def test_tables_that_are_refused(axes: tuple[int, int], says: str) -> None:
    arrays = {"data": np.zeros((16, 16), np.uint8), "ids": np.zeros(3, np.int64), "scale": np.ones((16, 1), FLOAT)}
    proto = model("GatherBlockQuantized", {}, arrays, block_size=16, bits=8, gather_axis=axes[0], quantize_axis=axes[1])
    with pytest.raises(UnsupportedError, match=says):
        tsc.compile(proto)


def test_a_scale_that_is_no_number() -> None:
    arrays = {"x": np.zeros((3, 2), np.uint8), "x_scale": np.ones(2, FLOAT), "x_zero": np.zeros((), np.uint8),
              "y_scale": np.ones((), FLOAT), "y_zero": np.zeros((), np.uint8)}
    with pytest.raises(tsc.TscError, match=r"node 'node"):
        tsc.compile(model("QLinearSigmoid", {}, arrays))


def layer(lengths: list[int], dtype: type) -> dict[str, np.ndarray[Any, Any]]:
    rng, low, rows = np.random.default_rng(3), 0 if dtype is np.uint8 else -50, len(lengths)
    state = [rng.uniform(-1, 1, (1, rows, 8)).astype(FLOAT) for _ in range(2)]
    return {"x": rng.standard_normal((7, rows, 5)).astype(FLOAT), "w": rng.integers(low, low + 100, (1, 5, 32)).astype(dtype),
            "r": rng.integers(low, low + 100, (1, 8, 32)).astype(dtype), "b": rng.standard_normal((1, 64)).astype(FLOAT),
            "lengths": np.array(lengths, np.int32), "h": state[0], "c": state[1],
            "p": rng.uniform(-1, 1, (1, 24)).astype(FLOAT), "w_scale": np.array([0.02], FLOAT),
            "w_zero": np.array([low + 50], dtype), "r_scale": np.array([0.02], FLOAT), "r_zero": np.array([low + 49], dtype)}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_layer_over_rows_of_a_batch_at_once(dtype: type) -> None:
    dims = {"x": ("t", "n", 5), "h": (1, "n", 8), "c": (1, "n", 8), "lengths": ("n",)}
    proto = model("DynamicQuantizeLSTM", dims, layer([1], dtype), outputs=3, hidden_size=8)
    executable = tsc.compile(proto)
    for lengths in ([7, 7, 7], [4], [7, 5, 3], [2, 7, 4]):
        feeds = layer(lengths, dtype)
        for got, want in zip(executable.run(None, feeds), expected(proto, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
