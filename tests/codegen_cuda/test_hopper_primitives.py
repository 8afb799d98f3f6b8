"""Every primitive of hopper.cuh against NumPy statements of the ISA's layouts, in every mode; and its PTX accepted by NVRTC."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module, aligned, emulated
from tests.codegen_cuda.hopper_layouts import (
    a_registers,
    accumulators,
    box_of,
    operand,
    put_box,
    swizzle_bytes,
    swizzle_table,
    tensor_map,
)
from tsc.codegen_cuda import nvrtc
from tsc.codegen_cuda.build import CudaSource, build_cubin
from tsc.config import Options

RUNS = [("fast", 0), ("lazy", 0), ("race", 0), ("stress", 1), ("stress", 2)]
SPANS = (0, 32, 64, 128)
Ints = tuple[int, ...]


@pytest.fixture(scope="module")
def hopper() -> Module:
    return emulated("hopper")


def run_all(module: Module, name: str, arguments: list[object], out: np.ndarray, **how: object) -> np.ndarray:
    """Launch in every mode; all must leave the same in `out`."""
    before, seen = out.copy(), None
    for mode, seed in RUNS:
        out[...] = before
        report = module.launch(name, arguments, mode=mode, seed=seed, **how)  # type: ignore[arg-type]
        assert report.ended == "ok", f"{mode}: {report.text}"
        assert seen is None or seen.tobytes() == out.tobytes(), f"{mode} differs"
        seen = out.copy()
    assert seen is not None
    return seen


def random(shape: Ints, dtype: str) -> np.ndarray:
    raw = np.random.default_rng(len(shape) + shape[0]).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return aligned(raw.view(dtype)[..., 0])


def test_swizzle(hopper: Module) -> None:
    out = aligned(np.zeros((4, 2048), np.uint32))
    hopper.launch("swizzles", [out, 2048])
    for row, span in zip(out, SPANS):
        np.testing.assert_array_equal(row, swizzle_table(span, 2048))


BOXES = [  # shape, box, start in NumPy's order, dtype, swizzle
    ((100,), (64,), (16,), "uint16", 0),
    ((100,), (64,), (72,), "uint16", 0),
    ((100,), (64,), (-8,), "float16", 0),
    ((37, 72), (16, 64), (0, 0), "uint16", 128),
    ((37, 72), (16, 64), (32, 64), "uint16", 128),
    ((37, 72), (24, 64), (-5, -8), "uint16", 128),
    ((37, 72), (5, 32), (35, 8), "uint16", 64),
    ((37, 72), (9, 16), (3, 56), "uint16", 32),
    ((37, 72), (16, 64), (100, 0), "uint16", 128),
    ((1, 16), (8, 16), (0, 0), "uint8", 0),
    ((19, 48), (7, 48), (13, 16), "uint8", 0),
    ((9, 20), (8, 32), (2, 4), "float32", 128),
    ((9, 20), (8, 16), (2, 12), "int32", 64),
    ((5, 6), (3, 4), (1, 2), "float64", 32),
    ((4, 7, 24), (2, 3, 16), (-1, 5, 8), "uint16", 32),
    ((3, 4, 5, 8), (2, 3, 2, 8), (1, 2, 4, 0), "uint16", 0),
    ((2, 3, 4, 5, 64), (2, 2, 1, 3, 64), (1, 2, 2, 3, 0), "uint16", 128),
    ((2, 3, 4, 5, 8), (1, 1, 2, 2, 2), (0, 1, 3, 2, 2), "uint64", 0),
]


@pytest.mark.parametrize(("shape", "box", "start", "dtype", "swizzle"), BOXES)
def test_load_box(hopper: Module, shape: Ints, box: Ints, start: Ints, dtype: str, swizzle: int) -> None:
    tensor = random(shape, dtype)
    expected = swizzle_bytes(box_of(tensor, start, box), swizzle)
    size = int(np.prod(box)) * tensor.itemsize
    out = aligned(np.zeros(size, np.uint8))
    arguments = [tensor_map(tensor, box, swizzle), out, size, *start[::-1]]
    run_all(hopper, f"load{len(shape)}", arguments, out, block=(64,), shared=1024 + expected.size, memory=[tensor])
    dense = swizzle_table(swizzle, expected.size)[:size]  # where the box's bytes are: a part of a line may lie past `size`
    keep = dense < size
    np.testing.assert_array_equal(out[dense[keep]], expected[dense[keep]])


@pytest.mark.parametrize(("shape", "box", "start", "dtype", "swizzle"), [case for case in BOXES if min(case[2]) >= 0])
def test_store_box(hopper: Module, shape: Ints, box: Ints, start: Ints, dtype: str, swizzle: int) -> None:
    tensor, values = random(shape, dtype), random(box, dtype)
    image = aligned(swizzle_bytes(values, swizzle), writable=False)
    expected = put_box(tensor, start, values)
    arguments = [tensor_map(tensor, box, swizzle), image, image.size, *start[::-1]]
    seen = run_all(hopper, f"store{len(shape)}", arguments, tensor, block=(64,), shared=1024 + image.size, memory=[tensor])
    np.testing.assert_array_equal(seen.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(("kernel", "start", "ending", "text"), [
    ("load2", (0, 4), "misaligned", "byte 8 of the innermost axis"), ("load2", (3, -3), "misaligned", "byte -6"),
    ("store2", (0, 12), "misaligned", "byte 24"), ("store2", (-1, 0), "protocol", "coordinate -1 of axis 1"),
    ("store2", (0, -8), "protocol", "coordinate -8 of axis 0")])
def test_where_a_box_may_begin(hopper: Module, kernel: str, start: Ints, ending: str, text: str) -> None:
    """As an H200 does it (benchmarks/results/gpu-nvidia-h200.json): anything else is an illegal instruction there."""
    tensor, image = random((37, 72), "uint16"), aligned(np.zeros(2048, np.uint8))
    arguments = [tensor_map(tensor, (16, 64), 128), image, 2048, *start[::-1]]
    report = hopper.launch(kernel, arguments, block=(64,), shared=3072, memory=[tensor])
    assert report.ended == ending and text in report.text, report.text


def test_strided_tensor(hopper: Module) -> None:
    whole = random((6, 40), "uint16")
    part = whole[1:5, 8:27]
    out = aligned(np.zeros(8 * 32, np.uint8))
    run_all(hopper, "load2", [tensor_map(part, (8, 16)), out, 256, 8, 1], out, block=(64,), shared=2048, memory=[whole])
    np.testing.assert_array_equal(out.view(np.uint16).reshape(8, 16), box_of(part, (1, 8), (8, 16)))


@pytest.mark.parametrize("size", [32, 1008, 4096])
def test_copy_bytes(hopper: Module, size: int) -> None:
    source, out = random((size + 16,), "uint8"), aligned(np.zeros(size + 16, np.uint8))
    run_all(hopper, "copy_bytes", [out, source, size], out, block=(64,), shared=size + 16)
    np.testing.assert_array_equal(out[:size], source[:size])
    assert not out[size:].any()


def test_engines_are_counted(hopper: Module) -> None:
    tensor, out = random((37, 72), "uint16"), aligned(np.zeros(2048, np.uint8))
    arguments = [tensor_map(tensor, (16, 64), 128), out, 2048, 56, 30]
    report = hopper.launch("load2", arguments, block=(64,), shared=3072, count=True, memory=[tensor])
    assert (report.global_load_bytes, report.shared_store_bytes) == (7 * 16 * 2, 2048)
    image = aligned(np.zeros(4096, np.uint8))
    sums = aligned(np.zeros((128, 12), np.float32))
    descriptor = ctypes.c_uint64(operand(np.zeros((64, 16), np.uint16), 0, False)[1])
    report = hopper.launch("ss_f16_24", [image, 4096, descriptor, descriptor, 1, sums], block=(128,), shared=4096, count=True)
    assert report.shared_load_bytes == (64 + 24) * 32


# ---- wgmma

DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "i8": 32, "u8": 32}


def numbers(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers of a type: as the bits in memory, and exactly."""
    if kind in ("i8", "u8"):
        bits = rng.integers(0, 256, shape).astype(np.uint8)
        return bits, bits.view(np.int8 if kind == "i8" else np.uint8).astype(np.int64)
    values = rng.standard_normal(shape).astype(np.float32)
    if kind == "f16":
        half = values.astype(np.float16)
        half[0, :2] = 6e-8, -3e-6  # subnormal
        return half.view(np.uint16), half.astype(np.float64)
    bits = values.view(np.uint32)
    if kind == "bf16":
        short = (bits >> 16).astype(np.uint16)
        return short, (short.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.copy(), (bits & np.uint32(0xffffe000)).view(np.float32).astype(np.float64)  # the lower 13 bits are ignored


def check(kind: str, n: int, a: np.ndarray, b: np.ndarray, before: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    rows, columns = accumulators(n)
    tile = a @ b.T
    expected = tile[rows, columns] + (before if accumulate else 0)
    if kind in ("i8", "u8"):
        np.testing.assert_array_equal(out, expected.astype(np.int64).astype(np.uint32).view(np.int32))
    else:
        np.testing.assert_allclose(out, expected, rtol=0, atol=DEPTH[kind] * 2.0**-22 * np.abs(expected).max())


def start_values(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind in ("i8", "u8"):
        return aligned(rng.integers(-2**31, 2**31, (128, n // 2)).astype(np.int32))
    return aligned(rng.standard_normal((128, n // 2)).astype(np.float32))


CASES = [(kind, n, span, majors) for kind in DEPTH for n in (8, 24, 64, 256) for span in SPANS for majors in ("",)]
CASES += [(kind, n, span, majors) for kind, n in (("f16", 64), ("bf16", 64), ("f16", 128), ("bf16", 256)) for span in SPANS
          for majors in ("_tn", "_nt", "_tt")]


@pytest.mark.parametrize(("kind", "n", "span", "majors"), CASES)
def test_wgmma_from_shared(hopper: Module, kind: str, n: int, span: int, majors: str) -> None:
    rng = np.random.default_rng(n + span)
    (a_bits, a), (b_bits, b) = numbers(kind, (64, DEPTH[kind]), rng), numbers(kind, (n, DEPTH[kind]), rng)
    a_image, a_descriptor = operand(a_bits, span, majors[1:2] == "t")
    b_image, b_descriptor = operand(b_bits, span, majors[2:3] == "t", start=a_image.size)
    image = aligned(np.concatenate([a_image, b_image]), writable=False)
    for accumulate in (True, False):
        out = start_values(kind, n, rng)
        before = out.astype(np.float64 if out.dtype == np.float32 else np.int64)
        arguments = [image, image.size, ctypes.c_uint64(a_descriptor), ctypes.c_uint64(b_descriptor), int(accumulate), out]
        seen = run_all(hopper, f"ss_{kind}_{n}{majors}", arguments, out, block=(128,), shared=image.size)
        check(kind, n, a, b, before, seen, accumulate)


@pytest.mark.parametrize(("kind", "n", "majors"), [
    *((kind, n, "") for kind in DEPTH for n in (8, 24, 64, 256)),
    ("f16", 64, "_nt"), ("bf16", 64, "_nt"), ("f16", 128, "_nt"), ("bf16", 256, "_nt")])
def test_wgmma_from_registers(hopper: Module, kind: str, n: int, majors: str) -> None:
    rng = np.random.default_rng(n)
    (a_bits, a), (b_bits, b) = numbers(kind, (64, DEPTH[kind]), rng), numbers(kind, (n, DEPTH[kind]), rng)
    image, descriptor = operand(b_bits, 128, majors == "_nt")
    image, fragments = aligned(image, writable=False), aligned(a_registers(a_bits), writable=False)
    out = start_values(kind, n, rng)
    before = out.astype(np.float64 if out.dtype == np.float32 else np.int64)
    arguments = [image, image.size, fragments, ctypes.c_uint64(descriptor), 1, out]
    seen = run_all(hopper, f"rs_{kind}_{n}{majors}", arguments, out, block=(128,), shared=image.size)
    check(kind, n, a, b, before, seen, True)


@pytest.mark.parametrize("span", [64, 128])
def test_steps_within_a_span(hopper: Module, span: int) -> None:
    """The k-th step of a tile as wide as the swizzle begins 32 k bytes on."""
    rng = np.random.default_rng(span)
    (a_bits, a), (b_bits, b) = numbers("f16", (64, span // 2), rng), numbers("f16", (64, span // 2), rng)
    image = aligned(np.concatenate([swizzle_bytes(a_bits, span), swizzle_bytes(b_bits, span)]), writable=False)
    _, base = operand(a_bits[:, :16], span, False)
    for step in range(span // 32):
        out = start_values("f16", 64, rng)
        before = out.astype(np.float64)
        a_descriptor, b_descriptor = (ctypes.c_uint64(base + (at + 32 * step) // 16) for at in (0, 64 * span))
        arguments = [image, image.size, a_descriptor, b_descriptor, 1, out]
        seen = run_all(hopper, "ss_f16_64", arguments, out, block=(128,), shared=image.size)
        part = slice(16 * step, 16 * step + 16)
        check("f16", 64, a[:, part], b[:, part], before, seen, True)


def test_descriptor_bits(hopper: Module) -> None:
    out = aligned(np.zeros(4, np.uint64))
    hopper.launch("descriptors", [out, 0x3fff0 - 1024, 4096, 0x2000])
    for value, mode in zip(out, (0, 3, 2, 1)):
        assert int(value) == (0x3fff0 - 1024) // 16 | 256 << 16 | 512 << 32 | mode << 62


# ---- barriers, clusters, registers

def test_mbarrier_hands_over(hopper: Module) -> None:
    out = aligned(np.zeros((7, 32), np.uint32))
    run_all(hopper, "ping_pong", [out, 7], out, block=(64,), shared=256)
    np.testing.assert_array_equal(out, np.arange(7)[:, None] * 100 + np.arange(31, -1, -1))


def test_mbarrier_memory_serves_again(hopper: Module) -> None:
    out = aligned(np.zeros((2, 32), np.uint32))
    run_all(hopper, "barrier_twice", [out], out, shared=256)
    np.testing.assert_array_equal(out, [[0] * 32, [1] * 32])


@pytest.mark.parametrize(("grid", "cluster"), [((2, 1, 1), (2, 1, 1)), ((4, 2, 2), (2, 2, 1)), ((3, 2, 1), (1, 1, 1)),
                                               ((1, 4, 2), (1, 2, 2))])
def test_clusters(hopper: Module, grid: Ints, cluster: Ints) -> None:
    out = aligned(np.zeros((grid[2], grid[1], grid[0], 128), np.uint32))
    run_all(hopper, "neighbours", [out], out, grid=grid, cluster=cluster, shared=256)
    size = int(np.prod(cluster))
    for z, y, x in np.ndindex(*grid[::-1]):
        inside = [x % cluster[0], y % cluster[1], z % cluster[2]]
        rank = (inside[2] * cluster[1] + inside[1]) * cluster[0] + inside[0]
        mine = out[z, y, x]
        np.testing.assert_array_equal(mine[:32], (rank + 1) % size * 1000 + np.arange(32))
        np.testing.assert_array_equal(mine[32:64], (rank + 2) % size * 1000 + np.arange(32))
        ids = [rank, size, *inside, x // cluster[0], y // cluster[1], z // cluster[2], *(g // c for g, c in zip(grid, cluster))]
        np.testing.assert_array_equal(mine[64:75], ids)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_multicast(hopper: Module, size: int) -> None:
    tensor = random((3, 64), "uint16")  # the fourth row is outside
    out = aligned(np.zeros((size, 2, 128), np.uint16))
    run_all(hopper, "multicast", [tensor_map(tensor, (1, 64)), out, 128], out, grid=(size,), cluster=(size,), block=(64,),
            shared=2048, memory=[tensor])
    expected = box_of(tensor, (0, 0), (4, 64)).reshape(2, 128)
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


def test_registers_and_named_barriers(hopper: Module) -> None:
    out = aligned(np.zeros(128, np.uint32))
    run_all(hopper, "reallocate", [out], out, block=(256,), shared=1024)
    np.testing.assert_array_equal(out, np.arange(127, -1, -1) ** 2)


# ---- PTX

@pytest.mark.skipif(not nvrtc.available(), reason="NVRTC is not installed")
@pytest.mark.parametrize(("name", "defines"), [("hopper", ("EVERY_N",)), ("hopper_bugs", ())])
def test_ptx_compiles(name: str, defines: tuple[str, ...]) -> None:
    text = (Path(__file__).parent / "primitives" / f"{name}.cu").read_text(encoding="utf-8")
    cubin = build_cubin(CudaSource(name, text, defines), "sm_90a", Options())
    assert all(kernel.spill_stores == 0 for kernel in cubin.kernels)
    if name == "hopper":  # among the bugs is one that ptxas sees too
        assert "serialized" not in cubin.log
