"""From records to a pool: rates that fit, a cover that is one, and files that lose nothing."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tsc.errors import InputError, LaunchError
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import MAX_SEEN, Cost, Rates, cost_from_json, cost_to_json
from tsc.tune import records
from tsc.tune.fit import fitted, non_negative
from tsc.tune.pool import cover, matrix_of, pool_of, pooled, shortfall
from tsc.tune.records import Record, append, from_line, read, to_line

SHORT, TALL, ODD = TileConfig((1, 8), (1, 8)), TileConfig((6, 8), (48, 8)), TileConfig((3, 8), (3, 8))


def record(config: TileConfig, rows: int, nanoseconds: int | None, **changes: object) -> Record:
    blocks = -(-rows // config.block_tile[0])
    work = {"tiles": -(-rows // config.instr_tile[0]), "rows": rows}
    made = Record("group", "cpu-generic", "machine", config, {"s0": rows}, 1, blocks, work, nanoseconds)
    return replace(made, **changes)


def times(config: TileConfig, launch: int, block: int, tile: int) -> list[Record]:
    made = [record(config, rows, None) for rows in (1, 6, 48, 480)]
    return [replace(r, nanoseconds=launch + block * r.blocks + tile * (r.work or {})["tiles"]) for r in made]


# -- rates -------------------------------------------------------------------------------------------------------------

def test_rates_of_exact_times() -> None:
    assert fitted(times(TALL, 50, 20, 7)) == Rates(50_000_000, (("blocks", 20_000_000), ("tiles", 7_000_000)))


def test_what_waits_what_is_busy_and_what_is_shared() -> None:
    """Of a device with ten units that hold two blocks each, all three are told apart by how many waves there are."""
    rates = Rates(3_000_000, (("blocks", 100_000_000),), (("blocks", 30_000_000),), (("blocks", 2_000_000),), 2)
    known = []
    for blocks in (1, 5, 10, 11, 20, 21, 35, 60, 200):
        time = sum(rates.terms(blocks, {}, 10).values()) // 1_000_000
        known.append(Record("group", "gpu", "machine", TALL, {"s0": blocks}, 10, blocks, {}, time, "", 2))
    assert fitted(known) == rates


def test_rates_of_many_sizes_and_long_times_can_be_kept() -> None:
    known = [record(TALL, rows, 10**6 * rows * (2 + rows % 3)) for rows in range(1, 300)]
    found = fitted(known)
    assert 32 < len(found.seen) <= MAX_SEEN and found.seen[-1][1] > 1 << 47
    cost = Cost(found, ())
    assert cost_from_json(json.loads(json.dumps(cost_to_json(cost)))) == cost


def test_what_takes_nothing_has_no_rate() -> None:
    found = fitted(times(SHORT, 0, 0, 40))  # a block is a tile there, so that either may have the rate
    assert found.launch == 0 and sum(rate for _, rate in found.wave) == 40_000_000 and not found.unit + found.device


@pytest.mark.parametrize("seed", range(5))
def test_the_least_squares_without_negative_ones(seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker hold: the gradient is 0 where x is positive, and not below 0 elsewhere."""
    rng = np.random.default_rng(seed)
    table, values = rng.standard_normal((9, 4)), rng.standard_normal(9)
    x = non_negative(table, values)
    gradient = table.T @ (table @ x - values)
    assert (x >= 0).all() and (gradient > -1e-9).all() and np.abs(gradient[x > 0]).max(initial=0) < 1e-9


@pytest.mark.parametrize("seed", range(40))
def test_the_least_squares_of_columns_like_each_other(seed: int) -> None:
    """As rates have them: no negative numbers, columns that are multiples of others or nearly, sizes far apart."""
    rng = np.random.default_rng(seed)
    table = np.exp(rng.normal(0, 4, (12, 1))) * rng.random((12, 11)) ** 3
    table[:, 3], table[:, 4] = 1e6 * table[:, 1], table[:, 2] * (1 + 1e-9 * rng.random(12))
    table[:, 5:7] *= rng.random((12, 2)) < 0.3
    values = table @ np.maximum(rng.normal(0, 1, 11), 0) if seed % 2 else np.ones(12)
    x = non_negative(table, values)
    scale = np.linalg.norm(table, axis=0) * np.linalg.norm(values)
    gradient = table.T @ (table @ x - values) / np.where(scale > 0, scale, 1)
    assert (x >= 0).all() and (gradient > -1e-7).all() and np.abs(gradient[x > 0]).max(initial=0) < 1e-7


