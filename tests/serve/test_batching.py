"""Requests as one and apart again: held against each by itself, and against the rules by which they are joined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tsc
from tests.serve.servers import sums, sums_request
from tsc.errors import InputError
from tsc.runtime.plan import TensorSpec
from tsc.serve.batching import MOST_PADDING, Gathering, Joint, joined, joint_of, parted, volume
from tsc.serve.settings import Batching, batching_of, read_batching
from tsc.sym import SymExpr
from tsc.sym.expr import dim

PADDED = Batching("batch", ("seq",))
sizes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=6)


def _size(size: str | int | SymExpr) -> SymExpr:
    return dim(size) if isinstance(size, str) else SymExpr.of(size)


def spec(name: str, *shape: str | int | SymExpr) -> TensorSpec:
    return TensorSpec(name, "float32", tuple(_size(size) for size in shape))


def joint(batching: Batching = PADDED) -> Joint:
    found = joint_of([spec("ids", "batch", "seq"), spec("mask", "batch", "seq")],
                     [spec("tokens", "batch", "seq", 8), spec("pooled", "batch", 8)], batching)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def model() -> tsc.Executable:
    return tsc.compile(sums(), options=tsc.Options(reduction="fixed"))


@given(sizes)
def test_joined_requests_give_what_each_gives(model: tsc.Executable, sizes: list[tuple[int, int]]) -> None:
    feeds = [sums_request(length, k, rows) for k, (rows, length) in enumerate(sizes)]
    dims = [{"batch": rows, "seq": length} for rows, length in sizes]
    whole = joined(joint(), feeds, dims)
    assert whole["ids"].shape == (sum(rows for rows, _ in sizes), max(length for _, length in sizes))
    assert whole["mask"].sum() == sum(rows * length for rows, length in sizes)  # what is filled up is 0
    for wanted in ((0, 1), (1,)):
        results = model.run([["tokens", "pooled"][number] for number in wanted], whole)
        for own, parts in zip(feeds, parted(joint(), results, dims, wanted)):
            for number, part in zip(wanted, parts):
                alone, = model.run([["tokens", "pooled"][number]], own)
                assert part.shape == alone.shape and part.flags.c_contiguous
                np.testing.assert_allclose(part, alone, rtol=1e-5, atol=1e-6)


@given(sizes, st.floats(1, 200), st.integers(1, 8))
def test_what_is_gathered_keeps_to_the_rules(sizes: list[tuple[int, int]], most: float, rows: int) -> None:
    own = joint(replace(PADDED, rows=rows))
    dims = [{"batch": count, "seq": length} for count, length in sizes]
    gathering = Gathering(own, dims[0], most)
    taken = [dims[0], *(each for each in dims[1:] if gathering.takes(each))]
    filled = sum(each["batch"] for each in taken) * max(each["seq"] for each in taken)
    if len(taken) > 1:
        assert sum(each["batch"] for each in taken) <= rows and filled <= most
        assert filled <= MOST_PADDING * sum(volume(own, each) for each in taken)
    assert gathering.is_full == (sum(each["batch"] for each in taken) >= rows)


def test_what_differs_otherwise_is_not_joined() -> None:
    own = joint(Batching("batch"))
    gathering = Gathering(own, {"batch": 1, "seq": 4}, 1e9)
    assert not gathering.takes({"batch": 1, "seq": 5}) and gathering.takes({"batch": 1, "seq": 4})


@pytest.mark.parametrize("inputs, outputs, batching, why", [
    ([spec("x", "batch", 3)], [spec("y", 3, "batch")], Batching("batch"), "y: float32"),
    ([spec("x", "batch", "batch")], [spec("y", "batch")], Batching("batch"), "x: float32"),
    ([spec("x", "n")], [spec("y", "n")], Batching("batch"), "x: float32"),
    ([spec("x", "batch"), spec("z")], [spec("y", "batch")], Batching("batch"), "z: float32"),
    ([spec("x", "batch", "seq")], [spec("y", "batch", _size("seq") * 2)], PADDED, "'y' has an axis of"),
    ([spec("x", "batch")], [spec("y", "batch")], PADDED, "no input has the dim 'seq'"),
    ([spec("x", "batch")], [spec("y", "batch")], Batching("batch", ("batch",)), "'batch'")])
def test_settings_that_no_shape_fits(inputs: list[TensorSpec], outputs: list[TensorSpec], batching: Batching, why: str) -> None:
    with pytest.raises(InputError) as wrong:
        joint_of(inputs, outputs, batching)
    assert why in str(wrong.value)


def test_without_settings_each_runs_alone() -> None:
    assert joint_of([spec("x", "n")], [spec("y", "m")], Batching()) is None


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('batch = "n"\npad = ["a", "b"]\nrows = 5\nrun_ms = 7.5\ndelay_ms = 2\n', encoding="utf-8")
    assert read_batching(path) == Batching("n", ("a", "b"), 5, 0.0075, 0.002)
    path.write_text("", encoding="utf-8")
    assert read_batching(path) == Batching()
    for text, why in (("batch", "no TOML"), ("rows = 3", "no setting 'batch'"), ('batch = "n"\nmost = 3', "a setting 'most'"),
                      ("batch = 3", "expected one like"), ('batch = "n"\nrows = 0', "rows = 0"),
                      ('batch = "n"\nrows = true', "expected one like"), ('batch = "n"\npad = [3]', "names of dims"),
                      ('batch = "n"\ndelay_ms = -1', "delay_ms = -1"), ('batch = "n"\nrun_ms = inf', "run_ms = inf"),
                      ('batch = "n"\nrun_ms = nan', "run_ms = nan")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as wrong:
            read_batching(path)
        assert why in str(wrong.value) and str(path) in str(wrong.value)
    assert batching_of({"batch": "n"}, path).rows == Batching().rows
