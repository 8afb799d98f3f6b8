"""What a part of the run works with: an opened device, the built folder, and the record of results."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tsc.runtime.drivers.platform import open_platform
from tsc.runtime.drivers.protocol import (
    DeviceInfo,
    Driver,
    Event,
    Function,
    GraphExec,
    Launch,
    Memory,
    Module,
    Platform,
    Stream,
)
from tsc.runtime.drivers.stub import StubPlatform

#: Architectures whose code may use instructions that no other architecture has: their code is named so.
_OWN_CODE = {"sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


class Skip(Exception):
    """A part that cannot be done here, with the reason."""


class Again(Exception):
    """A part that must go on in a new process, since this one's device is of no use any more; with the reason."""


@dataclass(slots=True)
class Session:
    """`kind` is "cuda", "emu" or "stub"; `small` says that sizes are for trying out, not for measuring. `kept` is what this
    part has recorded so far, and `save` writes it down, so that a part cut short goes on where it was."""

    kind: str
    driver: Driver
    folder: Path
    manifest: dict[str, Any]
    small: bool
    kept: dict[str, Any]
    save: Callable[[], None]
    stream: Stream = field(init=False)
    _modules: dict[str, Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = self.driver.create_stream()

    @property
    def computes(self) -> bool:
        """Whether launches do their work, so that there are results to check."""
        return self.kind != "stub"

    @property
    def arch(self) -> str:
        """The architecture whose code runs here. The emulator runs everything, and the stub anything."""
        return code_for(self.driver.info.arch) if self.kind == "cuda" else "sm_90a"

    def has(self, source: str) -> bool:
        """Whether `source` was built for this device."""
        return self._file(source) is not None

    def function(self, source: str, name: str) -> Function:
        """Kernel `name` of a source that was built, loaded once."""
        if source not in self._modules:
            file = self._file(source)
            if file is None:
                raise Skip(f"'{source}' was not built for {self.driver.info.arch}")
            self._modules[source] = self.driver.load((self.folder / file).read_bytes(), source)
        return self.driver.function(self._modules[source], name)

    def package(self, model: str, table: str = "packages") -> Path | None:
        """The Package of a model or, among "layers", of a layer that was built for this device."""
        file = self._file(model, table)
        return None if file is None else self.folder / file

    def _file(self, source: str, table: str = "binaries") -> str | None:
        files: dict[str, str] = self.manifest[table].get(source, {})
        if self.kind == "emu":
            return files.get("emu")
        if self.kind == "stub":
            return files.get("sm_90a")
        known = [arch for arch in files if arch != "emu" and runs(arch, self.driver.info.arch)]
        return files[max(known, key=_version)] if known else None

    def time(self, launches: Sequence[Launch], repeats: int) -> float:
        """Microseconds of one of `launches`, run one after the other as a graph: the median of `repeats` runs after a first."""
        driver = self.driver
        graph = driver.instantiate(driver.build_graph(launches))
        start, stop = driver.create_event(timing=True), driver.create_event(timing=True)
        driver.launch_graph(graph, self.stream)
        return float(np.median([self._once(graph, start, stop) for _ in range(repeats)])) * 1e3 / len(launches)

    def _once(self, graph: GraphExec, start: Event, stop: Event) -> float:
        self.driver.record(start, self.stream)
        self.driver.launch_graph(graph, self.stream)
        self.driver.record(stop, self.stream)
        self.driver.synchronize(self.stream)
        return self.driver.elapsed(start, stop)

    def release(self, *memories: Memory) -> None:
        """Give memory back."""
        self.driver.synchronize(self.stream)
        for memory in memories:
            self.driver.release(memory)


def code_for(arch: str) -> str:
    """The name of the code that uses all of an architecture: "sm_90" gives "sm_90a"."""
    return _OWN_CODE.get(arch, arch)


def runs(code: str, arch: str) -> bool:
    """Whether code of one architecture runs on a device of another: exactly it, or an older minor version of the same major."""
    if code.endswith("a"):
        return code == code_for(arch)
    return _version(code)[0] == _version(arch)[0] and _version(code) <= _version(arch)


def _version(arch: str) -> tuple[int, int]:
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def find_platform(kind: str) -> Platform:
    """The platform of a kind of device. The binding of CUDA is imported for "cuda" only."""
    return StubPlatform() if kind == "stub" else open_platform(kind)


@dataclass(slots=True)
class Record:
    """The JSON file of one device. It is of one build: what an earlier one left there is dropped."""

    path: Path
    content: dict[str, Any]

    @property
    def parts(self) -> dict[str, Any]:
        """What each part gave."""
        parts: dict[str, Any] = self.content["parts"]
        return parts

    def save(self) -> None:
        """Write the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
            file.write(json.dumps(self.content, indent=1) + "\n")
        os.replace(file.name, self.path)


def open_record(folder: Path, kind: str, info: DeviceInfo, build: str, small: bool) -> Record:
    """The record of a device in `folder`, begun anew where it is of another build or of other sizes."""
    name = re.sub(r"[^a-z0-9]+", "-", info.name.lower()).strip("-")
    path = folder / f"gpu-{name}.json"
    device = {"kind": kind, "name": info.name, "arch": info.arch, "multiprocessors": info.multiprocessors,
              "memory_bytes": info.total_memory, "l2_bytes": info.l2_bytes, "shared_per_block": info.shared_per_block,
              "driver": ".".join(map(str, info.driver_version))}
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content.get("build"), content.get("small"), content.get("device")) == (build, small, device):
            return Record(path, content)
    return Record(path, {"device": device, "build": build, "small": small, "parts": {}})
