"""What proofs see of a kernel: accesses where the program has them, not by way of registers that passes put in between."""

from __future__ import annotations

from tsc.loop_ir.gpu.accumulators import without_accumulators
from tsc.loop_ir.gpu.fragments import without_fragments
from tsc.loop_ir.nodes import Func


def without_registers(func: Func) -> Func:
    """`func` without fragments and without held accumulators. Raises InternalError where these change what it computes."""
    return without_fragments(without_accumulators(func))
