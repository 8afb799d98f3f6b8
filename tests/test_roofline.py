"""The least work of models, by hand, and that this machine's peaks are what other code of it reaches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from tsc.cli import cli
from tsc.kernels import workshop
from tsc.roofline import Peaks, Work, peaks, work_of
from tsc.sym import SymExpr


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    found = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> m {text}')
    for name, shape in weights.items():
        found.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return found


@pytest.mark.parametrize("found, flops, size", [
    (model("(float[n, 8] x) => (float[n, 5] y) { y = MatMul (x, w) }", w=(8, 5)), 2 * 7 * 8 * 5, 4 * (40 + 7 * 8 + 7 * 5)),
    (model("(float[n, 8] x) => (float[n, 1] y) { a = Relu (x) y = ReduceMax <axes = [1]> (a) }"), 7 * 8, 4 * (7 * 8 + 7)),
    (model("(float[n, 8] x) => (float[n, 8] y) { y = Exp (x) }"), 0, 4 * 2 * 7 * 8),
    (model("(float[1, 3, n, n] x) => (float[1, 4, n, n] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }", w=(4, 3, 3, 3)),
     2 * 4 * 49 * 27, 4 * (108 + 3 * 49 + 4 * 49)),
    (model("(int64[n] x) => (float[n, 4] y) { a = Gather (t, x) y = MatMul (a, w) }", t=(900, 8), w=(8, 4)),
     2 * 7 * 8 * 4, 4 * 32 + 8 * 7 + 4 * 28)])  # of the table what is looked up is not known
def test_work(found: onnx.ModelProto, flops: int, size: int) -> None:
    work = work_of(found, None, workshop("cpu", None))
    assert work.flops.evaluate({"n": 7}) == flops and work.bytes.evaluate({"n": 7}) == size


def test_what_is_least() -> None:
    machine = Peaks(100.0, 10.0)
    assert machine.milliseconds(1e9, 1e6) == pytest.approx(10.0) and machine.milliseconds(1e6, 1e9) == pytest.approx(100.0)
    assert Work(SymExpr.of(10**9), SymExpr.of(1)).least({}, machine) == pytest.approx(10.0)


def test_the_share_is_told(tmp_path: Path) -> None:
    """A large product reaches a good part of what was measured, and none can reach more."""
    onnx.save(model("(float[n, 512] x) => (float[n, 512] y) { y = MatMul (x, w) }", w=(512, 512)), path := tmp_path / "m.onnx")
    result = CliRunner().invoke(cli, ["bench", str(path), "--at", "n=512", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    share = found["points"][0]["least"] / found["points"][0]["milliseconds"]["tsc"]
    assert 0.1 < share < 1.2 and found["roofline"]["gflops"] > 1
    text = CliRunner().invoke(cli, ["bench", str(path), "--at", "n=512"]).output
    assert "% of the roofline" in text and "GFLOP/s" in text
    assert "roofline" not in CliRunner().invoke(cli, ["bench", str(path), "--at", "n=512", "--threads", "2"]).output


def test_the_peaks_are_plausible() -> None:
    found = peaks()
    assert 1 < found.gflops < 1000 and 0.5 < found.gbytes < 1000
