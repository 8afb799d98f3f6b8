"""The explicit table of targets: what a back end is, and which ones there are. A new target is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tsc.codegen_c.build import Ahead, build_module, compiling_ahead
from tsc.codegen_c.emit import emit_c
from tsc.codegen_c.specs import BFLOAT_SPECS, CPU_SPECS, host_spec
from tsc.codegen_cuda.build import build_cubin_module, build_emulated_module, nothing_ahead
from tsc.codegen_cuda.emit import emit_cuda
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Options, Precision
from tsc.loop_ir.bounds import Prover
from tsc.loop_ir.gpu.mma import MMA_F16, MMA_TF32, WGMMA_F16, Mma
from tsc.loop_ir.gpu.registers import without_registers
from tsc.loop_ir.gpu.threads import block_threads, has_groups, shared_places, team_sizes
from tsc.loop_ir.lower import lower, lower_gpu
from tsc.loop_ir.nodes import Func
from tsc.ops.base import PatternKind
from tsc.poly import PatternMismatch
from tsc.poly.pattern import IN_STRIPS, IN_WARPS, OWN, Forms, as_it_is
from tsc.poly.pattern.shared import GROUP_ROWS
from tsc.poly.proof.loop_order import Edges
from tsc.poly.proof.refine import check_lowered
from tsc.poly.proof.refine_gpu import check_lowered_gpu
from tsc.poly.scop import Scop
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.runtime.drivers.emu import EMULATED
from tsc.runtime.interface import KernelInterface
from tsc.target import DeviceSpec, parse_target
from tsc.te.compute import Program
from tsc.te.factored.strips import scaled_late
from tsc.trace import Recorder
from tsc.tune.untuned import nothing, untuned


@dataclass(frozen=True, slots=True)
class Target:
    """A back end for one device: how loop IR is lowered for it and read back, printed, and built into one module."""

    spec: DeviceSpec
    forms: Forms  # in which its blocks compute: patterns, their trees and spaces
    lower: Callable[[Func, DeviceSpec, TileConfig, Recorder, Prover], Func]
    refine: Callable[[Func, Func, Scop, Edges], tuple[str, ...]]  # holds lowered loops against those of the tree
    emit: Callable[[Func, DeviceSpec, int], str]
    build: Callable[[Mapping[str, str], DeviceSpec, Options, Mapping[str, KernelInterface], Ahead | None], bytes]
    ahead: Callable[[DeviceSpec, Options], AbstractContextManager[Ahead]]  # compiles while others are scheduled
    factors: str = "float32"  # in which what is multiplied is stored
    pool: Callable[[PatternKind, Program, DeviceSpec], Mapping[TileConfig, Rates]] = nothing  # of a group that nobody has tuned
    algebra: Callable[[Program], Program] = as_it_is  # what it makes of a Program before all else


def find(name: str, precision: Precision = "fp32") -> Target:
    """The target called `name`; "cpu" is this machine's, "sm_80" a GPU of that architecture, "emu:sm_80" one in the emulator.
    Products may be of a `precision`, where there are instructions for it. Raises LaunchError naming the known ones."""
    if precision == "bf16":
        spec = host_spec(table=BFLOAT_SPECS) if name == "cpu" else parse_target(name, BFLOAT_SPECS, " in bf16")
        return replace(_cpu(spec), factors="bfloat16")
    spec = host_spec() if name == "cpu" else parse_target(name, CPU_SPECS | BFLOAT_SPECS | CUDA_SPECS | _EMULATED)
    if spec.gpu is not None:
        spec = replace(spec, intrinsics=tuple(m.name for m in _PRECISION[precision] if m.warps == 1 or spec.gpu.warp_groups))
        build = build_emulated_module if name in _EMULATED else build_cubin_module
        made = Target(spec, IN_WARPS, _lowered_for_gpu, _refined_on_gpu, _cuda, build, nothing_ahead,
                      pool=untuned)
        return replace(made, forms=IN_STRIPS, factors="float16", algebra=scaled_late) if precision == "fp16" else made
    return _cpu(spec)


def _cpu(spec: DeviceSpec) -> Target:
    return Target(spec, OWN, _lowered_for_cpu, check_lowered, emit_c, build_module, compiling_ahead)


#: Matrix instructions, of which the first that fits is taken, and those that a precision allows.
_INSTRUCTIONS = (WGMMA_F16, MMA_F16, MMA_TF32)
_PRECISION: Mapping[Precision, tuple[Mma, ...]] = {
    "fp32": (), "tf32": (MMA_TF32,), "fp16": _INSTRUCTIONS}
#: isl's operations for reading a GPU's loops back, half a second: rows take a tenth, products on tiles of 64 x 64 are not done
#: after ten times as many.
_READ_BACK = 500_000
_EMULATED = {f"emu:{arch}": replace(CUDA_SPECS[arch], name=f"emu:{arch}") for arch in EMULATED}


def _lowered_for_cpu(func: Func, spec: DeviceSpec, config: TileConfig, recorder: Recorder, prover: Prover) -> Func:
    return lower(func, spec, recorder, prover)


def _lowered_for_gpu(func: Func, spec: DeviceSpec, config: TileConfig, recorder: Recorder, prover: Prover) -> Func:
    """Copies in as many stages, up to the config's, as shared memory has room for; on the instructions of warp groups where the
    config is of theirs, else on those of warps. Raises PatternMismatch where a block does not fit a multiprocessor, or is not
    what groups multiply."""
    grouped = config.instr_tile[0] == GROUP_ROWS
    instructions = tuple(mma for mma in _INSTRUCTIONS if mma.name in spec.intrinsics and (mma.warps > 1) == grouped)
    for stages in range(config.stages, 0, -1):
        made = lower_gpu(func, stages, instructions, recorder)
        if grouped and not has_groups(made):
            raise PatternMismatch(f"no warp group multiplies in {func.name}")
        wanted = _beyond(made, spec)
        if not wanted:
            return made
    raise PatternMismatch(f"a block wants {wanted}")


def _beyond(func: Func, spec: DeviceSpec) -> str:
    """What a block wants that is more than it can have, "" for nothing."""
    limits, threads, (_, shared) = spec.gpu, block_threads(func), shared_places(func)
    if limits is None or threads > limits.threads_per_block:
        return f"{threads} threads of at most {0 if limits is None else limits.threads_per_block}"
    return f"{shared} bytes of shared memory of {limits.shared_per_block}" if shared > limits.shared_per_block else ""


def _refined_on_gpu(before: Func, after: Func, scop: Scop, edges: Edges) -> tuple[str, ...]:
    """Loops that nothing spreads over threads are those of a CPU."""
    if team_sizes(after.body) is None:
        return check_lowered(before, without_registers(after), scop, edges)
    return check_lowered_gpu(before, after, scop, edges, _READ_BACK)


def _cuda(func: Func, spec: DeviceSpec, prefetch: int) -> str:
    return emit_cuda(func).text
