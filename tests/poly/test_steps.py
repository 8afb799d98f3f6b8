"""What `Steps` keeps of a schedule, and that the traffic of a block is what its instances really touch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import product

import pytest

from tests.poly import programs
from tests.poly.support import SMALL
from tsc.poly.schedule import schedule_program
from tsc.poly.steps import Steps
from tsc.poly.tile import TileConfig
from tsc.te.compute import Program


def steps_of(program: Program, config: TileConfig | None = None) -> Steps:
    steps = Steps()
    schedule_program(program, SMALL, config, None, "kernel", steps=steps)
    return steps


def test_every_step_is_kept_in_order() -> None:
    steps = steps_of(programs.softmax())
    assert [title for title, _ in steps.kept] == [
        "program", "statements", "accesses", "dependences", "tree: initial stages", "tree: tile stages",
        "tree: separate stages", "tree: final", "locals"]
    kept = dict(steps.kept)
    assert "relaxed [R, C] -> { mx_update" in kept["dependences"] and "kept    [R, C] -> { mx_init" in kept["dependences"]
    assert "e: float32[R, C] lives in scratch storage e: float32[C]" in kept["locals"]


Cell = tuple[int, ...]


def boxes(instances: list[Cell], block: Callable[..., object], cell: Callable[..., Cell]) -> Cell:
    """The largest box of cells over all blocks, by enumeration."""
    touched: dict[object, set[Cell]] = defaultdict(set)
    for instance in instances:
        touched[block(*instance)].add(cell(*instance))
    rank = len(cell(*instances[0]))
    return tuple(max(max(c[d] for c in cells) - min(c[d] for c in cells) + 1 for cells in touched.values())
                 for d in range(rank))


def test_traffic_of_a_matmul_block() -> None:
    sizes = {"M": 11, "N": 13, "K": 5}
    instances = list(product(*(range(sizes[s]) for s in "MNK")))
    found = {t.buffer.name: t for t in steps_of(programs.gemm(), TileConfig((2, 4), (4, 8))).traffic}
    for name, cell in (("a", lambda i, j, k: (i, k)), ("w", lambda i, j, k: (k, j)), ("out", lambda i, j, k: (i, j))):
        extents = found[name].extents
        assert extents is not None
        assert tuple(e.evaluate(sizes) for e in extents) == boxes(instances, lambda i, j, k: (i // 4, j // 8), cell), name
    assert found["out"].how == "writes" and all(t.exact for t in found.values())
    assert str(found["a"].bytes) == "16*K"


def test_traffic_counts_the_halo_of_a_window() -> None:
    """A block of a 3 x 2 convolution reads its pixels and the halo around them."""
    found = {t.buffer.name: t for t in steps_of(programs.conv(), TileConfig((2, 4), (4, 8))).traffic}
    extents = found["x"].extents
    assert extents is not None and [e.as_int() for e in extents] == [1, 3, 3, 9]


def test_an_opaque_access_is_said_to_be_one() -> None:
    found = {t.buffer.name: t for t in steps_of(programs.layer_norm(gather=True)).traffic}
    assert not found["table"].exact and found["ids"].exact


@pytest.mark.parametrize("name", ["transpose", "concat", "head_split", "column_sums"])
def test_other_patterns_have_traffic_too(name: str) -> None:
    steps = steps_of(getattr(programs, name)())
    assert {t.how for t in steps.traffic} == {"reads", "writes"} and all(t.bytes is not None for t in steps.traffic)
