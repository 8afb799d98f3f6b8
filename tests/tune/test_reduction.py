"""Variants that sum in another order: tried and kept where reduction="fast" asks for them, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.runtime.plans import plan_of
from tsc.errors import InputError
from tsc.kernels import Workshop, workshop
from tsc.runtime.load import load
from tsc.tune.batch import Batch
from tsc.tune.records import Record, append
from tsc.tuning import Effort, groups_of
from tsc.tuning_group import CHUNKS, Budget, Group, built, final_records, rounds, space_of

DIMS = {"n": (1, 3000)}
SIZES = (1, 255, 257, 3000)
WEIGHT = np.random.default_rng(0).standard_normal((1100, 24)).astype(np.float32)


def model() -> onnx.ModelProto:
    """relu(x @ w), whose terms are many, and the sum of each column of x."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"]),
             helper.make_node("ReduceSum", ["x", "rows"], ["z"], keepdims=0)]
    graph = helper.make_graph(nodes, "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1100])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 24]),
                               helper.make_tensor_value_info("z", TensorProto.FLOAT, [1100])],
                              [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.array([0]), "rows")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def fast(cache: Path) -> Workshop:
    return workshop("cpu", tsc.Options(cache_dir=cache, reduction="fast"))


def groups(shop: Workshop) -> list[Group]:
    return groups_of(model(), DIMS, shop, [{"n": size} for size in SIZES])[0]


def test_records_have_chunks_that_are_right(cache: Path) -> None:
    """Each config of each kernel that cuts sums is measured, none is wrong, and those of one order give the same bits."""
    shop = fast(cache)
    for group in groups(shop):
        space = space_of(group, shop)
        assert space is not None and space.knobs[-1].field == "chunk" and set(space.knobs[-1].sizes) > {0, 256}
        job = Effort(3, search="random").job(group, shop, Budget(3), cache / "none", finalists=2)
        found = list(chain.from_iterable(final_records(new) if isinstance(new, Batch) else new for new in rounds(job, shop)))
        cut = [record for record in found if record.config.chunk]
        assert {record.config.chunk for record in cut} <= {*CHUNKS} and len(cut) >= len(SIZES)
        assert not [record.reason for record in found if record.nanoseconds is None]
        assert {record.config.chunk for record in found if record.final} == {record.config.chunk for record in found}


def forged(shop: Workshop, path: Path) -> Path:
    """Records by which chunks take half of the time at sizes above 256, and twice as long at smaller ones."""
    def records(group: Group) -> Iterator[Record]:
        space = space_of(group, shop)
        assert space is not None
        name, target = group.order.group, shop.device.spec.name
        kernel, _, refused = built(group.order, [space.default, replace(space.default, chunk=256)], shop)
        assert not refused
        for sizes, n in zip(group.sizes, SIZES, strict=True):
            for (config, variant, does), time in zip(kernel.made(), (1000 * n, 500 * n + 200_000), strict=True):
                work = {work.kind: work.count.evaluate(sizes) for work in does}
                yield Record(name, target, "a machine", config, sizes, blocks=variant.calls[0].blocks.evaluate(sizes),
                             work=work, nanoseconds=time)

    append(path, chain.from_iterable(map(records, groups(shop))))
    return path


def test_a_run_takes_chunks_where_they_are_fast(cache: Path, tmp_path: Path) -> None:
    path = forged(fast(cache), tmp_path / "records.jsonl")
    plain = tsc.compile(model(), dims=DIMS, options=tsc.Options(cache_dir=cache))
    fixed = tsc.compile(model(), dims=DIMS, options=tsc.Options(cache_dir=cache, records=path))
    made = tsc.compile(model(), dims=DIMS, options=tsc.Options(cache_dir=cache, records=path, reduction="fast"))
    made.save(tmp_path / "p")
    calls = [sorted(len(variant.calls) for variant in launch.variants) for launch in plan_of(made._package).launches]
    assert calls == [[1, 2]] * 2 and all(launch.selects for launch in plan_of(made._package).launches)
    assert all(len(launch.variants) == 1 for launch in plan_of(fixed._package).launches)
    rng = np.random.default_rng(1)
    for n in SIZES:
        x = rng.standard_normal((n, 1100)).astype(np.float32)
        wanted = np.maximum(x.astype(np.float64) @ WEIGHT, 0), x.sum(axis=0, dtype=np.float64)
        bits = [[y.tobytes() for y in one.run(None, {"x": x})] for one in (plain, fixed)]
        assert bits[0] == bits[1]
        for one in (made, load(tmp_path / "p", 1), load(tmp_path / "p", 3)):
            for found, expected in zip(one.run(None, {"x": x}), wanted):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1, n ** 0.5))
        lines = [line.split() for line in made.explain(n=n).splitlines()]
        runs = [above[0] for above, line in pairwise(lines) if line[:1] == ["expected"] and line[-1] == "runs"]
        assert len(runs) == 2 and all((first == "then") == (n > 400) for first in runs)


def test_another_reduction_is_refused() -> None:
    with pytest.raises(InputError, match="reduction is 'quick', expected one of fixed, fast"):
        tsc.Options(reduction="quick")  # type: ignore[arg-type]
