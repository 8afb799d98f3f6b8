"""The whole spine on a tiny graph: import, fuse, schedule, C, plan, Package, run. Under 5 s once its kernels are built."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc

K, N = 13, 21


def tiny_model() -> onnx.ModelProto:
    """softmax(relu(x @ w + b)) over rows, batch free."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((K, N)).astype(np.float32), "b": rng.standard_normal(N).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"], "dense"), helper.make_node("Add", ["xw", "b"], ["z"], "bias"),
        helper.make_node("Relu", ["z"], ["h"], "relu"), helper.make_node("Softmax", ["h"], ["y"], "softmax", axis=-1)]
    graph = helper.make_graph(
        nodes, "tiny", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", N])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The answer in float64."""
    w, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    h = np.maximum(x.astype(np.float64) @ w + b, 0)
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return tiny_model()


def test_spine_end_to_end(model: onnx.ModelProto, tmp_path: Path) -> None:
    tsc.compile(model)  # from here on the kernels are built
    started = time.perf_counter()
    executable = tsc.compile(model)
    package = tmp_path / "tiny.tscpack"
    executable.save(package)
    loaded = tsc.load(package)
    rng = np.random.default_rng(0)
    for batch in (1, 2, 5, 6, 7, 8, 13, 31, 32, 33, 64, 127, 1000):
        x = rng.standard_normal((batch, K)).astype(np.float32)
        for runner in (executable, loaded):
            (y,) = runner.run(None, {"x": x})
            assert y.dtype == np.float32 and y.shape == (batch, N)
            np.testing.assert_allclose(y, expected(model, x), rtol=1e-5, atol=1e-6)
    assert time.perf_counter() - started < 5


def test_declared_ends_of_a_range(model: onnx.ModelProto) -> None:
    executable = tsc.compile(model, dims={"batch": (2, 9)})
    rng = np.random.default_rng(0)
    for batch in (2, 9):
        x = rng.standard_normal((batch, K)).astype(np.float32)
        np.testing.assert_allclose(executable.run(["y"], {"x": x})[0], expected(model, x), rtol=1e-5, atol=1e-6)
    for batch in (1, 10):
        with pytest.raises(tsc.ShapeError, match="batch"):
            executable.run(None, {"x": np.zeros((batch, K), np.float32)})


def test_results_do_not_depend_on_batch_or_threads(model: onnx.ModelProto) -> None:
    x = np.random.default_rng(0).standard_normal((37, K)).astype(np.float32)
    one, two = (tsc.compile(model, threads=threads).run(None, {"x": x})[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    alone = tsc.compile(model, threads=1).run(None, {"x": x[17:18]})[0]
    np.testing.assert_array_equal(one[17:18], alone)


def test_memory_and_explanation(model: onnx.ModelProto) -> None:
    executable = tsc.compile(model)
    assert executable.peak_bytes(batch=64) >= executable.peak_bytes(batch=1) >= 0
    text = str(executable.explain(batch=8))
    assert "dense" in text and "softmax" in text


def test_same_inputs_give_the_same_bytes(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled from nothing, from the cache, and without one; what was decided about a kernel comes with it either way."""
    monkeypatch.setenv("TSC_CACHE", str(tmp_path / "cache"))
    made = []
    for options in (None, None, tsc.Options(use_cache=False)):
        executable = tsc.compile(model, options=options)
        executable.save(tmp_path / "model.tscpack")
        made.append((tmp_path / "model.tscpack").read_bytes())
        assert "declared associative and commutative" in executable.explain()
    assert made[0] == made[1] == made[2]


def test_dump_and_override(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, override = tmp_path / "dump", tmp_path / "override"
    override.mkdir()
    monkeypatch.setenv("TSC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TSC_DUMP", str(dump))
    tsc.compile(model)
    stages = {path.suffix for path in dump.iterdir()}
    assert {".import", ".shapes", ".rewrite", ".te", ".schedule", ".loop_ir", ".c"} <= stages
    monkeypatch.delenv("TSC_DUMP")
    monkeypatch.setenv("TSC_OVERRIDE", str(override))
    source = next(path for path in dump.glob("contraction_*.c"))
    doubled = source.read_text().replace("1.0f / ", "2.0f / ")  # the softmax's last division
    assert doubled != source.read_text()
    (override / source.name).write_text(doubled)
    x = np.random.default_rng(0).standard_normal((7, K)).astype(np.float32)
    overridden = tsc.compile(model)
    np.testing.assert_allclose(overridden.run(None, {"x": x})[0], 2 * expected(model, x), rtol=1e-5, atol=1e-6)
    assert source.name in overridden.explain()
    monkeypatch.delenv("TSC_OVERRIDE")  # nothing of it stays in the cache
    np.testing.assert_allclose(tsc.compile(model).run(None, {"x": x})[0], expected(model, x), rtol=1e-5, atol=1e-6)


def test_overriding_a_schedule_changes_the_source(
        model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other, override = tmp_path / "plain", tmp_path / "other", tmp_path / "override"
    override.mkdir()
    monkeypatch.setenv("TSC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TSC_DUMP", str(plain))
    tsc.compile(model)
    tree = next(plain.glob("contraction_*.schedule"))
    text = tree.read_text()
    backwards = text.replace("t6_store[i7, i8] -> [(i8)]", f"t6_store[i7, i8] -> [({N - 1} - i8)]")  # the last exp first
    assert backwards != text
    (override / tree.name).write_text(backwards)
    monkeypatch.setenv("TSC_OVERRIDE", str(override))
    monkeypatch.setenv("TSC_DUMP", str(other))
    executable = tsc.compile(model)
    source = tree.with_suffix(".c").name
    assert (other / source).read_text() != (plain / source).read_text()
    x = np.random.default_rng(0).standard_normal((7, K)).astype(np.float32)
    np.testing.assert_allclose(executable.run(None, {"x": x})[0], expected(model, x), rtol=1e-5, atol=1e-6)
    row = r"t7_update\[i9, i10\] -> \[\(i9 - \(i9\) mod (\d+)"
    sums_first = re.sub(row, r"\g<0> - \1", text)  # a row tile before its exps are there
    assert sums_first != text
    (override / tree.name).write_text(sums_first)
    with pytest.raises(tsc.TscError, match="breaks dependences"):
        tsc.compile(model)


@pytest.mark.defect(5)
@pytest.mark.parametrize("mark", ["thread", "vector"])
def test_a_tree_that_no_cpu_can_run_is_the_users_error(
        mark: str, model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, override = tmp_path / "plain", tmp_path / "override"
    override.mkdir()
    monkeypatch.setenv("TSC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TSC_DUMP", str(plain))
    tsc.compile(model)
    tree = next(plain.glob("contraction_*.schedule"))
    text = tree.read_text()
    for old in sorted(set(re.findall(r'mark: "(\w+)"', text)))[:2]:
        (override / tree.name).write_text(text.replace(f'mark: "{old}"', f'mark: "{mark}"', 1))
        monkeypatch.setenv("TSC_OVERRIDE", str(override))
        x = np.random.default_rng(0).standard_normal((7, K)).astype(np.float32)
        try:
            got = tsc.compile(model).run(None, {"x": x})[0]
        except tsc.InputError as error:
            assert tree.stem in str(error)
        else:  # a mark that nothing looks for changes no value
            np.testing.assert_allclose(got, expected(model, x), rtol=1e-5, atol=1e-6)
        monkeypatch.delenv("TSC_OVERRIDE")
