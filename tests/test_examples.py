"""Every numbered example is short and runs as its user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, f"examples/{name}", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def test_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell, with something in the place of IPython, which shows the last value of each."""
    shown: list[str] = []
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=shown.append))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())  # type: ignore[arg-type]
    cells = json.loads((ROOT / "examples" / "07_tuning.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert sum(len(source.splitlines()) for source in sources) < 80 and all(not cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {}
    for source in sources:
        exec(compile(source, "07_tuning.ipynb", "exec"), names)
    assert names["model"].stats["compiles"] == 1 and "svg" in names["model"]._repr_html_()
    assert len(shown) == 1 and "shape coverage of mlp.onnx" in shown[0]


def test_semantic_search() -> None:
    pytest.importorskip("minilm", reason="needs the demo extras (safetensors, tokenizers)")
    out = run_example("01_semantic_search.py")
    assert "compilations: 1" in out
    best = {query: re.search(rf"^{query}\n +[0-9.]+  (.*)$", out, re.MULTILINE).group(1)  # type: ignore[union-attr]
            for query in ("how to make a loaf", "code optimisation", "monetary policy", "pets")}
    assert best["how to make a loaf"].startswith("Knead") or best["how to make a loaf"].startswith("Bake")
    assert best["code optimisation"].startswith(("Tiling", "A polyhedral"))
    assert best["monetary policy"].startswith(("The bank", "The central bank"))
    assert best["pets"].startswith("Cats")
    lengths = [int(length) for length in re.findall(r"^ *(\d+) +[0-9.]+ ms +[0-9.]+ ms$", out, re.MULTILINE)]
    assert len(lengths) == 8 and max(lengths) > 10 * min(lengths)


@pytest.mark.parametrize("name, kernels", [("03_te_matmul_gelu.py", 1), ("04_te_attention.py", 1), ("05_te_stencil.py", 1)])
def test_tensor_expressions(name: str, kernels: int) -> None:
    """Each compares itself with NumPy in float64 and ends with what it took; fewer kernels are welcome."""
    *errors, counts = run_example(name).splitlines()
    assert len(errors) >= 3 and all(float(line.rpartition(" ")[2]) < 1e-3 for line in errors)
    found = dict(part.split(": ") for part in counts.split(", "))
    assert int(found["kernels"]) <= kernels and found["compilations"] == "1"


def test_generation() -> None:
    """The same lines drive both runtimes, from no past on, and both give the same tokens."""
    small = ("--layers", "2", "--width", "64", "--words", "99", "--tokens", "12")
    for more in ((), ("--batch", "3", "--prompt", "1", "--temperature", "0.8", "--top", "7")):
        *runtimes, last = run_example("10_generate.py", *small, *more).splitlines()
        assert [line.split(":")[0] for line in runtimes] == ["tsc", "onnxruntime"] and last == "all give the same tokens"


@pytest.mark.slow
def test_tuning_minilm(tmp_path: Path) -> None:
    """One layer of it, for as long as it takes to measure the default of each kernel and a few others."""
    minilm = pytest.importorskip("minilm", reason="needs the demo extras (safetensors, tokenizers)")
    onnx.save(minilm.build(layers=1), tmp_path / "one.onnx")
    options = ("--budget", "1s", "--workers", "1", "--configs", "2", "--records", str(tmp_path / "r"))
    out = run_example("08_tune.py", *options, str(tmp_path / "one.onnx"))
    gain = float(re.search(r"^geometric mean: ([0-9.]+) times as fast", out, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert 0.3 < gain < 10 and "configs measured" in out and (tmp_path / "r").read_text().count("\n") > 50
