"""Every primitive of the sm_80 level, in the emulator in all modes, against the ISA's layout stated in NumPy (fragments.py)."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from tests.codegen_cuda import fragments
from tests.codegen_cuda.emulated import Module, Report, aligned, emulated

RUNS = [("fast", 0), ("lazy", 0), ("race", 0), *(("stress", seed) for seed in range(4))]
RANDOM = np.random.default_rng(7)


@pytest.fixture
def kernels() -> Module:
    return emulated("primitives")


def run(kernels: Module, name: str, arguments: list[object], **how: object) -> Report:
    """Launch in every mode; arrays that are written must come out the same each time, and end up in `arguments`."""
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    first: list[np.ndarray] | None = None
    for mode, seed in RUNS:
        for array, start in zip(arguments, before):
            if isinstance(array, np.ndarray) and array.flags.writeable:
                array[...] = start
        report = kernels.launch(name, arguments, mode=mode, seed=seed, **how)  # type: ignore[arg-type]
        assert report.ended == "ok", (mode, seed, report.text)
        now = [a.copy() for a in arguments if isinstance(a, np.ndarray)]
        if first is not None:
            for one, other in zip(first, now):
                np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8), err_msg=f"{mode} {seed}")
        first = now
    return report


def random_bytes(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def test_ids(kernels: Module) -> None:
    grid, block = (2, 3, 2), (8, 4, 3)
    out = aligned(np.zeros((12, 96, 13), np.uint32))
    run(kernels, "ids", [out], grid=grid, block=block)
    b, t = np.arange(12), np.arange(96)
    blocks, threads = np.stack([b % 2, b // 2 % 3, b // 6], -1), np.stack([t % 8, t // 8 % 4, t // 32], -1)
    np.testing.assert_array_equal(out[:, :, 0:3], np.broadcast_to(threads[None], (12, 96, 3)))
    np.testing.assert_array_equal(out[:, :, 3:6], np.broadcast_to(blocks[:, None], (12, 96, 3)))
    np.testing.assert_array_equal(out[0, 0, 6:12], [*block, *grid])
    np.testing.assert_array_equal(out[5, :, 12], t % 32)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("n", [0, 1, 77, 256])
def test_guarded_access(kernels: Module, size: int, n: int) -> None:
    source = aligned(random_bytes(max(n, 1), size), writable=False)
    out = aligned(random_bytes(256, size))
    run(kernels, f"copy_{size}", [source, out, n], grid=(2,), block=(128,), shared=128 * size)
    np.testing.assert_array_equal(out[:n], source[:n])
    assert not out[n:].any()


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("n", [0, 65, 128])
def test_async_copies(kernels: Module, size: int, n: int) -> None:
    source = aligned(random_bytes(128, size), writable=False)
    out = aligned(random_bytes(256, size))
    run(kernels, f"copy_async_{size}", [source, out, n], block=(128,), shared=256 * size)
    # Thread t stores what thread 127 - t copied.
    np.testing.assert_array_equal(out[:128], source[::-1])
    guarded = np.where((np.arange(128) < n)[:, None], source, 0)
    np.testing.assert_array_equal(out[128:], guarded[::-1])


@pytest.mark.parametrize("chunks", [2, 4, 8, 16, 32])
def test_swizzle_is_a_conflict_free_bijection(kernels: Module, chunks: int) -> None:
    rows = 32
    out = aligned(np.zeros((rows, chunks), np.uint32))
    run(kernels, "swizzle_table", [out, rows, chunks])
    assert sorted(out.ravel()) == list(range(rows * chunks))
    for first in range(0, rows, 8):
        for chunk in range(chunks):
            assert len(set(out[first:first + 8, chunk] % 8)) == 8  # eight groups of four banks


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("chunk", [0, 3])
def test_ldmatrix(kernels: Module, count: int, transposed: bool, chunk: int) -> None:
    tile = aligned(random_bytes(8 * count, 4, 16), writable=False)
    out = aligned(np.zeros((32, count), np.uint32))
    run(kernels, f"ldmatrix_{count}" + "_transposed" * transposed, [tile, out, chunk], shared=8 * count * 64)
    rows = tile[:, chunk].reshape(count, 8, 16)
    np.testing.assert_array_equal(out, fragments.matrix_registers(rows, transposed))


def test_ldmatrix_tile(kernels: Module) -> None:
    tile = aligned(random_bytes(32, 4, 16), writable=False)
    out = aligned(np.zeros((32, 2, 4), np.uint32))
    run(kernels, "ldmatrix_tile_2", [tile, out], shared=32 * 64)
    for number, chunk in enumerate((0, 3)):
        np.testing.assert_array_equal(out[:, number], fragments.matrix_registers(tile[:, chunk].reshape(4, 8, 16), False))


def operands(kind: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """`rows` rows of 32 bytes, as stored and as float64 or int64 numbers."""
    if kind in ("s8", "u8"):
        stored = random_bytes(rows, 32)
        return stored, stored.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}[kind]
    stored = RANDOM.standard_normal((rows, 32 // np.dtype(dtype).itemsize)).astype(dtype)
    meant = stored.astype(np.float64)
    if kind == "tf32":  # the operand's low 13 bits are not seen
        meant = (stored.view(np.uint32) & np.uint32(0xffffe000)).view(np.float32).astype(np.float64)
    return stored.view(np.uint8), meant


@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (2, 4)])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "s8", "u8"])
def test_mma(kernels: Module, kind: str, tile: tuple[int, int]) -> None:
    mi, ni = tile
    (a, a_values), (b, b_values) = operands(kind, 16 * mi), operands(kind, 8 * ni)
    whole = kind in ("s8", "u8")
    c = RANDOM.integers(-2**31, 2**31, (16 * mi, 8 * ni)).astype(np.int32) if whole else RANDOM.standard_normal(
        (16 * mi, 8 * ni)).astype(np.float32)
    registers = aligned(fragments.c_fragments(c))
    report = run(kernels, f"mma_{kind}_{mi}x{ni}",
                 [aligned(fragments.a_fragments(a), False), aligned(fragments.b_fragments(b), False), registers])
    assert report.mma_instructions == mi * ni
    expected = c.astype(a_values.dtype) + a_values @ b_values.T
    if whole:
        np.testing.assert_array_equal(fragments.c_tile(registers), expected.astype(np.int32))  # wraps around
    else:
        np.testing.assert_allclose(fragments.c_tile(registers), expected, rtol=1e-6, atol=2e-5)


def edge_floats() -> np.ndarray:
    """Random bit patterns, every half-way point's neighbourhood of all three formats, the ends of their ranges."""
    bits = RANDOM.integers(0, 2**32, 3000, dtype=np.uint32)
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    tails = np.array([0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0x17fff, 0x18000, 0x18001,
                      0x7fefff, 0x7ff000, 0x7ff001, 0x7f7fff, 0x7f8000, 0x7fffff], np.uint32)
    edges = (exponents | tails).ravel()
    every = np.concatenate([bits, edges, edges | np.uint32(0x80000000)])
    return np.concatenate([every, every[:len(every) % 2]]).view(np.float32)


