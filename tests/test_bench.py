"""`tsc bench`: a model beside ONNX Runtime, in processes of their own; what differs, fails or is not there is said."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc.bench import Benched, Point, _apart
from tsc.cli import cli
from tsc.errors import InputError, LaunchError, PackageError
from tsc.runtime.signing import generate

DIMS = ("--dim", "n=1:40")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsc.bench.ROUNDS", 2)
    monkeypatch.setattr("tsc.bench.TURN", 0.01)


def product(folder: Path, scale: float = 1.0) -> Path:
    w = np.random.default_rng(0).standard_normal((8, 5), np.float32) * np.float32(scale)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 8), ("y", 5))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "m", ends[:1], ends[1:],
                              [numpy_helper.from_array(w, "w")])
    path = folder / f"m{scale}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def package_of(model: Path) -> Path:
    path = model.with_suffix(".tscpack")
    tsc.compile(model, dims={"n": (1, 40)}).save(path)
    return path


def test_a_model_beside_another_runtime(tmp_path: Path) -> None:
    model = product(tmp_path)
    asked = ["bench", str(model), *DIMS, "--against", "onnxruntime", "--at", "n=3", "--at", "n=40", "--json"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [point["sizes"] for point in found["points"]] == [{"n": 3}, {"n": 40}] and found["threads"] == 1
    assert set(found["versions"]) == {"tsc", "onnxruntime"} and found["versions"]["tsc"] == tsc.__version__
    for point in found["points"]:
        assert point["apart"] < 1e-5 and all(time > 0 for key in ("milliseconds", "first_run") for time in point[key].values())
    ratios = [point["milliseconds"]["onnxruntime"] / point["milliseconds"]["tsc"] for point in found["points"]]
    assert found["ratios"]["onnxruntime"] == pytest.approx(np.sqrt(ratios[0] * ratios[1]))
    assert all(size > 1 << 20 for size in found["memory"].values())


def test_a_package_alone_and_at_points_of_its_own(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", str(package_of(product(tmp_path)))])
    assert result.exit_code == 0, result.output
    first, head, *rest = result.output.splitlines()
    assert "1 thread;" in first and "onnxruntime" not in result.output and "ratio" not in head
    assert [line.split()[0] for line in rest[:3]] == ["n=1", "n=6", "n=40"] and rest[3].startswith("tsc loads in")


def test_a_model_that_is_compiled_here_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Package is held to what the environment says where it is read, not once more where it is timed."""
    model = product(tmp_path)
    package = package_of(model)
    monkeypatch.setenv("TSC_TRUST", str(public := tmp_path / "key.pub"))
    generate(tmp_path / "key")
    assert public.exists() and CliRunner().invoke(cli, ["bench", str(model), *DIMS, "--at", "n=3"]).exit_code == 0
    assert isinstance(CliRunner().invoke(cli, ["bench", str(package)]).exception, PackageError)


def test_what_differs_is_said(tmp_path: Path) -> None:
    other = product(tmp_path, 2.0)
    result = CliRunner().invoke(cli, ["bench", str(package_of(product(tmp_path))), "--model", str(other), "--against",
                                      "onnxruntime", "--at", "n=3"])
    assert result.exit_code == 0 and "outputs differ by 0.5" in result.output, result.output


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    model = product(tmp_path)
    package, runner = package_of(model), CliRunner()

    def error(*arguments: str) -> BaseException | None:
        return runner.invoke(cli, ["bench", str(package), *arguments]).exception

    found = error("--against", "onnxruntime")
    assert isinstance(found, InputError) and "give it as --model" in str(found)
    found = error("--against", "tvm", "--model", str(model))
    assert isinstance(found, InputError) and "there are onnxruntime, openvino" in str(found)
    found = error("--at", "m=3")
    assert isinstance(found, InputError) and "a size for n" in str(found)
    (bad := tmp_path / "bad.onnx").write_bytes(b"no model")
    found = error("--against", "onnxruntime", "--model", str(bad))
    assert isinstance(found, LaunchError) and "'onnxruntime' failed to load" in str(found)
    found = error("--at", "n=41")
    assert isinstance(found, LaunchError) and "'tsc' failed to run: ShapeError" in str(found)
    if importlib.util.find_spec("openvino") is None:
        found = error("--against", "openvino", "--model", str(model))
        assert isinstance(found, LaunchError) and "pip install openvino" in str(found)
    assert runner.invoke(cli, ["bench", str(package), "--at", "n"]).exit_code == 2


def test_distances() -> None:
    a = np.array([1.0, 4.0], np.float32)
    assert _apart([a], [a]) == 0 and _apart([a], [a * 1.5]) == pytest.approx(1 / 3)
    assert _apart([a], [a[:1]]) == _apart([a], []) == _apart([a], [np.array([np.nan, 4.0])]) == np.inf
    assert _apart([np.array([np.inf, np.nan])], [np.array([np.inf, np.nan])]) == 0


def test_the_table() -> None:
    point = Point({"n": 1}, {"tsc": 2.0, "openvino": 3.0}, {"tsc": 2.5, "openvino": 90.0}, 1e-6)
    versions, loaded, memory = {"tsc": "1", "openvino": "2"}, {"tsc": 0.1, "openvino": 1.0}, {"tsc": 10**7, "openvino": 10**8}
    found = Benched("a machine", 2, versions, loaded, memory, (point, Point({}, point.milliseconds, point.first, 0.25)))
    first, head, one, two, mean, last = found.lines()
    assert first == "a machine; 2 threads; tsc 1, openvino 2" and "ratio" in head and mean.startswith("openvino takes 1.50")
    assert one.split() == ["n=1", "2.000", "2.500", "3.000", "90.000", "1.50"] and two.endswith("outputs differ by 0.2")
    assert last == "tsc loads in 0.10 s and holds 10 MB; openvino loads in 1.00 s and holds 100 MB"
