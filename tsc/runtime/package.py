"""Package: a compiled model in one file, or in memory before it is written.

The file: a 64-byte prelude (magic, schema version, header length, sha256 of the header), a JSON header, then parts at offsets
counted from the next 4096-byte boundary: "log", a "plan/<target>" and a "module/<target>" for each target, and "weights", whose
arrays lie 64-byte aligned as in safetensors, those of equal bytes once. The header names each part's offset, length and sha256.
Nothing is pickled, nothing depends on time or place, and nothing is mapped or loaded before its hash is checked.

A Package is native code: the hashes find damage, not malice. Load only Packages from whom you trust as you trust their
programs; signatures (`signing.py`), which stand in the header, tell whose they are, and are looked at before anything else.
What is not code is checked as if it came from a stranger: a plan can make the kernels compute something else than the
model that was compiled, but not touch memory that is not theirs (see `check.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tsc import __version__
from tsc.config import read_environment
from tsc.errors import LaunchError, PackageError
from tsc.runtime import schema
from tsc.runtime.files import MappedFile, as_path, machine_fault, open_regular, write_atomically
from tsc.runtime.memory import Array, layout, reserve, round_up, view
from tsc.runtime.plan import Plan
from tsc.runtime.plan_json import plan_from_json, plan_to_json
from tsc.runtime.signing import Trust, check_trusted, is_signatures

MAGIC = b"TSCPACK\0"
SCHEMA = 4
PRELUDE = struct.Struct("<8sIIQ32s8x")  # magic, schema, zero, header bytes, sha256 of the header
PAGE = 4096
CHUNK = 4 << 20
MAX_TEXT = 16 << 20    # bytes of the header, the plan or the log
MAX_BINARY = 1 << 30   # bytes of a module

Weights = Literal["private", "shared"]


@dataclass(frozen=True, slots=True)
class Module:
    """One binary: a shared object with all kernels, and the CPU flags a machine must have to run it."""

    binary: bytes
    cpu_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """Everything an Executable needs, native code among it: take it only from whom you trust.

    `plans` and `modules` map a target's name to its Plan and binary; `constants` are those of all Plans by name; `log` is what
    was decided at compile time and why; `stats` are counts from compile time; `made` says what it was compiled of and by what;
    `path` is the file this was read from, None when it was just compiled; `mapped` is that file where the constants lie in it
    (`weights="shared"`); `signatures` those that the file has, by key.
    """

    plans: Mapping[str, Plan]
    constants: Mapping[str, Array]
    modules: Mapping[str, Module]
    log: tuple[str, ...] = ()
    stats: Mapping[str, int] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__
    signatures: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    mapped: MappedFile | None = field(default=None, compare=False)

    def write(self, path: str | Path) -> None:
        """Write the file: whole or not at all, equal bytes for equal Packages; only in place of a regular file that may be
        written, or of nothing. Raises PackageError when it cannot, LaunchError when the machine has no room for it."""
        if self.mapped is not None:
            self.mapped.check()
        write_atomically(as_path(path), _serialize(self))

    def payload(self) -> bytes:
        """What is signed of it: the header, without signatures."""
        return _json(_layout(self)[0])

    @staticmethod
    def read(path: str | Path, weights: Weights = "private", trust: Trust | None = None) -> Package:
        """Read and check a file. `weights="private"` reads constants into 2 MB pages of this process, `"shared"` maps them, one
        copy for all processes. It has to be signed by a key that is trusted, where `trust` says whose are (None: what TSC_TRUST
        names, if anything). Raises PackageError naming the part that is truncated, altered, malformed or of an unknown version,
        and where it is not signed so. No code of it is run or mapped."""
        if weights not in get_args(Weights):
            raise PackageError(f"weights is {weights!r}, expected one of {', '.join(map(repr, get_args(Weights)))}")
        return _Reader(as_path(path)).package(weights, read_environment().trust if trust is None else trust)


def join(packages: Sequence[Package]) -> Package:
    """One Package for the targets of all: each keeps its Plan and binary, constants of equal bytes are stored once. Raises
    PackageError where two are for one target, or have other inputs or outputs."""
    plans: dict[str, Plan] = {}
    constants: dict[str, Array] = {}
    for package in packages:
        for target, plan in package.plans.items():
            first = next(iter(plans.values()), plan)
            if target in plans or _signature(plan) != _signature(first):
                raise PackageError(f"a Package for '{target}' cannot be joined: it is there already, or its inputs and outputs "
                                   "are others; compile one model for each target")
            names = []
            for name in plan.constants:
                array = package.constants[name]
                while name in constants:  # another Plan's, which may be packed otherwise
                    name = f"{name}@{target}"
                constants[name] = array
                names.append(name)
            plans[target] = replace(plan, constants=tuple(names))
    modules = {target: module for package in packages for target, module in package.modules.items()}
    log = tuple(dict.fromkeys(line for package in packages for line in package.log))
    return Package(plans, constants, modules, log, made=packages[0].made if packages else {})


def _signature(plan: Plan) -> object:
    return [(spec.name, spec.dtype, len(spec.shape)) for spec in plan.inputs], [(s.name, s.dtype) for s in plan.outputs]


def is_package(path: str | Path) -> bool:
    """Whether the file begins as a Package does."""
    try:
        with open_regular(as_path(path)) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, PackageError):
        return False


# -- writing ---------------------------------------------------------------------------------------------------------

def _serialize(package: Package) -> Iterator[bytes | memoryview]:
    told, parts = _layout(package)
    table = told["parts"]
    header = _json({**told, "signatures": dict(package.signatures)} if package.signatures else told)
    yield PRELUDE.pack(MAGIC, SCHEMA, 0, len(header), hashlib.sha256(header).digest())
    yield header
    yield bytes(-(PRELUDE.size + len(header)) % PAGE)
    end = 0
    for name, chunks in parts.items():
        yield bytes(table[name]["offset"] - end)
        yield from chunks
        end = table[name]["offset"] + table[name]["bytes"]


def _layout(package: Package) -> tuple[dict[str, Any], dict[str, list[bytes | memoryview]]]:
    """The header without signatures, and the parts."""
    constants = {name: package.constants[name] for _, plan in sorted(package.plans.items()) for name in plan.constants}
    shared = first_of_equal(constants)
    offsets, _ = layout({name: constants[name] for name in dict.fromkeys(shared.values())})
    parts: dict[str, list[bytes | memoryview]] = {
        **{f"plan/{name}": [_json(plan_to_json(plan))] for name, plan in sorted(package.plans.items())},
        "log": [_json(list(package.log))],
        **{f"module/{name}": [module.binary] for name, module in sorted(package.modules.items())},
        "weights": list(weight_chunks(constants[name] for name in offsets)),
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
    return {
        "tsc": package.version, "stats": dict(package.stats), "made": dict(package.made), "parts": table,
        "targets": {name: {"cpu_flags": list(m.cpu_flags), "kernels": _kernels(package.plans[name])}
                    for name, m in package.modules.items()},
        "constants": {name: {"dtype": a.dtype.name, "shape": list(a.shape), "offset": offsets[shared[name]]}
                      for name, a in constants.items()},
    }, parts


def _kernels(plan: Plan) -> list[str]:
    return sorted({launch.kernel for launch in plan.launches})


def first_of_equal(constants: Mapping[str, Array]) -> dict[str, str]:
    """For each constant the first one of equal bytes."""
    first: dict[tuple[int, bytes], str] = {}
    return {name: first.setdefault((array.nbytes, hashlib.sha256(_raw(array).data).digest()), name)
            for name, array in constants.items()}


def _raw(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def weight_chunks(constants: Iterable[Array]) -> Iterator[bytes | memoryview]:
    """The bytes of constants, each from a multiple of 64 on, as `layout` has them."""
    for raw in map(_raw, constants):
        yield raw.data
        yield bytes(-raw.nbytes % 64)


def _length(chunk: bytes | memoryview) -> int:
    return chunk.nbytes if isinstance(chunk, memoryview) else len(chunk)


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


# -- reading ---------------------------------------------------------------------------------------------------------

class _Reader:
    """One file being checked. Every method that finds something wrong raises PackageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0
        self.size = 0

    def wrong(self, what: str) -> PackageError:
        return PackageError(f"Package '{self.path}' {what}; copy or compile it again")

    def package(self, weights: Weights, trust: Trust | None) -> Package:
        try:
            with open_regular(self.path) as file:
                self.size = os.fstat(file.fileno()).st_size
                try:
                    header = self._header(file)
                    if trust is not None:
                        check_trusted(_json({key: value for key, value in header.items() if key != "signatures"}),
                                      header["signatures"], trust, f"Package '{self.path}'")
                    return self._package(file, header, weights)
                except ValueError as error:
                    raise self.wrong(f"has a malformed header or plan ({error})") from error
        except OSError as error:
            fault = machine_fault(error, f"cannot read Package '{self.path}'")
            raise fault or PackageError(f"cannot read Package '{self.path}' ({error.strerror}); check the path") from error

    def _header(self, file: io.FileIO) -> dict[str, Any]:
        prelude = file.read(PRELUDE.size)
        if prelude[:len(MAGIC)] != MAGIC[:len(prelude)] or not prelude:
            raise PackageError(f"'{self.path}' is not a Package; compile a model with tsc and save it")
        if len(prelude) < PRELUDE.size:
            raise self.wrong("is truncated in its prelude")
        _, schema_version, zero, length, digest = PRELUDE.unpack(prelude)
        if schema_version != SCHEMA:
            raise PackageError(f"Package '{self.path}' has schema version {schema_version}, but this tsc ({__version__}) reads "
                               f"version {SCHEMA}; use the tsc that made it or compile again")
        if zero or any(prelude[-8:]):
            raise self.wrong("is altered in its prelude")
        if PRELUDE.size + length > self.size:
            raise self.wrong("is truncated in its header")
        if length > MAX_TEXT:
            raise self.wrong(f"has a header of {length} bytes, more than any model")
        raw = self._bytes(file, "header", PRELUDE.size, length)
        if hashlib.sha256(raw).digest() != digest:
            raise self.wrong("is altered in its header (sha256 differs)")
        self.start = round_up(PRELUDE.size + length, PAGE)
        self._check_gap(file, PRELUDE.size + length, min(self.start, self.size))
        try:
            header = {"signatures": {}, **schema.table(schema.from_json(raw, "the header"), "the header")}
            found = schema.table(header, "the header",
                                 ("tsc", "stats", "made", "parts", "targets", "constants", "signatures"))
            if not is_signatures(schema.table(found["signatures"], "signatures")):
                raise ValueError("its signatures are none")
        except ValueError as error:
            raise self.wrong(f"has a malformed header ({error})") from error
        return found

    def _package(self, file: io.FileIO, header: dict[str, Any], weights: Weights) -> Package:
        parts = {name: _part(name, part) for name, part in schema.table(header["parts"], "parts").items()}
        targets = {name: schema.table(target, f"target '{name}'", ("cpu_flags", "kernels"))
                   for name, target in schema.table(header["targets"], "targets").items()}
        if parts.keys() != {"log", "weights", *(f"{kind}/{name}" for name in targets for kind in ("plan", "module"))}:
            raise ValueError(f"its parts are {schema.shown(sorted(parts))}")
        self._check_layout(file, parts)
        small = {name: self._read(file, name, part).tobytes() for name, part in parts.items() if name != "weights"}
        stats = schema.table(header["stats"], "stats")
        for name, value in stats.items():
            schema.whole(value, f"the count '{name}'")
        plans = {name: plan_from_json(schema.from_json(small[f"plan/{name}"], f"the plan for '{name}'"))
                 for name in sorted(targets)}
        places = _constants(header["constants"], parts["weights"].bytes)
        names = dict.fromkeys(name for plan in plans.values() for name in plan.constants)
        if names.keys() != places.keys() or any(targets[name]["kernels"] != _kernels(plan) for name, plan in plans.items()):
            raise ValueError("its header names other constants or kernels than its plans")
        mapped = None
        if weights == "private":
            block = self._read(file, "weights", parts["weights"])
        else:
            mapped = self._map(file, "weights", parts["weights"])
            begin = self.start + parts["weights"].offset
            block = mapped.data[begin:begin + parts["weights"].bytes]
        return Package(
            plans=plans, constants={name: view(block, *places[name]) for name in names},
            modules={name: Module(small[f"module/{name}"], schema.texts(target["cpu_flags"], "CPU flags"))
                     for name, target in targets.items()},
            log=schema.texts(schema.from_json(small["log"], "the log"), "the log"),
            stats=stats, version=schema.text(header["tsc"], "the version"), signatures=dict(header["signatures"]),
            made={name: schema.text(value, "a word on what made it")
                  for name, value in schema.table(header["made"], "made").items()}, path=self.path, mapped=mapped)

    def _check_layout(self, file: io.FileIO, parts: dict[str, _Part]) -> None:
        """The parts follow each other with only few zeros between, and the file ends with the last."""
        end = self.start
        for name, part in sorted(parts.items(), key=lambda item: (item[1].offset, item[1].bytes)):
            begin = self.start + part.offset
            if begin < end:
                raise self.wrong(f"has an overlapping part '{name}'")
            if begin + part.bytes > self.size:
                raise self.wrong(f"is truncated in part '{name}'")
            self._check_gap(file, end, begin)
            end = begin + part.bytes
        if end != self.size:
            raise self.wrong(f"has {self.size - end} bytes after its last part" if end < self.size else "is truncated")

    def _check_gap(self, file: io.FileIO, begin: int, end: int) -> None:
        if end - begin >= PAGE or any(self._bytes(file, "padding", begin, max(0, end - begin))):
            raise self.wrong(f"is altered between its parts, at byte {begin}")

    def _bytes(self, file: io.FileIO, name: str, begin: int, size: int) -> bytes:
        """So many bytes of a small part."""
        return b"".join(self._chunks(file, name, begin, size))

    def _chunks(self, file: io.FileIO, name: str, begin: int, size: int) -> Iterator[bytes]:
        file.seek(begin)
        while size:
            chunk = file.read(min(CHUNK, size))
            if not chunk:
                raise self.wrong(f"is truncated in part '{name}'")
            yield chunk
            size -= len(chunk)

    def _read(self, file: io.FileIO, name: str, part: _Part) -> NDArray[np.uint8]:
        try:
            block = reserve(part.bytes, f"part '{name}' of '{self.path}'")
        except LaunchError as error:
            raise self.wrong(f"has a part '{name}' larger than memory") from error
        filled, digest = 0, hashlib.sha256()
        for chunk in self._chunks(file, name, self.start + part.offset, part.bytes):
            block[filled:filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            digest.update(chunk)
            filled += len(chunk)
        self._check(name, part, digest.hexdigest())
        block.flags.writeable = False
        return block

    def _map(self, file: io.FileIO, name: str, part: _Part) -> MappedFile:
        mapped, digest = MappedFile(file, self.path), hashlib.sha256()
        for chunk in self._chunks(file, name, self.start + part.offset, part.bytes):
            digest.update(chunk)
        self._check(name, part, digest.hexdigest())
        mapped.check()
        return mapped

    def _check(self, name: str, part: _Part, digest: str) -> None:
        if digest != part.sha256:
            raise self.wrong(f"is altered in part '{name}' (sha256 differs)")


@dataclass(frozen=True, slots=True)
class _Part:
    offset: int
    bytes: int
    sha256: str


def _part(name: str, value: Any) -> _Part:
    known = schema.table(value, f"part '{name}'", ("offset", "bytes", "sha256"))
    most = schema.MAX_NUMBER if name == "weights" else MAX_BINARY if name.startswith("module/") else MAX_TEXT
    return _Part(schema.whole(known["offset"], f"the offset of part '{name}'"),
                 schema.whole(known["bytes"], f"the bytes of part '{name}'", 0, most), schema.text(known["sha256"], "a hash"))


def _constants(value: Any, total: int) -> dict[str, tuple[int, str, tuple[int, ...]]]:
    """Offset, dtype and shape of each constant. Raises ValueError where they do not follow each other in `total` bytes."""
    found, extents = {}, set[tuple[int, int]]()
    for name, entry in schema.table(value, "constants").items():
        known = schema.table(entry, f"constant '{name}'", ("dtype", "shape", "offset"))
        dtype = schema.dtype(known["dtype"], f"the dtype of constant '{name}'")
        shape = tuple(schema.whole(s, f"the shape of constant '{name}'") for s in schema.items(known["shape"], "a shape"))
        if len(shape) > schema.MAX_RANK:
            raise ValueError(f"constant '{name}' has rank {len(shape)}")
        offset = schema.whole(known["offset"], f"the offset of constant '{name}'")
        found[name] = offset, dtype, shape
        extents.add((offset, math.prod(shape) * np.dtype(dtype).itemsize))
    end = 0
    for offset, size in sorted(extents):
        if offset != end:
            raise ValueError(f"its constants do not follow each other at byte {end} of the weights")
        end += round_up(size)
    if end != total:
        raise ValueError(f"its constants have {end} bytes and its weights {total}")
    return found
