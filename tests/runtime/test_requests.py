"""Requests that no model can mean, memory that is given back, bounds that hold, and what an Executable says of itself."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.plans import changed, plan_of, with_plan
from tsc.errors import InputError, LaunchError, ShapeError, TscError
from tsc.runtime.executable import Executable
from tsc.runtime.memory import PAGE, Block, footprint, reserve
from tsc.runtime.package import Package
from tsc.sym import Range

Oracle = Callable[[np.ndarray, np.ndarray], np.ndarray]


def feeds(n: int = 2, c: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {"x": rng.standard_normal((n, c)).astype(np.float32), "w": rng.standard_normal(c).astype(np.float32)}


class NoArray:
    def __array__(self, *a: object, **k: object) -> np.ndarray:
        raise RuntimeError("it lies on another device")


@pytest.mark.defect(18)
@pytest.mark.parametrize("given, words", [
    (None, "feeds are a dict"), ([np.ones(3)], "feeds are a dict"), ("x", "feeds are a dict"), ({}, "is missing"),
    ({**feeds(), "x": [[1.0, 2.0], [3.0]]}, "no array can be made"), ({**feeds(), "x": None}, "dtype object"),
    ({**feeds(), "x": NoArray()}, "another device"), ({**feeds(), "x": {1: 2}}, "dtype object"),
    ({**feeds(), 7: 1}, "no input '7'"),
    ({**feeds(), "x": "text"}, "dtype"), ({**feeds(), "x": np.ma.masked}, "'x'")])
def test_feeds_that_are_none(chain: Package, given: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        Executable(chain, 1).run(None, given)
    assert "\n" not in str(caught.value)


@pytest.mark.defect(18)
@pytest.mark.parametrize("names", [0, 1, False, "", "y", [["y"]], [0], {"y": 1}, {"y"}, [None], b"y", np.array(["y"])])
def test_output_names_that_are_none(chain: Package, names: Any) -> None:
    with pytest.raises(InputError, match="output names are a list"):
        Executable(chain, 1).run(names, feeds())


def test_no_names_mean_all(chain: Package) -> None:
    for names in (None, [], ()):
        assert len(Executable(chain, 1).run(names, feeds())) == 2


@pytest.mark.defect(18)
def test_an_array_of_few_numbers_and_many_bytes(chain: Package) -> None:
    """Strides of 0 make an array of 2^50 elements; its sizes are looked at before it is copied; no copy is tried in vain."""
    huge = np.broadcast_to(np.float32(1), (1 << 48, 4))
    with pytest.raises((LaunchError, ShapeError)):
        Executable(chain, 1).run(None, {**feeds(), "x": huge})
    with pytest.raises(ShapeError, match="dim 'c'"):
        Executable(chain, 1).run(None, {**feeds(), "x": np.broadcast_to(np.float32(1), (2, 1 << 48))})


@pytest.mark.defect(18)
def test_dims_that_are_no_numbers(chain: Package) -> None:
    for wrong in ("2", 2.5, None):
        with pytest.raises(ShapeError, match="whole number"):
            Executable(chain, 1).peak_bytes(n=wrong, c=2)  # type: ignore[arg-type]
    assert Executable(chain, 1).peak_bytes(n=np.int64(2), c=2) == Executable(chain, 1).peak_bytes(n=2, c=2)


class OnlyDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class Elsewhere(OnlyDlpack):
    def __dlpack__(self, **options: Any) -> object:
        raise BufferError("on a GPU")


@pytest.mark.defect(42)
def test_feeds_that_speak_dlpack_only(chain: Package, expected: Oracle) -> None:
    given = feeds(7, 5)
    strided = np.repeat(given["x"], 2, axis=1)[:, ::2]
    for x in (given["x"], strided):
        y, _ = Executable(chain, 2).run(None, {"x": OnlyDlpack(x), "w": OnlyDlpack(given["w"])})
        np.testing.assert_array_equal(y, expected(given["x"], given["w"]))
    with pytest.raises(InputError, match="on a GPU"):
        Executable(chain, 1).run(None, {**given, "x": Elsewhere(given["x"])})


# -- memory ----------------------------------------------------------------------------------------------------------

MEASURE = """
import sys
import numpy as np
import tsc
def data():   # bytes of private memory of this process
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
warm = tsc.load(sys.argv[1], threads=1)
def run(model, n, c):
    model.run(None, {"x": np.ones((n, c), np.float32), "w": np.ones(c, np.float32)})
