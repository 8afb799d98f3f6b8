"""The self test of compilers: what it finds, that it runs once, and what becomes of a compiler that fails it."""

from __future__ import annotations

import logging
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tsc
from tests.machine import c_compiler, runnable
from tsc.codegen_c import build, self_test
from tsc.codegen_c.build import build_module, find_compiler
from tsc.codegen_c.cache import CompiledCache
from tsc.codegen_c.self_test import Candidate, trusted_flags
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import LaunchError
from tsc.target import DeviceSpec

Program = Callable[[tuple[str, ...]], bytes]
SOURCE = '#include "tsc_kernel.h"\nint32_t k(const tsc_args *a, int64_t b, int64_t e, void *s) { return 0; }\n'
TARGETS = runnable()


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has passed yet in this process."""
    monkeypatch.setattr(self_test, "_passed", set())


def script(folder: Path, body: str) -> str:
    """A compiler command that does what `body` says; "$@" are its arguments."""
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("spec", TARGETS, ids=lambda s: s.name)
def test_the_compiler_here_passes(spec: DeviceSpec, tmp_path: Path) -> None:
    build_module({"k": SOURCE}, spec, Options(cache_dir=tmp_path))


@pytest.mark.parametrize("spec", TARGETS, ids=lambda s: s.name)
def test_zig_passes(spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    build_module({"k": SOURCE}, spec, Options())  # the user's cache: zig would build its own libraries in a new one


@pytest.mark.parametrize(("extra", "kernel"), [("-ffast-math", "sums"), ("-fno-wrapv", "integers"),
                                               ("-fassociative-math -fno-signed-zeros", "functions")])
def test_a_compiler_that_takes_liberties_is_refused(extra: str, kernel: str, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    command = script(tmp_path, f'exec gcc "$@" {extra}') if shutil.which("gcc") else pytest.skip("no gcc")
    monkeypatch.setenv("TSC_CC", command)
    with pytest.raises(LaunchError, match=rf"compiler '{command}' makes wrong code.*{kernel}.*TSC_CC"):
        build_module({"k": SOURCE}, CPU_SPECS["cpu-generic"], Options(cache_dir=tmp_path / "cache"))


def test_a_compiler_that_is_right_with_safer_flags_is_used_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    right = f'exec {c_compiler()} "$@"'
    command = script(tmp_path, f'case " $* " in *" -O2 "*) {right};; *) {right} -ffast-math;; esac')
    monkeypatch.setenv("TSC_CC", command)
    with caplog.at_level(logging.WARNING, "tsc"):
        build_module({"k": SOURCE}, CPU_SPECS["cpu-generic"], Options(cache_dir=tmp_path / "cache"))
    assert "makes wrong code of" in caplog.text and "it is used with -O2" in caplog.text


def library(body: str, folder: Path) -> bytes:
    """A shared object whose self test does `body`."""
    (folder / "odd.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\nint tsc_self_test(void) {{ {body} }}\n")
    subprocess.run([*c_compiler().split(), "-shared", "-fPIC", "-w", "odd.c", "-o", "odd.so"], cwd=folder, check=True)
    return (folder / "odd.so").read_bytes()


@pytest.mark.parametrize(("body", "said"), [
    ("exit(3);", "status 3"), ("abort();", "status -6"), ("return *(volatile int *)8;", "status -11"),
    ('printf("this, that"); return 2;', "this, that")])
def test_however_the_kernels_end(body: str, said: str, tmp_path: Path) -> None:
    made = library(body, tmp_path)
    asked: list[tuple[str, ...]] = []

    def program(flags: tuple[str, ...]) -> bytes:
        asked.append(flags)
        return made

    cache = tmp_path / "cache"
    with pytest.raises(LaunchError, match=f"odd-cc.*{said}"):
        trusted_flags(Candidate("odd-cc", ("-O3",), (), ("odd",)), ("-O2",), CompiledCache(cache), program)
    assert asked == [("-O3",), ("-O3", "-O2")] and not cache.exists()  # what failed is asked again


def test_it_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, asked, right = Candidate("cc", ("-O3",), (), ("some",)), [], library("return 0;", tmp_path)

    def program(flags: tuple[str, ...]) -> bytes:
        asked.append(flags)
        return right

    cache = CompiledCache(tmp_path / "cache")
    for _ in range(3):
        assert trusted_flags(candidate, ("-O2",), cache, program) == ("-O3",)
    monkeypatch.setattr(self_test, "_passed", set())  # as in another process
    assert trusted_flags(candidate, ("-O2",), cache, program) == ("-O3",) and len(asked) == 1
    monkeypatch.setattr(self_test, "_passed", set())
    monkeypatch.setattr(self_test, "_cpu", lambda path: ("another",))
    trusted_flags(candidate, ("-O2",), cache, program)
    assert len(asked) == 2


def test_code_for_another_cpu_cannot_be_tried(tmp_path: Path) -> None:
    candidate = Candidate("cc", ("-O3",), ("flag-of-no-cpu",), ("some",))
    assert trusted_flags(candidate, (), CompiledCache(tmp_path), lambda flags: pytest.fail("compiled")) == ("-O3",)


def test_options_in_a_command_are_part_of_what_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("return 0", "return TSC_STATUS")
    made, compiler = [], c_compiler()
    for status in (1, 2):
        monkeypatch.setenv("TSC_CC", f"{compiler} -DTSC_STATUS={status}")
        made.append(build_module({"k": source}, CPU_SPECS["cpu-generic"], Options(cache_dir=tmp_path)))
    assert made[0] != made[1]


@pytest.mark.defect(10)
@pytest.mark.parametrize("spec", [spec for spec in TARGETS if spec.cpu_flags], ids=lambda s: s.name)
def test_rows_of_two_are_found_where_gcc_vectorises(spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcc 12.2 gets them wrong; another version gets them or nothing wrong."""
    compiler = find_compiler(None)
    if not compiler.is_gcc:
        pytest.skip("another compiler than gcc")
    assert "-fno-tree-loop-vectorize" in build._GCC_FLAGS
    seen: list[str] = []

    def kept(candidate: Candidate, safer: object, cache: object, program: Program) -> tuple[str, ...]:
        seen.append(self_test._run(program(candidate.flags), "gcc"))
        return candidate.flags

    monkeypatch.setattr(build, "_GCC_FLAGS", ())
    monkeypatch.setattr(build, "trusted_flags", kept)
    build._trusted(compiler, spec, (), CompiledCache(None), Path())
    wrong = set(seen[0].split(", ")) - {""}
    assert wrong <= {f"rows of 2{kind}" for kind in ("", " doubles", " int32", " int64", " bytes")}
    assert wrong or " 12.2" not in compiler.identity.splitlines()[0]


@pytest.mark.defect(10)
@pytest.mark.parametrize("spec", TARGETS, ids=lambda s: s.name)
@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_concat_above_a_short_axis(spec: DeviceSpec, width: int, dtype: str) -> None:
    constant = np.arange(8 * width).astype(dtype).reshape(8, width)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Concat", ["x", "c"], ["y"], axis=0)], "rows",
        [helper.make_tensor_value_info("x", kind, ["a", width])], [helper.make_tensor_value_info("y", kind, ["b", width])],
        [numpy_helper.from_array(constant, "c")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = tsc.compile(onnx.shape_inference.infer_shapes(model), target=spec.name, threads=1)
    for rows in (1, 2, 3, 7, 8, 9, 16, 23, 127, 130):
        x = (np.arange(rows * width) + 100).astype(dtype).reshape(rows, width)
        np.testing.assert_array_equal(executable.run(None, {"x": x})[0], np.concatenate([x, constant]))
