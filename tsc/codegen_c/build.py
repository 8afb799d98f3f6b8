"""build_module: C sources to one shared object, with whatever C compiler there is and a cache of what it made."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tsc.codegen_c.cache import CompiledCache, default_cache_dir, digest
from tsc.codegen_c.self_test import SELF_TEST, Candidate, trusted_flags
from tsc.codegen_c.work import work_folder
from tsc.config import Options, child_environment, read_environment
from tsc.errors import LaunchError
from tsc.runtime.elf import read_exports
from tsc.runtime.files import machine_fault
from tsc.runtime.interface import (
    C_INTERFACE,
    FUNCTIONS,
    RUNTIME,
    TABLE,
    KernelInterface,
    ModuleInterface,
    functions_of,
    table_text,
)
from tsc.target import DeviceSpec
from tsc.threads import mapped, submitted

_HERE = Path(__file__).parent
_DRIVERS = _HERE.parent / "runtime" / "drivers"
_RUNTIME = tuple(_DRIVERS / f"{name}.c" for name in ("cpu_runtime", "cpu_host", "cpu_model"))
_HEADERS = (*(_HERE / f"tsc_{name}.h" for name in ("kernel", "scalar", "math", "square")), _DRIVERS / "cpu_host.h",
            _DRIVERS / "tsc.h")
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv", "-g0", "-w")
_VERSION_SECONDS = 60.0
_OTHER = "name another with TSC_CC"
#: Loops are vectorised by our own passes, which are checked: what these refuse stays scalar. gcc 12.2 gives rows of two or
#: three elements the mask of other rows (`rows of 2` in self_test.c), and finds no loop in tiles, norms and softmax that it
#: could.
_GCC_FLAGS = ("-fno-tree-loop-vectorize",)
_SAFER = {True: ("-O2", "-fno-tree-vectorize"), False: ("-O2", "-fno-vectorize", "-fno-slp-vectorize")}  # by Compiler.is_gcc
_ZIG_TARGETS = {"x86_64": "x86_64-linux-gnu.2.17", "aarch64": "aarch64-linux-gnu.2.17"}


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to call a C compiler, and what tells its output from another's: its version and the options in its command."""

    command: tuple[str, ...]
    identity: str
    is_zig: bool = False

    @property
    def is_gcc(self) -> bool:
        """Whether it takes gcc's options, not clang's."""
        return "Free Software Foundation" in self.identity

    @property
    def keys(self) -> tuple[str, ...]:
        """All of it that its output depends on: a command may hold options, and a script speak for another compiler."""
        return (*self.command, self.identity)


def build_module(sources: Mapping[str, str], spec: DeviceSpec, options: Options,
                 interfaces: Mapping[str, KernelInterface] | None = None, ahead: Ahead | None = None) -> bytes:
    """The shared object of all functions (name -> source), the runtime's thread pool, and the table of kernels' `interfaces`,
    without which no plan may call them. Objects are compiled `options.jobs` at a time and cached; the same sources, flags and
    compiler give the same entry. Raises LaunchError where there is no compiler, or it fails or makes wrong code."""
    tools = _tools(spec, options) if ahead is None else ahead.tools.result()
    cache = tools.cache
    units = [(name, sources[name]) for name in sorted(sources)]
    units += [(f"tsc_{path.stem}", path.read_text(encoding="utf-8")) for path in _RUNTIME]
    module_interface = ModuleInterface(spec.name, spec.cpu_flags, interfaces or {})
    table = table_source(module_interface) + functions_source(module_interface)
    keys = [tools.key(text) for _, text in units]
    whole = digest("module", *keys, table)
    names = [call.function for kernel in (interfaces or {}).values() for variant in kernel.variants for call in variant.calls]
    known = cache.get(whole)
    if known is not None and _is_module(known, names):
        return known
    with work_folder() as work:
        caller, jobs = tools.caller(work), tools.jobs
        try:
            module = _linked(_compiled(keys, units, cache, caller, jobs), table, names, caller)
        except _LinkError:  # an object of the cache may be to blame, though it is whole
            if not any([cache.drop(key) for key in keys]):
                raise
            module = _linked(_compiled(keys, units, cache, caller, jobs), table, names, caller)
    cache.put(whole, module)
    return module


