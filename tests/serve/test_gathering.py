"""Which requests run as one, by the rules and by the settings in files."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.models import model
from tests.serve.servers import put, sums
from tsc.errors import InputError
from tsc.serve.model import Job, Served, opened
from tsc.serve.repository import Entry, scan
from tsc.serve.settings import Gathering, read_gathering


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    folder = tmp_path_factory.mktemp("models")
    put(sums(), folder / "sums.tscpack", "requests = 4\nrun_ms = 10")
    return scan(folder)["sums", "1"]


def waiting(entry: Entry, sizes: list[tuple[int, int]], done: frozenset[int] = frozenset()) -> Served:
    """A model for which requests wait, each of so many bytes and wanting so many outputs; those `done` nobody waits for."""
    loop = asyncio.new_event_loop()
    served = opened(entry, 1, None, "sums")
    served.queue = deque(Job({}, size, tuple(range(outputs)), loop.create_future(), float(k), 1e9, served)
                         for k, (size, outputs) in enumerate(sizes))
    for k in done:
        served.queue[k].result.cancel()
    loop.close()
    return served


def taken(served: Served) -> list[list[float]]:
    """Who runs together, by when they came, until nobody waits."""
    found = []
    while served.queue:
        if jobs := served.taken(1 << 30):
            found.append([job.came for job in jobs])
            served.ran(jobs, 0.0)
    return found


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from((1, 1, 1, 2))), max_size=12), st.sampled_from((0.0, 1e-4)),
       st.sampled_from((90, 1 << 30)))
def test_the_rules(entry: Entry, sizes: list[tuple[int, int]], pace: float, most: int) -> None:
    served, runs = waiting(entry, sizes), []
    served.pace = pace
    while served.queue:
        runs.append(served.taken(most))
    assert sorted(job.came for run in runs for job in run) == list(range(len(sizes)))  # nobody is lost, nobody runs twice
    assert [run[0].came for run in runs] == sorted(run[0].came for run in runs)  # who waits longest is next
    for run in runs:
        assert len(run) <= 4 and len({job.wanted for job in run}) == 1
        assert len(run) == 1 or sum(job.bytes for job in run) <= most
        assert len(run) == 1 or pace * sum(job.bytes for job in run) <= 0.0100001


def test_nobody_waits_for_who_has_gone(entry: Entry) -> None:
    assert taken(waiting(entry, [(1, 1)] * 5, frozenset({0, 2}))) == [[1.0, 3.0, 4.0]]
    assert taken(waiting(entry, [(1, 1)] * 2, frozenset({0, 1}))) == []
    assert taken(waiting(entry, [(1, 1)] * 9)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_what_is_not_made_by_rows_runs_alone(tmp_path: Path) -> None:
    put(model("y = Transpose<perm = [1, 0]>(x)", "float[n, m] x", "float[m, n] y"), tmp_path / "turned.tscpack")
    assert opened(scan(tmp_path)["turned", "1"], 1, None, "turned").together is None


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("requests = 5\nrun_ms = 7.5\ndelay_ms = 2\n", encoding="utf-8")
    assert read_gathering(path) == Gathering(5, 0.0075, 0.002)
    path.write_text("", encoding="utf-8")
    assert read_gathering(path) == Gathering()
    for text, why in (("requests", "no TOML"), ("most = 3", "a setting 'most'"), ('requests = "3"', "expected a number"),
                      ("requests = 0", "requests = 0"), ("requests = true", "expected a number"), ("requests = 1.5", "a num"),
                      ("delay_ms = -1", "delay_ms = -1"), ("run_ms = inf", "run_ms = inf"), ("run_ms = nan", "run_ms = nan"),
                      ("run_ms = 0", "run_ms = 0")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as wrong:
            read_gathering(path)
        assert why in str(wrong.value) and str(path) in str(wrong.value)
