"""What a shared object or a GPU's machine code exports, read from its bytes alone: nothing of it is mapped, relocated or run.

The layout is that of ELF-64, little-endian (System V ABI, edition 4.1, chapters 4 and 5).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHARED, _DYNSYM, _LOAD = 3, 11, 1
_CUDA, _SYMTAB, _IN_FILE = 190, 2, 1  # machine code for NVIDIA's GPUs has no dynamic symbols
_OBJECT, _FUNCTION = 1, 2
_GLOBAL, _WEAK = 1, 2
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
_MOST_SYMBOLS = 1 << 20


@dataclass(frozen=True, slots=True)
class Exports:
    """The symbols that a shared object defines and others may use: functions by name, data by name with their bytes; and
    whether it is a GPU's machine code."""

    functions: frozenset[str]
    data: dict[str, bytes]
    is_cubin: bool = False


def read_exports(binary: bytes) -> Exports:
    """The exports of a shared object for this machine, or of a cubin. Raises ValueError saying what is wrong with anything
    else."""
    try:
        return _read(binary)
    except (struct.error, OverflowError, IndexError) as error:
        raise ValueError("it is a damaged shared object") from error


def _read(binary: bytes) -> Exports:
    if not binary.startswith(b"\x7fELF\x02\x01"):
        raise ValueError("it is no shared object")
    _, kind, machine, _, _, segments, sections, *_, segment_count, section_size, section_count, _ = _HEADER.unpack_from(binary)
    here = _MACHINES.get(platform.machine())
    cubin = machine == _CUDA
    if not cubin and (kind != _SHARED or (here is not None and machine != here)):
        raise ValueError("it is a shared object for another machine" if kind == _SHARED else "it is no shared object")
    loads = [_SEGMENT.unpack_from(binary, segments + k * _SEGMENT.size) for k in range(segment_count)]
    headers = [_SECTION.unpack_from(binary, sections + k * section_size) for k in range(section_count)]
    functions, data = set(), {}
    for header in headers:
        if header[1] != (_SYMTAB if cubin else _DYNSYM):
            continue
        names = headers[header[6]] if header[6] < len(headers) else None
        if names is None or header[5] > _MOST_SYMBOLS * _SYMBOL.size:
            raise ValueError("its table of symbols is damaged")
        for name, info, where, address, size in _symbols(binary, header[4], header[5], names[4], names[5]):
            if where and (info >> 4 in (_GLOBAL, _WEAK) or (cubin and info & 15 == _OBJECT)):  # there all data are local
                if info & 15 == _FUNCTION:
                    functions.add(name)
                elif info & 15 == _OBJECT:
                    data[name] = _in_section(binary, headers[where], address, size) if cubin else (
                        _bytes_at(binary, loads, address, size))
    return Exports(frozenset(functions), data, cubin)


def _symbols(binary: bytes, offset: int, size: int, names: int, names_size: int) -> Iterator[tuple[str, int, int, int, int]]:
    """Name, info, section, address and size of each symbol."""
    for at in range(offset, offset + size - _SYMBOL.size + 1, _SYMBOL.size):
        name, info, _, where, address, length = _SYMBOL.unpack_from(binary, at)
        end = binary.find(b"\0", names + name, names + names_size) if name < names_size else -1
        if end < 0:
            raise ValueError("its table of symbols is damaged")
        yield binary[names + name:end].decode("utf-8", "replace"), info, where, address, length


def _in_section(binary: bytes, header: tuple[int, ...], place: int, size: int) -> bytes:
    """The bytes at a place of a section."""
    if header[1] != _IN_FILE or place + size > header[5]:
        return b""
    return binary[header[4] + place:header[4] + place + size]


def _bytes_at(binary: bytes, loads: list[tuple[int, ...]], address: int, size: int) -> bytes:
    for kind, _, offset, start, _, length, _, _ in loads:
        if kind == _LOAD and start <= address and address + size <= start + length:
            begin = offset + address - start
            return binary[begin:begin + size]
    return b""  # not in the file: zeros, or nothing that is loaded
