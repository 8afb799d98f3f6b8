"""What is installed is the wheel, not this folder: built from a clean tree, it has all that compiling and running need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Compiles, saves, loads and exports a model where only the wheel is found, and says from where it was imported.
USER = """
import sys
import numpy as np
from onnx import TensorProto, helper
import tsc
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "m", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
tsc.compile(model).save("m.tscpack")
x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
found, = tsc.load("m.tscpack").run(None, {"x": x})
exact = np.exp(x) / np.exp(x).sum(1, keepdims=True)
assert np.allclose(found, exact, atol=1e-6)
from tsc.cli import main
print(tsc.__file__)
main(["export", "m.tscpack", "-o", "out"])
"""


def test_the_wheel_is_all_there_is(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "tsc", tree / "tsc", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wanted = [*pip, "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(tree)]
    built = subprocess.run(wanted, capture_output=True, text=True, check=False)
    if built.returncode and "setuptools" in built.stderr:
        pytest.skip("pip finds no setuptools to build with here")
    assert built.returncode == 0, built.stderr
    wheel, = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], check=True)
    alone = [f"import sys; sys.path[:] = [{str(site)!r}, *(path for path in sys.path if path != {str(ROOT)!r})]",
             "sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in str(finder).lower()]"]
    command = [sys.executable, "-P", "-c", "\n".join([*alone, USER])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(site) and (tmp_path / "out" / "tsc.h").exists()
