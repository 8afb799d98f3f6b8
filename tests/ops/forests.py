"""Random forests as the attributes of nodes, and models of one node of the domain ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Attrs = dict[str, Any]


def grown(rng: np.random.Generator, modes: Sequence[str], depth: int, features: int) -> list[tuple[str, int, float, int, int]]:
    """The nodes of a tree: mode, feature, threshold and children."""
    nodes: list[tuple[str, int, float, int, int]] = []

    def grow(left: int) -> int:
        number = len(nodes)
        nodes.append(("LEAF", 0, 0.0, 0, 0))
        if left and rng.random() < 0.75:
            yes, no = grow(left - 1), grow(left - 1)
            threshold = float(np.round(rng.normal(), 1))
            nodes[number] = (str(rng.choice(modes)), int(rng.integers(features)), threshold, yes, no)
        return number

    grow(depth)
    return nodes


def forest(rng: np.random.Generator, word: str, trees: int, depth: int, features: int, targets: int, votes: str,
           modes: Sequence[str] = MODES, low: float = -1.0) -> Attrs:
    """The attributes of a forest whose leaves vote, from `low` to 1, for "all" targets, for that of their "own" tree, or for
    "some"."""
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    found: Attrs = {f"nodes_{name}": [] for name in names}
    found |= {f"{word}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for t in range(trees):
        for k, node in enumerate(grown(rng, modes, depth, features)):
            for name, value in zip(names, (t, k, *node)):
                found[f"nodes_{name}"].append(value)
            some = [c for c in range(targets) if rng.random() < 0.6]
            voted = {"all": range(targets), "own": [t % targets], "some": some}[votes]
            for c in voted if node[0] == "LEAF" else ():
                for name, value in (("treeids", t), ("nodeids", k), ("ids", c), ("weights", float(rng.uniform(low, 1)))):
                    found[f"{word}_{name}"].append(value)
    return found


def rows(rng: np.random.Generator, count: int, features: int, dtype: str = "float32") -> NDArray[Any]:
    """Rows that often hold just what thresholds are, and sometimes no number."""
    x = np.round(rng.normal(size=(count, features)), 1).astype(dtype)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def model(op: str, attrs: Mapping[str, Any], inputs: Mapping[str, tuple[str, Sequence[int | str]]], outputs: int, own: int = 3,
          opset: int = 17) -> onnx.ModelProto:
    """A model of one node, with inputs of types and shapes; `own` is the opset of the node's domain."""
    given = {name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value for name, value in attrs.items()}
    names = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, list(inputs), names, "node", domain="ai.onnx.ml", **given)
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
             for name, (dtype, shape) in inputs.items()]
    graph = helper.make_graph([node], "forest", infos, [helper.make_value_info(name, onnx.TypeProto()) for name in names])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", own)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))
