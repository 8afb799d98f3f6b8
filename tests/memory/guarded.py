"""Guarded runs: a compiled model with every buffer mapped apart, flush against pages that are not there.

Inputs, outputs, constants, every storage of the arena and each launch's scratch get a mapping each, with nothing mapped for
megabytes on both sides. `flush="end"` puts the last byte of a buffer before the first page that is not there, `flush="start"`
its first byte behind the last one; only the alignment of an element is kept. Inputs and constants can be read only. What
nobody has written holds a pattern, scratch and the stack again before each call of a kernel; blocks run in a few calls, the
last ones first.
All runs happen in a forked child, so that a fault there is an error here:

    results = run_guarded(executable, feeds, flush="end", fill="signalling")   # one run
    results = check_guarded(executable, feeds)                                 # all of them, which must agree bit for bit
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import signal
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.runtime.plans import counts_of, plan_of, settled
from tsc.codegen_c.build import build_module
from tsc.codegen_c.specs import CPU_SPECS
from tsc.config import Options
from tsc.errors import InputError
from tsc.runtime.bind import Binder, Binding
from tsc.runtime.drivers.cpu import CpuModule, choose_module, load_library, read_cpu_flags
from tsc.runtime.executable import Executable
from tsc.runtime.memory import Array, address, round_up
from tsc.runtime.package import Package
from tsc.runtime.plan import Call, Plan, Storage

Flush = Literal["end", "start"]
FLUSHES: tuple[Flush, ...] = ("end", "start")

#: What unwritten memory holds, eight bytes over and over. As float32 and as float64: zeros; NaNs that signal when they are
#: computed with (float32), or in float64; quiet NaNs, which are -1 as integers; denormals, which are 1.
FILLS: dict[str, int] = {
    "zeros": 0, "signalling": 0x7FBF_FFFF_7FBF_FFFF, "signalling64": 0x7FF7_FFFF_FFFF_FFFF, "ones": 0xFFFF_FFFF_FFFF_FFFF,
    "denormals": 0x0000_0001_0000_0001}

PAGE = mmap.PAGESIZE
GUARD = 4096 * PAGE  # nothing is mapped so far on both sides of a buffer
SECONDS = 120        # a run that takes longer is ended
CALLS = 3            # of a kernel with as many blocks, each with fresh scratch
_HEADER = 8          # words of shared memory: signal, address, run, launch, failure, its launch

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MemoryFault(AssertionError):
    """A kernel touched what is not its own, or its results depend on what nobody wrote."""


@dataclass(frozen=True, slots=True)
class Run:
    """One way to place and fill the memory of a model."""

    flush: Flush
    fill: str

    def __str__(self) -> str:
        return f"flush at the {self.flush}, filled with {self.fill}"


ALL_RUNS = tuple(Run(flush, fill) for flush in FLUSHES for fill in FILLS)


def run_guarded(model: Executable | Package, feeds: Mapping[str, Any], flush: Flush = "end",
                fill: str = "signalling") -> list[Array]:
    """The outputs of one guarded run. Raises MemoryFault naming kernel and buffer, and what `Executable.run` raises for feeds
    that are wrong."""
    return run_all(model, feeds, [Run(flush, fill)])[0].results


def check_guarded(model: Executable | Package, feeds: Mapping[str, Any], runs: Sequence[Run] = ALL_RUNS) -> list[Array]:
    """The outputs, which are the same bit for bit however memory is placed and filled. Raises MemoryFault where they are not,
    and as `run_guarded` does."""
    first, *others = run_all(model, feeds, runs)
    package = model if isinstance(model, Package) else model._package
    for run, other in zip(runs[1:], others):
        for spec, want, got in zip(plan_of(package).outputs, first.results, other.results):
            if want.tobytes() != got.tobytes():
                count = int((want.reshape(-1).view(np.uint8) != got.reshape(-1).view(np.uint8)).sum())
                raise MemoryFault(f"output '{spec.name}' {list(want.shape)} depends on what nobody wrote: {count} bytes differ "
                                  f"between {runs[0]} and {run}")
    return first.results


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run gave: the outputs, and for each launch which floating-point flags it raised (1 invalid, 2 denormal)."""

    results: list[Array]
    flags: tuple[int, ...]


