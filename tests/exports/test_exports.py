"""Fresh exports at four shapes beside ONNX Runtime, most of them on an emulated GPU too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tsc
from tests.exports.cases import CASES

#: Those that take neither PyTorch nor long.
_QUICK = ("line",)
#: Those of convolutional nets from the onnx package take long there.
_ON_GPU = [name for name in CASES if not name.startswith("light")]
_RUNS = [*((name, "cpu") for name in CASES), *((name, "emu:sm_80") for name in _ON_GPU)]


@pytest.mark.parametrize(("name", "target"), [
    pytest.param(*run, marks=() if run[0] in _QUICK else pytest.mark.slow) for run in _RUNS])
def test_export(name: str, target: str, tmp_path: Path) -> None:
    for module in CASES[name].needs:
        pytest.importorskip(module)
    export = CASES[name].make(tmp_path)
    options = onnxruntime.SessionOptions()  # optimisations leave out roundings
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    reference = onnxruntime.InferenceSession(str(export.path), options, ["CPUExecutionProvider"])
    executable = tsc.compile(export.path, dims=export.dims, target=target)
    for feeds in export.feeds:
        shapes = {name: x.shape for name, x in feeds.items()}
        for got, want in zip(executable.run(None, feeds), reference.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), shapes
            if want.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want, err_msg=str(shapes))
            else:
                allowed = export.tolerance * float(np.abs(want).max(initial=0))
                np.testing.assert_allclose(got, want, rtol=export.tolerance, atol=allowed, err_msg=str(shapes))