run(warm, 9, 9)
bound = warm.peak_bytes()
for text in sys.argv[2:]:
    n, c = map(int, text.split(","))
    run(warm, n, c)   # what the interpreter and the allocator keep
    warm.trim()
    model = tsc.load(sys.argv[1], threads=1)
    run(model, 9, 9)
    model.trim()
    before = data()
    run(model, n, c)
    grown, peak = data() - before, model.peak_bytes(n=n, c=c)
    given = model.trim()
    print(n, c, grown, peak, given, before - data(), bound)
"""
SLACK = 300_000  # what the interpreter itself may grow by meanwhile


@pytest.mark.defect(19, 20)
def test_peak_bytes_is_what_is_allocated_and_trim_gives_it_back(chain: Package, tmp_path: Path) -> None:
    """Over random shapes, in a process where nothing else allocates, by what the system says of it."""
    ranged = with_plan(chain, changed(plan_of(chain), ranges={"n": Range(1, 100_000), "c": Range(1, 64)}))
    ranged.write(tmp_path / "p")
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(1, 50_000, 12).tolist(), rng.integers(2, 64, 12).tolist()
    shapes = [(n, c - (n + c) % 2 or 2 - n % 2) for n, c in zip(rows, columns)]
    shapes += [(16384, 62), (17039, 61), (17041, 63)]  # around 4 MB, from where on pages are large
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONMALLOC": "malloc",
                   "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # what is freed is gone
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "p"), *(f"{n},{c}" for n, c in shapes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(measured) == len(shapes)
    for n, c, grown, peak, given, left, bound in measured:
        arena = 4 * n * c + 64
        assert arena <= peak <= bound and arena <= given <= peak, (n, c, peak, given, bound)
        assert arena - SLACK <= grown <= peak + SLACK, (n, c, grown, peak)
        assert abs(left) <= SLACK, (n, c, left)


@pytest.mark.defect(20)
def test_reserve_takes_its_footprint() -> None:
    for size in (1, 63, PAGE - 1, PAGE, PAGE + 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 12345):
        block = reserve(size, "a block")
        start = block.ctypes.data
        assert block.size == size and not block.any() and start % (2 << 20 if size >= 4 << 20 else PAGE) == 0
        block[:] = 1
        lines = Path("/proc/self/maps").read_text().splitlines()
        assert any(int(a, 16) <= start and start + footprint(size) <= int(b, 16)
                   for a, b in (line.split()[0].split("-") for line in lines))
    assert reserve(0, "nothing").size == 0
    with pytest.raises(LaunchError, match="not enough memory: a block"):
        reserve(1 << 60, "a block")


def test_a_block_grows_where_it_lies() -> None:
    """All of it can be used, pages that were are not taken anew, and it moves only where addresses end."""
    block, places = Block("a block"), []
    for size in (0, 1, PAGE + 1, 3 << 20, 5 << 20, (5 << 20) + 1, 7 << 20, 23 << 20, 1000, (46 << 20) - 1):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        moved = block.address
        block.grow(size)
        assert block.size >= size and block.address % (2 << 20) == 0
        if block.size:
            ctypes.memset(block.address, 1, block.size)
        if size in {(5 << 20) + 1, 1000}:
            assert block.address == moved and resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 20
        places.append(block.address)
    assert len(set(places[3:6])) == len(set(places[7:])) == 1
    with pytest.raises(LaunchError, match="not enough memory: a block"):
        block.grow(1 << 60)
    ctypes.memset(block.address, 1, block.size)


def test_a_block_grows_under_a_limit_of_addresses() -> None:
    """Where there are none for twice as much, so many as it takes do; without these an error says so, and smaller ones do."""
    code = """
