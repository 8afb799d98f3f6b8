"""lower: the passes of the loop IR in order, from the polyhedral stage's Func to the one that is printed."""

from __future__ import annotations

from collections.abc import Mapping

from tsc.loop_ir.bounds import Prover, no_prover
from tsc.loop_ir.cpu.copies import share_edges
from tsc.loop_ir.cpu.squares import turn_copies
from tsc.loop_ir.cpu.tensorize import tensorize
from tsc.loop_ir.cpu.vectorize import vectorize
from tsc.loop_ir.fold_storage import fold_storage
from tsc.loop_ir.gpu.accumulators import hold_accumulators
from tsc.loop_ir.gpu.barriers import insert_barriers, without_needless_waits
from tsc.loop_ir.gpu.fragments import load_fragments
from tsc.loop_ir.gpu.mma import Mma
from tsc.loop_ir.gpu.pipeline import copy_asynchronously, software_pipeline
from tsc.loop_ir.gpu.tensorize_gpu import tensorize_gpu
from tsc.loop_ir.gpu.together import store_together
from tsc.loop_ir.gpu.unroll import unroll_registers
from tsc.loop_ir.gpu.verify_sync import verify_synchronised
from tsc.loop_ir.gpu.widen import widen_copies
from tsc.loop_ir.map_blocks import map_blocks
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.places import places_of
from tsc.loop_ir.print import format_func
from tsc.loop_ir.scratch import plan_scratch
from tsc.loop_ir.simplify import simplify
from tsc.loop_ir.spots import store_at_spots
from tsc.loop_ir.verify import verify
from tsc.loop_ir.verify_reads import verify_reads
from tsc.loop_ir.verify_storage import verify_storage
from tsc.target import DeviceSpec
from tsc.trace import Recorder


def lower(func: Func, spec: DeviceSpec, recorder: Recorder | None = None, prover: Prover = no_prover) -> Func:
    """`func` ready for `emit_c`: simplified, with intrinsics and vector loops for `spec`, its blocks numbered, its scratch and
    data errors listed. What stayed scalar is recorded with its reason. Raises InternalError where a pass broke the rules, or
    where neither facts nor `prover` see that it did not."""
    verify(func)
    given = func
    func = simplify(func, keep_marked=True)                 # canonical indices; marks survive for the next two passes
    func, scalar_tiles = tensorize(func, spec)              # contraction tiles -> fma_tile over vector registers
    func = turn_copies(func, spec)                          # copies of rows into columns -> squares, transposed
    func, scalar_loops = vectorize(func, spec)              # innermost loops -> vectors and a rest
    func = simplify(share_edges(func))                      # what rows of a copy have in common is found once
    placed = places_of(func)
    verify_reads(func.name, placed, prover)                 # what vectors read beyond scalars is proved to be there,
    verify_storage(given, placed, prover)                   # and the tiles and lanes that came in hold what is kept in them
    func = map_blocks(func)                                 # block nest -> one loop over block numbers
    func = plan_scratch(func)
    verify(func)
    _record(func, recorder, {"tensorize": scalar_tiles, "vectorize": scalar_loops})
    return func


def lower_gpu(func: Func, stages: int, instructions: tuple[Mma, ...] = (), recorder: Recorder | None = None) -> Func:
    """`func`, in warps and threads that nothing orders yet, ready for a GPU's printer: on matrix `instructions` where they fit,
    copies in a pipeline of `stages` (1 for none), every barrier and wait that shared memory needs derived, and proved enough.
    What stayed as it was is recorded with its reason. Raises InternalError where a pass broke the rules."""
    verify(func)
    func = simplify(func, keep_marked=True)
    func, scalar = tensorize_gpu(func, instructions)        # contraction tiles of a warp -> matrix instructions
    serial: tuple[str, ...] = ()
    if stages > 1:
        func, serial = software_pipeline(func, stages)      # copies of later tiles run while a tile is computed
    func = without_needless_waits(insert_barriers(copy_asynchronously(func)))
    func = widen_copies(simplify(func))                     # neighbours are copied together,
    func = load_fragments(func)                             # what several products read is read once, together,
    func = hold_accumulators(func)                          # what is summed up in memory is held in a register
    func = store_together(func)                             # and neighbours are stored together
    func = map_blocks(simplify(unroll_registers(func)))     # what counts registers is written out
    func = plan_scratch(func)
    verify(func)
    verify_synchronised(func)
    _record(func, recorder, {"tensorize": scalar, "pipeline": serial})
    return func


def settle(func: Func) -> Func:
    """`func` when all is proved and compared that is to be: what this does to it no reading back of loops would see through."""
    made = store_at_spots(func)                             # what goes to one place is stored there
    made = fold_storage(made)                               # of what trips hand on two are kept
    if made.body is func.body:
        return func
    made = plan_scratch(made)
    verify(made)
    return made


def _record(func: Func, recorder: Recorder | None, reasons: Mapping[str, tuple[str, ...]]) -> None:
    if recorder is not None:
        for stage, found in reasons.items():
            for reason in found:
                recorder.decide(stage, func.name, reason)
        recorder.record("loop_ir", func.name, lambda: format_func(func))
