"""Building: which compiler, what the cache keeps, and what happens when something is missing, damaged or killed."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tsc
from tests.loop_ir import funcs
from tests.test_tiny import tiny_model
from tsc.codegen_c import build
from tsc.codegen_c.build import build_module, find_compiler
from tsc.codegen_c.cache import CompiledCache, digest
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.intrinsics import INTRINSICS
from tsc.codegen_c.specs import BFLOAT_SPECS, CPU_SPECS, host_spec
from tsc.config import Options
from tsc.errors import LaunchError, UnsupportedError
from tsc.kernels import workshop
from tsc.loop_ir.lower import lower
from tsc.loop_ir.nodes import Func
from tsc.pipeline import build_package
from tsc.te.compute import SizeParam
from tsc.te.expr import Load, Var

GENERIC = CPU_SPECS["cpu-generic"]
SOURCE = '#include "tsc_kernel.h"\nint32_t k(const tsc_args *a, int64_t b, int64_t e, void *s) { return 0; }\n'


def test_keys_separate_their_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == digest(b"ab")


def test_the_cache_keeps_what_it_was_given(tmp_path: Path) -> None:
    cache = CompiledCache(tmp_path / "new")
    assert cache.get(digest("x")) is None
    cache.put(digest("x"), b"body")
    assert cache.get(digest("x")) == b"body"
    assert not list((tmp_path / "new").rglob(".new-*"))
    assert cache == CompiledCache(tmp_path / "new") and CompiledCache(tmp_path / "new").get(digest("x")) == b"body"


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: b"x" + d])
def test_damaged_entries_count_as_absent(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = CompiledCache(tmp_path)
    cache.put(digest("x"), b"body")
    (entry,) = (p for p in tmp_path.rglob("*") if p.is_file())
    entry.write_bytes(damage(entry.read_bytes()))
    assert cache.get(digest("x")) is None
    assert not entry.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LaunchError, match="TSC_CACHE"):
        CompiledCache(tmp_path / "file").put(digest("x"), b"")


def test_modules_are_reused_and_damaged_ones_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(cache_dir=tmp_path)
    first = build_module({"k": SOURCE}, GENERIC, options)
    with monkeypatch.context() as patch:
        patch.setattr(build._Caller, "compile", lambda *a: pytest.fail("compiled again"))
        patch.setattr(build._Caller, "link", lambda *a: pytest.fail("linked again"))
        assert build_module({"k": SOURCE}, GENERIC, options) == first
    for entry in tmp_path.rglob("*"):
        if entry.is_file() and "zig" not in entry.relative_to(tmp_path).parts:  # zig keeps its own cache there
            entry.write_bytes(entry.read_bytes()[:100])
    assert build_module({"k": SOURCE}, GENERIC, options) == first


def test_options_in_the_command_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = " ".join(find_compiler(None).command)
    made = []
    for more in ("", " -DVALUE=2"):
        monkeypatch.setenv("TSC_CC", command + more)
        made.append(build_module({"k": "#ifdef VALUE\nint k = VALUE;\n#endif\n"}, GENERIC, Options(cache_dir=tmp_path)))
    assert made[0] != made[1]


def test_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    made = [build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path / str(i), use_cache=False)) for i in range(2)]
    assert made[0] == made[1]
    assert not [entry for entry in (tmp_path / "0").glob("*") if entry.name != "zig"]


def _build_in_process(folder: str, number: int) -> None:
    source = SOURCE.replace("return 0", f"return {number % 2}")
    build_module({"k": source}, GENERIC, Options(cache_dir=Path(folder), jobs=1))


def test_processes_share_the_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_build_in_process, args=(str(tmp_path), n)) for n in range(4)]
    for worker in workers:
        worker.start()
    workers[0].kill()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers[1:]] == [0, 0, 0]
    assert build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path)).startswith(b"\x7fELF")


def test_no_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"pip install tsc-compiler\[zig\]"):
        find_compiler(None)
    with pytest.raises(LaunchError, match="TSC_CC"):
        find_compiler("nowhere-cc")


def test_what_a_compiler_refuses_names_the_unit_and_another_compiler(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"failed at unit_.*error.*TSC_CC"):
        build_module({"k": "int f( {"}, GENERIC, Options(cache_dir=tmp_path))


def test_what_a_compiler_fails_at_is_optimised_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    own = " ".join(find_compiler(None).command)
    (compiler := tmp_path / "cc").write_text(f"""#!/bin/sh
