"""The C thread pool by itself, plain and under sanitizers; also where its workers get no core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tsc.codegen_c.build import find_compiler
from tsc.runtime import drivers

RUNTIME = Path(drivers.__file__).parent / "cpu_runtime.c"


@pytest.mark.defect(34)
@pytest.mark.parametrize("flags", [("-O2",), ("-O1", "-g", "-fsanitize=thread"), ("-O1", "-fsanitize=address,undefined")])
def test_stress(tmp_path: Path, flags: tuple[str, ...]) -> None:
    compiler = find_compiler(None)
    if compiler.is_zig and len(flags) > 1:
        pytest.skip("zig ships no sanitizer runtimes")
    program = tmp_path / "stress"
    built = subprocess.run([*compiler.command, "-std=gnu11", *flags, "-pthread", f'-DRUNTIME="{RUNTIME}"',
                            str(Path(__file__).with_name("pool_stress.c")), "-o", str(program)], capture_output=True, text=True)
    if built.returncode and "sanitize" in built.stderr + " ".join(flags) and "cannot find" in built.stderr:
        pytest.skip("this compiler has no such sanitizer")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "right\n", "")
