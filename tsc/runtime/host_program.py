"""The host program of a straight Plan: the tables from which code in the module (cpu_host.c) tells every number at a shape.

It computes with whole numbers of 64 bits. Where the program gives up, the Binder says why, or finds the numbers after all.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.bind import Binder, Bound, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.drivers.cpu import CpuModule
from tsc.runtime.host_tables import Tables
from tsc.runtime.image import COPY, HEADER, PLACE, ROW, Image
from tsc.runtime.memory import address

_STORAGE = np.dtype([("fixed", "<i8"), ("base", "<i4"), ("offset", "<i4"), ("bytes", "<i4"), ("unused", "<i4")])
_CALL = np.dtype([("function", "<i8"), *((name, "<i4") for name in (
    "blocks", "scratch", "arguments", "end", "cost", "unused"))])
#: Fields of a tsc_program: counts, then where tables are, in this order; behind them the slot of the arena's size.
COUNTS = ("slots", "given", "operations", "checks", "storages", "pairs", "extents", "sizes", "launches", "copies", "rows",
           "arguments")
TABLES = ("values", "operation", "check", "storage", "pair", "extent", "size", "launch", "variant", "call", "argument", "cost",
           "copy")


class _Program(ctypes.Structure):
    """tsc_program."""

    _fields_ = [(name, ctypes.c_int64) for name in (*COUNTS, *TABLES, "arena")]


@dataclass(frozen=True, slots=True)
class Ready:
    """A straight Plan at one shape, as its host program has it: what a Binding says of it, and what runs."""

    outputs: tuple[tuple[int, ...], ...]
    arena_bytes: int
    scratch_bytes: int
    whole: Image | Bound


class HostProgram:
    """The numbers of a Plan on a module's own code. `base` and `fixed` say of each storage what its address counts from and how
    far; `functions` are the addresses of kernels. Raises OverflowError for a Plan with numbers beyond 64 bits."""

    def __init__(self, binder: Binder, bounds: Bounds, module: CpuModule, base: Sequence[int], fixed: Sequence[int],
                 functions: Mapping[str, int], units: int) -> None:
        made = Tables(binder, bounds, functions)
        self._bind, self._units = module.bind, units
        self._ranks = [len(spec.shape) for spec in binder.plan.outputs]
        counts, self._tables = program_of(made, bounds, base, fixed)
        self._program = _Program(**counts, **{name: address(table) for name, table in self._tables.items()}, arena=made.arena)
        self._place, self._slots = ctypes.addressof(self._program), counts["slots"]
        self._words = (HEADER + counts["extents"] + counts["sizes"] + ROW * made.rows + PLACE * made.most_arguments
                       + COPY * counts["copies"])
        self._given = struct.Struct(f"{made.given}q")
        self._ends = list(accumulate(self._ranks, initial=HEADER))

    def bind(self, shapes: Shapes) -> Ready | None:
        """The Plan for inputs of these shapes; None where something is wrong, or does not fit."""
        try:
            extents = self._given.pack(*[size for shape in shapes for size in shape])
        except struct.error:  # what an input holds has more than 64 bits
            return None
        room, words = np.empty(self._slots, np.int64), np.empty(self._words, np.int64)
        if self._bind(self._place, extents, self._units, address(room), address(words)):
            return None
        arena, scratch, *rest = words[:self._ends[-1]].tolist()
        outputs = tuple([tuple(rest[begin - 2:end - 2]) for begin, end in pairwise(self._ends)])
        return Ready(outputs, arena, scratch, Image.of(words))


def program_of(made: Tables, bounds: Bounds, base: Sequence[int],
               fixed: Sequence[int]) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
    """The counts and the tables of a tsc_program, by the names of its fields in their order, whose storages count from `base`,
    `fixed` bytes on. Raises OverflowError for numbers beyond 64 bits."""
    storages = np.array([(f, b, *made.storages[i], 0) for i, (b, f) in enumerate(zip(base, fixed))], _STORAGE)
    pairs = np.stack([bounds.first, bounds.second], axis=1).astype(np.int32)
    tables: dict[str, NDArray[Any]] = {
        "values": np.array(made.assembly.values, np.int64), "operation": _narrow(made.assembly.operations, 4),
        "check": _narrow(list(made.checks), 3), "storage": storages, "pair": pairs, "extent": _narrow(made.outputs),
        "size": _narrow(made.sizes), "launch": _narrow(made.launches, 4), "variant": _narrow(made.variants, 2),
        "call": np.array(made.calls, _CALL), "argument": _narrow(made.arguments),
        "cost": np.array(made.costs, np.int64), "copy": _narrow(made.copies, 3)}
    counts = {f"{name}s": len(tables[name]) for name in ("operation", "check", "storage", "pair", "extent", "size")}
    counts |= {"slots": len(made.assembly.values), "given": made.given, "launches": len(made.launches),
               "copies": len(made.copies), "rows": made.rows, "arguments": made.most_arguments}
    return {name: counts[name] for name in COUNTS}, {name: tables[name] for name in TABLES}


def _narrow(rows: Sequence[int] | Sequence[tuple[int, ...]], width: int = 0) -> NDArray[np.int32]:
    found = np.array(rows, np.int32)
    return found.reshape(-1, width) if width else found
