"""Small valid models for `tests/fuzz/models.py` to spoil: some of every kind, operator samples, and small shared files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from tests.graph.models import attention, gelu, model
from tests.ops import test_samples as samples
from tsc.ops.base import PatternKind

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
#: Shared files are read up to this size.
_MOST_BYTES = 10_000

_SHAPES = """
    s = Shape(x)
    b = Gather<axis = 0>(s, zero)
    u = Unsqueeze(b, axes)
    f = Concat<axis = 0>(u, minus)
    y = Reshape(x, f)"""

_FUNCTIONS = """<ir_version: 9, opset_import: ["" : 17, "f" : 1]>
main (float[n, 4] x) => (float[n, 4] y) { h = f.outer<by = 3.0>(x) y = f.scale(h) }
<domain: "f", opset_import: ["" : 17, "f" : 1]> outer <by> (a) => (b) { c = f.scale<by: float = @by>(a) b = Softmax(c) }
<domain: "f", opset_import: ["" : 17]> scale <by: float = 2.0> (a) => (b) {
    c = Constant<value_float: float = @by>() b = Mul(a, c) }
"""


def _layers() -> onnx.ModelProto:
    """A convolution, pooling, normalisation and a dense layer, with weights in the file."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "shift", "scale"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["r"], "relu"),
        helper.make_node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("GlobalAveragePool", ["p"], ["g"], "mean"), helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "d", "shift"], ["y"], "dense", transB=1, alpha=0.5)]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)), "scale": rng.uniform(0.5, 1, 4), "shift": rng.standard_normal(4),
               "d": rng.standard_normal((4, 4))}
    graph = helper.make_graph(
        nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _made() -> dict[str, onnx.ModelProto]:
    return {
        "gelu": gelu(), "attention": attention(), "layers": _layers(), "functions": parser.parse_model(_FUNCTIONS),
        "shapes": model(_SHAPES, "float[N, 3, 4] x", "float[a, b] y",
                        "int64 zero = {0}, int64[1] axes = {0}, int64[1] minus = {-1}"),
        "lookup": model("r = Gather(t, i)\n m = ReduceMean<axes = [1]>(r)\n y = Sub(r, m)", "int64[B, L] i", "float[B, L, 2] y",
                        "float[3, 2] t = {1, 2, 3, 4, 5, 6}"),
        "slices": model("a = Slice(x, s, e)\n b = Pad(a, p)\n c = Transpose(b)\n y = Concat<axis = 1>(c, c)", "float[n, 6] x",
                        "float[k, m] y", "int64[2] s = {0, 1}, int64[2] e = {9999, -1}, int64[4] p = {0, 1, 0, 2}"),
        "choice": model("c = Greater(x, z)\n w = Where(c, x, z)\n i = Cast<to = 7>(w)\n y = ArgMax<axis = 1>(i)\n v = Not(c)",
                        "float[n, m] x, float[n, m] z", "int64[n, 1] y, bool[n, m] v"),
        "bodies": model("h = MeanVarianceNormalization(x)\n y = HardSwish(h)", "float[N, 3, H, W] x", "float[N, 3, H, W] y"),
        "constants": model("a = Mul(x, c)\n b = MatMul(a, d)\n y = Add(b, c)", "float[n, 2] x", "float[n, 2] y",
                           "float[2] c = {1, 2}, float[2, 2] d = {1, 0, 2, 3}"),
    }


def _sampled() -> dict[str, onnx.ModelProto]:
    """A few of every operator's samples, as models with constant parameters."""
    found = {}
    for case in samples.CASES[::7]:
        op, sample = case.values
        proto, _, feeds = samples._model(op, sample, 17 if op.name not in ("Gelu", "Swish", "RMSNormalization") else 24)
        for name, value in feeds.items():
            if int(name[1:]) in op.static_inputs or (op.kind is PatternKind.INJECTIVE and name != "x0"):
                proto.graph.initializer.append(numpy_helper.from_array(value, name))
        found[str(case.id)] = proto
    return found


def _shared() -> dict[str, onnx.ModelProto]:
    files = sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
    return {file.stem: onnx.load(str(file)) for file in files if file.stat().st_size <= _MOST_BYTES}


@cache
def prey() -> dict[str, bytes]:
    """Serialised models by name."""
    return {name: proto.SerializeToString() for name, proto in {**_made(), **_sampled(), **_shared()}.items()}
