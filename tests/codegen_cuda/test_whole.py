"""Whole models compiled for a GPU and run in the emulator, beside ONNX Runtime: nothing runs on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.models.test_shared_models import DIMS, ENTRIES, FOLDER, RECIPES
from tests.test_tiny import tiny_model
from tsc.config import Options
from tsc.explain import explain_node
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.drivers.emu import EmuOptions, EmuPlatform
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

MODES = ("fast", "lazy", "race")


def block() -> onnx.ModelProto:
    """A transformer's block over [n, t, 16]: two heads, a mask, a residual, a norm, an MLP; a table looked up; a sum of all."""
    rng = np.random.default_rng(0)
    held = {"table": (11, 16), "wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "w1": (16, 24), "w2": (24, 16), "scale": (16,),
            "shift": (16,)}
    weights = {name: rng.standard_normal(shape, np.float32) / 4 for name, shape in held.items()}
    weights |= {"heads": np.array([0, 0, 2, 8]), "merged": np.array([0, 0, 16]), "half": np.array(0.35, np.float32)}
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
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"]
    graph = helper.make_graph(nodes, "block", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(n: int, t: int) -> dict[str, Any]:
    rng = np.random.default_rng(n * 100 + t)
    return {"ids": rng.integers(0, 11, (n, t)), "mask": np.where(rng.random((n, 1, 1, t)) < 0.2, -1e4, 0).astype(np.float32)}


@pytest.fixture(scope="module")
def package() -> Package:
    return build_package(block(), None, workshop("emu:sm_80", Options()))


def emulated(package: Package, mode: str) -> Executable:
    arch = next(iter(package.plans)).removeprefix("emu:")
    return Executable(package, driver=EmuPlatform(arch, EmuOptions(mode=mode)).open())


@pytest.mark.parametrize("mode", MODES)
def test_a_block_at_odd_shapes(package: Package, mode: str) -> None:
    executable = emulated(package, mode)
    session = onnxruntime.InferenceSession(block().SerializeToString(), providers=["CPUExecutionProvider"])
    for n, t in ((1, 1), (2, 7), (3, 17)):
        for got, want in zip(executable.run(None, feeds(n, t)), session.run(None, feeds(n, t)), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{mode} at {n}, {t}")


def test_data_errors_are_named(package: Package) -> None:
    wrong = feeds(2, 3)
    wrong["ids"][1, 2] = 11
    with pytest.raises(tsc.InputError, match=r"'ids' holds an index that is out of bounds.*Gather"):
        emulated(package, "fast").run(None, wrong)


def test_a_package_is_saved_and_loaded(tmp_path: Path) -> None:
    made = tsc.compile(tiny_model(), target="emu:sm_90a")
    made.save(tmp_path / "m.tscpack")
    loaded = tsc.load(tmp_path / "m.tscpack")
    x = np.random.default_rng(0).standard_normal((5, 13), np.float32)
    np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], made.run(None, {"x": x})[0])
    assert "emu:sm_90a" in loaded.explain()


def test_the_same_dependences_as_on_a_cpu() -> None:
    """Of a group that both keep whole, as both dump it."""
    texts = {target: explain_node(tiny_model(), "dense", target=target) for target in ("cpu-avx2", "emu:sm_80")}
    parts = {target: text[text.index("--- dependences"):text.index("--- pattern and matrix")].splitlines()[1:]
             for target, text in texts.items()}
    assert set(parts["cpu-avx2"]) <= set(parts["emu:sm_80"])


@pytest.mark.slow
@pytest.mark.skipif(RECIPES is None, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize("name", ["bert.ts", "albert.ts", "gpt2.ts", "gpt2_kv.ts", "vit.ts", "t5.ts", "llama_kv.ts", "nerf.ts"])
def test_shared_models(name: str) -> None:
    entry = ENTRIES[name]
    package = build_package(FOLDER / entry["file"], DIMS.get(name), workshop("emu:sm_80", Options()))
    session = onnxruntime.InferenceSession(str(FOLDER / entry["file"]), providers=["CPUExecutionProvider"])
    names = [output["name"] for output in entry["outputs"]]
    for mode in MODES:
        executable = emulated(package, mode)
        for seed, shape in enumerate(entry["shapes"][:2] + RECIPES.random_shapes(entry, 2, seed=1)):
            fed = RECIPES.feeds(entry, shape, seed)
            for got, want in zip(executable.run(None, fed), session.run(names, fed), strict=True):
                np.testing.assert_allclose(got, want, rtol=entry["rtol"], atol=entry["atol"], err_msg=f"{mode} at {shape}")
