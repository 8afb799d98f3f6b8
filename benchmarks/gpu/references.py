"""The hand-written kernels of tests/codegen_cuda/kernels: how each is launched, and what it must give.

A shape is (m, n, k): the GEMMs make C[m, n] of A[m, k] B[k, n], softmax and transpose take X[m, n].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.drivers.protocol import Argument, Arguments, Driver, Function, Launch, Memory, Size3, Stream, TensorMap

Shape: TypeAlias = tuple[int, int, int]
Array: TypeAlias = NDArray[Any]
SOURCES = Path(__file__).resolve().parents[2] / "tests" / "codegen_cuda" / "kernels"
SHAPES: tuple[Shape, ...] = ((1, 8, 8), (37, 256, 512), (77, 1000, 72), (129, 136, 1000), (200, 264, 1000))


@dataclass(frozen=True, slots=True)
class Problem:
    """Inputs as the kernel reads them, the dtype and shape of what it writes, and that result in float64. bf16 is uint16
    bits."""

    inputs: tuple[Array, ...]
    output: tuple[type[np.generic], tuple[int, ...]]
    expected: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reference:
    """One kernel. `arch` is the only architecture that has it, or None; `absolute` (times k) and `relative` bound the
    error of each element; `arguments` gives them in order from the driver, the shape, the inputs' memory and the output's."""

    name: str
    arch: str | None
    block: Size3
    shared: int
    grid: Callable[[Shape], Size3]
    problem: Callable[[Shape, np.random.Generator], Problem]
    arguments: Callable[[Driver, Shape, Sequence[Memory], Memory], Sequence[Argument]]
    widen: Callable[[Array], NDArray[np.float64]]
    absolute: float
    relative: float

    @property
    def source(self) -> str:
        """The kernel's text."""
        return (SOURCES / f"{self.name}.cu").read_text(encoding="utf-8")

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` ("sm_90a") has the instructions the kernel uses."""
        return self.arch in (None, arch)

    def launch(self, driver: Driver, function: Function, shape: Shape, inputs: Sequence[Memory], output: Memory) -> Launch:
        """The launch for one shape."""
        arguments = Arguments(self.arguments(driver, shape, inputs, output))
        return Launch(function, self.grid(shape), self.block, arguments, self.shared)

    def worst(self, shape: Shape, got: Array, expected: NDArray[np.float64]) -> float:
        """The largest error of an element as a multiple of what is allowed; infinite where something is not a number."""
        allowed = self.absolute * shape[2] + self.relative * np.abs(expected)
        error = np.abs(self.widen(got) - expected)
        ratio = np.divide(error, allowed, out=np.where(error > 0, np.inf, 0.0), where=allowed > 0)
        return float(np.max(np.where(np.isnan(error), np.inf, ratio)))


def execute(reference: Reference, driver: Driver, function: Function, shape: Shape, problem: Problem, stream: Stream,
            guard: int = 0) -> Array:
    """Run the kernel once on poisoned output (all bits set) and return what it wrote. With `guard`, that many bytes after the
    output must stay as they are: raises AssertionError otherwise."""
    dtype, sizes = problem.output
    result = np.empty(sizes, dtype)
    inputs = [upload(driver, array, stream) for array in problem.inputs]
    output = driver.allocate(result.nbytes + guard)
    driver.fill(output, 0xFF, stream)
    driver.launch(reference.launch(driver, function, shape, inputs, output), stream)
    driver.download(result, output, stream)
    after = np.empty(guard, np.uint8)
    if guard:
        driver.download(after, output, stream, result.nbytes)
    driver.synchronize(stream)
    for memory in (*inputs, output):
        driver.release(memory)
    assert np.all(after == 0xFF), f"{reference.name} at {shape} wrote past its output"
    return result


def upload(driver: Driver, array: Array, stream: Stream) -> Memory:
    """A copy of an array in the device's memory."""
    memory = driver.allocate(array.nbytes)
    driver.upload(memory, array, stream)
    return memory


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of finite numbers in bf16, to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: Array) -> NDArray[np.float64]:
    """The numbers that bf16 bits stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _widen(values: Array) -> NDArray[np.float64]:
    return values.astype(np.float64)


def _gemm_problem(dtype: type[np.generic], narrow: Callable[[NDArray[np.float32]], Array],
                  widen: Callable[[Array], NDArray[np.float64]]) -> Callable[[Shape, np.random.Generator], Problem]:
    def make(shape: Shape, random: np.random.Generator) -> Problem:
        m, n, k = shape
        a = narrow(random.standard_normal((m, k), dtype=np.float32))
        b = narrow(random.standard_normal((k, n), dtype=np.float32))
        return Problem((a, b), (dtype, (m, n)), widen(a) @ widen(b))

    return make


def _softmax_problem(shape: Shape, random: np.random.Generator) -> Problem:
    x = random.standard_normal(shape[:2], dtype=np.float32) * np.float32(4)
    powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return Problem((x,), (np.float32, x.shape), powers / powers.sum(axis=1, keepdims=True))


def _transpose_problem(shape: Shape, random: np.random.Generator) -> Problem:
    x = random.standard_normal(shape[:2], dtype=np.float32)
    return Problem((x,), (np.float32, x.T.shape), np.ascontiguousarray(x.T.astype(np.float64)))


def _gemm_arguments(driver: Driver, shape: Shape, inputs: Sequence[Memory], output: Memory) -> Sequence[Argument]:
    return (*inputs, output, *map(np.int32, shape))


def _mapped_gemm_arguments(driver: Driver, shape: Shape, inputs: Sequence[Memory], output: Memory) -> Sequence[Argument]:
    m, n, k = shape

    def tiles(memory: Memory, rows: int, columns: int, box: tuple[int, int]) -> bytes:
        return driver.tensor_map(TensorMap(memory, "bfloat16", (columns, rows), (columns * 2,), box, swizzle=128))

    return tiles(inputs[0], m, k, (64, 128)), tiles(inputs[1], k, n, (64, 64)), tiles(output, m, n, (64, 16)), np.int32(k)


def _tiles(tile_m: int, tile_n: int) -> Callable[[Shape], Size3]:
    return lambda shape: (-(-shape[1] // tile_n), -(-shape[0] // tile_m), 1)


REFERENCES: tuple[Reference, ...] = (
    Reference("gemm_f16_sm80", None, (256, 1, 1), 65536, _tiles(128, 128),
              _gemm_problem(np.float16, lambda x: x.astype(np.float16), _widen), _gemm_arguments, _widen, 1e-6, 2**-10),
    Reference("gemm_bf16_sm90a", "sm_90a", (384, 1, 1), 229440, _tiles(128, 256),
              _gemm_problem(np.uint16, to_bf16, from_bf16), _mapped_gemm_arguments, from_bf16, 1e-6, 2**-8),
    Reference("softmax_f32", None, (256, 1, 1), 64, lambda shape: (shape[0], 1, 1), _softmax_problem,
              lambda driver, shape, inputs, output: (*inputs, output, np.int32(shape[1])), _widen, 0.0, 1e-5),
    Reference("transpose_b32", None, (32, 8, 1), 4096, _tiles(32, 32), _transpose_problem,
              lambda driver, shape, inputs, output: (*inputs, output, *map(np.int32, shape[:2])), _widen, 0.0, 0.0),
)
