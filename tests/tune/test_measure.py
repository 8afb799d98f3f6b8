"""Measuring: what is wrong, crashes or hangs is lost alone; records make a model that gives the same bits."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain, count, pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tsc
from tests.tune.support import DIMS, groups, model, product
from tsc.cli import cli
from tsc.config import Options
from tsc.errors import InputError, LaunchError
from tsc.kernels import Workshop, workshop
from tsc.plan.kernel import Kernel
from tsc.poly.schedule import prepared
from tsc.runtime.drivers.cpu_driver import CpuDriver
from tsc.sym import Range
from tsc.te.evaluate import evaluate
from tsc.tune.batch import Batch
from tsc.tune.child import measured
from tsc.tune.measure import Bench, Trial, functions_of, settled
from tsc.tune.records import append, read
from tsc.tune.search import RandomSearch
from tsc.tuning import Effort, groups_of, points_of
from tsc.tuning_group import Budget, Group, built, final_records, rounds

SIZES = ({"s0": 5}, {"s0": 24})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Group], Workshop]:
    return groups(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def four(tuned: tuple[list[Group], Workshop]) -> Trial:
    """Four Variants of a product."""
    order, shop = product(tuned[0]).order, tuned[1]
    analysed = prepared(order.program, shop.device.spec, order.constants)
    assert analysed is not None
    kernel, binary, _ = built(order, RandomSearch(analysed.found.space(shop.device.spec), 1).ask(4), shop)
    assert len(kernel.codes) == 4
    return Trial(order.program, kernel, binary, shop.device.spec.name, order.constants)


def with_breaks(trial: Trial, shop: Workshop, **breaks: str) -> Trial:
    """With what stands at the begin of some of its functions, or behind "..." at the end."""
    kernel, spec = broken(trial.kernel, breaks), shop.device.spec
    binary = shop.device.build(kernel.sources, spec, shop.options, {kernel.symbol: kernel.interface}, None)
    return replace(trial, kernel=kernel, binary=binary)


def broken(kernel: Kernel, breaks: dict[str, str]) -> Kernel:
    functions, codes = list(kernel.sources), list(kernel.codes)
    for name, text in breaks.items():
        source = codes[int(name[1:])].source
        if text.startswith("..."):
            place = source.rindex("return 0;")
        else:
            place = source.index("{", source.index(f"{functions[int(name[1:])]}(")) + 1
        codes[int(name[1:])] = replace(codes[int(name[1:])], source=source[:place] + text.removeprefix("...") + source[place:])
    return replace(kernel, codes=tuple(codes))


def test_times_of_all_variants(four: Trial) -> None:
    found = measured(four, SIZES[:1], SIZES)
    assert not found.wrong and found.seconds.keys() == {(v, s) for v in range(4) for s in range(2)}
    assert all(1e-8 < seconds < 1 for seconds in found.seconds.values())


@pytest.mark.parametrize("text, reason", [
    ("__builtin_trap();", "it crashed"), ("*(volatile char *)8 = 1;", "it crashed"), ("return 0;", "wrong values"),
    ("return 1;", "finds its data wrong"), ("for (;;) __asm__ volatile(\"\");", "it crashed, or took more than 2 s")])
def test_what_fails_is_lost_alone(four: Trial, tuned: tuple[list[Group], Workshop], text: str, reason: str) -> None:
    found = measured(with_breaks(four, tuned[1], v2=text), SIZES[:1], SIZES, patience=2)
    assert found.wrong.keys() == {2} and reason in found.wrong[2]
    assert found.seconds.keys() == {(v, s) for v in (0, 1, 3) for s in range(2)}


def test_other_bits_are_no_variant(four: Trial, tuned: tuple[list[Group], Workshop]) -> None:
    """A last bit that is wrong at a size at which te was not asked: the first Variant says what it should be."""
    number = [b.name for b in four.kernel.buffers].index(four.kernel.outputs[0])
    wrong = f"...if (args->sizes[0] == 24) ((int *)args->buffers[{number}])[0] += 1; "
    found = measured(with_breaks(four, tuned[1], v1=wrong), SIZES[:1], SIZES)
    assert found.wrong.keys() == {1} and "other bits" in found.wrong[1]


def test_slow_spells_do_not_count() -> None:
    """A machine slowed down by up to two thirds in spells of four rounds, which begin and end at any Variant; one Variant is
    timed in fewer rounds, and single times are off by up to 3 percent."""
    rng = np.random.default_rng(0)
    seconds = np.array([1.0, 1.1, 0.93, 1.4, 1.02])
    for _ in range(50):
        spells = np.repeat(rng.choice([1.0, 1.0, 1.2, 1.67], 4), 20)[rng.integers(20):][:45]
        times = seconds * spells.reshape(9, 5) * rng.uniform(1.0, 1.03, (9, 5))
        times[5:, 3] = np.nan
        np.testing.assert_allclose(settled(times) / settled(times)[0], seconds, rtol=0.05)
    whole = np.repeat(rng.choice([1.0, 1.2, 1.67], 9), 5).reshape(9, 5)
    np.testing.assert_allclose(settled(seconds * whole), seconds * np.quantile(whole[:, 0], 0.25), rtol=1e-9)
    assert settled(np.empty((9, 0))).shape == (0,)
    assert settled(np.array([[3.0], [2.0], [np.nan]])) == pytest.approx(2.0 * 1.5 ** 0.25)


def test_what_has_no_room_is_said(four: Trial) -> None:
    with pytest.raises(LaunchError, match=r"cannot be measured: .*allocate"):
        measured(four, (), [{"s0": 1 << 40}])


def test_values_are_those_of_the_model(four: Trial) -> None:
    driver = CpuDriver(1)
    bench = Bench(driver, four, functions_of(driver, four), {"s0": 24})
    expected = evaluate(four.program, bench.inputs, {"s0": 24}, "float64")
    values = [bench.values(v) for v in range(4)]
    for name in four.kernel.outputs:
        assert len({v[name].tobytes() for v in values}) == 1
        np.testing.assert_allclose(values[0][name], expected[name], 1e-4, 1e-4)


@pytest.mark.parametrize("stalled", range(8))
def test_a_stall_is_no_time_of_a_variant(four: Trial, monkeypatch: pytest.MonkeyPatch, stalled: int) -> None:
    """Of the first timings, two of each Variant, one takes a second more, as where the machine does something else."""
    timed, calls = Bench._timed, count()
    monkeypatch.setattr(Bench, "_timed", lambda bench, graph: timed(bench, graph) + (next(calls) == stalled))
    driver = CpuDriver(1)
    found = Bench(driver, four, functions_of(driver, four), {"s0": 24}).times(range(4), lambda variant: None)
    assert found.keys() == {0, 1, 2, 3} and max(found.values()) < 0.5


def tuned_group(group: Group, shop: Workshop, path: Path, configs: int) -> int:
    """Measure so many configs into a file, and the best once more; how many records are new."""
    job = Effort(configs).job(group, shop, Budget(configs), path, finalists=2)
    new = list(chain.from_iterable(final_records(found) if isinstance(found, Batch) else found for found in rounds(job, shop)))
    append(path, new)
    return len(new)


# -- the job -----------------------------------------------------------------------------------------------------------

def test_a_tuned_model_gives_the_same_bits(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    path = tmp_path / "r.jsonl"
    assert len(found) == 2 and all(group.launches == 1 and len(group.sizes) == 3 for group in found)
    for group in found:
        assert tuned_group(group, shop, path, 3) > 0
    known = read(path)
    assert all(r.nanoseconds or r.reason for r in known)
    plain = tsc.compile(model(), dims=DIMS, options=tsc.Options(cache_dir=tmp_path / "c"))
    made = tsc.compile(model(), dims=DIMS, options=tsc.Options(cache_dir=tmp_path / "c", records=path))
    variants = [len(launch.variants) for launch in made._plan.launches]
    assert all(launch.selects or len(launch.variants) == 1 for launch in made._plan.launches)
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 17, 24):
        x = rng.standard_normal((n, 40), np.float32)
        for one, other in zip(made.run(None, {"x": x}), plain.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(one, other)
    made.save(tmp_path / "m.tscpack")
    assert [len(launch.variants) for launch in tsc.load(tmp_path / "m.tscpack")._plan.launches] == variants
    for group in found:  # all of it is known, and nothing is measured again
        assert tuned_group(group, shop, path, 3) == 0
    assert read(path) == known


def test_records_of_the_same_make_the_same_package(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    path = tmp_path / "r.jsonl"
    tuned_group(product(tuned[0]), tuned[1], path, 3)
    packages = []
    for folder in ("a", "b"):
        options = tsc.Options(cache_dir=tmp_path / folder, records=path)
        tsc.compile(model(), dims=DIMS, options=options).save(tmp_path / f"{folder}.tscpack")
        packages.append((tmp_path / f"{folder}.tscpack").read_bytes())
    assert packages[0] == packages[1]


def test_a_killed_job_goes_on(tmp_path: Path) -> None:
    file, path = tmp_path / "m.onnx", tmp_path / "r.jsonl"
    file.write_bytes(model().SerializeToString())
    command = [sys.executable, "-m", "tsc", "tune", str(file), "--dim", "n=1:24", "--records", str(path), "--configs", "400",
               "--budget", "60s"]
    job = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    known = read(path)
    assert known
    result = CliRunner().invoke(cli, [*command[3:-4], "--configs", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert read(path)[:len(known)] == known


def test_a_dry_run_and_wrong_traffic(tmp_path: Path) -> None:
    file, traffic = tmp_path / "m.onnx", tmp_path / "t.jsonl"
    file.write_bytes(model().SerializeToString())
    result = CliRunner().invoke(cli, ["tune", str(file), "--dry-run", "--records", str(tmp_path / "r")])
    assert "2 kernels would be tuned" in result.output and not (tmp_path / "r").exists()
    for text, words in (("{\"n\": 3", "line 1"), ("[3]", "line 1"), ("{\"n\": -1}", "line 1"), ("", "no sizes"),
                        ("{\"m\": 3}", "lacks dim|unknown dim"), ("{\"n\": 3, \"m\": 1}", "unknown dim 'm'")):
        traffic.write_text(text)
        result = CliRunner().invoke(cli, ["tune", str(file), "--traffic", str(traffic), "--dry-run"])
        assert isinstance(result.exception, InputError) and re.search(words, str(result.exception)), text
    assert CliRunner().invoke(cli, ["tune", str(file), "--budget", "soon"]).exit_code == 2


@pytest.mark.parametrize("ranges", [
    {"n": Range(1, 512)}, {"n": Range(0, 7), "m": Range(1)}, {"n": Range(8, 64, 8)}, {"n": Range(3, 3)}, {}])
def test_points_are_in_range(ranges: dict[str, Range]) -> None:
    points = points_of(ranges, 8, 0)
    assert points and len({tuple(p.items()) for p in points}) == len(points)
    for point in points:
        for name, size in point.items():
            known = ranges[name]
            assert max(1, known.lo) <= size and (known.hi is None or size <= known.hi) and size % known.divisor == 0
    if ranges:
        name, known = next(iter(ranges.items()))
        assert {points[0][name], points[-1][name]} == {max(1, known.lo), known.hi}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ends", [(8, 256), (4, 512), (32, 2048), (8, 64, 64)])
def test_products_of_points_are_spread_evenly(ends: tuple[int, ...], seed: int) -> None:
    """No two neighbours are two and a half times as far apart as they would be at equal steps."""
    points = points_of({f"d{k}": Range(1, high) for k, high in enumerate(ends)}, 10, seed)
    sizes = sorted(math.prod(point.values()) for point in points)
    assert max(b / a for a, b in pairwise(sizes)) < math.prod(ends) ** (2.5 / 9)


def test_custom_traffic_is_what_is_measured(tmp_path: Path) -> None:
    found, _ = groups_of(model(), DIMS, workshop("cpu", Options(cache_dir=tmp_path)), [{"n": 3}, {"n": 3}, {"n": 9}])
    assert [list(group.sizes) for group in found] == [[{"s0": 3}, {"s0": 9}]] * 2
