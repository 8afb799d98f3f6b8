"""Package: a compiled model in one file, or in memory before it is written.

The file: a 64-byte prelude (magic, schema version, header length, sha256 of the header), a JSON header, then parts at offsets
counted from the next 4096-byte boundary: "plan", "log", one "module/<target>" a binary, and "weights", whose arrays lie
64-byte aligned as in safetensors. The header names each part's offset, length and sha256. Nothing is pickled, nothing depends
on time or place, and nothing is mapped or loaded before its hash is checked.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from tsc import __version__
from tsc.errors import LaunchError, PackageError
from tsc.runtime.memory import Array, allocate, layout, round_up, view
from tsc.runtime.plan import Plan, plan_from_json, plan_to_json

MAGIC = b"TSCPACK\0"
SCHEMA = 1
PRELUDE = struct.Struct("<8sIIQ32s8x")  # magic, schema, zero, header bytes, sha256 of the header
PAGE = 4096
CHUNK = 4 << 20

Weights = Literal["private", "shared"]


@dataclass(frozen=True, slots=True)
class Module:
    """One binary: a shared object with all kernels, and the CPU flags a machine must have to run it."""

    binary: bytes
    cpu_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """Everything an Executable needs. `modules` maps a target's name to its binary; `log` is what was decided at compile time
    and why; `stats` are counts from compile time; `path` is the file this was read from, None when it was just compiled."""

    plan: Plan
    constants: Mapping[str, Array]
    modules: Mapping[str, Module]
    log: tuple[str, ...] = ()
    stats: Mapping[str, int] = field(default_factory=dict)
    version: str = __version__
    path: Path | None = None

    def write(self, path: str | Path) -> None:
        """Write the file: whole or not at all, equal bytes for equal Packages. Raises PackageError when it cannot."""
        write_atomically(Path(path), _serialize(self))

    @staticmethod
    def read(path: str | Path, weights: Weights = "private") -> Package:
        """Read and check a file. `weights="private"` reads constants into 2 MB pages of this process, `"shared"` maps them, one
        copy for all processes. Raises PackageError naming the part that is truncated, altered or of an unknown version."""
        return _Reader(Path(path)).package(weights)


def is_package(path: str | Path) -> bool:
    """Whether the file begins as a Package does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


# -- writing ---------------------------------------------------------------------------------------------------------

def _serialize(package: Package) -> Iterator[bytes | memoryview]:
    offsets, _ = layout(package.constants)
    parts: dict[str, list[bytes | memoryview]] = {
        "plan": [_json(plan_to_json(package.plan))],
        "log": [_json(list(package.log))],
        **{f"module/{name}": [module.binary] for name, module in sorted(package.modules.items())},
        "weights": list(_weights(package.constants)),
    }
    table: dict[str, dict[str, Any]] = {}
    end = 0
    for name, chunks in parts.items():
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        start = round_up(end, PAGE if name == "weights" else 64)
        end = start + sum(map(_length, chunks))
        table[name] = {"offset": start, "bytes": end - start, "sha256": digest.hexdigest()}
    header = _json({
        "tsc": package.version, "stats": dict(package.stats), "parts": table,
        "modules": {name: {"part": f"module/{name}", "cpu_flags": list(m.cpu_flags)} for name, m in package.modules.items()},
        "kernels": sorted({launch.kernel for launch in package.plan.launches}),
        "constants": {name: {"dtype": a.dtype.name, "shape": list(a.shape), "offset": offsets[name]}
                      for name, a in package.constants.items()},
    })
    yield PRELUDE.pack(MAGIC, SCHEMA, 0, len(header), hashlib.sha256(header).digest())
    yield header
    yield bytes(-(PRELUDE.size + len(header)) % PAGE)
    end = 0
    for name, chunks in parts.items():
        yield bytes(table[name]["offset"] - end)
        yield from chunks
        end = table[name]["offset"] + table[name]["bytes"]


