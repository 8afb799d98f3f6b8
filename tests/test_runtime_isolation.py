"""Deployment: `tsc.load` needs no compiler and none of the compiler's packages, and a run touches nothing but memory."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc

ROOT = Path(__file__).resolve().parent.parent
RUNS = 200

CHILD = textwrap.dedent("""
    import json, os, sys

    class Block:
        names = {"islpy", "onnx", "onnxruntime", "torch", "click", "rich", "filelock", "platformdirs"}
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in self.names:
                raise ImportError(f"{name} is blocked")

    sys.meta_path.insert(0, Block())
    os.environ["PATH"] = ""
    import numpy as np
    import tsc

    model = tsc.load(sys.argv[1], threads=2)
    watched, events = False, []

    def hook(event, args):
        if not watched:
            return
        starts = event in ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn",
                           "_thread.start_new_thread", "socket.connect")
        loads = event in ("ctypes.dlopen", "import", "marshal.loads", "compile", "exec")
        writes = event == "open" and (args[1] is None or set(str(args[1])) & set("wax+") or (args[2] or 0) & 3) or event in (
            "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink", "shutil.copyfile")
        if starts or loads or writes:
            events.append([event, repr(args)[:200]])

    sys.addaudithook(hook)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((400, 24)).astype(np.float32)
    mappings = lambda: {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
    model.run(None, {"x": data[:3]})
    before, seen, total = mappings(), set(), 0.0
    watched = True
    for index in range(int(sys.argv[2])):
        rows = index + 4
        (y,) = model.run(None, {"x": data[:rows]})
        seen.add(y.shape)
        total += float(y.sum())
    watched = False
    print(json.dumps({
        "events": events, "shapes": len(seen), "total": total, "libraries": sorted(mappings() - before),
        "modules": sorted(m for m in sys.modules if m.partition(".")[0] in Block.names or m.startswith("tsc"))}))
""")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "dense"), helper.make_node("Softmax", ["a"], ["s"], "softmax", axis=-1),
        helper.make_node("Transpose", ["s"], ["t"], "turn", perm=[1, 0]), helper.make_node("MatMul", ["t", "x"], ["y"], "mix")]
    graph = helper.make_graph(
        nodes, "deployed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [10, 24])],
        [numpy_helper.from_array(rng.standard_normal((24, 10)).astype(np.float32), "w")])
    path = tmp_path_factory.mktemp("deploy") / "model.tscpack"
    tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)).save(path)
    return path


def python(*args: str) -> str:
    done = subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("opened", ["tsc.load(sys.argv[1], threads=2)", "tsc.InferenceSession(sys.argv[1])"])
def test_runs_touch_nothing_but_memory(package: Path, opened: str) -> None:
    child = CHILD.replace("tsc.load(sys.argv[1], threads=2)", opened)
    report = json.loads(python("-c", child, str(package), str(RUNS)))
    assert report["events"] == []
    assert report["libraries"] == []
    assert np.isfinite(report["total"])
    floors = {name.split(".")[1] for name in report["modules"] if name.startswith("tsc.")}
    assert floors <= {"errors", "config", "draw", "sym", "target", "runtime", "session"}
    assert not [name for name in report["modules"] if not name.startswith("tsc")]


@pytest.mark.defect(42)
def test_all_that_is_installed_for_compiling_is_blocked() -> None:
    """So that `pip install --no-deps tsc-compiler` beside NumPy is enough to load and run, as `tsc.load` says."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", text)[0] for text in needed} - {"numpy"}  # type: ignore[index]
    (blocked,) = re.findall(r"names = (\{.*\})", CHILD)
    assert names <= ast.literal_eval(blocked)


def test_the_hook_sees_what_it_should(package: Path) -> None:
    """The same child with a process, a file and a library smuggled into the loop."""
    crime = "subprocess.run([sys.executable, '-c', '']); open(os.devnull, 'w').close(); ctypes.CDLL(None)"
    smuggled = CHILD.replace("    (y,) = model.run", f"    {crime}\n    (y,) = model.run")
    smuggled = smuggled.replace("import json, os, sys", "import ctypes, json, os, subprocess, sys")
    assert crime in smuggled
    seen = {event for event, _ in json.loads(python("-c", smuggled, str(package), "2"))["events"]}
    assert {"subprocess.Popen", "open", "ctypes.dlopen"} <= seen


def test_import_is_light() -> None:
    modules = python("-c", "import sys, tsc; tsc.load; tsc.Dim; print(*sys.modules)").split()
    assert not {"islpy", "onnx", "torch", "tsc.pipeline", "tsc.poly"} & set(modules)
    bare = python("-c", "import sys, tsc; print(*sys.modules)").split()
    assert "numpy" not in bare


def test_import_is_quick() -> None:
    seconds = min(float(python("-c", "import time; t = time.perf_counter(); import tsc; print(time.perf_counter() - t)"))
                  for _ in range(3))
    assert seconds < 0.3