case "$*" in *unit_*.c*) case "$*" in *" -O2 "*) ;; *) echo "internal compiler error: none" >&2; exit 1;; esac;; esac
exec {own} "$@"
""")
    compiler.chmod(0o755)
    monkeypatch.setenv("TSC_CC", str(compiler))
    assert build_module({"k": SOURCE}, GENERIC, Options(cache_dir=tmp_path / "cache")).startswith(b"\x7fELF")
    assert "with -O2, which may be slower, it does not" in caplog.text


def test_the_host_can_run_its_spec(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu sse2 avx avx2 fma bmi2\n")
    assert host_spec(info) == CPU_SPECS["cpu-avx2"]
    info.write_text("processor : 0\nFeatures : fp asimd\n")
    assert host_spec(info) == GENERIC
    assert host_spec(tmp_path / "none") == GENERIC
    assert host_spec().name in CPU_SPECS
    specs = (CPU_SPECS | BFLOAT_SPECS).values()
    assert set().union(*(spec.intrinsics for spec in specs)) == set(INTRINSICS)  # each has a template


@pytest.mark.parametrize(("vendor", "family", "model", "flags", "tile", "ahead"), [
    ("AMD EPYC", 26, 2, "avx512_vnni", (6, 64), 16384), ("AMD EPYC", 26, 2, "avx512f", (6, 64), 16384),
    ("AMD EPYC", 26, 2, "", (6, 16), 4096), ("AMD EPYC", 25, 17, "avx512_vnni", (7, 64), 8192),
    ("AMD EPYC", 25, 33, "", (6, 16), 4096), ("Intel(R) Xeon(R)", 6, 85, "avx512f", (7, 64), 4096)])
def test_what_was_measured_of_a_class_holds_for_it_alone(
        tmp_path: Path, vendor: str, family: int, model: int, flags: str, tile: tuple[int, int], ahead: int) -> None:
    info = tmp_path / "cpuinfo"
    more = f"avx512f avx512vl avx512dq avx512bw {flags}" if flags else ""
    info.write_text(f"model name\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nflags\t\t: avx avx2 fma {more}\n")
    found = host_spec(info)
    assert found.name == {"": "cpu-avx2", "avx512f": "cpu-avx512"}.get(flags, "cpu-avx512-vnni")
    assert found.instr_tile == tile and found.ahead == ahead
    assert replace(found, instr_tile=CPU_SPECS[found.name].instr_tile, ahead=4096) == CPU_SPECS[found.name]


def test_unsupported_dtypes_are_refused() -> None:
    x, y = (funcs.buffer(n, "N", dtype="float8") for n in "xy")
    body = funcs.loop("i", 0, funcs.size("N"), funcs.store(y, (Var("i"),), Load(x, (Var("i"),))))
    with pytest.raises(UnsupportedError, match="float8"):
        emit_c(lower(Func("f", (x, y), ("y",), (SizeParam("N"),), body), GENERIC), GENERIC)


def test_generated_c(golden) -> None:  # type: ignore[no-untyped-def]
    golden("c_gather.c", emit_c(lower(funcs.gather("W"), CPU_SPECS["cpu-avx2"]), CPU_SPECS["cpu-avx2"]))


@pytest.mark.skipif(shutil.which("objdump") is None or shutil.which("cc") is None, reason="needs cc and objdump")
def test_the_k_loop_stays_in_registers(tmp_path: Path) -> None:
    """The full tile's k loop: 28 FMAs a step and few loads; gcc parks one of the 28 + 4 + 1 values in memory, no more."""
    spec = CPU_SPECS["cpu-avx512"]
    module = build_module({"gemm_gelu": emit_c(lower(funcs.gemm_gelu(1536, 384, 7, 64), spec), spec)}, spec, Options())
    path = tmp_path / "module.so"
    path.write_bytes(module)
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True).stdout
    loops = inner_loops(text)
    full = [body for body in loops if sum("vfmadd" in line for line in body) == 28]
    assert full, "no loop with 28 FMAs"
    for body in full:
        assert sum("vmov" in line and line.rstrip().endswith(")") for line in body) <= 1, "accumulators are spilled"
        assert sum("(" in line for line in body) <= 4 + 7 + 2


