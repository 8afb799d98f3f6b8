"""`python -m tsc`: answers, JSON and exit codes."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc.cli import main


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"], "dense"), helper.make_node("Sigmoid", ["a"], ["y"], "squash")], "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])], [numpy_helper.from_array(weight, "w")])
    path = tmp_path_factory.mktemp("cli") / "small.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture(scope="module")
def package_path(model_path: Path) -> Path:
    path = model_path.with_suffix(".tscpack")
    tsc.compile(model_path).save(path)
    return path


class Shell:
    """Runs one command line in this process: exit code, stdout, stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(arg) for arg in args])
        out, err = self.capsys.readouterr()
        assert isinstance(done.value.code, int)
        return done.value.code, out, err

    def json(self, *args: object, code: int = 0) -> Any:
        got, out, err = self(*args, "--json")
        assert got == code, out + err
        return json.loads(out)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_compile_then_run(shell: Shell, model_path: Path, tmp_path: Path) -> None:
    package, results = tmp_path / "small.tscpack", tmp_path / "results"
    answer = shell.json("compile", model_path, "-o", package, "--dim", "batch=1:64")
    assert answer["bytes"] == package.stat().st_size and answer["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["batch", "5"]}]
    x = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    answer = shell.json("run", package, "--input", f"x={tmp_path / 'x.npy'}", "-o", results)
    assert answer["outputs"][0]["shape"] == [7, 4]
    np.testing.assert_array_equal(np.load(results / "y.npy"), tsc.load(package).run(None, {"x": x})[0])
    np.save(tmp_path / "x.npy", np.zeros((65, 5), np.float32))
    answer = shell.json("run", package, "--input", f"x={tmp_path / 'x.npy'}", code=3)
    assert answer["error"] == "ShapeError" and "batch" in answer["message"]


def test_run_with_random_data(shell: Shell, package_path: Path, model_path: Path) -> None:
    for file in (package_path, model_path):
        answer = shell.json("run", file, "--random", "--size", "batch=3")
        assert answer["outputs"][0]["shape"] == [3, 4] and answer["milliseconds"] > 0
    code, out, _ = shell("run", package_path, "--random", "--size", "batch=3")
    assert code == 0 and "y: float32[3, 4]" in out


@pytest.mark.defect(6)
def test_shapes_of_inputs(shell: Shell, tmp_path: Path, package_path: Path) -> None:
    """A dim that the file names once but that stands for two sizes, one that the model fixes, and one that stays."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "S", "S", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "square", [x], [y])
    path, package = tmp_path / "square.onnx", tmp_path / "square.tscpack"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    shape = ("--shape", "x=*, H,7,*", "--dim", "H=1:9")
    assert shell.json("compile", path, "-o", package, *shape)["inputs"][0]["shape"] == ["N", "H", "7", "2"]
    answer = shell.json("run", path, "--random", "--size", "N=1", "--size", "H=3", *shape)
    assert answer["outputs"][0]["shape"] == [1, 3, 7, 2]
    assert "H" in shell("explain", path, *shape)[1]
    assert shell("run", package_path, *shape)[0] == 2
    both = ("--shape", "x=*,H1,7,*", "--dims", "N=2:,H1=1:9")  # several ranges in one option
    assert {"  dim     N in 2..", "  dim     H1 in 1..9"} <= set(shell("explain", path, *both)[1].splitlines())
    for wrong in ("x=N,H", "z=N", "x=N,H,W,1.5"):
        assert shell("compile", path, "-o", package, "--shape", wrong)[0] == 3


@pytest.mark.defect(18)
def test_sizes_beyond_all_memory(shell: Shell, package_path: Path) -> None:
    for size in ("99999999999", "9" * 30):
        answer = shell.json("run", package_path, "--random", "--size", f"batch={size}", code=4)
        assert answer["error"] == "LaunchError" and "'x'" in answer["message"]


@pytest.mark.defect(40)
def test_run_with_a_profile(shell: Shell, package_path: Path, tmp_path: Path) -> None:
    args = ("run", package_path, "--random", "--size", "batch=3")
    answer = shell.json(*args, "--profile")
    assert "kernels" not in shell.json(*args) and abs(sum(row["share"] for row in answer["kernels"]) - 1) < 1e-9
    assert all(row["milliseconds"] > 0 and row["calls"] == 1 and row["nodes"] for row in answer["kernels"])
    code, out, _ = shell(*args, "--profile")
    assert code == 0 and "share" in out and "dense" in out
    assert shell(*args, "--trace", tmp_path / "t.json")[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [e["name"] for e in events] == [launch.kernel for launch in tsc.load(package_path)._plan.launches]
    assert events[0]["ts"] == 0 and all(a["ts"] + a["dur"] == b["ts"] and a["ph"] == "X" for a, b in pairwise(events))


HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,)}"


@pytest.mark.defect(18)
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\3\4" * 9, b"\x80\4.", b"\x93NUMPY\1\0\x76\0" + b"{" * 118,
                                     b"\x93NUMPY\1\0\x76\0" + HUGE.ljust(118)])
def test_inputs_that_are_no_arrays(shell: Shell, package_path: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    code, out, err = shell("run", package_path, "--input", f"x={tmp_path / 'x.npy'}")
    assert code == 2 and not out and "x.npy" in err


@pytest.mark.defect(18)
def test_odd_files_and_numbers(shell: Shell, package_path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    random = ("run", package_path, "--random", "--size", "batch=2")
    assert shell("run", package_path, "--input", f"x={tmp_path / 'fifo'}")[0] == 2
    assert shell(*random, "--size", "unknown=3")[0] == 2
    assert shell(*random, "--seed", "-1")[0] == 2
    assert shell("run", package_path, "--random", "--size", "batch=" + "9" * 5000)[0] == 2
    (tmp_path / "file").write_text("in the way")
    assert shell(*random, "-o", tmp_path / "file" / "out")[0] == 4


def test_explain(shell: Shell, package_path: Path) -> None:
    code, out, _ = shell("explain", package_path, "--size", "batch=3")
    assert code == 0 and "dense" in out
    assert "\n".join(shell.json("explain", package_path, "--size", "batch=3")["explain"]) == out.rstrip("\n")


SECTIONS = ["why it was fused", "refused alternatives", "names", "program", "statements", "accesses", "dependences",
            "pattern and matrix", "tile sizes", "sizes to choose from", "tree: initial contraction", "tree: tile contraction",
            "tree: separate contraction", "tree: final", "locals", "loops", "memory of locals", "memory traffic"]


def test_explain_one_node(shell: Shell, model_path: Path, package_path: Path) -> None:
    """The whole story of one kernel, in order; the traffic is that of 126 x 16 tiles over 1000 x 4 results."""
    args = ("explain", model_path, "--node", "squash", "--target", "cpu-avx512")
    code, out, _ = shell(*args, "--size", "batch=1000")
    assert code == 0 and [line.removeprefix("--- ") for line in out.splitlines() if line.startswith("--- ")] == SECTIONS
    for line in ("squash: epilogue: element by element over the contraction's result",
                 "acc_init    i1  i0  ?", "acc_init    i1  i0  0",
                 "dropped acc_update -> acc_update: 'add' is declared associative and commutative",
                 "block_tile[0]: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512", "raster: 0, 1", "registers: 15 of 32",
                 "acc: register, 14 x 16 of float32", "8 blocks", "reads x: at most 126 x 5 a block, 2520 bytes; 20160 in all",
                 "writes y: at most 126 x 4 a block, 2016 bytes; 16128 in all", "reads at most 20800 bytes in all"):
        assert line in out, line
    code, symbolic, _ = shell(*args)
    assert code == 0 and "((batch + 125) // 126) blocks" in symbolic
    assert shell.json(*args)["explain"] == symbolic.rstrip("\n").splitlines()
    answer = shell.json("explain", model_path, "--node", "squish", code=3)
    assert answer["error"] == "InputError" and "'squash'" in answer["message"]
    assert shell("explain", package_path, "--node", "squash")[0] == 2


def test_doctor(shell: Shell) -> None:
    facts = shell.json("doctor")
    assert facts["tsc"] == tsc.__version__ and facts["target"].startswith("cpu-")
    assert facts["compiler"] and facts["problem"] == ""
    for what in ("cuda_compiler", "gpus"):  # there, or said why not
        assert bool(facts[what]) != bool(facts[f"{what}_problem"]), facts
    code, out, _ = shell("doctor")
    assert code == 0 and facts["target"] in out


def test_doctor_of_a_model(shell: Shell, tmp_path: Path) -> None:
    """Dims that must be equal are, and why; what a Reshape needs; and all that is unsupported."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", ["a", 6]), ("y", ["b", 6]), ("z", [None, 4]))]
    nodes = [helper.make_node("Add", ["x", "y"], ["s"], name="sum"),
             helper.make_node("Reshape", ["s", "shape"], ["z"], name="cut")]
    graph = helper.make_graph(nodes, "m", ends[:2], ends[2:], [numpy_helper.from_array(np.array([-1, 4]), "shape")])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    found = shell.json("doctor", path, "--dim", "a=2:8")
    assert found["operators"] == {"Add": 1, "Reshape": 1} and found["opset"] == 17
    assert found["inputs"] == ["x: float32[a, 6]", "y: float32[a, 6]"] and len(found["outputs"]) == 1
    assert found["same"] == ["b is a (node 'sum' (Add): broadcast dims must be equal)"] and list(found["dims"]) == ["a"]
    assert len(found["needs"]) == 1 and "node 'cut' (Reshape)" in found["needs"][0]
    code, out, _ = shell("doctor", path)
    assert code == 0 and "same       b is a" in out and "it compiles" in out
    for node, kind in zip(graph.node, ("Banana", "Pear")):
        node.op_type = kind
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    answer = shell.json("doctor", path, code=3)
    assert "Banana" in answer["message"] and "Pear" in answer["message"]


