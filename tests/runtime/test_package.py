"""The file: equal bytes for equal Packages, every damage found and named, never half-written."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.plans import plan_of, straight
from tsc.errors import PackageError
from tsc.runtime.load import load
from tsc.runtime.package import PAGE, PRELUDE, Module, Package, is_package, join
from tsc.runtime.plan_json import plan_from_json, plan_to_json

EMPTY = straight(constants=("b", "a", "s", "e"))


@pytest.fixture
def package() -> Package:
    rng = np.random.default_rng(0)
    constants = {"b": rng.standard_normal((7, 13)).astype(np.float32), "a": rng.integers(0, 9, 5), "s": np.array(True),
                 "e": np.zeros((0, 4), np.float64)}
    modules = {"cpu-avx2": Module(b"avx2 code" * 50, ("avx2", "fma")), "cpu-generic": Module(b"plain code")}
    return Package(dict.fromkeys(modules, EMPTY), constants, modules, ("first", "second"), {"nodes": 3})


@pytest.fixture
def file(package: Package, tmp_path: Path) -> Path:
    package.write(tmp_path / "m.tscpack")
    return tmp_path / "m.tscpack"


def parts_of(data: bytes) -> dict[str, tuple[int, int]]:
    """Where each part lies in the file, the prelude and the header too."""
    length = PRELUDE.unpack(data[:PRELUDE.size])[3]
    header = json.loads(data[PRELUDE.size:PRELUDE.size + length])
    start = -(-(PRELUDE.size + length) // PAGE) * PAGE
    found = {name: (start + p["offset"], start + p["offset"] + p["bytes"]) for name, p in header["parts"].items()}
    return {"prelude": (0, PRELUDE.size), "header": (PRELUDE.size, PRELUDE.size + length), **found}


@pytest.mark.parametrize("weights", ["private", "shared"])
def test_reads_back(package: Package, file: Path, weights: str) -> None:
    read = Package.read(file, weights)  # type: ignore[arg-type]
    assert (read.plans, read.modules) == (package.plans, package.modules)
    assert (read.log, dict(read.stats)) == (package.log, package.stats)
    assert list(read.constants) == list(package.constants) and read.path == file and is_package(file)
    for name, array in package.constants.items():
        assert read.constants[name].dtype == array.dtype and read.constants[name].shape == array.shape
        np.testing.assert_array_equal(read.constants[name], array)
        assert read.constants[name].size == 0 or read.constants[name].ctypes.data % 64 == 0
        with pytest.raises(ValueError):
            read.constants[name][...] = 0


def test_equal_bytes(package: Package, file: Path, tmp_path: Path) -> None:
    package.write(tmp_path / "other")
    Package.read(file).write(tmp_path / "third")
    assert file.read_bytes() == (tmp_path / "other").read_bytes() == (tmp_path / "third").read_bytes()
    where = parts_of(file.read_bytes())
    assert all(begin % 64 == 0 for name, (begin, _) in where.items()) and where["weights"][0] % PAGE == 0


def test_bit_flips_are_found_and_named(file: Path) -> None:
    data, rng = file.read_bytes(), random.Random(0)
    for name, (begin, end) in parts_of(data).items():
        for _ in range(12):
            offset, bit = rng.randrange(begin, end), rng.randrange(8)
            bad = bytearray(data)
            bad[offset] ^= 1 << bit
            file.write_bytes(bad)
            with pytest.raises(PackageError) as caught:
                Package.read(file, rng.choice(["private", "shared"]))  # type: ignore[arg-type]
            assert str(file) in str(caught.value) and "\n" not in str(caught.value)
            if name != "prelude":
                assert name in str(caught.value)


def test_padding_is_checked_too(file: Path) -> None:
    data = file.read_bytes()
    for begin, end in ((parts_of(data)["header"][1], parts_of(data)["log"][0]), (parts_of(data)["log"][1], None)):
        bad = bytearray(data)
        bad[(end or begin + 1) - 1] ^= 1
        file.write_bytes(bad)
        with pytest.raises(PackageError):
            Package.read(file)


def test_truncation_at_every_boundary(file: Path) -> None:
    data = file.read_bytes()
    ends = {0, 1, 7, 8, *(edge + delta for pair in parts_of(data).values() for edge in pair for delta in (-1, 0, 1))}
    for end in sorted(e for e in ends if 0 <= e < len(data)):
        file.write_bytes(data[:end])
        with pytest.raises(PackageError, match=r"truncated|not a Package"):
            Package.read(file)
    file.write_bytes(data + b"x")
    with pytest.raises(PackageError, match="1 bytes after"):
        Package.read(file)


def test_other_files(tmp_path: Path, file: Path) -> None:
    for name, content in (("onnx", b"\x08\x07onnx"), ("zip", b"PK\x03\x04" * 99)):
        (tmp_path / name).write_bytes(content)
        assert not is_package(tmp_path / name)
        with pytest.raises(PackageError, match="not a Package"):
            load(tmp_path / name)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(PackageError, match="cannot read"):
            load(path)
    later = bytearray(file.read_bytes())
    later[8] = 99
    file.write_bytes(later)
    with pytest.raises(PackageError, match="schema version 99"):
        load(file)


def test_no_room(package: Package, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="cannot write"):
        package.write(tmp_path / "absent" / "m.tscpack")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PackageError, match="cannot write"):
        package.write(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]


def test_an_error_midway_keeps_the_old_file(package: Package, file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()

    class Broken(Exception):
        pass

    class Constants(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> Any:
            raise Broken

    with pytest.raises(Broken):
        Package(package.plans, Constants(package.constants), package.modules).write(file)
    assert file.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [file.name]


WRITER = """
import sys
from pathlib import Path
from typing import Any
from tsc.runtime.files import write_atomically
def chunks():
    for _ in range(int(sys.argv[2])):
        yield b"y" * 65536
        sys.stdout.write("."); sys.stdout.flush()