@pytest.mark.skipif(shutil.which("objdump") is None or shutil.which("gcc") is None, reason="needs gcc and objdump")
@pytest.mark.parametrize("size", [3, 7])
def test_tiles_of_a_window_stay_in_registers(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcc writes out a window's row, as many steps as it is wide, and has 16 registers for a tile of 12 sums."""
    monkeypatch.setenv("TSC_CC", "gcc")
    weights = numpy_helper.from_array(np.ones((64, 3, size, size), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[size // 2] * 4)
    graph = helper.make_graph([node], "window", [helper.make_tensor_value_info("x", 1, ("n", 3, "h", "w_"))],
                              [helper.make_tensor_value_info("y", 1, ["a", "b", "c", "d"])], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (module,) = build_package(model, None, workshop("cpu-avx2", Options(use_cache=False))).modules.values()
    path = tmp_path / "module.so"
    path.write_bytes(module.binary)
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True).stdout
    full = [body for body in inner_loops(text) if sum("vfmadd" in line for line in body) >= 12 * size]
    assert full, "no loop with every step of a row"
    for body in full:
        assert not any("vmov" in line and line.rstrip().endswith(")") for line in body), "accumulators are spilled"


def inner_loops(text: str) -> list[list[str]]:
    """The instructions of every innermost loop: from a jump's target to the jump back to it."""
    lines = [line for line in text.splitlines() if ":\t" in line]
    place = {line.split(":")[0].strip(): i for i, line in enumerate(lines)}
    found = []
    for end, line in enumerate(lines):
        parts = line.split("\t")[1].split()
        start = place.get(parts[1]) if parts[0].startswith("j") and len(parts) > 1 else None
        if start is not None and start < end and not any(x.split("\t")[1].startswith("j") for x in lines[start:end]):
            found.append(lines[start:end])
    return found


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_compiler_is_asked_once_who_it_is(use_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def noted(command: tuple[str, ...], is_zig: bool = False) -> build.Compiler:
        asked.append(command)
        return identify(command, is_zig)

    identify = build.identify_compiler
    monkeypatch.setattr(build, "identify_compiler", noted)
    for count in (1, 2):
        tsc.compile(tiny_model(), options=Options(cache_dir=tmp_path, use_cache=use_cache))
        assert len(asked) == count


@pytest.mark.parametrize("use_cache", [True, False])
def test_what_was_compiled_ahead_is_not_compiled_again(
        use_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noted(self: build._Caller, name: str, source: str) -> bytes:
        made.append(name)
        return compile_one(self, name, source)

    compile_one = build._Caller.compile
    options = Options(cache_dir=tmp_path, use_cache=use_cache)
    with build.compiling_ahead(GENERIC, options) as ahead:
        ahead(SOURCE)
        ahead(SOURCE)
    monkeypatch.setattr(build._Caller, "compile", noted)
    build_module({"k": SOURCE}, GENERIC, options, None, ahead)
    assert len(made) == 3  # the runtime, the host program, and what programs in C call


def test_entries_without_a_folder_last_as_long_as_their_cache() -> None:
    cache = CompiledCache(None)
    cache.put("a", b"1")
    assert cache.get("a") == b"1" and cache.get("b") is None and CompiledCache(None).get("a") is None
    assert cache.drop("a") and not cache.drop("a") and cache.get("a") is None


def test_as_many_jobs_as_this_process_may_use_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 6})
    assert Options().job_count() == 3 and Options(jobs=2).job_count() == 2