class Ahead:
    """Compiles kernels' sources into the cache while others are still scheduled. What goes wrong is for `build_module` to say,
    which takes the compiler that was found here, and the cache."""

    def __init__(self, spec: DeviceSpec, options: Options) -> None:
        self._asked: set[str] = set()
        self._pool = ThreadPoolExecutor(options.job_count())
        self.tools = submitted(self._pool, _tools, spec, options)

    def __call__(self, source: str) -> None:
        if source not in self._asked:
            self._asked.add(source)
            with suppress(RuntimeError):  # no thread to be had: `build_module` does it
                self._pool.submit(self._compile, source)

    @property
    def compiler(self) -> str:
        """What the compiler says it is, in a line; "" where there is none."""
        with suppress(LaunchError):
            return next(iter(self.tools.result().compiler.identity.splitlines()), "")
        return ""

    def close(self, cancelled: bool = False) -> None:
        """Wait until all that was asked for is done, or what was begun where `cancelled`."""
        self._pool.shutdown(cancel_futures=cancelled)

    def _compile(self, source: str) -> None:
        with suppress(LaunchError), work_folder() as work:
            found = self.tools.result()
            _compile(found.key(source), ("", source), found.cache, found.caller(work))


@contextmanager
def compiling_ahead(spec: DeviceSpec, options: Options) -> Iterator[Ahead]:
    """What compiles ahead; all is done when this is left."""
    ahead = Ahead(spec, options)
    try:
        yield ahead
    except BaseException:
        ahead.close(cancelled=True)
        raise
    ahead.close()


@dataclass(frozen=True, slots=True)
class _Tools:
    """What objects are made with, and where they are kept."""

    cache: CompiledCache
    folder: Path
    compiler: Compiler
    headers: tuple[str, ...]
    flags: tuple[str, ...]
    jobs: int

    def key(self, source: str) -> str:
        """The cache's key of a source's object."""
        return digest("object", *self.compiler.keys, *self.flags, *self.headers, source)

    def caller(self, work: Path) -> _Caller:
        return _Caller(self.compiler, self.flags, work, _zig_environment(self.compiler, self.folder, work))


def _tools(spec: DeviceSpec, options: Options) -> _Tools:
    """The compiler with the flags that it is trusted with, and the cache."""
    environment = read_environment()
    folder = options.cache_dir or environment.cache or default_cache_dir()
    cache = CompiledCache(folder if options.use_cache else None)
    compiler = find_compiler(environment.compiler)
    headers = tuple(path.read_text(encoding="utf-8") for path in _HEADERS)
    flags = _trusted(compiler, spec, headers, cache, folder)
    return _Tools(cache, folder, compiler, headers, flags, options.job_count())


def _linked(objects: Sequence[bytes], table: str, kernels: Iterable[str], caller: _Caller) -> bytes:
    """One shared object of all. Raises _LinkError where it lacks something."""
    module = caller.link(objects, table)
    if not _is_module(module, kernels):
        command = " ".join(caller.compiler.command)
        raise _LinkError(f"the C compiler '{command}' made no shared object of the kernels; {_OTHER}")
    return module


def _compiled(keys: Sequence[str], units: Sequence[tuple[str, str]], cache: CompiledCache, caller: _Caller,
              jobs: int) -> list[bytes]:
    """The object of each unit, from the cache or compiled, `jobs` at a time. Raises LaunchError."""
    return mapped(jobs, lambda u: _compile(u[0], u[1], cache, caller), zip(keys, units))


def _is_module(binary: bytes, kernels: Iterable[str]) -> bool:
    """Whether it is a shared object with the runtime, the table and the functions of all kernels."""
    try:
        found = read_exports(binary)
    except ValueError:
        return False
    return TABLE in found.data and {*RUNTIME, *C_INTERFACE, *kernels} <= found.functions


def find_compiler(asked: str | None) -> Compiler:
    """The compiler `asked` for, else cc, gcc or clang on PATH, else the one in the `ziglang` wheel. Raises LaunchError."""
    if asked is not None and asked.split():
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
    version = _call([*command, "--version"], timeout=_VERSION_SECONDS)
    if version.returncode != 0:
        raise LaunchError(f"the C compiler '{' '.join(command)}' does not run: {first_error(version.stderr)}; {_OTHER}")
    return Compiler(command, "\n".join((version.stdout, *command[1:])), is_zig)


