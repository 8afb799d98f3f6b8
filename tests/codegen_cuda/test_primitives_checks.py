"""What the emulator's modes claim to find, they find, exactly; and right kernels are left in peace."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.codegen_cuda.emulated import Module, Report, aligned, emulated

RUNS = [("fast", 0), ("lazy", 0), ("race", 0), *(("stress", seed) for seed in range(4))]
SOURCE = (Path(__file__).parent / "primitives" / "bugs.cu").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def bugs() -> Module:
    return emulated("bugs")


def words(n: int, writable: bool = True) -> np.ndarray:
    return aligned(np.arange(1, n + 1, dtype=np.uint32) * 2654435761 % 1000003, writable)


def source_line(report: Report, access: int = 0) -> str:
    return SOURCE[report.access[access].line - 1]


@pytest.mark.parametrize(("name", "block"), [("exchange_right", 64), ("warp_right", 32), ("half_warps", 32)])
def test_right_kernels_run_in_every_mode(bugs: Module, name: str, block: int) -> None:
    source = words(64, writable=False)
    outs = []
    for mode, seed in RUNS:
        out = aligned(np.zeros(128, np.uint32))
        report = bugs.launch(name, [source, out], block=(block,), shared=block * 4, mode=mode, seed=seed)
        assert report.ended == "ok", report.text
        outs.append(out)
    assert outs[0].any()
    for out in outs:
        np.testing.assert_array_equal(out, outs[0])


@pytest.mark.parametrize(("name", "block"), [("exchange_no_barrier", 64), ("exchange_overwrites", 64), ("warp_no_sync", 32),
                                             ("half_warps_cross", 32)])
def test_shared_races_are_reported_exactly(bugs: Module, name: str, block: int) -> None:
    arguments = [words(64, False), aligned(np.zeros(128, np.uint32))]
    report = bugs.launch(name, arguments, block=(block,), shared=block * 4, mode="race")
    assert report.ended in ("race", "uninitialised"), report.text  # lanes run in order: some read what is not yet there
    if report.ended == "race":
        lines = {source_line(report, 0).split("(")[0].strip(), source_line(report, 1).split("(")[0].strip()}
        assert lines == {"store_shared", "store_global"}  # the load is an argument of the latter
        assert {report.access[0].kind, report.access[1].kind} == {0, 1}
        threads = [report.access[i].thread.x for i in range(2)]
        assert threads[0] != threads[1]
        assert report.shared == 1 and report.address // 4 in threads
        assert f"kernel {name}" in report.text and f"line {report.access[0].line}" in report.text


@pytest.mark.parametrize("name", ["exchange_no_barrier", "exchange_overwrites"])
def test_a_missing_barrier_shows_under_stress(bugs: Module, name: str) -> None:
    source = words(64, writable=False)
    right = aligned(np.zeros(128, np.uint32))
    assert bugs.launch("exchange_right", [source, right], block=(64,), shared=256).ended == "ok"
    different = 0
    for seed in range(4):
        out = aligned(np.zeros(128, np.uint32))
        report = bugs.launch(name, [source, out], block=(64,), shared=256, mode="stress", seed=seed)
        different += report.ended != "ok" or not np.array_equal(out, right)
    assert different > 0


def test_stress_is_repeatable(bugs: Module) -> None:
    def once(seed: int) -> bytes:
        out = aligned(np.zeros(128, np.uint32))
        bugs.launch("exchange_no_barrier", [words(64, False), out], block=(64,), shared=256, mode="stress", seed=seed)
        return out.tobytes()

    assert once(3) == once(3)
    assert len({once(seed) for seed in range(6)}) > 1


def pipeline(bugs: Module, name: str, mode: str, seed: int = 1) -> tuple[Report, bool]:
    steps = 5
    source = words(steps * 64 * 4, writable=False)
    out = aligned(np.zeros(64, np.uint32))
    report = bugs.launch(name, [source, out, steps], block=(64,), shared=3 * 1024, mode=mode, seed=seed)
    expected = source.reshape(steps, 64, 4)[:, np.arange(64) ^ 40, 0].sum(0, dtype=np.uint32)
    return report, np.array_equal(out, expected)


@pytest.mark.parametrize(("mode", "seed"), RUNS)
def test_the_right_pipeline(bugs: Module, mode: str, seed: int) -> None:
    report, right = pipeline(bugs, "pipeline_right", mode, seed)
    assert report.ended == "ok" and right, report.text


def test_a_wait_for_one_group_too_few(bugs: Module) -> None:
    report, right = pipeline(bugs, "pipeline_wait", "lazy")
    assert report.ended == "ok" and not right
    report, _ = pipeline(bugs, "pipeline_wait", "race")
    assert report.ended == "race"
    assert "load_shared" in source_line(report, 0) and "cp_async" in source_line(report, 1)
    assert report.access[1].asynchronous == 1 and "cp.async write" in report.text and "may be under way" in report.text


def test_a_load_into_the_stage_that_is_read(bugs: Module) -> None:
    report, right = pipeline(bugs, "pipeline_stage", "lazy")
    assert report.ended == "ok" and not right
    report, _ = pipeline(bugs, "pipeline_stage", "race")
    assert report.ended == "race" and "cp_async" in source_line(report, 0) + source_line(report, 1)


def test_a_pipeline_without_a_barrier(bugs: Module) -> None:
    report, _ = pipeline(bugs, "pipeline_barrier", "race")
    assert report.ended in ("race", "uninitialised")
    assert any(not pipeline(bugs, "pipeline_barrier", "stress", seed)[1] for seed in range(4))


def test_adjacent_narrow_accesses_do_not_race(bugs: Module) -> None:
    source = aligned(np.arange(64, dtype=np.uint16), writable=False)
    out = aligned(np.zeros(64, np.uint16))
    report = bugs.launch("narrow_neighbours", [source, out], block=(64,), shared=128, mode="race")
    assert report.ended == "ok", report.text
    np.testing.assert_array_equal(out, source[::-1])


def test_global_races(bugs: Module) -> None:
    report = bugs.launch("global_race", [aligned(np.zeros(32, np.uint32))], mode="race")
    assert report.ended == "race" and report.shared == 0
    assert {report.access[0].thread.x, report.access[1].thread.x} == {0, 1}
    report = bugs.launch("blocks_race", [aligned(np.zeros(32, np.uint32))], grid=(2,), mode="race")
    assert report.ended == "race" and {report.access[0].block.x, report.access[1].block.x} == {0, 1}
    assert bugs.launch("blocks_race", [aligned(np.zeros(32, np.uint32))], mode="race").ended == "ok"
    report = bugs.launch("constant_written", [aligned(np.zeros(32, np.uint32))], mode="race")
    assert report.ended == "protocol" and "load_constant" in report.text


@pytest.mark.parametrize(("name", "ended"), [("last_right", "ok"), ("last_no_release", "race"), ("last_early_fence", "race"),
                                             ("last_no_acquire", "race")])
def test_blocks_are_ordered_by_fences_and_atomics_alone(bugs: Module, name: str, ended: str) -> None:
    parts, arrived, out = aligned(np.zeros(128, np.float32)), aligned(np.zeros(1, np.uint32)), aligned(np.zeros(32, np.float32))
    report = bugs.launch(name, [parts, arrived, out], grid=(4,), mode="race")
    assert report.ended == ended, report.text
    if ended == "race":
        assert "load_global" in source_line(report, 0) and "store_global" in source_line(report, 1)


@pytest.mark.parametrize("mode", ["fast", "lazy", "race", "stress"])
def test_accesses_out_of_bounds(bugs: Module, mode: str) -> None:
    out = aligned(np.zeros(7, np.uint32))
    report = bugs.launch("store_past_end", [out, 7], mode=mode)
    assert report.ended == "out of bounds" and report.access[0].thread.x == 7, report.text
    assert "store_global" in source_line(report) and "byte 28 of the nearest range" in report.text
    assert bugs.launch("store_past_end", [out, 6], mode=mode).ended == "ok"
    report = bugs.launch("load_past_end", [words(9, False), aligned(np.zeros(32, np.uint32)), 9], mode=mode)
    assert report.ended == "out of bounds" and report.access[0].thread.x == 9
    five, copies = words(4 * 5, False), aligned(np.zeros(32, np.uint32))
    report = bugs.launch("copy_past_end", [five, copies, 5], shared=512, mode=mode)
    assert report.ended == "out of bounds" and "cp_async" in source_line(report)
    assert bugs.launch("copy_past_end", [five, copies, 4], shared=512, mode=mode).ended == "ok"
    report = bugs.launch("store_to_input", [words(32, False)], mode=mode)
    assert report.ended == "out of bounds" and "read-only" in report.text
    report = bugs.launch("misaligned", [words(64), aligned(np.zeros(32, np.uint32))], mode=mode)
    assert report.ended == "misaligned"
    report = bugs.launch("shared_past_end", [aligned(np.zeros(1, np.uint32))], shared=248, mode=mode)
    assert report.ended == "out of bounds" and "the block has 248 bytes" in report.text
    report = bugs.launch("shared_base_forgotten", [aligned(np.zeros(32, np.uint32))], shared=128, mode=mode)
    assert report.ended == "out of bounds"


def test_shared_memory_nobody_wrote(bugs: Module) -> None:
    out = aligned(np.zeros(32, np.uint32))
    assert bugs.launch("shared_unwritten", [out], shared=128, mode="race").ended == "uninitialised"
    assert bugs.launch("shared_unwritten", [out], shared=128).ended == "ok"
    assert (out == 0xffffffff).all()


def test_those_who_never_meet_are_reported(bugs: Module) -> None:
    out = aligned(np.zeros(64, np.uint32))
    report = bugs.launch("half_a_barrier", [out], block=(64,))
    assert report.ended == "deadlock", report.text
    assert re.search(r"32 threads wait at block_sync \(line \d+\).*32 threads wait at named_barrier_sync", report.text)
    report = bugs.launch("left_before_barrier", [out], block=(64,))
    assert report.ended == "diverged" and re.search("leaves|left the kernel", report.text)
    report = bugs.launch("divided_warp", [out])
    assert report.ended == "diverged" and "warp_ballot" in report.text and "shuffle_xor" in report.text
    report = bugs.launch("barrier_of_others", [out], block=(128,))
    assert report.ended == "protocol" and "128" in report.text and "64" in report.text
    report = bugs.launch("spins", [out], timeout_ms=50)
    assert report.ended == "timeout"


@pytest.mark.parametrize(("how", "says"), [
    ({"block": (48,)}, "48 threads"), ({"block": (64,)}, "bounded to 32"), ({"grid": (0,)}, "grid"),
    ({"cluster": (2,)}, "multiple of the cluster"), ({"shared": 300000}, "300000 bytes")])
def test_launches_that_cannot_be(bugs: Module, how: dict[str, object], says: str) -> None:
    report = bugs.launch("global_race", [aligned(np.zeros(32, np.uint32))], **how)  # type: ignore[arg-type]
    assert report.ended == "bad launch" and says in report.text


def test_an_unknown_kernel(bugs: Module) -> None:
    assert bugs.launch("nothing", []).ended == "bad launch"
    assert {"rows", "columns", "spins"} <= bugs.kernels()


@pytest.mark.parametrize(("stride", "step"), [(32, 1), (33, 2), (34, 8)])
def test_counters_of_word_accesses(bugs: Module, stride: int, step: int) -> None:
    source, out = words(32 * step, False), aligned(np.zeros(32, np.uint32))
    report = bugs.launch("columns", [source, out, stride, step], shared=stride * 128, count=True)
    assert report.ended == "ok", report.text
    ways = max(np.bincount(np.arange(32) * stride % 32))
    lines = {SOURCE[line.line - 1].strip()[:12]: line for line in report.lines[:report.line_count]}
    loads, stores, load = lines["for (u32 colu"[:12]], lines["for (u32 row"], lines["u32 sum = lo"]
    assert (stores.shared_requests, stores.bank_conflicts) == (32, 0)
    assert (loads.shared_requests, loads.bank_conflicts, loads.shared_wavefronts) == (32, 32 * (ways - 1), 32 * ways)
    assert (load.global_requests, load.global_sectors, load.ideal_sectors) == (1, min(32, 4 * step), 4)
    assert report.bank_conflicts == 32 * (ways - 1)
    assert (report.global_load_bytes, report.global_store_bytes) == (128, 128)
    assert (report.shared_load_bytes, report.shared_store_bytes) == (32 * 128, 32 * 128)


@pytest.mark.parametrize(("swizzled", "conflicts"), [(0, 4 * 3), (1, 0)])
def test_counters_of_ldmatrix(bugs: Module, swizzled: int, conflicts: int) -> None:
    """In place, eight rows of 64 bytes lie in two groups of banks: four to a bank."""
    report = bugs.launch("rows", [aligned(np.zeros(32, np.uint32)), swizzled], shared=2048, count=True)
    line = next(line for line in report.lines[:report.line_count] if "ldmatrix" in SOURCE[line.line - 1])
    assert (line.shared_requests, line.bank_conflicts) == (4, conflicts)
