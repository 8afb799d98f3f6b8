"""Mistakes in sm_90a kernels are found in the modes that claim it; a right pipeline is left in peace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module, Report, aligned, emulated
from tests.codegen_cuda.hopper_layouts import tensor_map

TILES = 5
SHARED = 5 * 64 * 128 + 64
RUNS = [("fast", 0), ("lazy", 0), ("race", 0), *(("stress", seed) for seed in range(4))]
SOURCE = (Path(__file__).parent / "primitives" / "hopper_bugs.cu").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def bugs() -> Module:
    return emulated("hopper_bugs")


def run(module: Module, mistake: str, mode: str, seed: int = 0) -> tuple[Report, bool]:
    """How the pipeline ended, and whether its sums are right."""
    rng = np.random.default_rng(7)
    a, b = (aligned(rng.standard_normal((64 * TILES, 64)).astype(np.float16), writable=False) for _ in range(2))
    out = aligned(np.full((64, 64), np.nan, np.float32))
    maps = [tensor_map(a, (64, 64), 128), tensor_map(b, (64, 64), 128), tensor_map(out, (64, 32), 128)]
    report = module.launch(f"pipeline_{mistake}", [*maps, TILES], block=(256,), shared=SHARED, mode=mode, seed=seed,
                           memory=[a, b, out])
    expected = np.einsum("tmk,tnk->mn", *(x.reshape(TILES, 64, 64).astype(np.float64) for x in (a, b)))
    return report, bool(np.allclose(out, expected, rtol=0, atol=1e-3))


@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_the_right_pipeline_is_left_in_peace(bugs: Module, mode: str, seed: int) -> None:
    report, right = run(bugs, "NONE", mode, seed)
    assert report.ended == "ok", report.text
    assert right


@pytest.mark.parametrize(("mistake", "modes", "endings", "text"), [
    ("NO_EMPTY_WAIT", ("race",), ("race", "protocol"), ""),
    ("EARLY_RELEASE", ("race",), ("race",), "asynchronous read"),
    ("WAIT_OFF_BY_ONE", ("race",), ("race",), "asynchronous read"),
    ("ALL_ARRIVE", ("race",), ("protocol",), "nothing orders after the end of phase 0"),
    ("EXPECTS_TOO_LITTLE", ("lazy", "race", "stress"), ("protocol", "race"), ""),
    ("EXPECTS_TOO_MUCH", ("fast", "lazy", "race", "stress"), ("deadlock",), "bytes are missing"),
    ("WRONG_PARITY", ("race",), ("race", "uninitialised"), ""),
    ("NO_FULL_WAIT", ("race",), ("race", "uninitialised"), ""),
    ("WRONG_STAGE", ("race",), ("race", "uninitialised"), ""),
    ("NO_FULL_WAIT", ("lazy",), ("protocol",), "has not landed"),
    ("NO_WGMMA_FENCE", ("fast", "lazy", "race", "stress"), ("protocol",), "wgmma_fence"),
    ("LEAVES_EARLY", ("lazy", "stress"), ("protocol",), "left the kernel"),
    ("OVERWRITES_SOURCE", ("race",), ("race",), "bulk copy"),
    ("NO_ASYNC_FENCE", ("race",), ("protocol",), "fence_async_shared"),
    ("NO_INIT_BARRIER", ("race",), ("protocol",), "after the initialisation"),
])
def test_mistakes_are_reported(bugs: Module, mistake: str, modes: tuple[str, ...], endings: tuple[str, ...], text: str) -> None:
    for mode in modes:
        report, _ = run(bugs, mistake, mode)
        assert report.ended in endings, f"{mode}: {report.ended} {report.text}"
        assert text in report.text
        assert f"kernel pipeline_{mistake}" in report.text


@pytest.mark.parametrize("mistake", ["NO_EMPTY_WAIT", "EARLY_RELEASE", "ALL_ARRIVE", "WRONG_PARITY", "NO_FULL_WAIT",
                                     "WRONG_STAGE", "READS_EARLY", "NO_COMMIT", "OVERWRITES_SOURCE", "EXPECTS_TOO_LITTLE"])
def test_mistakes_spoil_the_result_in_lazy_mode(bugs: Module, mistake: str) -> None:
    report, right = run(bugs, mistake, "lazy")
    assert report.ended != "ok" or not right


@pytest.mark.parametrize(("kernel", "block", "mode", "ending", "text"), [
    ("not_initialised", 32, "fast", "protocol", "nobody has initialised"),
    ("overwritten", 32, "fast", "protocol", "has been overwritten"),
    ("nobody_arrives", 64, "fast", "deadlock", "1 of 33 arrivals and 0 bytes are missing"),
    ("one_too_many", 64, "fast", "protocol", "all 63 of phase 0"),
    ("wait_without_arrive", 32, "fast", "protocol", "without cluster_arrive"),
    ("groups_differ", 128, "fast", "protocol", "differ within the warp group"),
    ("begins_within_the_pattern", 128, "fast", "protocol", "middle of its 128-byte swizzle"),
])
def test_protocol_mistakes(bugs: Module, kernel: str, block: int, mode: str, ending: str, text: str) -> None:
    report = bugs.launch(kernel, [0], block=(block,), shared=4096, mode=mode)
    assert report.ended == ending, report.text
    assert text in report.text
    line = SOURCE[report.access[0].line - 1]
    assert any(word in line for word in ("mbarrier_", "cluster_", "wgmma<")), line


def test_a_neighbour_must_stay(bugs: Module) -> None:
    out = aligned(np.zeros(64, np.uint32))
    report = bugs.launch("leaves_its_neighbour", [out], grid=(2,), cluster=(2,), shared=256)
    assert report.ended == "protocol" and "has left the kernel" in report.text


def test_remote_reads_need_the_cluster_barrier(bugs: Module) -> None:
    out = aligned(np.zeros(64, np.uint32))
    report = bugs.launch("remote_without_sync", [out], grid=(2,), cluster=(2,), shared=256, mode="race")
    assert report.ended in ("race", "uninitialised"), report.text


def test_a_bulk_store_is_waited_for_twice_over(bugs: Module) -> None:
    for mode, seed in RUNS:
        out = aligned(np.zeros(160, np.uint32))
        report = bugs.launch("reads_back", [out], shared=512, mode=mode, seed=seed)
        assert report.ended == "ok" and out[128] == 2, report.text
    out = aligned(np.zeros(160, np.uint32))
    report = bugs.launch("reads_back_early", [out], shared=512, mode="race")
    assert report.ended == "race" and "global memory" in report.text
    out[...] = 0
    bugs.launch("reads_back_early", [out], shared=512, mode="lazy")
    assert out[128] == 1


@pytest.mark.parametrize(("change", "text"), [
    ({"box": (64, 32)}, "64 bytes, but the swizzle 128"),
    ({"rank": 1}, "a copy of 2 axes with a tensor map of 1"),
    ({"magic": 0}, "not one of the emulator's"),
    ({"stride": 24}, "multiple of 16"),
    ({"offset": 8}, "no multiple of 16"),
])
def test_tensor_maps_are_checked(bugs: Module, change: dict[str, object], text: str) -> None:
    a = aligned(np.zeros((64 * TILES, 64), np.float16))
    out = aligned(np.zeros((64, 64), np.float32))
    good, bad = tensor_map(a, (64, 64), 128), tensor_map(a, (64, 64), 128)
    match change:
        case {"box": (rows, columns)}:
            bad.box[0], bad.box[1] = columns, rows
        case {"stride": stride}:
            bad.strides[0] = stride
        case {"offset": offset}:
            bad.address += offset
        case _:
            for name, value in change.items():
                setattr(bad, name, value)
    maps = [bad, good, tensor_map(out, (64, 32), 128)]
    report = bugs.launch("pipeline_NONE", [*maps, 1], block=(256,), shared=SHARED, memory=[a, out])
    assert report.ended == "protocol" and text in report.text, report.text