def computed_with_unwritten(model: Executable | Package, feeds: Mapping[str, Any]) -> list[str]:
    """The kernels that compute with memory that nobody wrote, whether or not the result is used: with signalling NaNs or
    denormals there they raise flags that they do not raise with zeros there. Needs x86."""
    package = model if isinstance(model, Package) else model._package
    zeros, *others = run_all(model, feeds, [Run("end", fill) for fill in ("zeros", "signalling", "signalling64", "denormals")])
    found = [0] * len(zeros.flags)
    for other in others:
        found = [known | new & ~old for known, new, old in zip(found, other.flags, zeros.flags)]
    return [f"{launch.kernel} (node '{launch.node}')" for launch, flags in zip(plan_of(package).launches, found) if flags]


def run_all(model: Executable | Package, feeds: Mapping[str, Any], runs: Sequence[Run]) -> list[Ran]:
    """What each run gives, all of them in one child; what is counted is counted by a run before. Raises as `run_guarded`
    does."""
    package = model if isinstance(model, Package) else model._package
    package = settled(package, counts_of(package, feeds))
    binder = Binder(plan_of(package))
    arrays = binder.arrays(feeds)
    binding = binder.bind(binder.sizes(tuple(a.shape for a in arrays)))
    names = {run.flush for run in runs}
    memories = {flush: Memory(package, binding, arrays, flush) for flush in FLUSHES if flush in names}
    target = choose_module(package.modules, read_cpu_flags(), "the model under test")
    module = CpuModule(package.modules[target].binary, target)
    plan = plan_of(package)
    functions = module.symbols(set(plan.functions))
    outputs = _Outputs(plan, binding, len(runs))
    _in_child(lambda: _child(plan, binding, memories, functions, runs, outputs), outputs, plan, memories, runs)
    return [Ran(outputs.results(number), tuple(outputs.flags[number].tolist())) for number in range(len(runs))]


# -- memory ------------------------------------------------------------------------------------------------------

class Region:
    """`size` bytes with nothing mapped before and behind their pages, flush with the end or the start of these."""

    def __init__(self, name: str, size: int, flush: Flush) -> None:
        self.name, self.size = name, size
        pages = round_up(size, PAGE)
        self.whole = 2 * GUARD + pages
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
        self.base = _libc.mmap(None, self.whole, 0, flags, -1, 0)
        if self.base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"cannot map {self.whole} bytes for {name}")
        weakref.finalize(self, _libc.munmap, self.base, self.whole)
        first = self.base + GUARD
        self._pages = (first, pages)
        self.protect(mmap.PROT_READ | mmap.PROT_WRITE)
        self.pages = _bytes_at(first, pages)
        begin = pages - size if flush == "end" else 0
        self.address = first + begin
        self.data = self.pages[begin:begin + size]
        self.slack = (self.pages[:begin], self.pages[begin + size:])

    def protect(self, how: int) -> None:
        """Change what may be done with the pages."""
        if self._pages[1] and _libc.mprotect(*self._pages, how):
            raise OSError(ctypes.get_errno(), "mprotect")

    def fill(self, pattern: int) -> None:
        """Eight bytes over and over, on every byte of the pages."""
        self.pages.view(np.uint64)[:] = pattern

    def stained(self, pattern: int) -> int | None:
        """How many bytes from the first of the data on a byte outside them lies that does not hold the pattern."""
        want = np.frombuffer(pattern.to_bytes(8, "little"), np.uint8)
        before, behind = self.slack
        wrong = np.flatnonzero(before != np.resize(want, before.size))
        if wrong.size:
            return int(wrong[-1]) - before.size
        wrong = np.flatnonzero(behind != np.resize(np.roll(want, -(self.size % 8)), behind.size))
        return self.size + int(wrong[0]) if wrong.size else None

    def place(self, where: int) -> str:
        """Which byte of it an address is."""
        offset = where - self.address
        side = f"{-offset} bytes before the start" if offset < 0 else \
            f"{offset - self.size} bytes behind the end" if offset >= self.size else f"at byte {offset}"
        return f"{side} of {self.name}, which has {self.size} bytes"


