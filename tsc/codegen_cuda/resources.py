"""What a cubin's kernels need of a multiprocessor: read from its ELF sections and from ptxas's log, each checked by the other.

The layout of `.nv.info` is undocumented; the attributes used here are those that `cuobjdump --dump-elf` names. Registers and
the stack frame appear both there and in the log, so a change of the layout is found (`kernel_infos` compares them); spills are
in the log only, launch bounds in the cubin only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tsc.errors import InternalError, PackageError

_REGISTERS, _FRAME_SIZE, _MAX_THREADS, _REQUIRED_THREADS, _PARAMETER_BYTES = 0x2F, 0x11, 0x05, 0x10, 0x19
_SIZED = 4  # the format of an attribute whose field is the length of its value; in the others the field is the value
_SYMBOL_TABLE = 2
_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")
_SHARED = re.compile(r"(\d+) bytes smem")
_RESERVED_SHARED = 1024  # what sm_90 and above take of each block's shared memory, and count in the cubin where there is some


@dataclass(frozen=True, slots=True)
class CubinInfo:
    """The resources of one kernel, sizes in bytes: `registers`, `spill_*` and `stack_frame` of a thread; `static_shared` of a
    block, as declared (without what the architecture reserves); `max_threads` the launch bound, 0 where the source gives none;
    `barriers` the named barriers in use."""

    name: str
    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack_frame: int
    static_shared: int
    max_threads: int
    barriers: int
    parameter_bytes: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class CubinResources:
    """What the cubin itself says of one kernel; the fields are those of CubinInfo (sm_90 and above count in `static_shared`,
    where it is not zero, what they reserve)."""

    registers: int = 0
    stack_frame: int = 0
    static_shared: int = 0
    max_threads: int = 0
    parameter_bytes: int = 0
    code_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogResources:
    """What ptxas reported for one kernel; the fields are those of CubinInfo."""

    arch: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack_frame: int
    static_shared: int
    barriers: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    start: int
    size: int
    link: int


def kernel_infos(cubin: bytes, log: str) -> tuple[CubinInfo, ...]:
    """The kernels of a cubin by name. Raises InternalError where the cubin and the log of its making disagree."""
    found, reported = read_cubin(cubin), parse_log(log)
    infos = []
    for name, own in sorted(found.items()):
        said = reported.get(name)
        if said is None or not _agree(own, said):
            raise InternalError(f"the cubin and ptxas disagree about kernel '{name}': {own} and {said}; this NVRTC writes "
                                f"a layout that tsc does not know, use the version that the [cuda] extra names")
        infos.append(CubinInfo(name, said.arch, own.registers, said.spill_stores, said.spill_loads, own.stack_frame,
                               said.static_shared, own.max_threads, said.barriers, own.parameter_bytes, own.code_bytes))
    if reported.keys() - found.keys():
        raise InternalError(f"ptxas reports kernels that the cubin lacks: {', '.join(sorted(reported.keys() - found.keys()))}")
    return tuple(infos)


def _agree(own: CubinResources, said: LogResources) -> bool:
    return (own.registers == said.registers and own.stack_frame == said.stack_frame
            and own.static_shared in (said.static_shared, said.static_shared + _RESERVED_SHARED))


def parse_log(log: str) -> dict[str, LogResources]:
    """The kernels that ptxas (with `-v`) reports, by name. Other functions of the module are left out."""
    kernels: dict[str, LogResources] = {}
    pieces = _ENTRY.split(log)
    for name, arch, text in zip(pieces[1::3], pieces[2::3], pieces[3::3]):
        frame, used, shared = _FRAME.search(text), _USED.search(text), _SHARED.search(text)
        if frame is None or used is None:
            raise InternalError(f"ptxas's report on kernel '{name}' is not understood; use the NVRTC of the [cuda] extra")
        stack, stores, loads = map(int, frame.groups())
        own_shared = int(shared[1]) if shared else 0
        kernels[name] = LogResources(arch, int(used[1]), stores, loads, stack, own_shared, int(used[2] or 0))
    return kernels


def read_cubin(cubin: bytes) -> dict[str, CubinResources]:
    """The kernels of a cubin by name. Raises PackageError where the bytes are not a whole cubin."""
    try:
        return _read(cubin)
    except (struct.error, ValueError, IndexError, UnicodeDecodeError) as error:
        raise PackageError(f"the cubin is damaged ({error}); build it again") from error


def _read(cubin: bytes) -> dict[str, CubinResources]:
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    fields: dict[str, dict[str, int]] = {
        s.name.removeprefix(".text."): {"code_bytes": s.size} for s in sections if s.name.startswith(".text.")}
    kernels = {s.name.removeprefix(".nv.info.") for s in sections if s.name.startswith(".nv.info.")} & fields.keys()
    for section in sections:
        if section.name == ".nv.info":  # about every function: (symbol, value) pairs
            for attribute, value in _attributes(cubin, section):
                named = {_REGISTERS: "registers", _FRAME_SIZE: "stack_frame"}.get(attribute)
                if named is not None and len(value) == 8:
                    symbol, amount = struct.unpack("<II", value)
                    fields.setdefault(symbols[symbol], {})[named] = amount
        elif section.name.startswith(".nv.info."):
            fields.setdefault(section.name.removeprefix(".nv.info."), {}).update(_own_attributes(cubin, section))
        elif section.name.startswith(".nv.shared."):
            fields.setdefault(section.name.removeprefix(".nv.shared."), {})["static_shared"] = section.size
    return {name: CubinResources(**fields[name]) for name in kernels}


def _own_attributes(cubin: bytes, section: _Section) -> dict[str, int]:
    found = {}
    for attribute, value in _attributes(cubin, section):
        if attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            found["max_threads"] = x * y * z
        elif attribute == _PARAMETER_BYTES:
            found["parameter_bytes"] = int.from_bytes(value[:2], "little")
    return found


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    """Each attribute's number and value."""
    at, end = section.start, section.start + section.size
    while at < end:
        form, attribute, field = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form == _SIZED:
            yield attribute, cubin[at:at + field]
            at += field
        else:
            yield attribute, field.to_bytes(2, "little")


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF header")
    segments, table = struct.unpack_from("<QQ", cubin, 0x20)
    segment_size, segment_count, size, count, names = struct.unpack_from("<HHHHH", cubin, 0x36)
    if segments + segment_size * segment_count > len(cubin):
        raise ValueError("its segment table ends past the end")
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    for header in headers:
        if header[1] != 8 and header[4] + header[5] > len(cubin):  # 8: a section that occupies no space in the file
            raise ValueError("a section ends past the end")
    start = headers[names][4]
    return [_Section(_string(cubin, start + h[0]), h[1], h[4], h[5], h[6]) for h in headers]


def _symbols(cubin: bytes, sections: list[_Section]) -> list[str]:
    table = next((s for s in sections if s.kind == _SYMBOL_TABLE), None)
    if table is None:
        raise ValueError("no symbol table")
    strings = sections[table.link].start
    return [_string(cubin, strings + struct.unpack_from("<I", cubin, at)[0])
            for at in range(table.start, table.start + table.size, 24)]


def _string(cubin: bytes, at: int) -> str:
    return cubin[at:cubin.index(b"\0", at)].decode()
