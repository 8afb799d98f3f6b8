"""Cubins for every architecture without a GPU, what is read from them, the cache, and every way in which a build fails."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tsc.codegen_cuda.build as build
from tsc.codegen_cuda import nvrtc, sass
from tsc.codegen_cuda.build import CudaSource, build_cubin, build_cubins, build_emulated, find_cxx
from tsc.codegen_cuda.resources import CubinInfo, kernel_infos, parse_log, read_cubin
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options
from tsc.errors import InternalError, LaunchError, PackageError

ARCHS = tuple(CUDA_SPECS)
SOURCE = CudaSource("two", r"""
#include "tsc_device.cuh"
using namespace tsc;
TSC_KERNEL(scale, 96, 1, const float* x, float* y, float a, int n) {
  int i = block_index().x * 96 + thread_index().x;
  if (i < n) store_global(y + i, a * load_global(x + i));
}
// A run-time index keeps the array in local memory: a stack frame. WIDE floats of shared memory, and one more barrier.
TSC_KERNEL(local, 256, 2, const int* at, float* y) {
  __shared__ float row[WIDE];
  volatile float kept[16];
  for (int i = 0; i < 16; i++) kept[i] = y[i * at[i]];
  row[thread_index().x] = kept[at[0]];
  block_sync();
  y[thread_index().x] = row[255 - thread_index().x] + kept[at[1]];
}
""", ("WIDE=300",))
PLAIN = CudaSource("scale", SOURCE.text.split("//")[0])


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """A cache of this module's own; skips where NVRTC is absent."""
    try:
        nvrtc.identity()
    except LaunchError as error:
        pytest.skip(str(error))
    return Options(cache_dir=tmp_path_factory.mktemp("cache"), jobs=2)


@pytest.fixture(scope="module")
def cubins(options: Options) -> dict[str, build.Cubin]:
    made = build_cubins([(SOURCE, arch) for arch in ARCHS], options)
    return {cubin.arch: cubin for cubin in made}