import ctypes, resource
from tsc.errors import LaunchError
from tsc.runtime.memory import Block
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
block = Block("a block")
for size in (5 << 20, 60 << 20):   # twice 60 MB are too many
    block.grow(size)
    ctypes.memset(block.address, 1, size)
try:
    block.grow(120 << 20)
except LaunchError as error:
    print(error)
block.grow(3 << 20)
ctypes.memset(block.address, 1, 3 << 20)
print(block.size >> 20)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                          capture_output=True, text=True, check=False)
    refused = f"not enough memory: a block needs {120 << 20} bytes; use a smaller shape"
    assert done.stdout.splitlines() == [refused, "3"], done.stderr


@pytest.mark.defect(19)
def test_trim_while_others_run(chain: Package, expected: Oracle) -> None:
    model, given = Executable(chain, 2), feeds(33, 5)
    for _ in range(20):
        np.testing.assert_array_equal(model.run(["y"], given)[0], expected(given["x"], given["w"]))
        assert model.trim() > 0
    assert model.trim() == 0


# -- what it says of itself ------------------------------------------------------------------------------------------

@pytest.mark.defect(40)
def test_repr_is_short(chain: Package) -> None:
    text = repr(Executable(chain, 3))
    assert len(text.splitlines()) == 5 and "cpu-generic, 3 threads, 2 launches of 2 kernels" in text
    assert "input  x: float32[n, c]" in text and "output y: float32[n, c]" in text


@pytest.mark.defect(40)
def test_profile(bumps: Package) -> None:
    model = Executable(bumps, 2)
    given = {"x": np.zeros((50, 1), np.float32), "w": np.full(1, 3, np.float32)}
    profile = model.profile(given, repeat=2)
    calls = {row.kernel: row.calls for row in profile.kernels}
    assert calls == {"add_row": 21, "bump": 40} and abs(sum(row.share for row in profile.kernels) - 1) < 1e-9
    assert all(row.milliseconds > 0 for row in profile.kernels) and profile.run_milliseconds > 0
    assert [row.milliseconds for row in profile.kernels] == sorted((row.milliseconds for row in profile.kernels), reverse=True)
    text = str(profile)
    assert "bump" in text and "and 39 like it" in text and len(text.splitlines()) == 4
    with pytest.raises(InputError, match="repeat"):
        model.profile(given, repeat=0)
    with pytest.raises(TscError):
        model.profile({})
    assert model.run(None, given)[1][0] == 6 + 40


_BESIDE_NOTHING = """
import numpy as np, onnx.parser, tsc
for op, at in (("Softmax(x)", (2**40, 0)), ("Softmax <axis = 0> (x)", (0, 2**40)), ("Softmax(x)", (0, 2**40)),
               ("ReduceSum <keepdims = 0> (x, one)", (0, 2**40)),
               ("Slice(x, one, far)", (2**40, 0)), ("Transpose(x)", (0, 2**40)), ("CumSum(x, one)", (2**40, 0))):
    made = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[a, b] x) => (y)'
                                   '<int64[1] one = {1}, int64[1] far = {9}> { y = %s }' % op)
    run = tsc.compile(made, threads=1, dims={"a": (0, None), "b": (0, None)})
    assert run.run(None, {"x": np.empty(at, np.float32)})[0].size == 0
"""


def test_a_dim_beside_nothing_may_have_any_size() -> None:
    """Such an array takes no memory; a loop over it would not end."""
    subprocess.run([sys.executable, "-c", _BESIDE_NOTHING], check=True, timeout=60)
