"""The order of sums: floating-point addition as a random function that is not associative, so that equal results of two
interpretations show that what they add up is added in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsc.errors import InternalError
from tsc.loop_ir.nodes import Func
from tsc.sym import product
from tsc.validate.algebra import Algebra
from tsc.validate.frames import CASE, Frame, Sizes
from tsc.validate.loops import Loops, evaluated
from tsc.validate.program import Inputs, keys_of, without
from tsc.validate.sampled import Pruning


def check_order(first: Func, second: Func, sizes: Sequence[dict[str, int]], seed: int = 0) -> None:
    """Raise InternalError unless two Funcs with the same arguments form the same sums in the same order."""
    known = Sizes.of_cases(sizes)
    algebra, inputs = Algebra(ordered=True), Inputs(known, keys_of(known.count, seed))
    with np.errstate(all="ignore"):
        one, other = (evaluated(Loops(func, known, inputs, algebra, Pruning())) for func in (first, second))
        for name in first.outputs:
            buffer = one[name].buffer
            counts = np.broadcast_to(np.asarray(known.of(product(buffer.shape))), (known.count,))
            cells, times = np.arange(int(counts.sum())), np.full(int(counts.sum()), one[name].span - 1)
            a, b = one[name].read(cells, times), other[name].read(cells, np.full(len(cells), other[name].span - 1))
            if not np.array_equal(a.data, b.data):
                wrong = int(np.flatnonzero(a.data != b.data)[0])
                raise InternalError(f"kernels {first.name} and {second.name} sum element {wrong} of {name} in different orders")


def check_rows(func: Func, size: str, sizes: Sequence[dict[str, int]], seed: int = 0) -> None:
    """Raise InternalError unless each element is summed in the same order wherever it lies along axes of extent `size`, and
    whatever that size is: alone or within a batch. `sizes` differ in that size alone."""
    known = Sizes.of_cases(sizes)
    loops = Loops(func, known, Inputs(known, np.repeat(keys_of(1, seed), known.count), size), Algebra(ordered=True), Pruning())
    with np.errstate(all="ignore"):
        found = evaluated(loops)
    for name in func.outputs:
        buffer = found[name].buffer
        counts = np.broadcast_to(np.asarray(known.of(product(buffer.shape))), (known.count,))
        cases, cells = np.repeat(np.arange(known.count), counts), np.arange(int(counts.sum()))
        data = found[name].read(cells, np.full(len(cells), found[name].span - 1)).data
        flat = cells - np.repeat(np.cumsum(counts) - counts, counts)
        rows = without(buffer, size, flat, known, Frame(len(cells), known={CASE: cases}))
        _, first, group = np.unique(rows, return_index=True, return_inverse=True)
        wrong = np.flatnonzero(data != data[first][group])
        if len(wrong):
            at = int(wrong[0])
            other = int(first[group[at]])
            raise InternalError(f"kernel {func.name} sums element {flat[at]} of {name} at {sizes[cases[at]]} in another order "
                                f"than element {flat[other]} at {sizes[cases[other]]}")
