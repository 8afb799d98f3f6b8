"""Building and measuring apart, by files; and groups tuned side by side, in processes and on a Ray cluster of two workers."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tests.tune.support import groups, model, product
from tsc.cli import cli
from tsc.config import default_threads
from tsc.errors import InputError, LaunchError
from tsc.kernels import Workshop
from tsc.tune.batch import SUFFIX, Batch, measure_folder, measured_records, read_batch, times_of, write_batch
from tsc.tune.child import Found, measured
from tsc.tune.measure import Trial
from tsc.tune.records import Record, read
from tsc.tune.search import RandomSearch
from tsc.tuning import Effort, _each, build, tune
from tsc.tuning_crew import Processes, Ray
from tsc.tuning_group import Budget, Group, Job, batch_of, batches, finalists, front, space_of

ROOT = Path(__file__).resolve().parents[2]

#: A machine that has NumPy and filelock, and no compiler nor what it needs.
CHILD = textwrap.dedent("""
    import os, runpy, sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"islpy", "onnx", "click", "rich", "platformdirs", "scipy"}:
                raise ImportError(f"{name} is blocked")

    sys.meta_path.insert(0, Block())
    os.environ["PATH"] = ""
    sys.argv[0] = "tsc.tune"
    runpy.run_module("tsc.tune", run_name="__main__")
