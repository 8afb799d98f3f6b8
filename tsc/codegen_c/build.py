"""build_module: C sources to one shared object, with whatever C compiler there is and a cache of what it made."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tsc.codegen_c.cache import CompiledCache, default_cache_dir, digest
from tsc.config import Options, child_environment, read_environment
from tsc.errors import InternalError, LaunchError
from tsc.runtime.interface import TABLE, KernelInterface, ModuleInterface, table_text
from tsc.target import DeviceSpec

_HERE = Path(__file__).parent
_RUNTIME = _HERE.parent / "runtime" / "drivers" / "cpu_runtime.c"
_HEADERS = ("tsc_kernel.h", "tsc_math.h")
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fwrapv", "-g0", "-w")
_ZIG_TARGETS = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to call a C compiler, and what tells its output from another's."""

    command: tuple[str, ...]
    identity: str
    is_zig: bool = False


def build_module(sources: Mapping[str, str], spec: DeviceSpec, options: Options,
                 interfaces: Mapping[str, KernelInterface] | None = None) -> bytes:
    """The shared object of all kernels (name -> source), the runtime's thread pool, and the table of the kernels' `interfaces`,
    without which no plan may call them. Objects are compiled `options.jobs` at a time and cached; the same sources, flags and
    compiler give the same entry. Raises LaunchError where there is no compiler, or it fails."""
    environment = read_environment()
    folder = options.cache_dir or environment.cache or default_cache_dir()
    cache = CompiledCache(folder if options.use_cache else None)
    compiler = find_compiler(environment.compiler)
    runtime = _RUNTIME.read_text(encoding="utf-8")
    units = [(name, sources[name]) for name in sorted(sources)]
    units.append(("tsc_cpu_runtime", runtime))
    units.append((TABLE, _table_source(ModuleInterface(spec.name, spec.cpu_flags, interfaces or {}))))
    headers = [(_HERE / h).read_text(encoding="utf-8") for h in _HEADERS]
    flags = (*_FLAGS, *_machine_flags(compiler, spec))
    keys = [digest("object", compiler.identity, *flags, *headers, text) for _, text in units]
    whole = digest("module", *keys)
    known = cache.get(whole)
    if known is not None:
        return known
    with tempfile.TemporaryDirectory(prefix="tsc-build-") as work:
        caller = _Caller(compiler, flags, Path(work), _zig_environment(compiler, folder, Path(work)))
        with ThreadPoolExecutor(options.jobs or os.cpu_count() or 1) as pool:
            objects = list(pool.map(lambda u: _compile(u[0], u[1], cache, caller), zip(keys, units)))
        module = caller.link(objects)
    cache.put(whole, module)
    return module


def find_compiler(asked: str | None) -> Compiler:
    """The compiler `asked` for, else cc, gcc or clang on PATH, else the one in the `ziglang` wheel. Raises LaunchError."""
    if asked:
        command = tuple(asked.split())
        if shutil.which(command[0]) is None:
            raise LaunchError(f"the C compiler '{asked}' that TSC_CC names does not exist; unset TSC_CC or name one that does")
        return identify_compiler(command, is_zig="zig" in asked)
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return identify_compiler((path,))
    if importlib.util.find_spec("ziglang") is not None:
        return identify_compiler((sys.executable, "-m", "ziglang", "cc"), is_zig=True)
    raise LaunchError("no C compiler was found (cc, gcc or clang on PATH); install one, or `pip install tsc-compiler[zig]`")


def identify_compiler(command: tuple[str, ...], is_zig: bool = False) -> Compiler:
    """What `command` says it is. Raises LaunchError where it does not run."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if version.returncode != 0:
        raise LaunchError(f"the C compiler '{' '.join(command)}' does not run: {first_error(version.stderr)}")
    return Compiler(command, version.stdout, is_zig)


@dataclass(frozen=True, slots=True)
class _Caller:
    compiler: Compiler
    flags: tuple[str, ...]
    work: Path
    environment: dict[str, str]

    def compile(self, name: str, source: str) -> bytes:
        """The object file of one unit."""
        text, made = self.work / f"{name}.c", self.work / f"{name}.o"
        text.write_text(source, encoding="utf-8")
        self._run(name, [*self.flags, f"-I{_HERE}", "-c", text.name, "-o", made.name])
        return made.read_bytes()

    def link(self, objects: Sequence[bytes]) -> bytes:
        """One shared object of all objects."""
        names = []
        for number, content in enumerate(objects):
            names.append(f"unit{number}.o")
            (self.work / names[-1]).write_bytes(content)
        target = [f for f in self.flags if f.startswith("-target") or f.startswith("--target")]
        self._run("link", [*target, "-shared", "-o", "module.so", *names, "-lm", "-lpthread"])
        return (self.work / "module.so").read_bytes()

    def _run(self, what: str, arguments: list[str]) -> None:
        command = [*self.compiler.command, *arguments]
        done = subprocess.run(command, cwd=self.work, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InternalError(f"the C compiler refused {what}: {first_error(done.stderr)} ({' '.join(command)})")


def _table_source(module: ModuleInterface) -> str:
    """C of the table, a string literal a line."""
    lines = "\n".join(json.dumps(line) for line in table_text(module).splitlines())  # JSON's escapes are C's
    return f'__attribute__((visibility("default"), used)) const char {TABLE}[] =\n{lines};\n'


def _compile(key: str, unit: tuple[str, str], cache: CompiledCache, caller: _Caller) -> bytes:
    known = cache.get(key)
    if known is None:
        known = caller.compile(f"unit_{key[:16]}", unit[1])
        cache.put(key, known)
    return known


def _machine_flags(compiler: Compiler, spec: DeviceSpec) -> tuple[str, ...]:
    if not compiler.is_zig:
        return spec.compile_flags
    machine = os.uname().machine
    if machine not in _ZIG_TARGETS:
        raise LaunchError(f"no zig target is known for a {machine} machine; install gcc or clang")
    return (f"--target={_ZIG_TARGETS[machine]}", "-fno-sanitize=undefined", *spec.compile_flags)


def _zig_environment(compiler: Compiler, folder: Path, work: Path) -> dict[str, str]:
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "ZIG_LOCAL_CACHE_DIR": str(work / "zig")}
    return child_environment(caches if compiler.is_zig else {})


def first_error(text: str) -> str:
    """The first line of a compiler's output that speaks of an error, else its first line."""
    lines = [line for line in text.splitlines() if "error:" in line.lower()] or text.splitlines() or ["no message"]
    return lines[0]