def test_columns_of_zeros_and_single_records() -> None:
    assert fitted([record(TALL, 0, 30, blocks=0, work={})]) == Rates(30_000_000)
    assert non_negative(np.zeros((2, 3)), np.ones(2)).tolist() == [0, 0, 0]


# -- the cover ---------------------------------------------------------------------------------------------------------

def test_a_cover_by_hand() -> None:
    """Row 0 is good everywhere, 1 best at the first size and 2 at the last: the best pair has both ends."""
    matrix = np.array([[2.0, 2.0, 2.0], [1.0, 4.0, 9.0], [9.0, 4.0, 1.0], [1.9, 3.0, 3.0]])
    assert cover(matrix, 1) == [0] and cover(matrix, 3) == [0, 1, 2]
    assert cover(matrix, 9) == [0, 1, 2]                       # what gains nothing is not taken
    assert cover(matrix, 9, worth=0.3) == [0]


def test_a_pool_has_what_is_faster_at_one_size_of_many() -> None:
    """Of twenty sizes one is 4 % faster with row 1, one 2 % with row 2: less than half a percent on average, both of them."""
    matrix = np.full((3, 20), 100.0)
    matrix[1], matrix[1, 7], matrix[2], matrix[2, 3] = 101.0, 96.0, 101.0, 98.0
    assert cover(matrix, 3) == [0] and pooled(matrix, 3) == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_cover_is_near_the_best(seed: int) -> None:
    times = np.exp(np.random.default_rng(seed).standard_normal((12, 9)))
    logs = np.log(times)
    best = min(logs[list(chosen)].min(axis=0).mean() for chosen in itertools.combinations(range(12), 3))
    alone = logs.mean(axis=1).min()
    found = logs[cover(times, 3)].min(axis=0).mean()
    assert alone - found >= 0.8 * (alone - best)


def test_a_pool_has_what_is_fastest_somewhere() -> None:
    known = [*times(SHORT, 0, 10, 1), *times(TALL, 90, 20, 7), *times(ODD, 500, 500, 500)]
    pool = pool_of(known, 4)
    assert set(pool) == {SHORT, TALL} and pool[TALL] == fitted(times(TALL, 90, 20, 7))
    assert list(pool_of(known, 1)) == list(pool)[:1]
    assert pool_of(reversed(known), 4) == pool and pool_of([], 4) == {}
    matrix = matrix_of(known)
    assert matrix is not None and shortfall(matrix, range(3)) == 0 and shortfall(matrix, [matrix.configs.index(ODD)]) > 1


def test_configs_that_were_measured_once_more_side_by_side_count_alone() -> None:
    """Of many that are measured once the fastest was lucky: what it takes when it is measured again is what it takes. Two jobs
    that measure the same do no such thing."""
    def measured(**taken: int) -> list[Record]:
        return [record(config, rows, taken[name]) for name, config in (("short", SHORT), ("tall", TALL), ("odd", ODD))
                if name in taken for rows in (1, 6, 48)]

    once = measured(short=6000, tall=7000, odd=5000)
    assert list(pool_of(once, 1)) == [ODD]
    assert pool_of([*once, *measured(short=7500)], 4) == pool_of(once, 4)
    twice = [*once, *(replace(r, final=True) for r in measured(tall=8000, odd=9000))]
    matrix = matrix_of(twice)
    assert list(pool_of(twice, 1)) == [TALL] and matrix is not None and set(matrix.configs) == {ODD, TALL}
    assert sorted(matrix.times.ravel().tolist()) == [8000] * 3 + [9000] * 3


def test_a_config_that_failed_or_is_not_known_everywhere_is_left_out() -> None:
    known = [*times(SHORT, 0, 10, 1), *times(TALL, 90, 20, 7)[:2], record(ODD, 1, None, reason="wrong values")]
    assert list(pool_of(known, 4)) == [SHORT]


def test_two_jobs_that_share_a_size_leave_a_pool() -> None:
    """The size that both have measured is not all that counts; what has the most measurements is taken, whoever came first."""
    first = [record(config, rows, time) for config, time in ((SHORT, 9), (TALL, 7)) for rows in (1, 6, 48)]
    second = [record(ODD, rows, 5) for rows in (1, 480)]
    for known in ([*first, *second], [*second, *first]):
        matrix = matrix_of(known)
        assert matrix is not None and set(matrix.configs) == {SHORT, TALL} and len(matrix.columns) == 3
        assert next(iter(pool_of(known, 4))) == TALL