class NotCached(Exception):
    """A build was asked for."""


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing may be compiled."""
    def compile_all(jobs: object, processes: int) -> list[nvrtc.Answer]:
        if jobs:
            raise NotCached
        return []

    monkeypatch.setattr(build, "compile_all", compile_all)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture(cubins: dict[str, build.Cubin], arch: str) -> None:
    cubin = cubins[arch]
    scale, local = cubin.kernel("scale"), cubin.kernel("local")
    assert [k.name for k in cubin.kernels] == ["local", "scale"] and {k.arch for k in cubin.kernels} == {arch}
    assert (scale.max_threads, scale.static_shared, scale.parameter_bytes) == (96, 0, 24)
    assert (scale.stack_frame, scale.spill_stores, scale.spill_loads) == (0, 0, 0)
    assert 4 < scale.registers < 40 and scale.code_bytes > 100
    assert (local.max_threads, local.static_shared, local.barriers, local.parameter_bytes) == (256, 1200, 1, 16)
    assert local.stack_frame == 64


def test_spills_are_read(options: Options) -> None:
    many = "\n".join(f"float v{i} = x[{i} * n];" for i in range(200))
    used = "\n".join(f"y[{i} * n] = v{i} * v{199 - i};" for i in range(200))
    head = '#include "tsc_device.cuh"\nTSC_KERNEL(tight, 1024, 2, const float* x, float* y, int n)'
    text = f"{head} {{ {many} __syncthreads(); {used} }}"
    info = build_cubin(CudaSource("tight", text), "sm_80", options).kernel("tight")
    assert info.registers == 32 and info.spill_stores > 100 and info.spill_loads > 100 and info.stack_frame > 100


def test_the_cubin_and_the_log_check_each_other(cubins: dict[str, build.Cubin]) -> None:
    cubin = cubins["sm_90a"]
    registers = cubin.kernel("scale").registers
    own, said = read_cubin(cubin.binary)["scale"], parse_log(cubin.log)["scale"]
    assert own.registers == said.registers == registers
    assert own.max_threads == 96 and said.arch == "sm_90a"
    with pytest.raises(InternalError, match="disagree about kernel 'scale'"):
        kernel_infos(cubin.binary, cubin.log.replace(f"Used {registers} registers", f"Used {registers + 1} registers"))
    with pytest.raises(InternalError, match="disagree about kernel 'local'"):
        kernel_infos(cubin.binary, cubin.log.replace("64 bytes stack frame", "72 bytes stack frame"))
    with pytest.raises(InternalError, match="lacks: more"):
        kernel_infos(cubin.binary, cubin.log + "\n" + cubin.log.replace("'scale'", "'more'"))
    with pytest.raises(InternalError, match="not understood"):
        parse_log(cubin.log.replace("Used", "Consumed"))


def test_damaged_cubins(cubins: dict[str, build.Cubin]) -> None:
    binary = cubins["sm_80"].binary
    for size in (0, 3, 50, 64, len(binary) // 2, len(binary) - 200):
        with pytest.raises(PackageError, match="damaged"):
            read_cubin(binary[:size])


def test_equal_bytes_and_no_second_build(options: Options, cubins: dict[str, build.Cubin], tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    again = build_cubin(SOURCE, "sm_90a", Options(cache_dir=tmp_path))
    assert again == cubins["sm_90a"]  # compiled anew, elsewhere: the same bytes, and the same log
    forbid(monkeypatch)
    assert build_cubins([(SOURCE, arch) for arch in ARCHS], options) == tuple(cubins.values())
    assert build_cubins([], options) == ()


CHANGES: tuple[tuple[str, Callable[[pytest.MonkeyPatch], CudaSource]], ...] = (
    ("source", lambda patch: CudaSource(PLAIN.name, PLAIN.text + "\n// other")),
    ("define", lambda patch: CudaSource(PLAIN.name, PLAIN.text, ("X=1",))),
    ("compiler", lambda patch: patch.setattr(build, "identity", lambda: "another") or PLAIN),
    ("flag", lambda patch: patch.setattr(build, "_NVRTC_FLAGS", (*build._NVRTC_FLAGS, "--fmad=false")) or PLAIN),
)


@pytest.mark.parametrize("what, change", CHANGES, ids=[what for what, _ in CHANGES])
def test_what_the_cache_depends_on(options: Options, monkeypatch: pytest.MonkeyPatch, what: str,
                                   change: Callable[[pytest.MonkeyPatch], CudaSource]) -> None:
    build_cubin(PLAIN, "sm_80", options)
    source = change(monkeypatch)
    forbid(monkeypatch)
    with pytest.raises(NotCached):
        build_cubin(source, "sm_80", options)


def test_headers_are_in_the_key(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_cubin(PLAIN, "sm_80", options)
    shutil.copytree(build._DEVICE, tmp_path / "device")
    with (tmp_path / "device" / "math.cuh").open("a") as file:
        file.write("// other\n")
    monkeypatch.setattr(build, "_DEVICE", tmp_path / "device")
    forbid(monkeypatch)
    with pytest.raises(NotCached):
        build_cubin(PLAIN, "sm_80", options)


def test_without_a_cache(options: Options) -> None:
    made = build_cubin(PLAIN, "sm_80", Options(use_cache=False))
    assert made.binary == build_cubin(PLAIN, "sm_80", options).binary


def test_sources_that_do_not_compile(options: Options) -> None:
    broken = CudaSource("broken", PLAIN.text + "\nint f() { return g(); }\n")
    with pytest.raises(InternalError, match=r"NVRTC refused 'broken' for sm_89 .*broken\.cu\(9\): error: identifier \"g\""):
        build_cubins([(PLAIN, "sm_80"), (broken, "sm_89")], options)
    head = '#include "tsc_device.cuh"\nTSC_KERNEL(k, 128, 1, int* x)'
    wgmma = CudaSource("old", head + ' { asm volatile("wgmma.fence.sync.aligned;"); }')
    with pytest.raises(InternalError, match="refused 'old' for sm_80"):  # ptxas's errors come through as well
        build_cubin(wgmma, "sm_80", options)
    with pytest.raises(LaunchError, match="unknown target 'sm_42'"):
        build_cubin(PLAIN, "sm_42", options)
    with pytest.raises(InternalError, match="no kernel 'other'; it has scale"):
        build_cubin(PLAIN, "sm_80", options).kernel("other")


def test_a_compiler_that_dies_is_one_bad_answer(options: Options) -> None:
    headers = build._texts(build._DEVICE, "*.cuh")
    jobs = [nvrtc.Job(f"j{i}", PLAIN.text, headers, ("--gpu-architecture=sm_80", "-std=c++20")) for i in range(3)]
    with nvrtc._Worker() as worker:
        assert worker.compile(jobs[0]).status == 0
        os.kill(worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        died = worker.compile(jobs[1])
        assert died.status != 0 and "died with status -9" in died.message
        assert worker.compile(jobs[2]).cubin[:4] == b"\x7fELF"


def test_a_job_of_a_compiler_that_died_is_done_again(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, alive = nvrtc._Worker.compile, iter([False, True, False, False])

    def compile_or_die(worker: nvrtc._Worker, job: nvrtc.Job) -> nvrtc.Answer:
        if worker.version and not next(alive):
            worker._process.kill()
            worker._process.wait()
        return compiled(worker, job)

    monkeypatch.setattr(nvrtc._Worker, "compile", compile_or_die)
    job = nvrtc.Job("j", PLAIN.text, build._texts(build._DEVICE, "*.cuh"), ("--gpu-architecture=sm_80", "-std=c++20"))
    assert nvrtc.compile_all([job], 1)[0].status == 0
    assert "died with status -9" in nvrtc.compile_all([job], 1)[0].message  # twice is enough


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "available", lambda: False)
    nvrtc.identity.cache_clear()
    with pytest.raises(LaunchError, match=r"pip install tsc-compiler\[cuda\]"):
        build_cubin(PLAIN, "sm_80", Options(cache_dir=tmp_path))
    (tmp_path / "cuda" / "bindings").mkdir(parents=True)
    (tmp_path / "cuda" / "__init__.py").touch()
    (tmp_path / "cuda" / "bindings" / "__init__.py").touch()
    (tmp_path / "cuda" / "bindings" / "nvrtc.py").write_text("raise RuntimeError('no libnvrtc.so.13')")
    monkeypatch.syspath_prepend(str(tmp_path))
    job = nvrtc.Job("x", PLAIN.text, {}, ())
    with pytest.raises(LaunchError, match=r"cannot be loaded \(RuntimeError: no libnvrtc.*pip install tsc-compiler\[cuda\]"):
        nvrtc.compile_all([job], 1)


def test_sass(cubins: dict[str, build.Cubin]) -> None:
    if sass.find_disassembler() is None:
        pytest.skip("no nvdisasm")
    for arch in ("sm_80", "sm_90a", "sm_120a"):
        kernels = sass.disassemble(cubins[arch].binary)
        assert set(kernels) == {"scale", "local"}
        scale, local = kernels["scale"].counts(), kernels["local"].counts()
        assert (scale["LDG"], scale["STG"], scale["LDS"], scale["LDL"], scale["FMUL"]) == (1, 1, 0, 0, 1)
        assert local["LDL"] and local["STL"] and local["STS"] and local["LDS"] and local["BAR"]
        assert "LDG.E" in kernels["scale"].opcodes or "LDG.E.CONSTANT" in kernels["scale"].opcodes
    with pytest.raises(InternalError, match="nvdisasm refuses"):
        sass.disassemble(b"nonsense")


def test_no_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_disassembler", lambda: None)
    with pytest.raises(LaunchError, match="nvidia-cuda-nvdisasm"):
        sass.disassemble(b"")


def test_an_emulated_build_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("no C++ compiler")
    shared = Options()  # the emulator's own units are most of the work, and in the user's cache by other tests
    first = build_emulated(PLAIN, shared)
    calls = itertools.count()
    real = build._Caller.compile
    monkeypatch.setattr(build._Caller, "compile", lambda *args: (next(calls), real(*args))[1])
    assert build_emulated(PLAIN, shared) == first and next(calls) == 0
    other = build_emulated(CudaSource("scale", PLAIN.text, ("X=1",)), shared)
    assert next(calls) <= 2 and other[:4] == b"\x7fELF"  # at most its own unit was compiled
    broken = CudaSource("broken", PLAIN.text + "\nint f() { return g(); }\n")
    with pytest.raises(InternalError, match=r"refused 'broken.cu': .*broken\.cu:9:.*error"):
        build_emulated(broken, shared)


@pytest.mark.parametrize("asked, command", [
    ("gcc-12", "g++-12"), ("/opt/bin/x86_64-linux-gnu-gcc", "/opt/bin/x86_64-linux-gnu-g++"), ("clang", "clang++"),
    ("cc", "c++"), ("ccache gcc", "ccache g++"), ("zig cc", "zig c++"), ("clang++", "clang++")])
def test_the_cxx_compiler_beside_a_c_compiler(monkeypatch: pytest.MonkeyPatch, asked: str, command: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(build, "identify_compiler", lambda found, is_zig=False: (found, is_zig))
    assert find_cxx(asked) == (tuple(command.split()), "zig" in asked)


def test_no_cxx_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LaunchError, match=r"no 'g\+\+' is beside the 'gcc'"):
        find_cxx("gcc")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match="no C\\+\\+ compiler was found"):
        find_cxx(None)


def test_specs_hold_what_a_block_needs() -> None:
    for spec in CUDA_SPECS.values():
        gpu = spec.gpu
        assert gpu is not None and gpu.shared_per_block + gpu.shared_reserved <= gpu.shared_per_sm
        assert gpu.threads_per_sm % 32 == 0 and spec.kind == "cuda"


def test_infos_are_plain_values(cubins: dict[str, build.Cubin]) -> None:
    info = cubins["sm_80"].kernels[0]
    assert isinstance(info, CubinInfo) and hash(info) == hash(cubins["sm_80"].kernels[0])


def test_a_process_loads_many_emulated_modules(tmp_path: Path) -> None:
    """As a server that has many Packages does: a hundred had taken all the room that threads' variables have."""
    try:
        module = build_emulated(PLAIN, Options())
    except LaunchError as error:
        pytest.skip(str(error))
    for number in range(300):
        (tmp_path / f"{number}.so").write_bytes(module)
    program = ("import ctypes, pathlib, sys\n"
               "print(len([ctypes.CDLL(str(path)) for path in pathlib.Path(sys.argv[1]).iterdir()]))")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "300", done.stderr