""")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Group], Workshop]:
    return groups(tmp_path_factory.mktemp("cache"))


def measured_configs(path: Path) -> dict[str, set[object]]:
    """The configs of each group that a file has records of."""
    found: dict[str, set[object]] = {}
    for record in read(path):
        found.setdefault(record.group, set()).add(record.config)
    return found


def test_what_is_built_is_measured_where_there_is_no_compiler(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    folder, path, effort = tmp_path / "batches", tmp_path / "r.jsonl", Effort(2, search="random")
    assert build(found, shop, path, effort, folder) == 4 and not path.exists()
    command = [sys.executable, "-c", CHILD, str(folder), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "4 configs were measured" in done.stdout, done.stderr
    first = measured_configs(path)
    assert all(record.nanoseconds for record in read(path)) and [len(first[g.order.group]) for g in found] == [2, 2]
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "0 configs were measured" in again.stdout and again.stderr.count("is known") == 2
    assert build(found, shop, path, effort, tmp_path / "more") == 4  # others: these are known
    assert measure_folder(tmp_path / "more", path) == 4
    assert [len(configs) for configs in measured_configs(path).values()] == [4, 4]
    tune(found, shop, path, Effort(4, search="random"))  # what is left to measure: the best, on all cores
    assert [len(configs) for configs in measured_configs(path).values()] == [4, 4]
    assert {record.units for record in read(path) if record.final} == {1, default_threads()}


def test_what_is_no_batch_is_said(tmp_path: Path, tuned: tuple[list[Group], Workshop],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    found, shop = tuned
    space = space_of(found[0], shop)
    assert space is not None
    batch = batch_of(found[0], space.default, [space.default], shop)
    path = write_batch(tmp_path, batch)
    assert read_batch(path).configs == (space.default,) and path.suffix == SUFFIX
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole[:300] + bytes([whole[300] ^ 1]) + whole[301:], b"PK" + whole):
        path.write_bytes(content)
        with pytest.raises(InputError, match=path.name):
            read_batch(path)
    with pytest.raises(InputError, match="there is no batch"):
        measure_folder(tmp_path / "none", tmp_path / "r")
    with pytest.raises(LaunchError, match="lacks no-such-flag"):
        measured_records(replace(batch, cpu_flags=("no-such-flag",)), {})
    monkeypatch.setattr("tempfile.tempdir", str(path))  # no folder
    with pytest.raises(LaunchError, match="TMPDIR"):
        measured_records(batch, {})


def test_several_processes_measure_what_one_does(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    crew, lines = Processes(2), list[str]()
    try:
        results = tune(found, shop, tmp_path / "two", Effort(3, search="random"), crew, lines.append)
    finally:
        crew.stop()
    tune(found, shop, tmp_path / "one", Effort(3, search="random"))
    assert measured_configs(tmp_path / "two") == measured_configs(tmp_path / "one")
    assert [r.kernel for r in results] == [g.order.symbol() for g in found] and len(lines) == 2


def test_finalists_are_measured_where_nobody_builds(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    """What runs on all cores is measured on none that another worker builds on, or it seems no faster than on one."""
    found, shop = tuned
    busy, asked = set[str](), list[str]()

    class Watched(Processes):
        def rounds(self, job: Job) -> Iterator[list[Record] | Batch]:
            busy.add(job.group.order.group)
            try:
                for new in super().rounds(job):
                    assert not isinstance(new, list) or not any(r.final or r.units > 1 for r in new)
                    yield new
            finally:
                busy.discard(job.group.order.group)

        def final_records(self, batch: Batch) -> list[Record]:
            assert not busy
            asked.append(batch.group)
            return super().final_records(batch)

    crew, path = Watched(2), tmp_path / "r"
    try:
        tune(found, shop, path, Effort(3, search="random"), crew)
        assert asked == [group.order.group for group in found]
        assert {(r.group, r.units) for r in read(path) if r.final} == {(g, n) for g in asked for n in (1, default_threads())}
        tune(found, shop, path, Effort(3, search="random"), crew)
        assert len(asked) == len(found)  # all of it is known
    finally:
        crew.stop()


def test_seeds_near_the_default_are_finalists(tuned: tuple[list[Group], Workshop]) -> None:
    """Nine configs had luck at one size each; a seed that is as good as the default is measured once more all the same."""
    found, shop = tuned
    space = space_of(product(found), shop)
    assert space is not None
    near, far = [seed for seed in space.seeds if space.refusal(seed) is None and seed != space.default][:2]
    lucky = [config for config in RandomSearch(space, 0).ask(40) if config not in (near, far, space.default)][:9]
    times = {space.default: [0.0] * 9, near: [0.05] * 9, far: [0.2] * 9}
    times |= {config: [-1.0 if k == n else 0.25 for k in range(9)] for n, config in enumerate(lucky)}
    last = finalists(space, times, 4)
    assert last[0] == space.default and near in last and far not in last and 3 <= len({*last} & {*lucky}) <= 6
    assert finalists(space, {space.default: None}, 4) == []


def test_those_at_the_front_run_again(tuned: tuple[list[Group], Workshop]) -> None:
    """And no others: twelve configs, one the fastest at each size, four good everywhere, the rest nowhere near."""
    found, shop = tuned
    space = space_of(product(found), shop)
    assert space is not None
    configs = RandomSearch(space, 0).ask(12)
    times = {c: [100, 100, 100] for c in configs}
    for number, config in enumerate(configs[:3]):
        times[config] = [50 if k == number else 300 for k in range(3)]
    for config in configs[3:7]:
        times[config] = [90, 90, 90]
    records = [Record("g", "t", "m", c, {"n": n + 1}, 1, 1, {}, t) for c in configs for n, t in enumerate(times[c])]
    assert {*front(records, 1)} == {*configs[:7]}
    assert front([], 1) == ()


def test_a_part_of_a_batch_is_measured_alone(tuned: tuple[list[Group], Workshop]) -> None:
    """Its configs, and the anchor where nothing is known of that."""
    found, shop = tuned
    group = product(found)
    space = space_of(group, shop)
    assert space is not None
    batch = batch_of(group, space.default, RandomSearch(space, 0).ask(4), shop)
    part = replace(batch, configs=batch.configs[-1:])
    assert {r.config for r in measured_records(part, {})} == {*part.configs, batch.anchor}
    own = times_of(measured_records(batch, {}), group.sizes)
    assert {r.config for r in measured_records(part, own)} == {*part.configs}
    seen = measured(batch.trial, (), group.sizes[:1], without=frozenset({0})).seconds
    assert {variant for variant, _ in seen} == {*range(1, len(batch.trial.kernel.configs))}


def test_a_process_that_is_killed_ends_the_job_and_loses_nothing(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    crew, path = Processes(2), tmp_path / "r"

    def kill() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (path.exists() and read(path)):
            time.sleep(0.02)
        for child in crew._all[:1]:  # none is left where the job failed before
            child.kill()

    killer = Thread(target=kill)
    killer.start()
    with pytest.raises(LaunchError, match="start"):
        tune(found, shop, path, Effort(400, search="random"), crew)
    killer.join()
    assert read(path) and not crew._all
    tune(found, shop, path, Effort(2, search="random"), Processes(2))
    assert all(len(configs) >= 2 for configs in measured_configs(path).values())


def test_what_goes_wrong_with_one_group_is_not_told_after_the_others() -> None:
    stopped = Event()

    def do(group: Any) -> None:
        if group == "fails":
            raise LaunchError("it ended")
        assert stopped.wait(30)

    crew = SimpleNamespace(count=2, stop=stopped.set)
    with pytest.raises(LaunchError, match="it ended"):
        _each(cast(Any, crew), do, cast(Any, ["takes long", "fails"]))


def test_a_machine_that_slows_down_is_no_slower_config(tuned: tuple[list[Group], Workshop],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    found, shop = tuned
    space = space_of(found[0], shop)
    assert space is not None
    configs = [c for c in RandomSearch(space, 0).ask(4) if c != space.default]
    batch = batch_of(found[0], space.default, configs[:1], shop)
    variants, slow = len(batch.trial.kernel.interface.variants), [1.0]

    def measured(trial: Trial, checked: object, sizes: Sequence[object], units: int, enough: float,
                 without: frozenset[int]) -> Found:
        return Found({(v, n): slow[0] * (v + 1) * (n + 1) * 1e-5 for v in range(variants) for n in range(len(sizes))})

    monkeypatch.setattr("tsc.tune.batch.measured", measured)
    first = measured_records(batch, {})
    assert {r.config for r in first} == {space.default, configs[0]}  # nothing was known of the anchor
    known = times_of(first, batch.sizes)
    slow[0] = 3.0
    second = measured_records(batch, known)
    assert {r.config for r in second} == {configs[0]}
    for one, other in zip([r for r in first if r.config == configs[0]], second, strict=True):
        assert one.nanoseconds == pytest.approx(other.nanoseconds, rel=1e-3) and one.sizes == other.sizes


def test_a_job_can_be_sent_whoever_is_told_of_progress(tmp_path: Path, tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    told = replace(shop, options=replace(shop.options, progress=lambda what, done, total: None))
    job = Effort().job(found[0], told, Budget(), tmp_path / "none")
    assert pickle.loads(pickle.dumps(job)) == job


def test_a_search_gets_what_is_known(tuned: tuple[list[Group], Workshop]) -> None:
    found, shop = tuned
    job = Job(found[0], shop.device.spec.name, shop.options, Budget(3), "random", 7)
    first, = batches(job, shop)
    records = tuple(Record(first.group, job.target, "m", c, s, 1, 1, {}, 10) for c in first.configs for s in first.sizes)
    second, = batches(replace(job, known=records), shop)
    assert len(first.configs) == len(second.configs) == 3 and not {*first.configs} & {*second.configs}


def test_the_command(tmp_path: Path) -> None:
    file, path, folder = tmp_path / "m.onnx", tmp_path / "r.jsonl", tmp_path / "b"
    file.write_bytes(model().SerializeToString())
    command = ["tune", str(file), "--dim", "n=1:8", "--records", str(path), "--configs", "2", "--search", "random"]
    result = CliRunner().invoke(cli, [*command, "--build", str(folder)])
    assert result.exit_code == 0 and "4 configs of 2 kernels" in result.output, result.output
    result = CliRunner().invoke(cli, [*command, "--target", "emu:sm_80"])
    assert isinstance(result.exception, InputError) and "cannot be tuned" in str(result.exception)
    result = CliRunner().invoke(cli, [*command, "--build", str(folder), "--workers", "2"])
    assert result.exit_code == 2 and "leave out --workers" in result.output, result.output
    result = CliRunner().invoke(cli, [*command, "--workers", "2", "--json"])
    assert result.exit_code == 0 and len(read(path)) >= 4, result.output


# -- Ray ---------------------------------------------------------------------------------------------------------------

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    crew = Ray("local", 2)
    yield crew
    crew.stop()


@needs_ray
def test_a_cluster_of_two_workers(tmp_path: Path, tuned: tuple[list[Group], Workshop], cluster: Ray) -> None:
    found, shop = tuned
    assert cluster.count == 2
    tune(found, shop, tmp_path / "ray", Effort(3, search="random"), cluster)
    assert [len(configs) for configs in measured_configs(tmp_path / "ray").values()] == [3, 3]


@needs_ray
def test_what_goes_wrong_on_a_cluster_is_said(tuned: tuple[list[Group], Workshop], cluster: Ray) -> None:
    found, shop = tuned
    with pytest.raises(LaunchError, match="no-such-target"):
        list(cluster.rounds(Job(found[0], "no-such-target", shop.options)))


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"tsc-compiler\[ray\]"):
        Ray("local", 1)
