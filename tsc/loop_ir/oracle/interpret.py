"""The interpreter: what a Func means, element by element, in NumPy scalars. The oracle of everything that comes after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import InternalError
from tsc.loop_ir.gpu.races import Memory
from tsc.loop_ir.gpu.threads import local_buffers, team_sizes
from tsc.loop_ir.map_blocks import BLOCK_BEGIN, BLOCK_END
from tsc.loop_ir.nodes import Func, Store, walk
from tsc.loop_ir.oracle.interpret_serial import Machine, Trace, compile_stmt
from tsc.loop_ir.oracle.interpret_threads import run_threads

__all__ = ["Trace", "interpret", "interpreter"]


def interpret(func: Func, buffers: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], trace: Trace | None = None,
              block_range: tuple[int, int] | None = None, seed: int = 0) -> None:
    """Run `func` on arrays of the buffers' plain shapes (outputs are written in place).

    `trace` receives every executed statement instance in order. `block_range` restricts a Func after `map_blocks` to some of
    its blocks. `seed` draws the order in which threads run between barriers: no result may depend on it. Raises InputError for
    an index that a CheckedIndex refuses, InternalError for an access out of bounds, and in kernels with threads for races,
    accesses to what is still being copied, and barriers that not all threads reach.
    """
    begin, end = block_range if block_range is not None else (0, func.blocks.evaluate(sizes))
    interpreter(func, buffers, sizes, trace, seed)(begin, end)


def interpreter(func: Func, buffers: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], trace: Trace | None = None,
                seed: int = 0) -> Callable[[int, int], None]:
    """What runs a range of blocks, as `interpret` does, as often as it is called."""
    for buffer in func.buffers:
        expected = tuple(e.evaluate(sizes) for e in buffer.shape)
        if buffers[buffer.name].shape != expected:
            raise InternalError(f"kernel {func.name}: {buffer} is given an array of shape {buffers[buffer.name].shape}")
    memory = _memory(func)
    machine = Machine(func, dict(buffers), sizes, trace, memory)
    serial = None if memory is not None else compile_stmt(func.body, machine)

    def run(begin: int, end: int) -> None:
        env = {BLOCK_BEGIN: begin, BLOCK_END: end}
        with np.errstate(all="ignore"):
            if serial is not None:
                serial(env)
            elif memory is not None:
                run_threads(func.body, machine, memory, seed, env)
    return run


def _memory(func: Func) -> Memory | None:
    sizes = team_sizes(func.body)
    if sizes is None:
        return None
    found = local_buffers(func.body)
    common = frozenset(a.buffer.name for a, _ in found if a.scope in ("shared", "scratch"))
    spread = {a.buffer.name: level == "warp" for a, level in found if a.scope in ("register", "stack") and level != "thread"}
    stored = {s.buffer.name for s in walk(func.body) if isinstance(s, Store)} - {a.buffer.name for a, _ in found}
    return Memory(func.name, common | stored, common, spread, *sizes)