def test_times_on_several_cores_count_as_they_were_measured() -> None:
    """Of two configs alike on one core one gains nothing by more cores, which nobody knows who measured on one."""
    def known(config: TileConfig, *shares: float) -> list[Record]:
        return [record(config, rows, round(100 * rows * share), blocks=rows, units=units)
                for rows in (8, 16, 32) for units, share in zip((1, 4), shares)]

    records = [*known(TALL, 1.0, 0.95), *known(ODD, 1.1, 0.3)]
    matrix = matrix_of(records, (1, 4))
    assert matrix is not None and {units for _, units in matrix.columns} == {1, 4}
    place = matrix.configs.index(ODD)
    assert matrix.times[place].tolist() == [round(100 * rows * share) for rows in (8, 16, 32) for share in (1.1, 0.3)]
    assert list(pool_of(records, 1, (1,))) == [TALL] and list(pool_of(records, 1, (1, 4))) == [ODD]
    assert fitted(known(TALL, 1.0, 0.95)).device and not fitted(known(ODD, 1.0, 0.25)).device


def test_cores_count() -> None:
    """One large block or four small ones: with four cores the small ones win, and the pool has both."""
    large = [record(TALL, rows, 100 * rows, blocks=1, work={"rows": rows}) for rows in (8, 16, 32)]
    small = [record(ODD, rows, 110 * rows, blocks=4, work={"rows": rows}) for rows in (8, 16, 32)]
    assert list(pool_of([*large, *small], 4, (1,))) == [TALL] and set(pool_of([*large, *small], 4, (1, 4))) == {TALL, ODD}


# -- files -------------------------------------------------------------------------------------------------------------

def test_lines_round_trip() -> None:
    for one in (record(TALL, 7, 123), record(ODD, 7, None, reason="it crashed"), record(SHORT, 0, 1),
                record(SHORT, 3, 9, final=True)):
        assert from_line(to_line(one)) == one


def test_what_was_cut_off_loses_nothing_else(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "r.jsonl", (record(TALL, 1, 5), record(TALL, 2, 6))
    append(path, [first])
    with open(path, "a", encoding="utf-8") as file:
        file.write(to_line(second)[:50])  # killed here
    assert read(path) == [first]
    append(path, [second])
    assert read(path) == [first, second]


def _append(path: Path, worker: int) -> None:
    for number in range(40):
        append(path, [record(TALL, number, worker + 1), record(ODD, number, worker + 1)])


def test_many_processes_share_a_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(tmp_path / "r.jsonl", k)) for k in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read(tmp_path / "r.jsonl")) == 240 and len((tmp_path / "r.jsonl").read_text().splitlines()) == 240


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"cannot read the records '.*nothing'"):
        read(tmp_path / "nothing")
    (tmp_path / "other").write_text("hello\n")
    with pytest.raises(InputError, match="has no records in it"):
        read(tmp_path / "other")
    (tmp_path / "empty").write_text("")
    assert read(tmp_path / "empty") == []
    with pytest.raises(LaunchError, match="cannot write records"):
        append(tmp_path, [record(TALL, 1, 1)])

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(LaunchError, match="No space left on device"):
        append(tmp_path / "r.jsonl", [record(TALL, 1, 1)])


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files is much like it: what is whole stays, and the next job goes on."""
    path, length = tmp_path / "r.jsonl", len(to_line(record(TALL, 1, 1))) + 1
    append(path, [record(TALL, 1, 1)])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (length * 5 // 2, length * 5 // 2))
            append(path, [record(TALL, 1, 2), record(TALL, 1, 3)])
        except LaunchError as error:
            code = 0 if "free some space" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert path.stat().st_size == length * 5 // 2 and [r.nanoseconds for r in read(path)] == [1, 2]
    append(path, [record(TALL, 1, 4)])
    assert [r.nanoseconds for r in read(path)] == [1, 2, 4]


@pytest.mark.parametrize("change", [
    ("v", 2), ("group", 3), ("config", {}), ("config", []),
    ("sizes", [1]), ("sizes", {"a": "b"}), ("ns", 0), ("ns", 1.5), ("units", 0),
    ("work", {"a": None}), ("resident", 0), ("extra", 1)])
def test_lines_that_are_no_records(change: tuple[str, object]) -> None:
    found = json.loads(to_line(record(TALL, 7, 123)))
    found[change[0]] = change[1]
    with pytest.raises(ValueError, match=r"record|config|size|time|units|work|instr_tile|resident"):
        from_line(json.dumps(found))


def test_records_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(records.os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    append(tmp_path / "r.jsonl", [record(TALL, 1, 1)])
    assert synced == [(tmp_path / "r.jsonl").stat().st_size]