while True:
    write_atomically(Path(sys.argv[1]), chunks())
"""


def test_a_killed_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path, chunks = tmp_path / "m.tscpack", 20
    path.write_bytes(b"old")
    for delay in (0.0, 0.003, 0.01, 0.02, 0.05):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(chunks)], env=environment,
                              stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.read(1)  # it is in the middle of the first file
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        content = path.read_bytes()
        assert content == b"old" or content == b"y" * (chunks * 65536)
        left = [p for p in tmp_path.iterdir() if p != path]
        # Between link and rename the whole file has a second name; nothing partial ever has one.
        assert all(p.stat().st_size == chunks * 65536 for p in left)


def test_plan_json_round_trip(chain: Package, lookup: Callable[[np.ndarray], Package]) -> None:
    for plan in (plan_of(chain), plan_of(lookup(np.zeros(3, np.float32)))):
        assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


# -- several targets -------------------------------------------------------------------------------------------------

def test_constants_of_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    many = {f"w{k}": np.full((100, 100), k % 2, np.float32) for k in range(8)} | {"other type": np.zeros((10_000,), np.int32)}
    package = Package({"cpu-generic": straight(constants=tuple(many))}, many, {"cpu-generic": Module(b"code")})
    package.write(tmp_path / "p")
    assert (tmp_path / "p").stat().st_size < 3 * 40_000
    for weights in ("private", "shared"):
        read = Package.read(tmp_path / "p", weights)  # type: ignore[arg-type]
        for name, array in many.items():
            np.testing.assert_array_equal(read.constants[name], array)
            assert read.constants[name].dtype == array.dtype
        assert len({a.ctypes.data for a in read.constants.values()}) == 2


def test_one_package_for_several_targets(lookup: Callable[[np.ndarray], Package], tmp_path: Path) -> None:
    """Each runs with its own plan and constants, whatever these are called; what both have is there once."""
    table, larger = np.arange(1000, dtype=np.float32), np.arange(1200, dtype=np.float32) + 7
    generic = lookup(table)
    binary = generic.modules["cpu-generic"].binary
    for other in (table, larger):
        second = lookup(other)
        future = Package({"cpu-future": plan_of(second)}, second.constants, {"cpu-future": Module(binary, ("avx1024",))})
        for packages in ((generic, future), (future, generic)):
            path = tmp_path / "both.tscpack"
            join(packages).write(path)
            read = Package.read(path)
            assert read.plans.keys() == read.modules.keys() == {"cpu-generic", "cpu-future"}
            assert len({a.ctypes.data for a in read.constants.values()}) == (1 if other is table else 2)
            assert path.stat().st_size < len(binary) * 2 + 5 * 4096 + 4 * (table.size + (other.size if other is larger else 0))
            executable = load(path, 1)
            ids = np.array([0, 999, 5])
            np.testing.assert_array_equal(executable.run(None, {"ids": ids})[0], table[ids])
            assert executable.stats["constant_bytes"] == table.nbytes
            assert "target cpu-generic" in executable.explain()
            executable.save(tmp_path / "again.tscpack")
            assert (tmp_path / "again.tscpack").read_bytes() == path.read_bytes()
            (name,) = read.plans["cpu-future"].constants
            np.testing.assert_array_equal(read.constants[name], other)


def test_packages_that_cannot_be_joined(lookup: Callable[[np.ndarray], Package], chain: Package) -> None:
    one = lookup(np.zeros(3, np.float32))
    with pytest.raises(PackageError, match="for 'cpu-generic' cannot be joined: it is there already"):
        join([one, one])
    other = Package({"cpu-avx2": plan_of(chain)}, {}, {"cpu-avx2": Module(b"")})
    with pytest.raises(PackageError, match=r"for 'cpu-avx2' cannot be joined: .* inputs and outputs are others"):
        join([one, other])
