"""The image of launches at their sizes: the words from which code in a module runs them (`tsc_call` in cpu_host.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Bound
from tsc.runtime.memory import address

#: What its first words are: bytes of the arena and of a worker's scratch, then where sizes, rows, arguments and copies begin,
#: with how many there are of the last three.
ARENA, SCRATCH, SIZES, ROWS, ROW_COUNT, ARGUMENTS, ARGUMENT_COUNT, COPIES, COPY_COUNT, HEADER = range(10)
#: Words of a row (function, first argument, first size, blocks, launch), of an argument (base, offset), of a copy.
ROW, PLACE, COPY = 5, 2, 5


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """`words`, which stay where they are; the copies that follow the launches are among them."""

    words: NDArray[np.int64]
    place: int
    rows: int
    arguments: int
    copies: ClassVar[tuple[tuple[int, int, int, int, int], ...]] = ()

    @staticmethod
    def of(words: NDArray[np.int64]) -> Image:
        """The Image that a host program has written."""
        return Image(words, address(words), int(words[ROW_COUNT]), int(words[ARGUMENT_COUNT]))

    @property
    def launches(self) -> list[int]:
        """The launch of each row."""
        begin = int(self.words[ROWS])
        return [int(launch) for launch in self.words[begin + ROW - 1:begin + ROW * self.rows:ROW]]


def image_of(bound: Bound, functions: NDArray[np.int64], base: NDArray[np.int64], fixed: NDArray[np.int64]) -> Image:
    """The Image of what the Binder has found, without copies, from the addresses of all functions of the Segment and, of each
    storage, what its address counts from and how far."""
    rows, sizes = bound.rows, HEADER
    first = sizes + len(bound.sizes)
    arguments = first + ROW * len(rows.calls)
    end = arguments + PLACE * len(rows.storages)
    words = np.zeros(end, np.int64)
    words[:HEADER] = 0, bound.scratch_bytes, sizes, first, len(rows.calls), arguments, len(rows.storages), end, 0
    words[sizes:first] = bound.sizes
    words[first:arguments].reshape(-1, ROW)[:] = np.stack(
        [functions[rows.calls], rows.arguments, rows.sizes, bound.blocks, rows.launches], axis=1)
    words[arguments:].reshape(-1, PLACE)[:] = np.stack([base[rows.storages], fixed[rows.storages] + bound.offsets], axis=1)
    return Image.of(words)
