"""The CUDA driver against a libcuda of our own (fake_cuda/): what it is asked for, in which order, and every error."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "fake_cuda"
ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def fake_library() -> Path:
    """The folder of the built library; skips the test where it cannot be used."""
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("cuda-bindings is not installed")
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = Path(tempfile.mkdtemp(prefix="tsc-test-"))
    command = [compiler, "-w", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", HERE / "fake_cuda.c", "-ldl"]
    subprocess.run(command, check=True)
    return folder


def run(case: str, folder: Path, **environment: str) -> str:
    """Run a case in a process of its own. Returns what it wrote."""
    done = subprocess.run(
        [sys.executable, HERE / "cases.py", case], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(folder), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_call() -> None:
    assert run("all", fake_library()).splitlines()[-1] == "nothing_leaks"


@pytest.mark.parametrize("case, setting", [("old", {"FAKE_CUDA_VERSION": "12020"}), ("no_gpu", {"FAKE_CUDA_DEVICES": "0"})])
def test_a_driver_that_is_refused(case: str, setting: dict[str, str]) -> None:
    run(case, fake_library(), **setting)


def test_no_driver(tmp_path: Path) -> None:
    fake_library()  # skips where the binding is absent
    (tmp_path / "libcuda.so.1").write_text("no library")  # whatever driver the machine has, it is not found
    run("none", tmp_path)


def test_no_binding(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("raise ImportError('none here')")
    program = ("from tsc.runtime.drivers.platform import open_platform\n"
               "try: open_platform('cuda')\n"
               "except Exception as error: print(type(error).__name__, error)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert done.stdout.startswith("NoDriverError") and "pip install tsc-compiler[cuda]" in done.stdout


def test_nothing_of_cuda_is_imported_unasked() -> None:
    program = ("import sys, tsc.runtime.drivers.platform as p, tsc.runtime.arrays, tsc.codegen_cuda.build\n"
               "p.open_platform('emu').devices()\n"
               "print([m for m in sys.modules if m.partition('.')[0] in ('cuda', 'torch', 'cupy', 'onnx', 'islpy')])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == "[]"
