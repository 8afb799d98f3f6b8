"""GridSample beside ONNX Runtime where the reference evaluator has another view of it, and what is no grid."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tsc
from tsc.errors import ModelError, ShapeError, UnsupportedError


def model(body: str, x: str = "float[n, c, h, w]", grid: str = "float[n, p, q, 2]", opset: int = 20) -> onnx.ModelProto:
    dtype = x[:x.index("[")]
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g ({x} x, {grid} grid) => ({dtype}[i, j, k, l] y) {{ y = GridSample<{body}>(x, grid) }}""")


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(("opset", "mode"), [(20, "cubic"), (16, "bicubic")])
def test_cubics_beyond_the_borders(opset: int, mode: str, corners: int) -> None:
    """Each element is kept inside, the place is not moved to the edge: nothing jumps there."""
    proto = model(f'mode = "{mode}", padding_mode = "border", align_corners = {corners}', opset=opset)
    executable, rng = tsc.compile(proto), np.random.default_rng(1)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape, places in (((2, 3, 4, 5), (2, 6, 7, 2)), ((1, 1, 3, 1), (1, 8, 1, 2))):
        feeds = {"x": rng.standard_normal(shape).astype(np.float32), "grid": rng.uniform(-2, 2, places).astype(np.float32)}
        np.testing.assert_allclose(executable.run(None, feeds)[0], session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)


def test_what_is_no_number_stays_inside() -> None:
    executable = tsc.compile(model('mode = "nearest", padding_mode = "reflection"'))
    grid = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, 0, -1], np.float32).reshape(1, 2, 2, 2)
    found, = executable.run(None, {"x": np.ones((1, 1, 3, 4), np.float32), "grid": grid})
    np.testing.assert_array_equal(found, np.ones((1, 1, 2, 2), np.float32))


@pytest.mark.parametrize(("body", "x", "grid", "error", "words"), [
    ('mode = "bilinear"', "float[n, c, h, w]", "float[n, p, 2]", ModelError, "a grid of rank 3, expected 4"),
    ('mode = "linear"', "float[n, c, h, w]", "float[n, p, q, 3]", ShapeError, "a number for each of 2 axes"),
    ('mode = "linear"', "float[2, c, h, w]", "float[3, p, q, 2]", ShapeError, "a grid of its own"),
    ('mode = "linear"', "int32[n, c, h, w]", "float[n, p, q, 2]", UnsupportedError, "interpolates int32"),
    ('mode = "spline"', "float[n, c, h, w]", "float[n, p, q, 2]", ModelError, "mode 'spline'"),
    ('padding_mode = "wrap"', "float[n, c, h, w]", "float[n, p, q, 2]", ModelError, "padding_mode 'wrap'")])
def test_what_is_refused(body: str, x: str, grid: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tsc.compile(model(body, x, grid))