def _bytes_at(where: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(where)) if size else np.empty(0, np.uint8)


def calls_of(plan: Plan) -> list[tuple[int, Call, tuple[int, ...]]]:
    """The Calls that a straight plan runs, each with the number of its Launch and the storages that it is given."""
    return [(number, call, tuple((*launch.args, *launch.temporaries)[a] for a in call.args))
            for number, launch in enumerate(plan.launches) for call in launch.variants[0].calls]


class Memory:
    """A Region for each storage of a plan at one shape, and for the scratch of each call that runs."""

    def __init__(self, package: Package, binding: Binding, feeds: Sequence[Array], flush: Flush) -> None:
        plan = plan_of(package)
        constants = [np.ascontiguousarray(package.constants[name]) for name in plan.constants]
        self.storages = [self._region(plan, binding, s, feeds, constants, flush) for s in plan.storages]
        self.calls = calls_of(plan)
        self.scratch = [Region(f"the scratch of '{call.function}'", call.scratch.evaluate(binding.names), flush)
                        for _, call, _ in self.calls]
        self.read_only = {i for i, s in enumerate(plan.storages) if s.kind in ("input", "constant")}
        for i in self.read_only:
            source = (feeds if plan.storages[i].kind == "input" else constants)[plan.storages[i].index]
            self.storages[i].data[:] = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
            self.storages[i].protect(mmap.PROT_READ)
        self.pointers = [np.array([self.storages[s].address for s in own], np.int64) for _, _, own in self.calls]

    def _region(self, plan: Plan, binding: Binding, storage: Storage, feeds: Sequence[Array], constants: Sequence[Array],
                flush: Flush) -> Region:
        match storage.kind:
            case "input":
                return Region(f"input '{plan.inputs[storage.index].name}'", feeds[storage.index].nbytes, flush)
            case "constant":
                return Region(f"constant '{plan.constants[storage.index]}'", constants[storage.index].nbytes, flush)
            case "output":
                spec, shape = plan.outputs[storage.index], binding.outputs[storage.index]
                return Region(f"output '{spec.name}'", math.prod(shape) * np.dtype(spec.dtype).itemsize, flush)
            case _:
                return Region(f"the value at {storage.offset} of the arena", storage.bytes.evaluate(binding.dims), flush)

    def regions(self) -> list[Region]:
        return [*self.storages, *self.scratch]

    def written(self) -> list[Region]:
        """Those that kernels may write."""
        return [*(r for i, r in enumerate(self.storages) if i not in self.read_only), *self.scratch]


# -- the child ---------------------------------------------------------------------------------------------------

class _Outputs:
    """Memory that the child shares with us: how far it is, the flags and the outputs of every run."""

    def __init__(self, plan: Plan, binding: Binding, runs: int) -> None:
        self.specs = [(np.dtype(spec.dtype), shape) for spec, shape in zip(plan.outputs, binding.outputs)]
        self.sizes = [kind.itemsize * math.prod(shape) for kind, shape in self.specs]
        self.one = sum(self.sizes)
        head = 8 * (_HEADER + runs * len(plan.launches))
        block = np.frombuffer(mmap.mmap(-1, head + runs * self.one + 8), np.uint8)
        words = block[:head].view(np.int64)
        self.header, self.flags = words[:_HEADER], words[_HEADER:].reshape(runs, -1)
        self.bytes = block[head:]

    def parts(self, run: int) -> list[Array]:
        """The bytes of each output of a run."""
        starts = np.cumsum([run * self.one, *self.sizes])
        return [self.bytes[a:a + size] for a, size in zip(starts, self.sizes)]

    def results(self, run: int) -> list[Array]:
        return [np.frombuffer(part.tobytes(), kind).reshape(shape) for part, (kind, shape) in zip(self.parts(run), self.specs)]


