"""CUDA sources to cubins through NVRTC, with neither driver nor GPU, and to emulated modules through the host's C++ compiler.

Both are cached by all that determines them: source, headers, flags, architecture and the compiler's version.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tsc.codegen_c.build import Ahead, Compiler, first_error, identify_compiler, table_source
from tsc.codegen_c.cache import CompiledCache, default_cache_dir, digest
from tsc.codegen_cuda.nvrtc import Answer, Job, compile_all, identity
from tsc.codegen_cuda.resources import CubinInfo, kernel_infos
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options, child_environment, read_environment
from tsc.errors import InternalError, LaunchError
from tsc.runtime.interface import IN_TURN, TABLE, KernelInterface, ModuleInterface, table_text
from tsc.target import DeviceSpec, parse_target
from tsc.threads import mapped

_HERE = Path(__file__).parent
_DEVICE, _EMULATOR = _HERE / "device", _HERE / "emu"
_SCALARS = _HERE.parent / "codegen_c" / "tsc_scalar.h"
_NVRTC_FLAGS = ("-std=c++20", "--ptxas-options=-v", "--device-as-default-execution-space")
_HOST_FLAGS = ("-std=c++20", "-O2", "-g0", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-w", "-DTSC_EMU")
#: The emulator's own units: the standard library of C++20 and -O2 take half as long again to compile, and run no faster.
_EMULATOR_FLAGS = ("-std=c++17", "-O1")
_ASAN_FLAGS = ("-g1", "-fsanitize=address", "-fno-omit-frame-pointer")


@dataclass(frozen=True, slots=True)
class CudaSource:
    """Kernels that include tsc_device.cuh. `name` is what messages call the source; `defines` are macros ("BM=64")."""

    name: str
    text: str
    defines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture ("sm_90a"), its kernels by name, and what the compiler said about the source."""

    arch: str
    binary: bytes
    kernels: tuple[CubinInfo, ...]
    log: str

    def kernel(self, name: str) -> CubinInfo:
        """The kernel called `name`. Raises InternalError where the source has none."""
        for info in self.kernels:
            if info.name == name:
                return info
        raise InternalError(f"the source has no kernel '{name}'; it has {', '.join(k.name for k in self.kernels) or 'none'}")


def build_cubin(source: CudaSource, arch: str, options: Options) -> Cubin:
    """One source for one architecture of CUDA_SPECS; see build_cubins."""
    return build_cubins(((source, arch),), options)[0]


def build_cubins(wanted: Sequence[tuple[CudaSource, str]], options: Options) -> tuple[Cubin, ...]:
    """The cubins of (source, architecture) pairs, in that order; what the cache lacks is compiled by `options.jobs` processes.

    Raises LaunchError where NVRTC is not installed or the architecture is not one of CUDA_SPECS, InternalError with the
    compiler's first error where a source does not compile (sources are generated, so that is a bug)."""
    cache = _cache(options)
    compiler = identity()
    headers = _headers()
    jobs = [Job(source.name, source.text, headers, _flags(source, arch)) for source, arch in wanted]
    keys = [digest("cubin", compiler, job.name, job.text, *job.flags, *_flat(headers)) for job in jobs]
    entries = {key: entry for key in keys if (entry := cache.get(key)) is not None}
    missing = {key: job for key, job in zip(keys, jobs) if key not in entries}
    answers = compile_all(tuple(missing.values()), options.job_count())
    for (key, job), answer in zip(missing.items(), answers):
        entries[key] = _pack(_checked(job, answer))
        cache.put(key, entries[key])
    return tuple(_unpack(arch, entries[key]) for key, (_, arch) in zip(keys, wanted))


