"""Both halves of the GPU run: the built folder is small, and the run passes on the emulator and on the stub."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import build as gpu_build
from benchmarks.gpu.cases import make_cases
from benchmarks.gpu.conformance import attempt, difference, measure, read_cases, write_cases
from benchmarks.gpu.models import own
from benchmarks.gpu.session import Again, Session, code_for, runs
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import CudaSource, build_emulated
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.runtime.drivers.emu import EmuPlatform
from tsc.runtime.drivers.stub import StubDriver

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ARCHS = ("sm_80", "sm_90a")  # the others differ in nothing that is tested here
#: What the GPU's machine lacks: no process of a run may ask for it.
ABSENT = ("islpy", "onnx", "onnxruntime", "ml_dtypes", "filelock", "platformdirs", "click", "rich", "pytest", "tests")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build half makes, with the emulator's modules in it."""
    out = tmp_path_factory.mktemp("gpu") / "built"
    try:
        models = {"perceptron": own("perceptron")}
        contents = gpu_build.Contents(ARCHS, True, models, ("softmax",), (), ("gemm", "mma_0"), range(500, 504))
        gpu_build.build(out, contents, Options(variants=1))
    except LaunchError as error:
        pytest.skip(str(error))
    return out


def run(folder: Path, results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The run half as a command, in processes for which some modules do not exist."""
    site = results.parent / f"{results.name}-site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n", encoding="utf-8")
    where = ("--build", str(folder), "--results", str(results))
    command = [sys.executable, "benchmarks/gpu/run.py", *where, "--small", *arguments]
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)


def record(results: Path) -> dict[str, Any]:
    """The one record in a folder."""
    (path,) = results.glob("gpu-*.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("device", ["emu", "stub"])
def test_the_run_passes_without_a_gpu(folder: Path, tmp_path: Path, device: str) -> None:
    if device == "stub" and not nvrtc.available():
        pytest.skip("NVRTC is not installed: the stub loads cubins")
    done = run(folder, tmp_path, "--device", device)
    assert done.returncode == 0, done.stdout + done.stderr
    content = record(tmp_path)
    parts = content["parts"]
    assert {name: part["state"] for name, part in parts.items()} == dict.fromkeys(
        ("conformance", "printed", "references", "launches", "bandwidth", "products", "models"), "done") | dict.fromkeys(
            ("kernels", "arrays"), "done" if importlib.util.find_spec("torch") else "skipped") | dict.fromkeys(
                ("configs", "language"), "skipped")
    assert parts["conformance"]["results"]["cases"] == len(make_cases())
    if device == "emu":
        assert parts["conformance"]["results"]["not_to_the_bit"] == 0 and parts["conformance"]["results"]["broken"]
        assert set(parts["products"]["results"]["rows"]) == {"1x72x64", "77x72x64"}
        assert all(row["worst"] <= 1 for row in parts["models"]["results"]["rows"]["perceptron"].values())


def test_a_run_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path, "--device", "emu", "--parts", "bandwidth", "references")
    (path,) = tmp_path.glob("gpu-*.json")
    first = json.loads(path.read_text(encoding="utf-8"))
    for part in first["parts"].values():
        part["results"]["of"] = "the first run"  # what is done once more forgets it: equal times say nothing
    path.write_text(json.dumps(first), encoding="utf-8")
    run(folder, tmp_path, "--device", "emu", "--parts", "bandwidth", "references", "--again", "references")
    second = record(tmp_path)["parts"]
    assert second["bandwidth"] == first["parts"]["bandwidth"]
    assert second["references"]["state"] == "done" and "of" not in second["references"]["results"]


def test_wrong_results_and_broken_launches_are_named(folder: Path, tmp_path: Path) -> None:
    changed = tmp_path / "built"
    changed.mkdir()
    for path in folder.iterdir():
        if path.name != "cases.npz":
            (changed / path.name).symlink_to(path)
    cases, results = read_cases(folder / "cases.npz")
    results["mma_f16_1x1"][0][0, 0, 0, 0] += 0.5
    cases = [replace(case, shared=0) if case.name in ("ldmatrix_4", "ping_pong") else case for case in cases]
    write_cases(changed / "cases.npz", cases, results)
    done = run(changed, tmp_path / "results", "--device", "emu", "--parts", "conformance")
    assert done.returncode == 1
    part = record(tmp_path / "results")["parts"]["conformance"]
    assert part["state"] == "failed"
    assert sorted(part["results"]["differences"]) == ["ldmatrix_4", "mma_f16_1x1", "ping_pong"]
    assert {"ldmatrix_4", "ping_pong"} <= part["results"]["broken"].keys()
    assert part["results"]["cases"] == len(cases)


def test_a_case_that_breaks_the_device_ends_the_process(folder: Path) -> None:
    driver = StubDriver()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["binaries"] = {name: {"sm_90a": "manifest.json"} for name in manifest["binaries"]}  # the stub runs anything
    kept: dict[str, Any] = {}
    session = Session("stub", driver, folder, manifest, True, kept, lambda: None)
    driver.fail_at = {"launch": 3, "synchronize": 3}
    with pytest.raises(Again, match="'copy_2' fails"):
        measure(session, lambda cases, results: None)
    assert list(kept["broken"]) == ["copy_2"]
    assert measure(session, lambda cases, results: None)["cases"] == len(make_cases())
    assert list(kept["broken"]) == ["copy_2"]


def test_the_folder_is_small_and_complete(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 60e6
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for name, files in manifest["binaries"].items():
        assert all((folder / file).is_file() for file in files.values())
        if nvrtc.available():
            wanted = {"sm_90a"} if name in ("hopper", "gemm_bf16_sm90a") else set(ARCHS)
            assert files.keys() == {*wanted, "emu"}


def test_which_code_runs_where() -> None:
    assert code_for("sm_90") == "sm_90a"
    assert runs("sm_80", "sm_87") and runs("sm_89", "sm_89") and runs("sm_90a", "sm_90")
    assert not runs("sm_89", "sm_86") and not runs("sm_80", "sm_90") and not runs("sm_100a", "sm_103")


GOLDENS = sorted(RESULTS.glob("gpu-*-conformance.npz"))


@pytest.mark.skipif(not GOLDENS, reason="no GPU has run the conformance cases yet")
@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.stem)
def test_the_emulator_does_what_the_device_did(path: Path) -> None:
    driver = EmuPlatform("sm_90a").open()
    stream = driver.create_stream()
    cases, results = read_cases(path)
    sources = {name: CudaSource(name, text) for name, (text, _) in gpu_build.sources().items()}
    modules = {name: driver.load(build_emulated(sources[name], Options()), name) for name in {case.source for case in cases}}
    for case in cases:
        assert difference(case, attempt(driver, modules[case.source], case, stream), results[case.name]) is None, case.name


def test_goldens_survive_the_file(tmp_path: Path) -> None:
    cases = make_cases()
    assert len({case.name for case in cases}) == len(cases)
    cases = cases[:12]
    results = {case.name: tuple(case.arrays[number] for number in case.written) for case in cases}
    write_cases(tmp_path / "cases.npz", cases, results)
    read, outputs = read_cases(tmp_path / "cases.npz")
    for case, other in zip(cases, read, strict=True):
        assert replace(case, arrays=()) == replace(other, arrays=())
        for one, two in zip((*case.arrays, *results[case.name]), (*other.arrays, *outputs[case.name]), strict=True):
            np.testing.assert_array_equal(one, two)
