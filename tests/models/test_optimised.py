"""Shared models as ONNX Runtime's optimisers write them, with its fused operators, beside the models as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tsc
from tests.models.test_shared_models import DIMS, ENTRIES, FOLDER, RECIPES, cases

#: Run by default.
CHOSEN = ("bert.ts", "mnist_cntk")
#: How many of the shapes that are listed for a model are run.
SHAPES = 3

pytestmark = pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")


def optimised(source: Path, target: Path) -> onnx.ModelProto:
    """A model with ONNX Runtime's fused operators, for no machine in particular."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(source), options)
    return onnx.load(target)


@pytest.mark.parametrize("name", cases(CHOSEN) or ["none"])
def test_as_onnx_runtime_optimises_it(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    model = optimised(FOLDER / entry["file"], tmp_path / "optimised.onnx")
    if not any(node.domain == "com.microsoft" or node.op_type.startswith("Simplified") for node in model.graph.node):
        pytest.skip("nothing in it is fused")
    executable = tsc.compile(tmp_path / "optimised.onnx", dims=DIMS.get(name))
    reference = onnxruntime.InferenceSession(str(FOLDER / entry["file"]), providers=["CPUExecutionProvider"])
    names = [output["name"] for output in entry["outputs"]]
    for seed, shape in enumerate(entry["shapes"][:SHAPES]):
        feeds = RECIPES.feeds(entry, shape, seed)
        for output, got, want in zip(names, executable.run(None, feeds), reference.run(names, feeds)):
            assert got.dtype == want.dtype and got.shape == want.shape, f"{output} at {shape}"
            np.testing.assert_allclose(got, want, rtol=entry["rtol"], atol=entry["atol"], err_msg=f"{output} at {shape}")