def _weights(constants: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    for array in constants.values():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        yield raw.data
        yield bytes(-raw.nbytes % 64)


def _length(chunk: bytes | memoryview) -> int:
    return chunk.nbytes if isinstance(chunk, memoryview) else len(chunk)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `chunks` to `path` so that it is there whole, or as it was before: also when the process is killed.

    The data is written without a name where the file system allows it (O_TMPFILE), so that a kill leaves nothing behind.
    Raises PackageError when the folder cannot be written.
    """
    path = path.resolve()
    spare = f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            descriptor, named = _open_unnamed(path.parent / spare)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    for chunk in chunks:
                        _write_all(file, chunk)
                    os.fsync(file.fileno())
                    if not named:  # the folder's descriptor makes it linkat(), which alone follows the link in /proc
                        os.link(f"/proc/self/fd/{file.fileno()}", spare, dst_dir_fd=folder, follow_symlinks=True)
                os.replace(path.parent / spare, path)
            finally:
                (path.parent / spare).unlink(missing_ok=True)
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise PackageError(f"cannot write '{path}' ({error.strerror}); choose a writable place with enough room") from error


def _open_unnamed(spare: Path) -> tuple[int, bool]:
    """A new file in the folder of `spare`: without a name, or under that one (True) where there must be a name."""
    if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").exists():
        try:
            return os.open(spare.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), False
        except OSError:
            pass  # a file system without O_TMPFILE: a hidden name does, and is removed on errors
    return os.open(spare, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), True


def _write_all(file: Any, chunk: bytes | memoryview) -> None:
    rest = memoryview(chunk).cast("B") if _length(chunk) else memoryview(b"")
    while rest.nbytes:
        rest = rest[file.write(rest):]


# -- reading ---------------------------------------------------------------------------------------------------------

class _Reader:
    """One file being checked. Every method that finds something wrong raises PackageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0
        self.size = 0

    def wrong(self, what: str) -> PackageError:
        return PackageError(f"Package '{self.path}' {what}; copy or compile it again")

    def package(self, weights: Weights) -> Package:
        try:
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                header = self._header(file)
                try:
                    return self._package(file, header, weights)
                except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                    raise self.wrong(f"has a malformed header or plan ({type(error).__name__}: {error})") from error
        except OSError as error:
            raise PackageError(f"cannot read Package '{self.path}' ({error.strerror}); check the path") from error

    def _header(self, file: BinaryIO) -> dict[str, Any]:
        prelude = file.read(PRELUDE.size)
        if prelude[:len(MAGIC)] != MAGIC[:len(prelude)] or not prelude:
            raise PackageError(f"'{self.path}' is not a Package; compile a model with tsc and save it")
        if len(prelude) < PRELUDE.size:
            raise self.wrong("is truncated in its prelude")
        _, schema, zero, length, digest = PRELUDE.unpack(prelude)
        if schema != SCHEMA:
            raise PackageError(f"Package '{self.path}' has schema version {schema}, but this tsc ({__version__}) reads version "
                               f"{SCHEMA}; use the tsc that made it or compile again")
        if zero or any(prelude[-8:]):
            raise self.wrong("is altered in its prelude")
        if PRELUDE.size + length > self.size:
            raise self.wrong("is truncated in its header")
        raw = file.read(length)
        if hashlib.sha256(raw).digest() != digest:
            raise self.wrong("is altered in its header (sha256 differs)")
        self.start = round_up(PRELUDE.size + length, PAGE)
        header = json.loads(raw)
        if not isinstance(header, dict):
            raise self.wrong("has a malformed header")
        return header

    def _package(self, file: BinaryIO, header: dict[str, Any], weights: Weights) -> Package:
        parts = header["parts"]
        self._check_layout(file, parts)
        small = {name: self._read(file, name, part).tobytes() for name, part in parts.items() if name != "weights"}
        block = (self._read if weights == "private" else self._map)(file, "weights", parts["weights"])
        plan_data = json.loads(small["plan"])
        package = Package(
            plan=plan_from_json(plan_data),
            constants={name: view(block, c["offset"], _dtype(c["dtype"]), tuple(c["shape"]))
                       for name, c in header["constants"].items()},
            modules={name: Module(small[m["part"]], tuple(m["cpu_flags"])) for name, m in header["modules"].items()},
            log=tuple(json.loads(small["log"])),
            stats=header["stats"], version=header["tsc"], path=self.path)
        return replace(package, constants={name: package.constants[name] for name in package.plan.constants})

    def _check_layout(self, file: BinaryIO, parts: dict[str, Any]) -> None:
        """The parts follow each other with only zeros between, and the file ends with the last."""
        end = self.start
        gaps = [(PRELUDE.size + self._header_length(file), end)]
        for name, part in sorted(parts.items(), key=lambda item: (item[1]["offset"], item[1]["bytes"])):
            begin = self.start + part["offset"]
            if begin < end or part["bytes"] < 0:
                raise self.wrong(f"has an overlapping part '{name}'")
            gaps.append((end, begin))
            end = begin + part["bytes"]
            if end > self.size:
                raise self.wrong(f"is truncated in part '{name}'")
        if end != self.size:
            raise self.wrong(f"has {self.size - end} bytes after its last part")
        for begin, finish in gaps:
            file.seek(begin)
            if any(file.read(finish - begin)):
                raise self.wrong(f"is altered between its parts, at byte {begin}")

    def _header_length(self, file: BinaryIO) -> int:
        file.seek(0)
        length: int = PRELUDE.unpack(file.read(PRELUDE.size))[3]
        return length

    def _read(self, file: BinaryIO, name: str, part: dict[str, Any]) -> NDArray[np.uint8]:
        try:
            block = allocate(part["bytes"], f"part '{name}' of '{self.path}'")
        except LaunchError as error:
            raise self.wrong(f"has a part '{name}' larger than memory") from error
        file.seek(self.start + part["offset"])
        filled = 0
        while filled < block.size:
            count = file.readinto(block.data[filled:])  # type: ignore[attr-defined]
            if not count:
                raise self.wrong(f"is truncated in part '{name}'")
            filled += count
        self._check(name, part, hashlib.sha256(block.data).hexdigest())
        block.flags.writeable = False
        return block

    def _map(self, file: BinaryIO, name: str, part: dict[str, Any]) -> NDArray[np.uint8]:
        file.seek(self.start + part["offset"])
        digest, left = hashlib.sha256(), part["bytes"]
        while left:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise self.wrong(f"is truncated in part '{name}'")
            digest.update(chunk)
            left -= len(chunk)
        self._check(name, part, digest.hexdigest())
        whole = np.frombuffer(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ), np.uint8)
        begin = self.start + part["offset"]
        return whole[begin:begin + part["bytes"]]

    def _check(self, name: str, part: dict[str, Any], digest: str) -> None:
        if digest != part["sha256"]:
            raise self.wrong(f"is altered in part '{name}' (sha256 differs)")


def _dtype(name: str) -> np.dtype[Any]:
    kind = np.dtype(name)
    if kind.kind not in "biufc":
        raise ValueError(f"dtype '{name}'")
    return kind
