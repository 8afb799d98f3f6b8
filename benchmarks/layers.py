"""Single layers side by side: tsc and ONNX Runtime (all graph optimisations), one thread each, each in its own process.

    python3 dev.py bench layers [--only conv] [--rounds N] [--seconds S]

Convolutions (with bias and Relu), pooling, upsampling, softmax, norms and recurrent layers at the sizes of well-known
networks, every dim that a user would leave open symbolic. The processes take turns, and each runtime's time is the best of all
its runs, as in `minilm.py`; outputs must agree. The roofline is max(FLOP / peak FLOP rate, bytes of inputs, weights and
outputs / bandwidth), of fp32 and measured before (`tsc/roofline.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent))

import tsc
from benchmarks.minilm import OPENERS, Worker, burst, cpu_name, results_file, version
from tsc.roofline import Peaks, peaks

RUNTIMES = ("tsc", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Layer:
    """A graph of one input `x` of shape `dims` (text: symbolic), run at `shape`; `flops` of one run."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    dims: tuple[int | str, ...]
    shape: tuple[int, ...]
    weights: dict[str, NDArray[np.float32]]
    flops: float

    def path(self, folder: str) -> Path:
        """The layer's file in a folder of models."""
        return Path(folder) / f"{self.name.replace(' ', '_').replace('/', '_')}.onnx"

    def model(self) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.dims)
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
        made = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(list(self.nodes), self.name, [x], [y], made)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, NDArray[np.float32]]:
        return {"x": np.random.default_rng(1).standard_normal(self.shape).astype(np.float32)}


