"""Generated C under a sanitizer: kernels of many models in one program that runs them on buffers of exactly their size.

    reports = run_sanitized(ADDRESS, [("name", captured(case, target), feeds), ...])   # [] where all is clean

AddressSanitizer watches what lies around every buffer; scratch is turned into arrays on the stack, so that what lies between
two of them is watched as well. UndefinedBehaviorSanitizer watches the arithmetic.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tests.memory.cases import Case, command
from tests.memory.guarded import calls_of
from tests.memory.mutate import Mutation
from tests.runtime.plans import counts_of, plan_of, settled
from tsc.codegen_c import build
from tsc.codegen_c.cache import default_cache_dir
from tsc.codegen_c.emit import emit_c
from tsc.config import Options
from tsc.errors import TscError
from tsc.kernels import workshop
from tsc.loop_ir.nodes import Allocate, Func, Stmt, map_children
from tsc.pipeline import build_package
from tsc.runtime.bind import Binder, Binding
from tsc.runtime.memory import Array
from tsc.runtime.package import Package
from tsc.runtime.plan import Bind, Element
from tsc.target import DeviceSpec

HEADERS = Path(build.__file__).parent
SECONDS = 300
BATCH = 20  # operator samples whose kernels are compiled as one program


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """How a compiler instruments, and what a report of it looks like."""

    compiler: str
    flags: tuple[str, ...]
    report: str
    on_stack: bool = False

    def __str__(self) -> str:
        return f"{self.compiler} {self.flags[0]}"


_UNDEFINED = "runtime error"
#: Without it gcc asks of all instrumented accesses where they may point: a minute and a half for one large kernel, not 6 s.
_QUICK = "-fno-tree-pta"
ADDRESS = Sanitizer("gcc", ("-fsanitize=address", "-fsanitize-recover=address", _QUICK), "ERROR: AddressSanitizer", True)
UNDEFINED = {
    "gcc": Sanitizer("gcc", ("-fsanitize=undefined,float-cast-overflow", "-fsanitize-recover=all", _QUICK), _UNDEFINED),
    "clang": Sanitizer("clang", ("-fsanitize=undefined,float-cast-overflow", "-fsanitize-recover=all"), _UNDEFINED),
    "zig": Sanitizer("zig", ("-fsanitize=undefined,float-cast-overflow", "-fsanitize-trap=all"), _UNDEFINED),
}

SANITIZERS = {"address": ADDRESS, **{f"undefined-{name}": one for name, one in UNDEFINED.items()}}


def lacking(sanitizer: Sanitizer) -> str:
    """Why a sanitizer cannot be used here; "" where it can."""
    if command(sanitizer.compiler) is None:
        return f"there is no {sanitizer.compiler}"
    with tempfile.TemporaryDirectory(prefix="tsc-sanitized-") as folder:
        done = _compile(sanitizer, Path(folder), ["-xc", "-", "-o", "made"], "int main(void) { return 0; }\n")
        return "" if done.returncode == 0 else f"{sanitizer} does not link: {done.stderr[:200]}"


# -- sources -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Captured:
    """A compiled model whose binary is not there, with the C of its kernels: as it is, and with scratch on the stack."""

    package: Package
    sources: Mapping[str, str]
    stacked: Mapping[str, str]
    spec: DeviceSpec

    def binding(self, feeds: Mapping[str, Any]) -> tuple[list[Array], Binding]:
        """The feeds in order, and every size at their shapes."""
        binder = Binder(plan_of(self.package))
        arrays = binder.arrays(feeds)
        return arrays, binder.bind(binder.sizes(tuple(a.shape for a in arrays)))


    @property
    def counts(self) -> bool:
        """Whether there are sizes that only the data tell."""
        return any(isinstance(step, Bind) and isinstance(step.source, Element) for step in plan_of(self.package).body)

    def at(self, whole: Package | None, feeds: Mapping[str, Any]) -> Captured:
        """The same with what `whole`, which can be run, counts in these feeds."""
        return self if whole is None else replace(self, package=settled(self.package, counts_of(whole, feeds)))


#: The name of a model, the model, and feeds for it.
Work: TypeAlias = tuple[str, Captured, Mapping[str, Any]]


def captured(case: Case, target: str, mutation: Mutation = lambda func: func) -> Captured:
    """Compile a Case up to its C; `mutation` breaks loops before that."""
    sources: dict[str, str] = {}
    stacked: dict[str, str] = {}
    on_stack: dict[str, str] = {}

    def keep(texts: Mapping[str, str], *_: object) -> bytes:
        sources.update(texts)
        stacked.update({symbol: on_stack[text] for symbol, text in texts.items()})
        return b""

    def emit(func: Func, spec: DeviceSpec, prefetch: int) -> str:
        func = mutation(func)
        text = emit_c(func, spec, prefetch)
        on_stack[text] = emit_c(replace(func, body=_stacked(func.body)), spec, prefetch)
        return text

    shop = workshop(target, Options(use_cache=False))
    package = build_package(case.source, case.dims, replace(shop, device=replace(shop.device, build=keep, emit=emit)))
    return Captured(package, sources, stacked, shop.device.spec)


def prepared(cases: Iterable[Case], target: str, sizes: int) -> list[Work]:
    """Cases compiled up to their C, each with its own feeds and with some of random sizes, as many as `sizes`."""
    work = []
    for case in cases:
        made = captured(case, target)
        whole = build_package(case.source, case.dims, workshop("cpu", None)) if made.counts else None
        work += [(case.name, made.at(whole, feeds), feeds) for feeds in case.feeds]
        for feeds in case.resized(random.Random(case.name), sizes):
            with contextlib.suppress(TscError):  # such a size is refused
                found = made.at(whole, feeds)
                found.binding(feeds)
                work.append((case.name, found, feeds))
    return work


def _stacked(stmt: Stmt) -> Stmt:
    stmt = map_children(_stacked, stmt)
    return replace(stmt, scope="stack") if isinstance(stmt, Allocate) and stmt.scope == "scratch" else stmt


# -- runs --------------------------------------------------------------------------------------------------------

def run_sanitized(sanitizer: Sanitizer, work: Sequence[Work]) -> list[str]:
    """What the sanitizer says of these models on these feeds: one text a report. All are for one target. Raises
    AssertionError where they do not compile."""
    sources = {symbol: text for _, made, _ in work
               for symbol, text in (made.stacked if sanitizer.on_stack else made.sources).items()}
    if not sources:
        return []
    symbols = sorted(sources)
    spec = work[0][1].spec
    with tempfile.TemporaryDirectory(prefix="tsc-sanitized-") as name:
        folder = Path(name)
        for symbol in symbols:
            (folder / f"{symbol}.c").write_text(sources[symbol], encoding="utf-8")
        main = (Path(__file__).parent / "sanitized.c").read_text(encoding="utf-8")
        (folder / "main.c").write_text(f"#define KERNELS {' '.join(f'X({s})' for s in symbols)}\n{main}", encoding="utf-8")
        files = [*(f"{s}.c" for s in symbols), "main.c"]
        done = _compile(sanitizer, folder, [*spec.compile_flags, f"-I{HEADERS}", *files, "-o", "made", "-lm"])
        assert done.returncode == 0, build.first_error(done.stderr)
        words = struct.pack("<q", len(work))
        (folder / "runs").write_bytes(words + b"".join(b"".join(_run(n, made, f, symbols)) for n, made, f in work))
        return _reports(sanitizer, folder)


def _compile(sanitizer: Sanitizer, folder: Path, arguments: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    asked = command(sanitizer.compiler)
    assert asked is not None
    flags = [f for f in build._FLAGS if f not in ("-O3", "-fPIC", "-g0")]
    extra = {"ZIG_GLOBAL_CACHE_DIR": str(default_cache_dir() / "zig"), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    extra = extra if sanitizer.compiler == "zig" else {}
    return subprocess.run([*asked.split(), *flags, "-O1", "-g1", *sanitizer.flags, *arguments], cwd=folder, input=text,
                          env={**os.environ, **extra}, text=True, capture_output=True, check=False)


def _reports(sanitizer: Sanitizer, folder: Path) -> list[str]:
    options = {"ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:max_malloc_fill_size=0", "UBSAN_OPTIONS": "print_stacktrace=0"}
    no_limit = partial(resource.setrlimit, resource.RLIMIT_STACK, (1 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    done = subprocess.run([str(folder / "made"), "runs"], cwd=folder, env={**os.environ, **options}, capture_output=True,
                          text=True, errors="replace", preexec_fn=no_limit, timeout=SECONDS, check=False)
    found: list[str] = []
    at = "the start"
    for line in done.stderr.splitlines():
        if line.startswith("== "):
            at = line[3:]
        elif re.search(sanitizer.report, line):
            found.append(f"{at}: {line.strip()}")
        elif found and line.lstrip().startswith(("#0", "READ", "WRITE", "0x")) and found[-1].count("|") < 3:
            found[-1] += f" | {line.strip()}"
    if at != "done":
        found.append(f"{at}: ended with code {done.returncode}; {done.stderr.splitlines()[-1:]}")
    return found


def _run(name: str, made: Captured, feeds: Mapping[str, Any], symbols: Sequence[str]) -> Iterator[bytes]:
    """A run in the file: its name; each storage's bytes, and whether its contents follow; for each call how long what
    follows is: function, blocks, scratch, buffers by storage, sizes. Numbers are 8 bytes."""
    package, plan = made.package, plan_of(made.package)
    arrays, binding = made.binding(feeds)

    def words(*numbers: int) -> bytes:
        return struct.pack(f"<{len(numbers)}q", *numbers)

    yield words(len(name.encode())) + name.encode()
    yield words(len(plan.storages))
    for storage in plan.storages:
        content: Array | None = None
        match storage.kind:
            case "input":
                content = arrays[storage.index]
            case "constant":
                content = package.constants[plan.constants[storage.index]]
            case "output":
                kind = np.dtype(plan.outputs[storage.index].dtype)
                size = kind.itemsize * int(np.prod(binding.outputs[storage.index], dtype=np.int64))
            case _:
                size = storage.bytes.evaluate(binding.dims)
        if content is None:
            yield words(size, 0)
        else:
            yield words(content.nbytes, 1) + np.ascontiguousarray(content).tobytes()
    calls = calls_of(plan)
    yield words(len(calls))
    for number, call, own in calls:
        sizes = [size.evaluate(binding.names) for size in plan.launches[number].sizes]
        blocks, scratch = (size.evaluate(binding.names) for size in (call.blocks, call.scratch))
        text = words(symbols.index(call.function), blocks, scratch, len(own), *own, len(sizes), *sizes)
        yield words(len(text)) + text
