"""Launches of a Segment as rows of a LaunchTable: where in it each argument goes, whatever the sizes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Bound
from tsc.runtime.drivers.protocol import Function, LaunchTable
from tsc.runtime.segments import Rows, Segment

#: A GPU's block has whole warps.
WARP = 32
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """`rows` are those that run, of all rows `of` a Segment. Of the values of all launches, those at `argument_at` are the
    addresses of `arguments` (numbers among the arguments of all rows), those at `size_at` the `sizes` (among the sizes of all
    launches); the last of each launch, at `status_at`, is where its status word is, and on a GPU the one before that is its
    scratch memory."""

    of: Rows
    rows: Numbers
    functions: tuple[Function, ...]
    threads: Numbers
    shared: Numbers
    first: Numbers
    argument_at: Numbers
    arguments: Numbers
    size_at: Numbers
    sizes: Numbers
    status_at: Numbers
    are_sizes: NDArray[np.bool_]
    is_gpu: bool

    def table(self, bound: Bound, addresses: NDArray[np.uint64], scratch: int, words: int, in_turn: bool) -> LaunchTable:
        """The launches of `bound`, whose arguments have such addresses, with scratch memory and status words where they are."""
        values = np.empty(int(self.first[-1]), np.uint64)
        values[self.argument_at] = addresses[self.arguments]
        values[self.size_at] = bound.sizes[self.sizes].view(np.uint64)
        if self.is_gpu:
            values[self.status_at - 1] = scratch
        values[self.status_at] = np.uint64(words) + 4 * self.rows.astype(np.uint64)
        shared = self.shared if self.is_gpu else np.full(len(self.rows), bound.scratch_bytes)
        return LaunchTable(self.functions, bound.blocks[self.rows], self.threads, shared, self.first, values,
                           self.are_sizes, in_turn)


def frame_of(segment: Segment, bound: Bound, functions: Mapping[str, Function], is_gpu: bool) -> Frame:
    """The Frame of the launches that have blocks."""
    of, kept = bound.rows, bound.blocks.nonzero()[0]
    calls = [call for launch in segment.launches for call in launch.calls]
    own = [calls[number] for number in of.calls[kept].tolist()]
    arguments = np.diff(np.append(of.arguments, len(of.storages)))[kept]
    sizes = np.array([len(launch.sizes) for launch in segment.launches], np.int64)[of.launches[kept]]
    first = np.concatenate([[0], np.cumsum(arguments + sizes + (2 if is_gpu else 1))])
    begins = first[:-1]
    threads = [max(call.threads, WARP) if is_gpu else 1 for call in own]
    size_at, are_sizes = _runs(begins + arguments, sizes), np.zeros(first[-1], np.bool_)
    are_sizes[size_at] = True
    return Frame(of, kept, tuple([functions[call.function] for call in own]), np.array(threads, np.int64),
                 np.array([call.shared for call in own], np.int64), first,
                 _runs(begins, arguments), _runs(of.arguments[kept], arguments),
                 size_at, _runs(of.sizes[kept], sizes), first[1:] - 1, are_sizes, is_gpu)


def _runs(begins: Numbers, counts: Numbers) -> Numbers:
    """The numbers from each of `begins` on, `counts` of them, one run after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))
