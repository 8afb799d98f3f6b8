"""Operators whose legality depends on sizes that only the run knows: computed where the standard gives a meaning, else refused
at the run with the node's name. The oracle is ONNX Runtime, which refuses the same sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc
from tests.ops.test_compiled_samples import model
from tsc.errors import ShapeError, UnsupportedError
from tsc.runtime.executable import Executable


def rows(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def compiled(op: str, static: dict[str, np.ndarray[Any, Any]], attrs: dict[str, Any],
             *others: tuple[str, np.ndarray[Any, Any], list[str | int]]) -> tuple[Executable, onnxruntime.InferenceSession]:
    """x[n, 2], other inputs and constants through one node."""
    x = rows(1, 2)
    feeds = {"x": x} | {name: value for name, value, _ in others}
    shapes: dict[str, list[str | int]] = {"x": ["n", 2]} | {name: shape for name, _, shape in others}
    node = helper.make_node(op, [*feeds, *static], ["y"], "culprit", **attrs)
    made = model([node], feeds, shapes, static, [helper.make_value_info("y", onnx.TypeProto())], 21)
    made = onnx.shape_inference.infer_shapes(made)
    return tsc.compile(made, threads=1), onnxruntime.InferenceSession(made.SerializeToString())


@pytest.mark.defect(11)
@pytest.mark.parametrize(("mode", "pads", "least"), [
    ("reflect", (2, 0, 1, 0), 3), ("reflect", (-1, 0, 2, 0), 4), ("edge", (5, 0, 4, 0), 1), ("wrap", (5, 1, 4, 0), 1),
    ("wrap", (-1, 0, 4, 0), 2), ("edge", (-2, 0, 4, 0), 3)])
def test_a_pad_repeats_only_what_is_there(mode: str, pads: tuple[int, ...], least: int) -> None:
    executable, session = compiled("Pad", {"pads": np.array(pads)}, {"mode": mode})
    for n in (1, 2, 3, 4, 7):
        x = rows(n, 2)
        if n >= least:
            np.testing.assert_array_equal(executable.run(None, {"x": x})[0], session.run(None, {"x": x})[0])
            continue
        with pytest.raises(ShapeError, match=r"'culprit' \(Pad\)"):
            executable.run(None, {"x": x})
        with pytest.raises(Exception, match="Pad"):
            session.run(None, {"x": x})


@pytest.mark.defect(14)
def test_elements_are_gathered_within_symbolic_dims() -> None:
    indices = np.zeros((1, 1), np.int64)
    executable, session = compiled("GatherElements", {}, {"axis": 1}, ("indices", indices, ["m", "k"]))
    for n, m, k in ((1, 1, 1), (5, 5, 3), (5, 2, 7), (4, 3, 1)):
        feeds = {"x": rows(n, 2), "indices": np.random.default_rng(n).integers(-2, 2, (m, k))}
        np.testing.assert_array_equal(executable.run(None, feeds)[0], session.run(None, feeds)[0])
    with pytest.raises(ShapeError, match=r"'culprit' \(GatherElements\)"):
        executable.run(None, {"x": rows(2, 2), "indices": np.zeros((3, 1), np.int64)})


@pytest.mark.defect(14)
@pytest.mark.parametrize(("op", "dtype"), [("MatMul", "uint64"), ("MatMul", "uint32"), ("Add", "uint16"), ("Concat", "uint64")])
def test_unsigned_integers_are_computed_in_vectors(op: str, dtype: str) -> None:
    a, b = (np.random.default_rng(k).integers(0, 99, (3 + 16 * k, 19)).astype(dtype) for k in (0, 1))
    b = b if op == "Concat" else b[:1].repeat(3, 0) if op == "Add" else b.T
    shapes = {"a": ["n", 19], "b": list(b.shape) if op != "Add" else ["n", 19]}
    node = helper.make_node(op, ["a", "b"], ["y"], "node", **({"axis": 0} if op == "Concat" else {}))
    made = model([node], {"a": a, "b": b}, shapes, {}, [helper.make_value_info("y", onnx.TypeProto())])
    want = {"MatMul": np.matmul, "Add": np.add, "Concat": lambda x, y: np.concatenate([x, y])}[op](a, b)
    np.testing.assert_array_equal(tsc.compile(made, threads=1).run(None, {"a": a, "b": b})[0], want)


# -- float ranges of sizes ---------------------------------------------------------------------------------------

def ranged(start: Any, limit: Any, step: Any, kind: int) -> onnx.ModelProto:
    """Range over floats; "n" is the size of x as a float."""
    dtype = np.float32 if kind == TensorProto.FLOAT else np.float64
    operands = {"start": start, "limit": limit, "step": step}
    static = {name: np.array(value, dtype) for name, value in operands.items() if value != "n"} | {"zero": np.array(0)}
    nodes = [helper.make_node("Shape", ["x"], ["shape"], "shape"),
             helper.make_node("Gather", ["shape", "zero"], ["n"], "size"),
             helper.make_node("Cast", ["n"], ["real"], "cast", to=kind),
             helper.make_node("Range", ["real" if v == "n" else name for name, v in operands.items()], ["y"], "culprit")]
    return model(nodes, {"x": rows(1)}, {"x": ["n"]}, static, [helper.make_tensor_value_info("y", kind, ["k"])], 17)


@pytest.mark.defect(7)
@pytest.mark.parametrize(("start", "limit", "step", "kind"), [
    (0.0, "n", 1.0, TensorProto.FLOAT), (0.25, "n", 0.75, TensorProto.FLOAT), ("n", 0.0, -1.5, TensorProto.DOUBLE),
    pytest.param(3.0, "n", 2.0, TensorProto.FLOAT, marks=pytest.mark.slow),
    pytest.param(-1.5, "n", 0.1, TensorProto.FLOAT, marks=pytest.mark.slow)])
def test_a_float_range_over_a_size(start: Any, limit: Any, step: Any, kind: int) -> None:
    executable = tsc.compile(ranged(start, limit, step, kind), threads=1)
    for n in (1, 2, 3, 5, 17):
        first, last, by = (float(n) if v == "n" else float(np.array(v, np.float32)) for v in (start, limit, step))
        count = max(int(np.ceil((last - first) / by)), 0)  # as the standard says, and then start + i * step
        got, = executable.run(None, {"x": rows(n)})
        assert got.shape == (count,)
        np.testing.assert_allclose(got, first + np.arange(count) * by, rtol=1e-6)


@pytest.mark.defect(7)
def test_a_size_that_a_float_cannot_hold_is_refused() -> None:
    executable = tsc.compile(ranged(0.0, "n", 1.0, TensorProto.FLOAT), threads=1)
    with pytest.raises(ShapeError, match=r"'culprit' \(Range\): its limit must be exact in float32"):
        executable.run(None, {"x": np.zeros(2**24 + 1, np.float32)})
    with pytest.raises(UnsupportedError, match=r"culprit.*too fine"):
        tsc.compile(ranged(0.0, "n", 0.1, TensorProto.DOUBLE))