def test_rounding_is_the_hardwares(kernels: Module) -> None:
    values = aligned(edge_floats(), writable=False)
    n = len(values)
    half, brain, short = (aligned(np.zeros(n, dtype)) for dtype in (np.uint16, np.uint16, np.uint32))
    packed = [aligned(np.zeros(n // 2, np.uint32)) for _ in range(2)]
    report = kernels.launch("round_to", [values, half, brain, short, *packed, n], grid=(-(-n // 128),), block=(128,))
    assert report.ended == "ok", report.text
    nan = np.isnan(values)
    with np.errstate(over="ignore", invalid="ignore"):
        expected_half = np.where(nan, np.uint16(0x7fff), values.astype(np.float16).view(np.uint16))
        expected_brain = np.where(nan, np.uint16(0x7fff), values.astype(ml_dtypes.bfloat16).view(np.uint16))
        expected_short = fragments.tf32(values).view(np.uint32)
    np.testing.assert_array_equal(half, expected_half)
    np.testing.assert_array_equal(brain, expected_brain)
    np.testing.assert_array_equal(short, expected_short)
    np.testing.assert_array_equal(packed[0], expected_half.view(np.uint32))
    np.testing.assert_array_equal(packed[1], expected_brain.view(np.uint32))


def test_widening_is_exact(kernels: Module) -> None:
    bits = aligned(np.arange(65536, dtype=np.uint16), writable=False)
    half, brain = aligned(np.zeros(65536, np.uint32)), aligned(np.zeros(65536, np.uint32))
    report = kernels.launch("widen", [bits, half, brain, 65536], grid=(512,), block=(128,))
    assert report.ended == "ok", report.text
    exact = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(half, np.where(np.isnan(exact), np.uint32(0x7fffffff), exact.view(np.uint32)))
    np.testing.assert_array_equal(brain.view(np.float32), bits.view(ml_dtypes.bfloat16).astype(np.float32))


def butterfly(values: np.ndarray) -> np.float32:
    """The sum as warp_reduce orders it."""
    lanes = values.astype(np.float32)
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[np.arange(32) ^ distance]
    return np.float32(lanes[0])


def test_shuffles_and_warp_reductions(kernels: Module) -> None:
    x = aligned(RANDOM.standard_normal(32).astype(np.float32), writable=False)
    out = aligned(np.zeros((32, 7), np.uint32))
    run(kernels, "shuffles", [x, out])
    lanes, floats = np.arange(32), out.view(np.float32)
    np.testing.assert_array_equal(floats[:, 0], x[lanes ^ 5])
    np.testing.assert_array_equal(floats[:, 1], x[np.where(lanes < 29, lanes + 3, lanes)])
    assert (floats[:, 2] == x[7]).all()
    assert (out[:, 3] == sum(1 << lane for lane in range(32) if x[lane] < 0)).all()
    assert (floats[:, 4] == butterfly(x)).all()
    assert (floats[:, 5] == x.max()).all()
    assert (floats[:, 6] == x.min()).all()


def test_block_reductions(kernels: Module) -> None:
    x = aligned(RANDOM.standard_normal(128).astype(np.float32), writable=False)
    out = aligned(np.zeros((128, 2), np.float32))
    run(kernels, "block_reductions", [x, out], block=(128,), shared=16)
    total = np.float32(0)
    for warp in range(4):
        part = butterfly(x[32 * warp:32 * warp + 32])
        total = part if warp == 0 else total + part
    assert (out[:, 0] == total).all()
    assert (out[:, 1] == x.max()).all()


@pytest.mark.parametrize("host_threads", [1, 2])
def test_atomics(kernels: Module, host_threads: int) -> None:
    x = aligned(RANDOM.integers(-900, 900, 512).astype(np.float32), writable=False)  # sums are exact in any order
    arguments = [aligned(a) for a in (np.zeros(2, np.float32), np.array([0, 0, -1, 0], np.int32), np.zeros(1, np.uint64),
                                      np.full(2, -10**6, np.int32), np.full(1, -np.inf, np.float32))]
    run(kernels, "atomics", [x, *arguments], grid=(4,), block=(128,), shared=12, host_threads=host_threads)
    sums, count, wide, top, float_top = arguments
    assert (sums == x.sum()).all()
    assert list(count) == [512, 512, -1, 0]  # nobody expects -1
    assert wide[0] == sum(range(512)) << 20
    assert (top == x.max()).all()
    assert float_top[0] == x.max()


def test_compare_exchange_stores_only_what_it_expected(kernels: Module) -> None:
    x = aligned(np.zeros(128, np.float32), writable=False)
    arguments = [aligned(a) for a in (np.zeros(2, np.float32), np.array([0, 0, 127, 0], np.int32), np.zeros(1, np.uint64),
                                      np.zeros(2, np.int32), np.zeros(1, np.float32))]
    assert kernels.launch("atomics", [x, *arguments], block=(128,), shared=12).ended == "ok"
    # Only thread 127 expects what is there.
    assert list(arguments[1][2:]) == [128, 7]


def test_the_last_block_adds_what_all_left(kernels: Module) -> None:
    x = aligned(RANDOM.integers(-99, 99, (5, 32)).astype(np.float32), writable=False)
    parts, out = aligned(np.zeros((5, 32), np.float32)), aligned(np.zeros(32, np.float32))
    arrived = aligned(np.zeros(1, np.uint32))
    run(kernels, "last_block", [x, parts, arrived, out], grid=(5,))
    np.testing.assert_array_equal(out, x.sum(0))


def test_named_barriers_hand_over(kernels: Module) -> None:
    source = aligned(RANDOM.integers(0, 2**32, (3, 32), dtype=np.uint32), writable=False)
    out = aligned(np.zeros((3, 3, 32), np.uint32))
    run(kernels, "hand_over", [source, out, 3], block=(128,), shared=128)
    np.testing.assert_array_equal(out, np.broadcast_to(source[:, None, ::-1], (3, 3, 32)))


def test_kernel_arguments_are_known(kernels: Module) -> None:
    class Info(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_uint32), ("max_threads", ctypes.c_uint32), ("argument_count", ctypes.c_uint32),
                    ("reserved", ctypes.c_uint32), ("argument_bytes", ctypes.c_uint32 * 64)]

    info = Info(struct_size=ctypes.sizeof(Info))
    assert kernels.library.tsc_emu_kernel_info(b"copy_16", ctypes.byref(info)) == 0
    assert (info.max_threads, info.argument_count, list(info.argument_bytes)[:4]) == (128, 3, [8, 8, 4, 0])
    assert kernels.library.tsc_emu_kernel_info(b"nothing", ctypes.byref(info)) != 0