def build_emulated(source: CudaSource, options: Options, asan: bool = False, assembly: str = "") -> bytes:
    """The shared object that runs the kernels of `source` in the emulator (emu/abi.h), with `asan` under the address sanitiser
    (the process that loads it then needs the sanitiser's runtime preloaded), and with what is written in `assembly`. The
    emulator's own units are compiled once.

    Raises LaunchError where there is no C++ compiler, InternalError with its first error where the source does not compile."""
    cache = _cache(options)
    compiler = find_cxx(read_environment().compiler)
    headers = {**_headers(), **_texts(_EMULATOR, "*.h"), **_texts(_EMULATOR, "*.hpp")}
    flags = (*_HOST_FLAGS, *(_ASAN_FLAGS if asan else ()))
    parts = {name: text for name, text in _texts(_EMULATOR, "*.cpp").items() if _is_needed(name, source)}
    units = [(name, text, (*flags, *_EMULATOR_FLAGS)) for name, text in parts.items()]
    units.append((f"{source.name}.cu", source.text, (*flags, *(f"-D{define}" for define in source.defines))))
    keys = [digest("emulated", compiler.identity, name, text, *unit_flags, *_flat(headers)) for name, text, unit_flags in units]
    whole = digest("emulated module", *keys, assembly)
    known = cache.get(whole)
    if known is not None:
        return known
    with tempfile.TemporaryDirectory(prefix="tsc-cuda-") as work:
        caller = _Caller(compiler, Path(work), _environment(compiler, cache, Path(work)))

        def make(number: int) -> str:
            name, text, unit_flags = units[number]
            made = cache.get(keys[number])
            if made is None:
                made = caller.compile(number, name, text, unit_flags)
                cache.put(keys[number], made)
            (caller.work / f"unit{number}.o").write_bytes(made)
            return f"unit{number}.o"

        objects = mapped(options.job_count(), make, range(len(units)))
        module = caller.link(objects, flags, assembly)
    cache.put(whole, module)
    return module


def build_emulated_module(sources: Mapping[str, str], spec: DeviceSpec, options: Options,
                          interfaces: Mapping[str, KernelInterface] | None = None, ahead: Ahead | None = None) -> bytes:
    """The shared object of all kernels (name -> CUDA) for the emulator, with the table of their `interfaces`; nothing was
    compiled ahead. Raises as `build_emulated`."""
    text = "\n".join(sources[name] for name in sorted(sources))
    table = table_source(ModuleInterface(spec.name, spec.cpu_flags, interfaces or {}))
    return build_emulated(CudaSource("kernels", text), options, assembly=table)


def build_cubin_module(sources: Mapping[str, str], spec: DeviceSpec, options: Options,
                       interfaces: Mapping[str, KernelInterface] | None = None, ahead: Ahead | None = None) -> bytes:
    """The cubin of all kernels (name -> CUDA), with the table of their `interfaces` as a constant of the device; nothing was
    compiled ahead. Raises as `build_cubins`."""
    lines = table_text(ModuleInterface(spec.name, spec.cpu_flags, interfaces or {})).splitlines()
    quoted = "\n".join('"' + line.replace("\\", r"\\").replace('"', r"\"") + '"' for line in lines)
    table = f'extern "C" __device__ char {TABLE}[] =\n{quoted};'
    in_turn = f'#if __CUDA_ARCH__ >= 900\nextern "C" __device__ char {IN_TURN}[] = "1";\n#endif'
    text = "\n".join([*(sources[name] for name in sorted(sources)), table, in_turn, ""])
    return build_cubin(CudaSource("kernels", text), spec.name, options).binary


class _Nothing(Ahead):
    """Takes sources, and compiles none of them: all kernels are one unit of C++."""

    def __init__(self) -> None:
        """No compiler is looked for."""

    def __call__(self, source: str) -> None:
        """As Ahead."""

    @property
    def compiler(self) -> str:
        """Not known before there is a unit to compile."""
        return ""

    def close(self, cancelled: bool = False) -> None:
        """As Ahead."""


@contextmanager
def nothing_ahead(spec: DeviceSpec, options: Options) -> Iterator[Ahead]:
    """What takes sources while others are scheduled."""
    yield _Nothing()


def _is_needed(unit: str, source: CudaSource) -> bool:
    """Whether `source` can call what `unit` of the emulator defines: only what includes hopper.cuh needs sm_90a's part."""
    return not unit.startswith("hopper") or "hopper.cuh" in source.text


def find_cxx(asked: str | None) -> Compiler:
    """The C++ compiler beside the C compiler `asked` for ("gcc" means g++, "zig cc" zig c++), else g++, clang++ or c++ on PATH,
    else the one in the `ziglang` wheel. Raises LaunchError."""
    if asked:
        *front, last = asked.split()
        command = (*front, _cxx_name(last))
        if shutil.which(command[0]) is None:
            raise LaunchError(f"no '{' '.join(command)}' is beside the '{asked}' that TSC_CC names; name another compiler")
        return identify_compiler(command, is_zig="zig" in asked)
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path is not None:
            return identify_compiler((path,))
    if importlib.util.find_spec("ziglang") is not None:
        return identify_compiler((sys.executable, "-m", "ziglang", "c++"), is_zig=True)
    raise LaunchError("no C++ compiler was found (g++, clang++, c++ on PATH); install one, or `pip install tsc-compiler[zig]`")


