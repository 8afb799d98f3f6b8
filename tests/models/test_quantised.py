"""Shared models as ONNX Runtime's tools quantise them: by scales that a run finds, in pairs of nodes, in operators on bytes.

Weights have seven bits: where there is only AVX2 ONNX Runtime's products of bytes saturate with eight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime import quantization

import tsc
from tests.models.test_shared_models import ENTRIES, FOLDER, RECIPES

#: The first is run by default. Where sums of floats are rounded to few bits, one that falls the other way is a whole step: at
#: one of a model's shapes that may be, if it is shown to be what differs first.
CASES = [pytest.param("mnist_cntk", "dynamic"),
         *(pytest.param(name, kind, marks=pytest.mark.slow) for name, kind in (
             ("bert.ts", "dynamic"), ("mobilenet_v2.ts", "operators"), ("bert.ts", "pairs"), ("bert.ts", "operators"),
             ("gpt2.ts", "dynamic"), ("gpt2.ts", "pairs"), ("vit.ts", "pairs"), ("vit.ts", "operators"),
             ("bert.ts", "four bits")))]

pytestmark = pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Feeds of the first shapes that are listed for a model."""

    def __init__(self, entry: Any) -> None:
        self.feeds = iter([RECIPES.feeds(entry, shape, seed) for seed, shape in enumerate(entry["shapes"][:2])])

    def get_next(self) -> Any:
        return next(self.feeds, None)


def quantised(entry: Any, kind: str, target: Path) -> None:
    source = str(FOLDER / entry["file"])
    if kind == "dynamic":
        quantization.quantize_dynamic(source, str(target), reduce_range=True)
        return
    if kind == "four bits":
        tool = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer", reason="what it requires is absent")
        made = tool.MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False)
        made.process()
        made.model.save_model_to_file(str(target))
        return
    form = quantization.QuantFormat.QDQ if kind == "pairs" else quantization.QuantFormat.QOperator
    quantization.quantize_static(
        source, str(target), Calibration(entry), quant_format=form, activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8, per_channel=kind == "pairs", reduce_range=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the tool's, of channels that are zero
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_as_onnx_runtime_quantises_it(name: str, kind: str, tmp_path: Path) -> None:
    entry, path = ENTRIES[name], tmp_path / "quantised.onnx"
    quantised(entry, kind, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # else it leaves out roundings
    reference, executable, ties = onnxruntime.InferenceSession(str(path), options), tsc.compile(path), 0
    for seed, shape in enumerate(entry["shapes"][:3]):
        feeds = RECIPES.feeds(entry, shape, seed)
        outputs = list(zip(executable.run(None, feeds), reference.run(None, feeds), strict=True))
        assert all(got.dtype == want.dtype and got.shape == want.shape for got, want in outputs)
        same = [np.allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max())) for got, want in outputs]
        if not all(same):
            assert differs_first_at_a_tie(path, feeds, options), shape
            ties += 1
    assert ties <= 1


def differs_first_at_a_tie(path: Path, feeds: Any, options: Any) -> bool:
    """Whether of all that is quantised the first that differs from ONNX Runtime's does so by a step, and only where both have
    quotients at the middle between two, but for what sums of floats are rounded by."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    known, scales = {v.name: v for v in model.graph.value_info}, {t.name: t for t in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear" and {n.input[0], n.output[0]} <= known.keys()]
    del model.graph.output[:]
    model.graph.output.extend(known[name] for name in dict.fromkeys(v for n in nodes for v in (n.input[0], n.output[0])))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    ours, theirs = (dict(zip(names, run(None, feeds))) for run in (tsc.compile(model).run, session.run))
    for node in nodes:
        (x, scale, *_), y = node.input, node.output[0]
        apart = ours[y] != theirs[y]
        if apart.any():
            step = numpy_helper.to_array(scales[scale])
            quotients = [(given[x][apart] / step) for given in (ours, theirs)]
            steps = np.abs(ours[y].astype(int) - theirs[y].astype(int)).max()
            return bool(steps == 1 and all((np.abs(q - np.floor(q) - 0.5) < 1e-4).all() for q in quotients))
    return False
