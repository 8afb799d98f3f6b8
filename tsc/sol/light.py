"""The launches of a compiled model at given sizes, and for each Variant how fast a GPU could run it at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import CudaSource, build_emulated, find_cxx
from tsc.codegen_cuda.resources import CubinResources, read_cubin
from tsc.codegen_cuda.sass import Sass, disassemble, find_disassembler
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options, read_environment
from tsc.errors import LaunchError, ShapeError
from tsc.graph.onnx.file import Source
from tsc.graph.onnx.importer import import_onnx
from tsc.kernels import Workshop
from tsc.pipeline import build_package
from tsc.runtime.bind import Binder, Binding
from tsc.runtime.cost import total
from tsc.runtime.launch_frame import WARP
from tsc.runtime.package import Package
from tsc.runtime.plan import Call, Launch, Variant, expressions_of
from tsc.runtime.select import least, terms_at
from tsc.sol.bound import Block, Cycles, Grid, cycles
from tsc.sol.counted import Buffers, Emulated
from tsc.sol.loops import executed, matrix_of, regions_of
from tsc.target import DeviceSpec, GpuLimits, GpuSpeed, parse_target


@dataclass(frozen=True, slots=True)
class Made:
    """A model compiled for a GPU: its Package, and the CUDA of its kernels by name."""

    package: Package
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CallBound:
    """A Call at its sizes: its blocks and how many a multiprocessor holds, the least cycles, and how well its instructions are
    known (`Executed`)."""

    call: Call
    grid: Grid
    cycles: Cycles
    unexplained: float
    least: bool


@dataclass(frozen=True, slots=True)
class VariantBound:
    """A Variant's Calls, which run one after the other; `expected` are the femtoseconds of the model of waves, 0 where it has
    no Cost, and `runs` says whether a run takes it."""

    calls: tuple[CallBound, ...]
    expected: float
    runs: bool

    @property
    def most(self) -> float:
        """The cycles of all its Calls, at least."""
        return sum(call.cycles.most for call in self.calls)


@dataclass(frozen=True, slots=True)
class LaunchBound:
    """A launch with its Variants; instead of these a `reason` where what it does is not known."""

    launch: Launch
    variants: tuple[VariantBound, ...]
    reason: str = ""


def check_tools(spec: DeviceSpec) -> GpuSpeed:
    """How fast a device is. Raises LaunchError where that is not known, or where the CUDA compiler, the disassembler or the C++
    compiler of the emulator is missing."""
    if spec.speed is None:
        raise LaunchError(f"how fast target '{spec.name}' is at most is not documented; known ones are "
                          + ", ".join(name for name, known in CUDA_SPECS.items() if known.speed is not None))
    nvrtc.identity()
    if find_disassembler() is None:
        raise LaunchError("no nvdisasm was found, which instructions are read by; `pip install nvidia-cuda-nvdisasm` brings it")
    find_cxx(read_environment().compiler)
    return spec.speed


def check_sizes(source: Source, dims: Mapping[str, Any] | None, sizes: Mapping[str, int]) -> None:
    """Raise ShapeError, before anything is compiled, where there are dims and no sizes. (Which dims are equal, so that some
    need none, is known later.)"""
    _, env = import_onnx(source, dims)
    if env.ranges and not sizes:
        raise ShapeError(f"a bound wants sizes of the dims {', '.join(sorted(env.ranges))}; give --size {min(env.ranges)}=…")


def make(source: Source, dims: Mapping[str, Any] | None, shop: Workshop) -> Made:
    """Compile a model, and keep its kernels' text. Raises as `build_package`."""
    kept: dict[str, str] = {}
    build = shop.device.build

    def keeping(sources: Mapping[str, str], *others: Any, **named: Any) -> bytes:
        kept.update(sources)
        return build(sources, *others, **named)

    return Made(build_package(source, dims, replace(shop, device=replace(shop.device, build=keeping))), kept)