@pytest.mark.parametrize("args, word", [
    ((), ""), (("fly",), "fly"), (("run", "MODEL"), ""), (("compile", "MODEL"), "--output"),
    (("run", "MODEL", "--random"), "batch"), (("run", "MODEL", "--random", "--size", "batch"), "--size"),
    (("run", "MODEL", "--random", "--size", "batch=two"), "two"),
    (("compile", "MODEL", "-o", "OUT", "--dim", "batch=1-3"), "1-3"),
    (("compile", "absent.onnx", "-o", "OUT"), "absent.onnx"), (("run", "MODEL", "--input", "x=absent.npy"), "absent.npy")])
def test_wrong_usage(shell: Shell, model_path: Path, tmp_path: Path, args: tuple[str, ...], word: str) -> None:
    names = {"MODEL": str(model_path), "OUT": str(tmp_path / "out.tscpack")}
    code, out, err = shell(*(names.get(arg, arg) for arg in args))
    assert word in out + err
    assert code == (3 if args == ("run", "MODEL") else 2)  # without inputs the request is wrong, not the command
    assert not list(tmp_path.iterdir())


def test_user_errors(shell: Shell, tmp_path: Path, package_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    code, out, err = shell("compile", tmp_path / "broken.onnx", "-o", tmp_path / "out.tscpack")
    assert code == 3 and not out and err.startswith("ModelError: ") and "broken.onnx" in err and err.count("\n") == 1
    cut = tmp_path / "cut.tscpack"
    cut.write_bytes(package_path.read_bytes()[:-1])
    code, _, err = shell("run", cut, "--random", "--size", "batch=1")
    assert code == 3 and err.startswith("PackageError: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.onnx", "cut.tscpack"]


def test_machine_errors(shell: Shell, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = shell.json("compile", model_path, "-o", tmp_path / "o.tscpack", "--target", "abacus", code=4)
    assert answer["error"] == "LaunchError"
    monkeypatch.setenv("TSC_CC", "no-such-compiler")
    monkeypatch.setenv("TSC_CACHE", str(tmp_path / "cache"))
    code, _, err = shell("compile", model_path, "-o", tmp_path / "o.tscpack")
    assert code == 4 and "no-such-compiler" in err
    assert shell.json("doctor", code=4)["problem"]
    assert not (tmp_path / "o.tscpack").exists()
