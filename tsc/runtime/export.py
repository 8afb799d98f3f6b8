"""A Package for programs in C: its library, a file with the host program's tables and the weights, and a header (tsc.h).

The file is what `file` in cpu_model.c says, little-endian: a header of 64-bit words, tables and texts, which are found by their
offsets, and from a page on the weights, those of equal bytes once. It is read by the library that stands beside it, which knows
it by the table of kernels.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tsc.errors import InputError, LaunchError, PackageError
from tsc.runtime.bind import Binder, format_shape
from tsc.runtime.bounds import Bounds
from tsc.runtime.check import check_plan
from tsc.runtime.drivers.cpu import choose_module, is_cpu, read_cpu_flags
from tsc.runtime.elf import read_exports
from tsc.runtime.files import write_atomically
from tsc.runtime.host_program import COUNTS, TABLES, program_of
from tsc.runtime.host_tables import Tables
from tsc.runtime.interface import C_INTERFACE, TABLE, functions_of, read_interface
from tsc.runtime.memory import layout, round_up
from tsc.runtime.package import PAGE, Package, first_of_equal, weight_chunks
from tsc.runtime.plan import Launch, TensorSpec

HEADER_FILE = Path(__file__).with_name("drivers") / "tsc.h"
_MAGIC = b"TSCDATA\1"
#: Behind the magic and the length: a checksum of all that follows up to the weights. Behind that: the checksum of the table of
#: kernels, counts (inputs, outputs), where the weights are and their bytes, counts (functions, calls), where tensors, reasons,
#: launches and flags are, and a tsc_program.
_HEAD = struct.Struct(f"<8sQQ{11 + len(COUNTS) + len(TABLES) + 1}q")
_TENSOR, _LAUNCH = struct.Struct("<8q"), struct.Struct("<3q")
#: The bases of addresses, as cpu_model.c has them: the weights, the arena, then inputs, then outputs.
_WEIGHTS, _ARENA, _INPUTS = range(3)


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of an export, for which `target` it is, and its inputs and outputs."""

    library: Path
    data: Path
    header: Path
    target: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def export(package: Package, folder: Path, name: str, target: str | None = None) -> Exported:
    """Write `lib<name>.so`, `<name>.tscdata` and `tsc.h` to a folder, for a `target` of the Package (None: the best that this
    machine can run). Raises InputError for a name or target that is none and for a model that needs Python, PackageError where
    the Package is wrong or a file cannot be written, LaunchError where the machine has no room."""
    if not re.fullmatch(r"[\w.+-]+", name):
        raise InputError(f"'{name}' is no name for files; give letters, digits, '_', '.', '+' or '-'")
    where = "the compiled model" if package.path is None else f"Package '{package.path}'"
    chosen = choose_module(package.modules, read_cpu_flags(), where) if target is None else target
    if chosen not in package.modules or not is_cpu(chosen):
        raise InputError(f"{where} cannot be exported for '{chosen}'; give one of its CPUs: "
                         f"{', '.join(filter(is_cpu, package.modules)) or 'it has none'}")
    binary = package.modules[chosen].binary
    try:
        lacking = sorted({*C_INTERFACE} - read_exports(binary).functions)
    except ValueError as error:
        raise PackageError(f"{where} has a module '{chosen}' that cannot be used ({error}); compile it again") from error
    if lacking:
        raise PackageError(f"{where} was compiled without '{lacking[0]}', which programs in C call; compile it again")
    head, chunks = _content(package, chosen, where)
    files = Exported(folder / f"lib{name}.so", folder / f"{name}.tscdata", folder / HEADER_FILE.name, chosen,
                     package.plans[chosen].inputs, package.plans[chosen].outputs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"cannot make the folder '{folder}' ({error.strerror}); give another") from error
    write_atomically(files.library, [binary])
    write_atomically(files.data, [head, *chunks])
    write_atomically(files.header, [HEADER_FILE.read_bytes()])
    return files