class Light:
    """What bounds the launches of a compiled model on a device of such `speed` (None: the target's own). Raises LaunchError
    where a tool is missing."""

    def __init__(self, made: Made, target: str, options: Options, speed: GpuSpeed | None = None) -> None:
        self.spec = parse_target(target, CUDA_SPECS)
        known = check_tools(self.spec)
        self.speed = speed or known
        self._made, self._options = made, options
        (module,), (self.plan,) = made.package.modules.values(), made.package.plans.values()
        self._resources: Mapping[str, CubinResources] = read_cubin(module.binary)
        self._sass: Mapping[str, Sass] = disassemble(module.binary)

    @property
    def limits(self) -> GpuLimits:
        """What the device's multiprocessors hold."""
        assert self.spec.gpu is not None
        return self.spec.gpu

    @cached_property
    def _emulated(self) -> Emulated:
        text = "\n".join(self._made.sources[name] for name in sorted(self._made.sources))
        return Emulated(self.spec.name, build_emulated(CudaSource("kernels", text), self._options))

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """The plan at sizes of all dims. Raises ShapeError for a missing, unknown or wrong one."""
        binder = Binder(self.plan, None, self.limits.multiprocessors)
        return binder.bind(binder.given(sizes))

    def bytes(self, storage: int, binding: Binding) -> int:
        """The bytes of a storage where the plan is bound."""
        own = self.plan.storages[storage]
        if own.kind == "constant":
            return self._made.package.constants[self.plan.constants[own.index]].nbytes
        return binding.layout.bytes[storage]

    def launches(self, sizes: Mapping[str, int], cached: bool = False) -> Iterator[LaunchBound]:
        """The bounds of all launches; `cached`: all that they touch is in L2 already."""
        binding = self.bind(sizes)
        for launch in self.plan.launches:
            yield self.launch(launch, binding, cached)

    def launch(self, launch: Launch, binding: Binding, cached: bool = False) -> LaunchBound:
        """The bounds of one of them, where the plan is bound."""
        open_ = frozenset().union(*(e.dims() for e in expressions_of(launch))) - binding.names.keys()
        if open_:
            return LaunchBound(launch, (), f"its sizes are told by what memory holds ({', '.join(sorted(open_))})")
        units = self.limits.multiprocessors
        expected = [sum(map(total, terms_at(variant, binding.names, units))) for variant in launch.variants]
        runs = least(expected) if launch.selects else 0
        try:
            calls = [tuple(self._call(call, launch, variant, binding, cached) for call in variant.calls)
                     for variant in launch.variants]
        except LaunchError as error:
            return LaunchBound(launch, (), f"its first block cannot be emulated on zeros: {error}")
        pairs = enumerate(zip(calls, expected))
        return LaunchBound(launch, tuple(VariantBound(own, time, number == runs) for number, (own, time) in pairs))

    def _call(self, call: Call, launch: Launch, variant: Variant, binding: Binding, cached: bool) -> CallBound:
        names, known = binding.names, [self.bytes(number, binding) for number in launch.args]
        buffers = [*known, *(size.evaluate(names) for size in variant.temporaries)]
        own, blocks = tuple(buffers[number] for number in call.args), call.blocks.evaluate(names)
        sizes = tuple(size.evaluate(names) for size in launch.sizes)
        threads = max(call.threads, WARP)
        resident = self.limits.resident(threads, self._resources[call.function].registers, call.shared)
        grid = Grid(blocks, resident, sum(own))
        if blocks == 0:
            return CallBound(call, grid, Cycles(), 0, False)
        sass = self._sass[call.function]
        matrix = matrix_of(sass)
        counted = self._emulated.first_block(call, Buffers(own, sizes, call.scratch.evaluate(names)), matrix)
        found = executed(regions_of(sass), counted.known, threads // WARP)
        block = Block(counted.at_most(found.known), found, matrix.kind, threads // WARP)
        return CallBound(call, grid, cycles(block, grid, self.limits, self.speed, cached), found.unexplained, found.least)