def conv(name: str, shape: tuple[int, int, int, int], out: int, kernel: int, stride: int = 1, groups: int = 1,
         dilation: int = 1) -> Layer:
    """A convolution that keeps the size (but for the stride), with bias and Relu."""
    rng = np.random.default_rng(0)
    batch, channels, height, width = shape
    each = channels // groups
    weights = {"w": rng.standard_normal((out, each, kernel, kernel)) / math.sqrt(each * kernel * kernel),
               "b": rng.standard_normal(out)}
    pads = kernel // 2 * dilation
    nodes = (helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[kernel] * 2, pads=[pads] * 4, strides=[stride] * 2,
                              dilations=[dilation] * 2, group=groups), helper.make_node("Relu", ["c"], ["y"]))
    outputs = batch * out * -(-height // stride) * -(-width // stride)
    return Layer(name, nodes, ("N", channels, "H", "W"), shape, {n: w.astype(np.float32) for n, w in weights.items()},
                 2.0 * outputs * each * kernel * kernel)


def rows(name: str, op: str, shape: tuple[int, int], operations: float, **attributes: Any) -> Layer:
    """An operator along the last axis; a norm gets a scale and a shift."""
    rng = np.random.default_rng(0)
    names = ["s", "t"] if op == "LayerNormalization" else []
    weights = {n: rng.standard_normal(shape[1]).astype(np.float32) for n in names}
    dims = ("R", shape[1]) if names else ("R", "C")
    return Layer(name, (helper.make_node(op, ["x", *names], ["y"], axis=-1, **attributes),), dims, shape, weights,
                 operations * shape[0] * shape[1])


def pool(name: str, shape: tuple[int, int, int, int], kernel: int, stride: int) -> Layer:
    """A maximum over windows."""
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
    return Layer(name, (node,), ("N", shape[1], "H", "W"), shape, {}, math.prod(shape) * kernel * kernel / stride / stride)


def upsample(name: str, shape: tuple[int, int, int, int]) -> Layer:
    """Every pixel four times."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest", nearest_mode="floor",
                            coordinate_transformation_mode="asymmetric")
    return Layer(name, (node,), ("N", shape[1], "H", "W"), shape, {"scales": np.array([1, 1, 2, 2], np.float32)}, 0.0)


def recurrent(name: str, op: str, shape: tuple[int, int, int], hidden: int, directions: int = 1, **attributes: Any) -> Layer:
    """A recurrent layer over steps of a batch."""
    rng, gates, (steps, batch, width) = np.random.default_rng(0), {"GRU": 3, "LSTM": 4}[op], shape
    weights = {"w": rng.standard_normal((directions, gates * hidden, width)) / math.sqrt(width),
               "r": rng.standard_normal((directions, gates * hidden, hidden)) / math.sqrt(hidden),
               "b": rng.standard_normal((directions, 2 * gates * hidden))}
    node = helper.make_node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden,
                            direction="bidirectional" if directions == 2 else "forward", **attributes)
    return Layer(name, (node,), ("T", "N", width), shape, {n: w.astype(np.float32) for n, w in weights.items()},
                 2.0 * steps * batch * directions * gates * hidden * (width + hidden))


def boxes(name: str, classes: int, count: int, score: float) -> Layer:
    """Of boxes of fixed places those with the best scores, which are above `score` of the normal distribution."""
    rng = np.random.default_rng(0)
    begin = rng.random((1, count, 2))
    weights = {"b": np.concatenate([begin, begin + 0.1 * rng.random((1, count, 2))], axis=-1), "o": np.array([0.45]),
               "s": np.array([score])}
    nodes = (helper.make_node("Constant", [], ["m"], value_ints=[100]),
             helper.make_node("NonMaxSuppression", ["b", "x", "m", "o", "s"], ["i"]),
             helper.make_node("Cast", ["i"], ["y"], to=onnx.TensorProto.FLOAT))
    return Layer(name, nodes, (1, "C", count), (1, classes, count), {n: w.astype(np.float32) for n, w in weights.items()}, 0.0)


def forest(name: str, rows: int, features: int, trees: int, depth: int) -> Layer:
    """Complete trees, summed up, of rows of features."""
    rng, inner, each = np.random.default_rng(0), (1 << depth) - 1, (2 << depth) - 1
    nodes, leaves, split = np.arange(each), np.arange(inner, each), np.arange(each) < inner
    attrs: dict[str, Any] = {
        "nodes_treeids": np.repeat(np.arange(trees), each), "nodes_nodeids": np.tile(nodes, trees),
        "nodes_featureids": rng.integers(0, features, trees * each), "nodes_values": rng.standard_normal(trees * each),
        "nodes_truenodeids": np.tile(np.where(split, 2 * nodes + 1, 0), trees),
        "nodes_falsenodeids": np.tile(np.where(split, 2 * nodes + 2, 0), trees),
        "target_treeids": np.repeat(np.arange(trees), len(leaves)), "target_nodeids": np.tile(leaves, trees),
        "target_ids": np.zeros(trees * len(leaves), np.int64), "target_weights": rng.standard_normal(trees * len(leaves))}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
                            nodes_modes=np.tile(np.where(split, "BRANCH_LEQ", "LEAF"), trees).tolist(),
                            **{key: value.tolist() for key, value in attrs.items()})
    return Layer(name, (node,), ("R", features), (rows, features), {}, float(rows * trees * depth))


def few_bits(name: str, rows: int, depth: int, width: int) -> Layer:
    """A product with weights of 4 bits, in blocks of 32."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {"w": rng.integers(0, 256, (width, depth // 32, 16), np.uint8), "s": rng.random(
        (width, depth // 32), np.float32) / math.sqrt(depth)}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=depth, N=width, bits=4,
                            block_size=32)
    return Layer(name, (node,), ("R", depth), (rows, depth), weights, 2.0 * rows * depth * width)


def best(name: str, rows: int, count: int, taken: int) -> Layer:
    """The greatest of each row, in their order."""
    return Layer(name, (helper.make_node("TopK", ["x", "k"], ["y", "i"]),), ("R", "N"), (rows, count), {
        "k": np.array([taken])}, float(rows * count))  # type: ignore[dict-item]


def spread(name: str, places: int, updates: int, width: int) -> Layer:
    """Rows that are added where they go to, several to one place."""
    weights: dict[str, Any] = {"d": np.zeros((places, width), np.float32),
                               "i": np.random.default_rng(0).integers(0, places, (updates, 1))}
    node = helper.make_node("ScatterND", ["d", "i", "x"], ["y"], reduction="add")
    return Layer(name, (node,), (updates, width), (updates, width), weights, float(updates * width))


def of_bytes(name: str, rows: int, depth: int, width: int, dynamic: bool) -> Layer:
    """A product of bytes, as ONNX Runtime's tools write it: with scales that a run finds, or in pairs of nodes. Weights have
    seven bits, with which ONNX Runtime's products do not saturate on AVX2."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "w": rng.integers(-63, 64, (depth, width)).astype(np.int8), "ws": np.float32(0.02 / math.sqrt(depth)),
        "z": np.int8(0), "s": np.float32(0.02), "o": np.uint8(128)}
    if dynamic:
        nodes = [("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]), ("MatMulInteger", ["q", "w", "qz", "z"], ["p"]),
                 ("Cast", ["p"], ["f"]), ("Mul", ["qs", "ws"], ["t"]), ("Mul", ["f", "t"], ["y"])]
    else:
        nodes = [("QuantizeLinear", ["x", "s", "o"], ["q"]), ("DequantizeLinear", ["q", "s", "o"], ["a"]),
                 ("DequantizeLinear", ["w", "ws", "z"], ["b"]), ("MatMul", ["a", "b"], ["p"]),
                 ("QuantizeLinear", ["p", "s", "o"], ["r"]), ("DequantizeLinear", ["r", "s", "o"], ["y"])]
    floats = {"to": onnx.TensorProto.FLOAT}
    made = tuple(helper.make_node(op, *names, **(floats if op == "Cast" else {})) for op, *names in nodes)
    return Layer(name, made, ("R", depth), (rows, depth), weights, 2.0 * rows * depth * width)


def conv_of_bytes(name: str, shape: tuple[int, int, int, int], out: int, kernel: int, groups: int = 1) -> Layer:
    """A convolution of bytes, between a quantisation and its inverse."""
    rng, channels = np.random.default_rng(0), shape[1]
    weights: dict[str, Any] = {
        "w": rng.integers(-63, 64, (out, channels // groups, kernel, kernel)).astype(np.int8),
        "ws": np.full(out, 0.02 / math.sqrt(channels // groups * kernel * kernel), np.float32), "z": np.zeros(out, np.int8),
        "s": np.float32(0.02), "o": np.uint8(128), "b": rng.integers(-1000, 1000, out).astype(np.int32)}
    nodes = (helper.make_node("QuantizeLinear", ["x", "s", "o"], ["q"]),
             helper.make_node("QLinearConv", ["q", "s", "o", "w", "ws", "z", "s", "o", "b"], ["r"], group=groups,
                              kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4),
             helper.make_node("DequantizeLinear", ["r", "s", "o"], ["y"]))
    outputs = shape[0] * out * shape[2] * shape[3]
    return Layer(name, nodes, ("N", channels, "H", "W"), shape, weights, 2.0 * outputs * channels // groups * kernel * kernel)


def turned(name: str, shape: tuple[int, ...], order: tuple[int, ...]) -> Layer:
    """A Transpose."""
    node = helper.make_node("Transpose", ["x"], ["y"], perm=order)
    return Layer(name, (node,), tuple(f"d{axis}" for axis, _ in enumerate(shape)), shape, {}, 0.0)


def attended(name: str, heads: int, rows: int, length: int) -> Layer:
    """Rows that attend to a cache of keys, which are the values too: [1, heads, length, 64]."""
    weights = {"q": np.random.default_rng(0).standard_normal((1, heads, rows, 64)).astype(np.float32) / 8}
    nodes = (helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q", "t"], ["s"]),
             helper.make_node("Softmax", ["s"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "x"], ["y"]))
    return Layer(name, nodes, (1, heads, "T", 64), (1, heads, length, 64), weights, 256.0 * heads * rows * length)


def attending(name: str, heads: int, rows: int, length: int) -> Layer:
    """The same of rows whose number is symbolic: the first tokens of so many sequences, to those of the first sequence."""
    weights: dict[str, Any] = {"first": np.int64(0)}
    nodes = (helper.make_node("Gather", ["x", "first"], ["r"], axis=2),
             helper.make_node("Transpose", ["r"], ["q"], perm=[1, 0, 2]),
             helper.make_node("Gather", ["x", "first"], ["k"], axis=0),
             helper.make_node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
             helper.make_node("MatMul", ["q", "t"], ["s"]), helper.make_node("Softmax", ["s"], ["p"], axis=-1),
             helper.make_node("MatMul", ["p", "k"], ["y"]))
    return Layer(name, nodes, ("S", heads, "T", 64), (rows, heads, length, 64), weights, 256.0 * heads * rows * length)


LAYERS = (
    conv("conv 3x3 64", (1, 64, 56, 56), 64, 3), conv("conv 3x3 256", (1, 256, 14, 14), 256, 3),
    conv("conv 3x3/2 128", (1, 128, 28, 28), 256, 3, 2), conv("conv 7x7/2 stem", (1, 3, 224, 224), 64, 7, 2),
    conv("conv 3x3 small", (1, 256, 7, 7), 256, 3), conv("dilated 3x3", (1, 64, 56, 56), 64, 3, dilation=2),
    conv("conv 3x3 odd", (2, 48, 37, 53), 80, 3),
    conv("pointwise 64", (1, 64, 80, 80), 64, 1), conv("pointwise 512", (1, 256, 14, 14), 512, 1),
    conv("depthwise 3x3", (1, 64, 112, 112), 64, 3, groups=64), conv("depthwise 3x3/2", (1, 64, 112, 112), 64, 3, 2, 64),
    conv("depthwise 7x7", (1, 96, 56, 56), 96, 7, groups=96), conv("depthwise small", (1, 320, 7, 7), 320, 3, groups=320),
    conv("depthwise 9x9", (1, 64, 28, 28), 64, 9, groups=64),
    conv("grouped 3x3", (1, 128, 28, 28), 128, 3, groups=32), conv("grouped deep", (1, 64, 56, 56), 128, 3, groups=2),
    conv("grouped point", (1, 256, 28, 28), 256, 1, groups=4),
    pool("max pool 3x3/2", (1, 64, 112, 112), 3, 2), pool("max pool 2x2/2", (1, 64, 112, 112), 2, 2),
    pool("max pool 13x13", (1, 64, 20, 20), 13, 1), upsample("nearest 2x", (1, 64, 40, 40)),
    rows("softmax 384", "Softmax", (1024, 384), 5), rows("softmax 8192", "Softmax", (64, 8192), 5),
    rows("layer norm 768", "LayerNormalization", (1024, 768), 8))
#: Not compared with commits that lack them.
RECURRENT = (
    recurrent("lstm both ways", "LSTM", (64, 1, 64), 128, 2), recurrent("lstm batch 8", "LSTM", (64, 8, 64), 128, 2),
    recurrent("gru", "GRU", (200, 1, 256), 256, linear_before_reset=1),
    recurrent("gru batch 8", "GRU", (64, 8, 256), 256, linear_before_reset=1))
COUNTED = (boxes("boxes of many classes", 80, 8400, 3.3), boxes("boxes of one class", 1, 1000, 0.0))
OTHERS = (
    forest("forest", 1000, 20, 100, 8), forest("forest of one row", 1, 20, 100, 8),
    few_bits("4 bits, a row", 1, 2048, 2048), few_bits("4 bits, 64 rows", 64, 2048, 2048),
    best("best 50 of 50257", 1, 50257, 50), best("best 300 of 8400", 1, 8400, 300), best("best 2 of 64", 1000, 64, 2),
    spread("rows added", 1000, 100_000, 64), spread("rows added, few", 4096, 512, 128),
    of_bytes("bytes, dynamic, a row", 1, 768, 3072, True), of_bytes("bytes, dynamic", 128, 768, 3072, True),
    of_bytes("bytes, pairs, a row", 1, 768, 3072, False), of_bytes("bytes, pairs", 128, 768, 3072, False),
    conv_of_bytes("bytes, conv 3x3", (1, 64, 56, 56), 64, 3), conv_of_bytes("bytes, pointwise", (1, 256, 14, 14), 512, 1),
    conv_of_bytes("bytes, depthwise", (1, 64, 112, 112), 64, 3, 64), conv_of_bytes("bytes, stem", (1, 3, 224, 224), 64, 7))
TURNED = (
    turned("turned", (2048, 768), (1, 0)), turned("turned, odd", (100, 37), (1, 0)),
    turned("turned, channels last", (1, 64, 56, 56), (0, 2, 3, 1)),
    attended("turned keys, a row", 12, 1, 512), attending("turned keys, few rows", 12, 1, 512),
    attended("turned keys", 12, 384, 384))
EVERY = (*LAYERS, *RECURRENT, *COUNTED, *OTHERS, *TURNED)


def serve(runtime: str, folder: str) -> None:
    """Answer requests until stdin closes, a JSON line each: {"layer": name, "seconds": s} -> times in ms, and a sample."""
    opened: dict[str, Any] = {}
    print(json.dumps({"ready": 0.0, "tsc": tsc.__file__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        layer = next(x for x in EVERY if x.name == request["layer"])
        if layer.name not in opened:
            opened[layer.name] = OPENERS[runtime](str(layer.path(folder))), layer.feeds()
        run, feeds = opened[layer.name]
        (result,) = run(feeds)
        sample = result.reshape(-1)[:: max(1, result.size // 97)].tolist()
        times = burst(partial(run, feeds), request["seconds"])
        print(json.dumps({"ms": times, "sample": sample, "size": result.size}), flush=True)


def measure(workers: dict[str, Worker], layer: Layer, rounds: int, seconds: float,
            machine: Peaks) -> dict[str, Any]:
    """Best milliseconds of each runtime, which must agree; the ratio, and the share of the roofline."""
    answers = {name: worker.ask(layer=layer.name, seconds=seconds) for name, worker in workers.items()}  # warm-up
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(rounds):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            times[name] += workers[name].ask(layer=layer.name, seconds=seconds)["ms"]
    if not np.allclose(answers["tsc"]["sample"], answers["onnxruntime"]["sample"], rtol=1e-3, atol=1e-4):
        raise SystemExit(f"benchmark: the results of {layer.name} differ")
    best = {name: min(t) for name, t in times.items()}
    size = 4.0 * (math.prod(layer.shape) + answers["tsc"]["size"] + sum(w.size for w in layer.weights.values()))
    roofline = machine.milliseconds(layer.flops, size)
    return {"layer": layer.name, "shape": layer.shape, "roofline_ms": roofline, "best_ms": best,
            "ratio": best["onnxruntime"] / best["tsc"], "roofline_share": roofline / best["tsc"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="layers whose name holds this text")
    parser.add_argument("--rounds", type=int, default=7, help="turns each runtime takes at each layer")
    parser.add_argument("--seconds", type=float, default=0.15, help="length of one burst")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default: benchmarks/results/layers-<cpu>.json")
    parser.add_argument("--serve", choices=RUNTIMES, help=argparse.SUPPRESS)
    parser.add_argument("--models", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.models)
        return
    chosen = [layer for layer in EVERY if options.only in layer.name]
    with tempfile.TemporaryDirectory() as folder:
        for layer in chosen:
            onnx.save(layer.model(), layer.path(folder))
        workers = {name: Worker(__file__, "--serve", name, "--models", folder) for name in RUNTIMES}
        machine = peaks()
        print(f"{cpu_name()}, one thread; roofline {machine}")
        print(f"{'layer':18}{'shape':>20}{'tsc ms':>10}{'ORT ms':>10}{'x ORT':>8}{'% roof':>8}")
        results = []
        for layer in chosen:
            row = measure(workers, layer, options.rounds, options.seconds, machine)
            results.append(row)
            print(f"{row['layer']:18}{'x'.join(map(str, row['shape'])):>20}{row['best_ms']['tsc']:>10.3f}"
                  f"{row['best_ms']['onnxruntime']:>10.3f}{row['ratio']:>8.2f}{100 * row['roofline_share']:>8.1f}", flush=True)
        for worker in workers.values():
            worker.close()
    mean = math.exp(sum(math.log(row["ratio"]) for row in results) / len(results))
    print(f"geometric mean of x ORT (its time divided by tsc's): {mean:.2f}")
    if options.only:
        return
    output = options.output or results_file("layers")
    output.write_text(json.dumps({
        "machine": cpu_name(), "threads": 1, "date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
        "command": "python3 dev.py bench layers " + " ".join(sys.argv[1:]),
        "versions": {name: version(name) for name in RUNTIMES},
        "roofline": asdict(machine),
        "geometric_mean_vs_onnxruntime": mean, "results": results}, indent=1) + "\n")
    print(f"written to {output}")


if __name__ == "__main__":
    main()