@cache
def _guard() -> ctypes.CDLL:
    source = (Path(__file__).parent / "guard.c").read_text(encoding="utf-8")
    library = load_library(build_module({"guard": source}, CPU_SPECS["cpu-generic"], Options()), "guard")
    library.guard_install.argtypes = [ctypes.c_void_p]
    library.guard_call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
                                   ctypes.c_uint64, ctypes.c_void_p]
    library.guard_call.restype = ctypes.c_int32
    return library


def _child(plan: Plan, binding: Binding, memories: Mapping[Flush, Memory], functions: Mapping[str, int], runs: Sequence[Run],
           outputs: _Outputs) -> None:
    guard, header, bound = _guard(), outputs.header, binding.whole
    assert bound is not None  # the plan is straight
    guard.guard_install(address(header))
    for number, run in enumerate(runs):
        memory, pattern = memories[run.flush], FILLS[run.fill]
        header[2] = number
        for region in memory.written():
            region.fill(pattern)
        for row, (step, call, _) in enumerate(memory.calls):
            header[3] = step
            function, blocks = functions[call.function], int(bound.blocks[row])
            sizes = address(bound.sizes) + 8 * int(bound.rows.sizes[row])
            args = np.array([address(memory.pointers[row]), sizes], np.int64)
            scratch, flags = memory.scratch[row], outputs.flags[number, step:]
            for begin, end in reversed(_calls(blocks)):
                scratch.fill(pattern)
                status = guard.guard_call(function, address(args), begin, end, scratch.address, pattern, address(flags))
                if status:
                    header[4], header[5] = status, step
                    return
        header[3] = len(plan.launches)
        for source, _, target, _, size in bound.copies:
            ctypes.memmove(memory.storages[target].address, memory.storages[source].address, size)
        for region in memory.written():
            where = region.stained(pattern)
            if where is not None:
                header[1], header[0] = region.address + where, -1
                return
        for storage, region in zip(plan.storages, memory.storages):
            if storage.kind == "output":
                outputs.parts(number)[storage.index][:] = region.data


def _calls(blocks: int) -> list[tuple[int, int]]:
    ends = sorted({blocks * k // CALLS for k in range(CALLS + 1)})
    return list(pairwise(ends))


def _in_child(work: Any, outputs: _Outputs, plan: Plan, memories: Mapping[Flush, Memory], runs: Sequence[Run]) -> None:
    _guard()  # built and loaded here
    child = os.fork()
    if child == 0:
        code = 2
        try:
            signal.alarm(SECONDS)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    number, where, run, step, failure, failed = outputs.header[:6].tolist()
    at = f"with memory {runs[run]}"
    launch = plan.launches[min(step, len(plan.launches) - 1)] if plan.launches else None
    kernel = f"kernel '{launch.kernel}' of node '{launch.node}' (launch {step})" if launch and step < len(plan.launches) else \
        "a copy to an output"
    if number:
        memory = memories[runs[run].flush]
        region = next((r for r in memory.regions() if r.base <= where < r.base + r.whole), None)
        place = region.place(where) if region else f"at {where:#x}, far from every buffer"
        if number < 0:
            raise MemoryFault(f"some kernel wrote {place}, {at}")
        raise MemoryFault(f"{kernel} ended with {signal.Signals(number).name} {place}, {at}")
    if status:
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        raise MemoryFault(f"{kernel} ended with {ended}, {at}")
    if failure:
        messages = plan.launches[failed].messages
        known = messages[failure - 1] if failure <= len(messages) else f"status {failure}"
        raise InputError(f"{known} (in the kernel of node '{plan.launches[failed].node}')")
