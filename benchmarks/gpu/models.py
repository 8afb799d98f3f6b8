"""Small models that the GPU run computes whole, with feeds and what ONNX Runtime makes of them; made where that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.models import test_shared_models as shared_models

Feeds = dict[str, NDArray[Any]]


def perceptron() -> onnx.ModelProto:
    """softmax(relu(x a + c) b) over x: [n, 40]."""
    rng = np.random.default_rng(0)
    held = {"a": rng.standard_normal((40, 72), np.float32) / 6, "b": rng.standard_normal((72, 24), np.float32) / 8,
            "c": rng.standard_normal(72, np.float32)}
    node = helper.make_node
    nodes = [node("MatMul", ["x", "a"], ["h0"]), node("Add", ["h0", "c"], ["h1"]), node("Relu", ["h1"], ["h"]),
             node("MatMul", ["h", "b"], ["s"]), node("Softmax", ["s"], ["y"], axis=-1)]
    return _model(nodes, held, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])], "y")


def block() -> onnx.ModelProto:
    """A transformer's block over [n, t, 16]: two heads, a mask, a residual, a norm, an MLP; a table looked up; a sum of all."""
    rng = np.random.default_rng(0)
    shapes = {"table": (11, 16), "wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "w1": (16, 24), "w2": (24, 16), "scale": (16,),
              "shift": (16,)}
    held = {name: rng.standard_normal(shape, np.float32) / 4 for name, shape in shapes.items()}
    held |= {"heads": np.array([0, 0, 2, 8]), "merged": np.array([0, 0, 16]), "half": np.array(0.35, np.float32)}
    node = helper.make_node
    nodes = [node("Gather", ["table", "ids"], ["x"])]
    for name in "qkv":
        nodes += [node("MatMul", ["x", f"w{name}"], [f"{name}0"]), node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
                  node("Transpose", [f"{name}1"], [name], perm=(0, 2, 3, 1) if name == "k" else (0, 2, 1, 3))]
    nodes += [node("MatMul", ["q", "k"], ["s0"]), node("Mul", ["s0", "half"], ["s1"]), node("Add", ["s1", "mask"], ["s2"]),
              node("Softmax", ["s2"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["o0"]),
              node("Transpose", ["o0"], ["o1"], perm=(0, 2, 1, 3)), node("Reshape", ["o1", "merged"], ["o"]),
              node("Add", ["o", "x"], ["r"]), node("LayerNormalization", ["r", "scale", "shift"], ["l"], axis=-1),
              node("MatMul", ["l", "w1"], ["h0"]), node("Relu", ["h0"], ["h"]), node("MatMul", ["h", "w2"], ["h1"]),
              node("Add", ["h1", "l"], ["y"]), node("ReduceSum", ["mask"], ["z"], keepdims=0)]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"]),
              helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["n", 1, 1, "t"])]
    return _model(nodes, held, inputs, "y", "z")


def _model(nodes: list[onnx.NodeProto], held: Feeds, inputs: list[onnx.ValueInfoProto], *outputs: str) -> onnx.ModelProto:
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "model", inputs, made, [numpy_helper.from_array(a, n) for n, a in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron_feeds(n: int) -> Feeds:
    """Random ones."""
    return {"x": np.random.default_rng(n).standard_normal((n, 40), np.float32)}


def block_feeds(n: int, t: int) -> Feeds:
    """Random ones, a fifth of them masked."""
    rng = np.random.default_rng(n * 100 + t)
    return {"ids": rng.integers(0, 11, (n, t)), "mask": np.where(rng.random((n, 1, 1, t)) < 0.2, -1e4, 0).astype(np.float32)}


#: Models by name: how they are made, and the shapes at which they run.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[..., Feeds], tuple[tuple[int, ...], ...]]] = {
    "perceptron": (perceptron, perceptron_feeds, ((1,), (7,), (65,), (1000,))),
    "block": (block, block_feeds, ((1, 1), (2, 7), (3, 17), (8, 77)))}


@dataclass(frozen=True, slots=True)
class Whole:
    """A model with its fixed sizes, feeds by shape, in words, and how far outputs may be off."""

    model: onnx.ModelProto | Path
    feeds: dict[str, Feeds]
    dims: dict[str, Any] | None = None
    relative: float = 2e-4
    absolute: float = 2e-5


def own(name: str) -> Whole:
    """One of MODELS."""
    make, feeds, shapes = MODELS[name]
    return Whole(make(), {"x".join(map(str, shape)): feeds(*shape) for shape in shapes})


def shared(name: str, count: int) -> Whole:
    """One of the shared model files, at its listed shapes and at random ones."""
    entry = shared_models.ENTRIES[name]
    shapes = entry["shapes"] + shared_models.RECIPES.random_shapes(entry, count, seed=25)
    feeds = {f"{k}: {shape}".replace("/", "|"): shared_models.RECIPES.feeds(entry, shape, k) for k, shape in enumerate(shapes)}
    return Whole(shared_models.FOLDER / entry["file"], feeds, shared_models.DIMS.get(name), entry["rtol"], entry["atol"])


def write_cases(path: Path, wholes: dict[str, Whole]) -> None:
    """Feeds, and what ONNX Runtime makes of them, of models as one .npz."""
    arrays: Feeds = {}
    for name, whole in wholes.items():
        content = whole.model if isinstance(whole.model, Path) else whole.model.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        for shape, fed in whole.feeds.items():
            arrays |= {f"{name}/{shape}/in/{key}": array for key, array in fed.items()}
            arrays |= {f"{name}/{shape}/out/{k}": array for k, array in enumerate(session.run(None, fed))}
    np.savez_compressed(path, **arrays)
