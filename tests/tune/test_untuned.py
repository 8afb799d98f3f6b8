"""The configs of GPUs that nobody has tuned for are what the measurements that were kept say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.gpu.fit import chosen, records_of, table
from tsc.ops.base import PatternKind
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.sym import dim
from tsc.targets import find
from tsc.te.compute import Program
from tsc.te.expr import Buffer

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RESULTS, OTHER = FOLDER / "gpu-nvidia-h200-configs.json", FOLDER / "gpu-nvidia-h100-80gb-hbm3-configs.json"


def product(dtype: str) -> Program:
    return Program(tuple(Buffer(name, dtype, (dim("n"), dim("n"))) for name in "ab"), (), (), ())


def pool_of(precision: str, dtype: str | None = None) -> Mapping[TileConfig, Rates]:
    target = find("sm_90a", precision)  # type: ignore[arg-type]  # one of them
    factors = product(dtype or ("float16" if precision == "fp16" else "float32"))
    return target.pool(PatternKind.CONTRACTION, factors, target.spec)


@pytest.mark.parametrize(("precision", "mean", "worst"), [
    ("fp32", 0.995, 0.94), ("tf32", 0.985, 0.87), ("fp16", 0.98, 0.88)])
def test_the_table_is_what_was_measured(precision: str, mean: float, worst: float) -> None:
    known = pool_of(precision)
    records = records_of(json.loads(RESULTS.read_text(encoding="utf-8")), precision)
    found, rates = table(records, len(known))
    assert list(rates) == list(known)
    for config, own in known.items():  # the last digits are the linear algebra's
        other = rates[config]
        assert own.resident == other.resident and own.launch == pytest.approx(other.launch, rel=1e-6)
        for one, two in zip((own.wave, own.unit, own.device), (other.wave, other.unit, other.device), strict=True):
            assert dict(one) == pytest.approx(dict(two), rel=1e-6)
    parts = chosen(records, found, known)
    assert sum(parts) / len(parts) >= mean and min(parts) >= worst


@pytest.mark.parametrize(("precision", "mean", "worst"), [("fp32", 0.995, 0.95), ("tf32", 0.98, 0.88), ("fp16", 0.97, 0.88)])
def test_another_gpu_is_told_nearly_the_same(precision: str, mean: float, worst: float) -> None:
    """By the Rates of the H200 an H100 chooses nearly as well as by its own."""
    known = pool_of(precision)
    records = records_of(json.loads(OTHER.read_text(encoding="utf-8")), precision)
    parts = chosen(records, table(records, len(known))[0], known)
    assert sum(parts) / len(parts) >= mean and min(parts) >= worst


def test_other_groups_have_their_patterns_own() -> None:
    for name in ("sm_80", "emu:sm_90a"):
        target = find(name)
        of = product("float32"), target.spec
        assert not target.pool(PatternKind.REDUCE, *of) and target.pool(PatternKind.CONTRACTION, *of)
    cpu = find("cpu")
    assert not cpu.pool(PatternKind.CONTRACTION, product("float32"), cpu.spec)


@pytest.mark.parametrize(("threads", "registers", "shared", "blocks"), [
    (128, 96, 16_384, 5),    # registers: 4 warps of 3,072
    (128, 97, 16_384, 4),    # given out in eights: 104 are taken
    (256, 32, 70_000, 3),    # shared memory, a KiB more each
    (1024, 32, 0, 2),        # threads
    (32, 16, 0, 32),         # blocks
    (128, 32, 240_000, 0)])  # more than there is
def test_how_many_blocks_an_h100s_multiprocessor_holds(threads: int, registers: int, shared: int, blocks: int) -> None:
    limits = find("sm_90a").spec.gpu
    assert limits is not None and limits.resident(threads, registers, shared) == blocks


def test_configs_are_of_what_is_multiplied() -> None:
    """What allows halves allows tf32, in which products are of floats: their tiles have twice the bytes."""
    halves, floats = (pool_of("fp16", dtype) for dtype in ("float16", "float32"))
    assert halves != floats and floats == pool_of("tf32", "float32") != pool_of("fp32", "float32")
    target = find("sm_90a", "fp16")
    assert not target.pool(PatternKind.REDUCE, product("float16"), target.spec)
