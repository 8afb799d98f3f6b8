"""The conformance cases: kernels of tests/codegen_cuda/primitives on random inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.conformance import CLOSE, Array, Case, Parameter
from benchmarks.gpu.references import to_bf16
from tests.codegen_cuda.hopper_layouts import operand, swizzle_bytes
from tsc.runtime.drivers.protocol import Size3

SOURCES = Path(__file__).resolve().parents[2] / "tests" / "codegen_cuda" / "primitives"
_DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "i8": 32, "u8": 32, "s8": 32}
_BOXES = (  # shape, box and start in NumPy's order of axes
    ((100,), (64,), (72,), "uint16", 0), ((100,), (64,), (-8,), "uint16", 0), ((100,), (64,), (-8,), "float16", 0),
    ((100,), (64,), (0,), "float16", 0), ((100,), (64,), (64,), "float16", 0), ((104,), (64,), (-8,), "uint16", 0),
    ((37, 72), (16, 64), (32, 64), "uint16", 128), ((37, 72), (24, 64), (-5, 0), "uint16", 128),
    ((37, 72), (24, 64), (0, -8), "uint16", 128), ((37, 72), (24, 64), (-5, -8), "uint16", 128),
    ((37, 72), (16, 64), (37, 0), "uint16", 128), ((37, 72), (16, 64), (0, 72), "uint16", 128),
    ((37, 72), (16, 64), (-16, 0), "uint16", 128), ((37, 72), (16, 64), (0, -64), "uint16", 128),
    ((37, 72), (16, 64), (0, 4), "uint16", 128), ((37, 72), (5, 32), (35, 8), "uint16", 64),
    ((37, 72), (9, 16), (3, 56), "uint16", 32), ((19, 48), (7, 48), (13, 16), "uint8", 0),
    ((19, 48), (7, 48), (13, -16), "uint8", 0),
    ((9, 20), (8, 32), (2, 4), "float32", 128), ((9, 20), (8, 32), (2, -4), "float32", 128),
    ((4, 7, 24), (2, 3, 16), (-1, 5, 16), "uint16", 32), ((4, 7, 24), (2, 3, 16), (-1, -2, 8), "uint16", 32),
    ((3, 4, 5, 8), (2, 3, 2, 8), (1, 2, 4, 0), "uint16", 0),
    ((2, 3, 4, 5, 64), (2, 2, 1, 3, 64), (1, 2, 2, 3, 0), "uint16", 128))

_NANS = (0x7f800001, 0x7f801fff, 0xff800001, 0x7f802000, 0x7fc00000, 0xffc00001, 0x7fffffff, 0x7f800000, 0xff800000)


def make_cases() -> list[Case]:
    """All of them, the same each time."""
    random = np.random.default_rng(2024)
    return [*_plain(random), *_hopper(random)]


def _case(name: str, source: str, kernel: str, *arguments: Any, block: Sequence[int] = (32,), grid: Sequence[int] = (1,),
          cluster: Sequence[int] = (1,), shared: int = 0, close: bool = False) -> Case:
    """Arguments are arrays that are read, ("out", array), ("map", array, box, swizzle), ("stored map", the same) and ints."""
    parameters: list[Parameter] = []
    arrays: list[Array] = []
    written: list[int] = []
    for argument in arguments:
        match argument:
            case np.ndarray():
                parameters.append(Parameter("memory", len(arrays)))
                arrays.append(argument)
            case ("out", array):
                parameters.append(Parameter("memory", len(arrays)))
                written.append(len(arrays))
                arrays.append(array)
            case (("map" | "stored map") as kind, array, box, swizzle):
                parameters.append(Parameter("map", len(arrays), box=tuple(box), swizzle=swizzle))
                if kind == "stored map":
                    written.append(len(arrays))
                arrays.append(array)
            case np.generic():
                parameters.append(Parameter("scalar", dtype=argument.dtype.name, value=int(argument)))
            case int():
                parameters.append(Parameter("scalar", dtype="int32", value=argument))
    return Case(name, source, kernel, _three(grid), _three(block), _three(cluster), shared, tuple(parameters), tuple(arrays),
                tuple(written), CLOSE if close else 0.0)


def _three(sizes: Sequence[int]) -> Size3:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _bytes(random: np.random.Generator, *shape: int) -> Array:
    return random.integers(0, 256, shape, dtype=np.uint8)


def _numbers(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> Array:
    """Random numbers of a type, as their bits."""
    if kind in ("i8", "u8", "s8"):
        return _bytes(random, *shape)
    values = random.standard_normal(shape, dtype=np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    return to_bf16(values) if kind == "bf16" else values.view(np.uint32)


def _sums(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    if kind in ("i8", "u8", "s8"):
        return random.integers(-2**31, 2**31, shape).astype(np.int32)
    return random.standard_normal(shape, dtype=np.float32)


def _plain(random: np.random.Generator) -> Iterator[Case]:
    """The sm_80 level."""
    def case(kernel: str, *arguments: Any, name: str = "", **how: Any) -> Case:
        return _case(name or kernel, "primitives", kernel, *arguments, **how)

    yield case("ids", ("out", np.zeros((12, 96, 13), np.uint32)), grid=(2, 3, 2), block=(8, 4, 3))
    for size in (1, 2, 4, 8, 16):
        yield case(f"copy_{size}", _bytes(random, 77, size), ("out", _bytes(random, 256, size)), 77, grid=(2,), block=(128,),
                   shared=128 * size)
    for size in (4, 8, 16):
        yield case(f"copy_async_{size}", _bytes(random, 128, size), ("out", _bytes(random, 256, size)), 65, block=(128,),
                   shared=256 * size)
    for chunks in (2, 4, 8, 16):
        yield case("swizzle_table", ("out", np.zeros((32, chunks), np.uint32)), 32, chunks, name=f"swizzle_table {chunks}")
    for count in (1, 2, 4):
        for kernel in (f"ldmatrix_{count}", f"ldmatrix_{count}_transposed"):
            yield case(kernel, _bytes(random, 8 * count, 4, 16), ("out", np.zeros((32, count), np.uint32)), 3,
                       shared=8 * count * 64)
    yield case("ldmatrix_tile_2", _bytes(random, 32, 4, 16), ("out", np.zeros((32, 2, 4), np.uint32)), shared=32 * 64)
    for kind in ("f16", "bf16", "tf32", "s8", "u8"):
        for mi, ni in ((1, 1), (2, 3), (2, 4)):
            a, b = (_numbers(random, kind, (32, count * 2 * _DEPTH[kind] // 4)) for count in (mi * 8 // 4, ni))
            yield case(f"mma_{kind}_{mi}x{ni}", a, b, ("out", _sums(random, kind, (32, mi, ni, 4))),
                       close=kind not in ("s8", "u8"))
    values = random.integers(0, 2**32, 4096, dtype=np.uint32)
    values[:len(_NANS)] = _NANS
    values = values.view(np.float32)
    halves, words = np.zeros(4096, np.uint16), np.zeros(4096, np.uint32)
    yield case("round_to", values, ("out", halves), ("out", halves), ("out", words), ("out", words[:2048]),
               ("out", words[:2048]), 4096, grid=(32,), block=(128,))
    yield case("widen", np.arange(65536, dtype=np.uint16), *(("out", np.zeros(65536, np.uint32)) for _ in range(2)), 65536,
               grid=(512,), block=(128,))
    lanes = random.standard_normal(32, dtype=np.float32)
    yield case("shuffles", lanes, ("out", np.zeros((32, 7), np.uint32)))
    yield case("block_reductions", random.standard_normal(128, dtype=np.float32), ("out", np.zeros((128, 2), np.float32)),
               block=(128,), shared=16)
    whole = random.integers(-900, 900, 512).astype(np.float32)
    yield case("atomics", whole, ("out", np.zeros(2, np.float32)), ("out", np.array([0, 0, -1, 0], np.int32)),
               ("out", np.zeros(1, np.uint64)), ("out", np.full(2, -10**6, np.int32)), ("out", np.full(1, -np.inf, np.float32)),
               grid=(4,), block=(128,), shared=12)
    yield case("last_block", random.integers(-99, 99, (5, 32)).astype(np.float32), ("out", np.zeros((5, 32), np.float32)),
               ("out", np.zeros(1, np.uint32)), ("out", np.zeros(32, np.float32)), grid=(5,))
    yield case("hand_over", random.integers(0, 2**32, (3, 32), dtype=np.uint32), ("out", np.zeros((3, 3, 32), np.uint32)), 3,
               block=(128,), shared=128)


def _hopper(random: np.random.Generator) -> Iterator[Case]:
    """sm_90a."""
    def case(kernel: str, *arguments: Any, name: str = "", **how: Any) -> Case:
        return _case(name or kernel, "hopper", kernel, *arguments, **how)

    yield case("swizzles", ("out", np.zeros((4, 2048), np.uint32)), 2048)
    for shape, box, start, dtype, swizzle in _BOXES:
        tensor, values = (_bytes(random, *s, np.dtype(dtype).itemsize).view(dtype)[..., 0] for s in (shape, box))
        sizes, parts = ("x".join(map(str, extents)) for extents in (shape, box))
        name = f"{parts} of {dtype} in {sizes} at {start}, swizzle {swizzle}"
        image = swizzle_bytes(values, swizzle)
        turned = box[::-1]
        yield case(f"load{len(shape)}", ("map", tensor, turned, swizzle), ("out", np.zeros(values.nbytes, np.uint8)),
                   values.nbytes, *start[::-1], name=f"load {name}", block=(64,), shared=1024 + image.size)
        yield case(f"store{len(shape)}", ("stored map", tensor, turned, swizzle), image, image.size, *start[::-1],
                   name=f"store {name}", block=(64,), shared=1024 + image.size)
    kinds = [(kind, n, "") for kind in ("f16", "bf16", "tf32", "i8", "u8") for n in (8, 24, 64, 256)]
    kinds += [(kind, n, majors) for kind, n in (("f16", 64), ("bf16", 64), ("f16", 128), ("bf16", 256))
              for majors in ("_tn", "_nt", "_tt")]
    for kind, n, majors in kinds:
        a, b = (_numbers(random, kind, (extent, _DEPTH[kind])) for extent in (64, n))
        close = kind not in ("i8", "u8")
        for span in (0, 32, 64, 128) if n in (8, 64) else (128,):
            a_image, a_bits = operand(a, span, majors[1:2] == "t")
            b_image, b_bits = operand(b, span, majors[2:3] == "t", start=a_image.size)
            image = np.concatenate([a_image, b_image])
            for accumulate in (0, 1) if span == 128 and n == 64 else (1,):
                kernel = f"ss_{kind}_{n}{majors}"
                yield case(kernel, image, image.size, np.uint64(a_bits), np.uint64(b_bits), accumulate,
                           ("out", _sums(random, kind, (128, n // 2))), block=(128,), shared=image.size, close=close,
                           name=f"{kernel}, swizzle {span}, accumulate {accumulate}")
        if majors in ("", "_nt"):
            image, bits = operand(b, 128, majors == "_nt")
            fragments = _numbers(random, kind, (128, 16 // a.itemsize))
            yield case(f"rs_{kind}_{n}{majors}", image, image.size, fragments, np.uint64(bits), 1,
                       ("out", _sums(random, kind, (128, n // 2))), block=(128,), shared=image.size, close=close)
    yield case("ping_pong", ("out", np.zeros((7, 32), np.uint32)), 7, block=(64,), shared=256)
    yield case("barrier_twice", ("out", np.zeros((2, 32), np.uint32)), shared=256)
    for grid, cluster in (((2, 1, 1), (2, 1, 1)), ((4, 2, 2), (2, 2, 1))):
        yield case("neighbours", ("out", np.zeros((*grid[::-1], 128), np.uint32)), name=f"neighbours {cluster}", grid=grid,
                   cluster=cluster, shared=256)
    yield case("multicast", ("map", random.integers(0, 2**16, (3, 64), dtype=np.uint16), (64, 1), 0),
               ("out", np.zeros((4, 2, 128), np.uint16)), 128, grid=(4,), cluster=(4,), block=(64,), shared=2048)
    yield case("reallocate", ("out", np.zeros(128, np.uint32)), block=(256,), shared=1024)