def _call(command: Sequence[str], work: Path | None = None, environment: dict[str, str] | None = None,
          timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a compiler. Raises LaunchError where it cannot be started, or takes longer than `timeout` seconds."""
    what = f"cannot run the C compiler '{' '.join(command)}'"
    try:
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{what}: it said nothing for {timeout:.0f} s; {_OTHER}") from error
    except OSError as error:
        raise machine_fault(error, what) or LaunchError(f"{what} ({error.strerror}); {_OTHER}") from error


class _LinkError(LaunchError):
    """The objects are there, and do not go together."""


#: What is added to the flags where a compiler fails.
_LESS = "-O2"


@dataclass(frozen=True, slots=True)
class _Caller:
    compiler: Compiler
    flags: tuple[str, ...]
    work: Path
    environment: dict[str, str]

    def compile(self, name: str, source: str) -> bytes:
        """The object file of one unit. What a compiler fails at is tried once more with less optimisation: gcc 12 combines a
        masked load of bytes to an instruction that it then has no code for."""
        text, made = self.work / f"{name}.c", self.work / f"{name}.o"
        text.write_text(source, encoding="utf-8")
        arguments = [f"-I{_HERE}", f"-I{_DRIVERS}", "-c", text.name, "-o", made.name]
        try:
            self._run(name, [*self.flags, *arguments], LaunchError)
        except LaunchError as error:
            try:
                self._run(name, [*self.flags, _LESS, *arguments], LaunchError)
            except LaunchError:  # its fault is not how it optimises
                raise error from None
            logging.getLogger("tsc").warning("the C compiler '%s' fails at %s; with %s, which may be slower, it does not",
                                             " ".join(self.compiler.command), name, _LESS)
        return self._made(made)

    def link(self, objects: Sequence[bytes], assembly: str = "") -> bytes:
        """One shared object of all objects, and of what is written in assembly."""
        names = []
        for number, content in enumerate(objects):
            names.append(f"unit{number}.o")
            (self.work / names[-1]).write_bytes(content)
        if assembly:
            names.append("rest.s")
            (self.work / names[-1]).write_text(assembly, encoding="ascii")
        target = [f for f in self.flags if f.startswith("-target") or f.startswith("--target")]
        # what a module calls is its own, whatever other modules a program has; what zig adds has its cache's path in its debug
        # information
        own = [*target, "-shared", "-Wl,-Bsymbolic", "-Wl,--strip-debug", "-o", "module.so"]
        self._run("link", [*own, *names, "-lm", "-lpthread"], _LinkError)
        return self._made(self.work / "module.so")

    def _made(self, path: Path) -> bytes:
        if not path.exists() or not path.stat().st_size:
            command = ' '.join(self.compiler.command)
            raise LaunchError(f"the C compiler '{command}' reports no error but wrote nothing; {_OTHER}")
        return path.read_bytes()

    def _run(self, what: str, arguments: list[str], failure: type[LaunchError]) -> None:
        command = [*self.compiler.command, *arguments]
        done = _call(command, self.work, self.environment)
        if done.returncode != 0:
            raise failure(f"the C compiler failed at {what}: {first_error(done.stderr)} ({' '.join(command)}); free disk and "
                          f"memory where these are short, else {_OTHER}, and report it where that fails as well")


def table_source(module: ModuleInterface) -> str:
    """The table in assembly, a string a line: of data alone, which a compiler takes longer to start than to translate."""
    lines = [line.replace("\\", r"\\").replace('"', r'\"') for line in table_text(module).splitlines()]
    return "\n".join([".section .rodata", f".globl {TABLE}", f".type {TABLE}, %object", f"{TABLE}:",
                      *(f'.ascii "{line}"' for line in lines), '.byte 0', f".size {TABLE}, . - {TABLE}",
                      '.section .note.GNU-stack, "", %progbits', ""])


def functions_source(module: ModuleInterface) -> str:
    """The addresses of all functions, in assembly too."""
    functions = functions_of(module)
    return "\n".join(['.section .data.rel.ro, "aw"', ".balign 8", f".globl {FUNCTIONS}", f".hidden {FUNCTIONS}",
                      f".type {FUNCTIONS}, %object", f"{FUNCTIONS}:", f".quad {len(functions)}",
                      *(f".quad {name}" for name in functions), f".size {FUNCTIONS}, . - {FUNCTIONS}", ""])


def kernel_flags(compiler: Compiler, spec: DeviceSpec) -> tuple[str, ...]:
    """The flags for kernels, as long as a compiler passes its self test with them."""
    return (*_FLAGS, *(_GCC_FLAGS if compiler.is_gcc else ()), *_machine_flags(compiler, spec))


def _trusted(compiler: Compiler, spec: DeviceSpec, headers: Sequence[str], cache: CompiledCache,
             folder: Path) -> tuple[str, ...]:
    """The flags for kernels, with which the compiler has passed its self test."""
    def program(flags: tuple[str, ...]) -> bytes:
        with work_folder() as work:
            caller = _Caller(compiler, flags, work, _zig_environment(compiler, folder, work))
            return caller.link([caller.compile("self_test", SELF_TEST.read_text(encoding="utf-8"))])

    candidate = Candidate(" ".join(compiler.command), kernel_flags(compiler, spec), spec.cpu_flags, (*compiler.keys, *headers))
    return trusted_flags(candidate, _SAFER[compiler.is_gcc], cache, program)


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
