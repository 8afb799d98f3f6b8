"""`explain --sol` from a shell, on a small model; no GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.test_cli import Shell, shell
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.sass import find_disassembler
from tsc.sol import light

__all__ = ("shell",)
needs_tools = pytest.mark.skipif(not nvrtc.available() or find_disassembler() is None,
                                 reason="NVRTC or nvdisasm is not installed: `pip install tsc-compiler[cuda]`")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1024]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "x"], ["a"], "twice"), helper.make_node("Mul", ["a", "w"], ["y"], "scaled")]
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(np.arange(1024, dtype=np.float32), "w")])
    found = tmp_path_factory.mktemp("sol") / "small.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(found))
    return found


@needs_tools
def test_what_memory_bounds(shell: Shell, path: Path) -> None:
    """10000 rows of 4096 bytes come, once, and go, and 4096 of weights: 81.924 MB at 3.35 TB/s are 24.45 us, 48421 cycles of
    1.98 GHz. Of L2 each row asks for three times 4096 bytes."""
    code, out, err = shell("explain", path, "--sol", "--size", "batch=10000", "--target", "sm_90a")
    assert code == 0, err
    assert "H100 SXM: 132 multiprocessors at 1.98 GHz) at batch=10000" in out
    assert "bound by DRAM" in out and "all that runs, one after the other: at least 24.45 us" in out
    found = re.search(r"tensor cores 0, shared memory 0, instructions (\d+), L2 24000, DRAM 48421", out)
    assert found is not None and 0 < int(found[1]) < 48421
    answer = shell.json("explain", path, "--sol", "--size", "batch=10000", "--target", "sm_90a")
    assert answer["explain"] == out.rstrip("\n").splitlines()


def test_wrong_questions(shell: Shell, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sol = ("explain", path, "--sol", "--size", "batch=3")
    code, _, err = shell(*sol)
    assert code == 2 and "'cpu' is none; give --target one of sm_80" in err
    code, _, err = shell(*sol, "--target", "sm_80", "--node", "twice")
    assert code == 2 and "leave --node out" in err
    code, _, err = shell("explain", path, "--precision", "fp16")
    assert code == 2 and "--precision is for --sol" in err
    code, _, err = shell(*sol, "--target", "sm_100a")
    assert code == 4 and "how fast target 'sm_100a' is at most is not documented" in err
    tsc.compile(path).save(tmp_path / "small.tscpack")
    code, _, err = shell("explain", tmp_path / "small.tscpack", "--sol", "--target", "sm_80")
    assert code == 2 and "--sol wants an ONNX model" in err
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    nvrtc.identity.cache_clear()
    code, _, err = shell(*sol, "--target", "sm_80")
    assert code == 4 and "no CUDA compiler was found" in err


@needs_tools
def test_what_is_missing(shell: Shell, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = shell("explain", path, "--sol", "--target", "sm_80")
    assert code == 3 and "a bound wants sizes of the dims batch; give --size batch=" in err
    monkeypatch.setattr(light, "find_disassembler", lambda: None)
    code, _, err = shell("explain", path, "--sol", "--target", "sm_80", "--size", "batch=3")
    assert code == 4 and "no nvdisasm was found" in err