def _cxx_name(command: str) -> str:
    """The C++ command that goes with a C one: its "gcc", "clang" or "cc" replaced ("x86-gcc-12" gives "x86-g++-12")."""
    folder, name = os.path.split(command)
    for c, cxx in (("gcc", "g++"), ("clang", "clang++"), ("cc", "c++")):
        if c in name and cxx not in name:
            return os.path.join(folder, name.replace(c, cxx, 1))
    return command


@dataclass(frozen=True, slots=True)
class _Caller:
    """A C++ compiler in a folder of its own."""

    compiler: Compiler
    work: Path
    environment: dict[str, str]

    def compile(self, number: int, name: str, text: str, flags: Sequence[str]) -> bytes:
        """The object file of one unit. Its text is named as the source is, since the emulator reports lines of it."""
        folder = self.work / str(number)
        folder.mkdir()
        (folder / name).write_text(text, encoding="utf-8")
        made = self.work / f"unit{number}.o"
        folders = (f"-I{_DEVICE}", f"-I{_EMULATOR}", f"-I{_SCALARS.parent}")
        self._run(f"'{name}'", [*flags, *folders, "-x", "c++", "-c", f"{number}/{name}", "-o", made.name])
        return made.read_bytes()

    def link(self, objects: Sequence[str], flags: Sequence[str], assembly: str) -> bytes:
        """One shared object of all objects, and of what is written in assembly."""
        sanitizers = [flag for flag in flags if flag.startswith("-fsanitize")]
        if assembly:
            (self.work / "rest.s").write_text(assembly, encoding="ascii")
        rest = ["-x", "assembler", "rest.s", "-x", "none"] if assembly else []
        self._run("the module", [*sanitizers, "-shared", "-o", "module.so", *objects, *rest, "-lm", "-lpthread"])
        return (self.work / "module.so").read_bytes()

    def _run(self, what: str, arguments: Sequence[str]) -> None:
        command = [*self.compiler.command, *(("-fno-sanitize=undefined",) if self.compiler.is_zig else ()), *arguments]
        done = subprocess.run(command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InternalError(f"the C++ compiler refused {what}: {first_error(done.stderr)} ({' '.join(command)})")


def _environment(compiler: Compiler, cache: CompiledCache, work: Path) -> dict[str, str]:
    if not compiler.is_zig:
        return child_environment({})
    kept = cache.folder or work
    return child_environment({"ZIG_GLOBAL_CACHE_DIR": str(kept / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")})


def _cache(options: Options) -> CompiledCache:
    folder = options.cache_dir or read_environment().cache or default_cache_dir()
    return CompiledCache(folder if options.use_cache else None)


def _headers() -> dict[str, str]:
    """What a kernel's text may include."""
    return {**_texts(_DEVICE, "*.cuh"), _SCALARS.name: _SCALARS.read_text(encoding="utf-8")}


def _texts(folder: Path, pattern: str) -> dict[str, str]:
    """The files of one folder: name -> text, sorted."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(pattern))}


def _flat(texts: Mapping[str, str]) -> list[str]:
    return [part for item in texts.items() for part in item]


def _flags(source: CudaSource, arch: str) -> tuple[str, ...]:
    spec = parse_target(arch, CUDA_SPECS)
    return (f"--gpu-architecture={spec.name}", *_NVRTC_FLAGS, *(f"-D{define}" for define in source.defines))


def _checked(job: Job, answer: Answer) -> Answer:
    if answer.status != 0:
        line = first_error(answer.log) if answer.log else answer.message
        raise InternalError(f"NVRTC refused '{job.name}' for {job.flags[0].partition('=')[2]} ({answer.message}): {line}")
    return answer


def _pack(answer: Answer) -> bytes:
    """A cache entry: the log without what differs from run to run, then the cubin."""
    lines = [line for line in answer.log.splitlines() if "Compile time" not in line]
    log = "\n".join(lines).encode()
    return struct.pack("<Q", len(log)) + log + answer.cubin


def _unpack(arch: str, entry: bytes) -> Cubin:
    (length,) = struct.unpack_from("<Q", entry)
    log, binary = entry[8:8 + length].decode(), entry[8 + length:]
    return Cubin(arch, binary, kernel_infos(binary, log), log)