class _Room:
    """Tables and texts, behind a header, at offsets in the file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._texts: dict[str, int] = {}

    def add(self, content: bytes) -> int:
        """Where a table is from here on; a zero byte at least is behind it."""
        self.data += bytes(-(_HEAD.size + len(self.data)) % 8)
        place = _HEAD.size + len(self.data)
        self.data += content + b"\0"
        return place

    def text(self, text: str) -> int:
        """Where a text is, each once."""
        if text not in self._texts:
            self._texts[text] = self.add(text.replace("\0", "?").encode())
        return self._texts[text]

    def words(self, words: Sequence[int]) -> int:
        """Where some words are."""
        return self.add(struct.pack(f"<{len(words)}q", *words))


def _content(package: Package, target: str, where: str) -> tuple[bytes, Iterator[bytes | memoryview]]:
    """What stands before the weights, and the weights."""
    plan, module = package.plans[target], package.modules[target]
    interface = read_interface(module.binary)
    check_plan(plan, package.constants, interface, where)
    constants = {name: package.constants[name] for name in plan.constants}
    bounds = Bounds(plan, [array.nbytes for array in constants.values()], interface.kernels, where)
    binder = Binder(plan, bounds)
    if not binder.straight:
        raise InputError(f"{where} branches, loops or counts while it runs, for which Python is needed; it cannot be exported")
    for spec in plan.inputs:
        if spec.contents and (spec.numpy.kind not in "iuf" or spec.dtype in ("float16", "bfloat16")):
            raise InputError(f"sizes of {where} depend on what input '{spec.name}' of {spec.dtype} holds, which programs in C "
                             "do not read; it cannot be exported")
    shared = first_of_equal(constants)
    offsets, total = layout({name: constants[name] for name in dict.fromkeys(shared.values())})
    first = {"constant": _WEIGHTS, "arena": _ARENA, "input": _INPUTS, "output": _INPUTS + len(plan.inputs)}
    base = [first[s.kind] + (s.index if s.kind in ("input", "output") else 0) for s in plan.storages]
    fixed = [offsets[shared[plan.constants[s.index]]] if s.kind == "constant" else 0 for s in plan.storages]
    functions = functions_of(interface)
    made = Tables(binder, bounds, {function: number for number, function in enumerate(functions)})
    try:
        counts, tables = program_of(made, bounds, base, fixed)
    except OverflowError as error:
        raise InputError(f"{where} has numbers beyond 64 bits, for which Python is needed; it cannot be exported") from error
    room = _Room()
    placed = [room.add(np.ascontiguousarray(table).tobytes()) for table in tables.values()]
    tensors = room.add(b"".join(_tensor(room, spec) for spec in (*plan.inputs, *plan.outputs)))
    reasons = room.words([room.text(what) if what else 0 for what in made.checks.values()])
    messages = [_launch(room, launch) for segment in binder.segments for launch in segment.launches]
    rest = [tensors, reasons, room.add(b"".join(messages)), room.text(" ".join(sorted(module.cpu_flags)))]
    begin = round_up(_HEAD.size + len(room.data), PAGE)
    words = [zlib.crc32(read_exports(module.binary).data[TABLE].rstrip(b"\0")), len(plan.inputs), len(plan.outputs), begin,
             total, len(functions), len(made.calls), *rest, *counts.values(), *placed, made.arena]
    whole = _HEAD.pack(_MAGIC, begin + total, 0, *words) + room.data
    whole += bytes(begin - len(whole))
    crc = zlib.crc32(whole[24:])
    return whole[:16] + struct.pack("<Q", crc) + whole[24:], weight_chunks(constants[name] for name in offsets)


def _tensor(room: _Room, spec: TensorSpec) -> bytes:
    kind = spec.numpy
    return _TENSOR.pack(room.text(spec.name), room.text(spec.dtype), room.text(format_shape(spec.shape)), len(spec.shape),
                        kind.itemsize, len(spec.contents), spec.steps, ord(kind.kind))


def _launch(room: _Room, launch: Launch) -> bytes:
    messages = [room.text(message) for message in launch.messages]
    return _LAUNCH.pack(room.text(launch.node), room.words(messages), len(messages))
