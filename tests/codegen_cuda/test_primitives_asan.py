"""The emulator under the address sanitiser: fibers are known to it, right kernels pass, and it sees what nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen_cuda.emulated import emulated_bytes
from tsc.codegen_cuda.build import find_cxx
from tsc.config import read_environment
from tsc.errors import LaunchError

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = """
import sys
from pathlib import Path
import numpy as np
from tests.codegen_cuda.emulated import Module, aligned
module = Module(Path(sys.argv[1]))
source, out = aligned(np.arange(640, dtype=np.uint32), False), aligned(np.zeros(128, np.uint32))
for mode in ("fast", "lazy", "race", "stress"):
    for name, block, arguments in (("exchange_right", 64, [source, out]), ("pipeline_right", 64, [source, out, 2]),
                                   ("half_warps", 32, [source, out]),
                                   ("registers_past_end", 32, [source, out, int(sys.argv[2])])):
        report = module.launch(name, arguments, block=(block,), shared=3072, mode=mode, seed=2)
        assert report.ended == "ok", (mode, name, report.text)
    report = module.launch("half_a_barrier", [out], block=(64,), mode=mode)
    assert report.ended == "deadlock", report.text
print("all ran")
"""


@pytest.fixture(scope="module")
def preload() -> str:
    """The sanitiser's runtime library, which must come before everything else in the process."""
    try:
        compiler = find_cxx(read_environment().compiler)
    except LaunchError as error:
        pytest.skip(str(error))
    if compiler.is_zig:
        pytest.skip("zig ships no address sanitiser; another compiler's does not fit its code")
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so"):
        asked = subprocess.run([*compiler.command, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        if os.path.isabs(asked.stdout.strip()):
            return asked.stdout.strip()
    pytest.skip("the C++ compiler has no shared address sanitiser")


def run(preload: str, folder: Path, registers: int) -> subprocess.CompletedProcess[str]:
    path = folder / "bugs.so"
    path.write_bytes(emulated_bytes("bugs", asan=True))
    environment = {**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN, str(path), str(registers)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_right_kernels_pass(preload: str, tmp_path: Path) -> None:
    done = run(preload, tmp_path, 4)
    assert done.returncode == 0 and "all ran" in done.stdout, done.stderr[-2000:]


def test_registers_past_their_end_are_found(preload: str, tmp_path: Path) -> None:
    done = run(preload, tmp_path, 5)
    assert done.returncode != 0 and "stack-buffer-overflow" in done.stderr, done.stderr[-2000:]
