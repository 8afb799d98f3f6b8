"""Helpers of the polyhedral tests: a small device, random data, and the order that a schedule tree prescribes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import islpy
import numpy as np

from tsc.codegen_c.specs import cpu_spec
from tsc.loop_ir.nodes import Func
from tsc.loop_ir.oracle.interpret import interpret
from tsc.poly.analyse import analyse, normalised
from tsc.poly.deps import Dependences
from tsc.poly.pattern import IN_WARPS
from tsc.poly.pattern.base import Build, Pattern
from tsc.poly.promotion.promote import Promoted
from tsc.poly.schedule import ScheduledProgram, schedule_program
from tsc.poly.scop import Scop
from tsc.poly.tile import TileConfig
from tsc.target import DeviceSpec
from tsc.te.compute import Program
from tsc.te.evaluate import evaluate

#: Small vectors and register tiles, so that small sizes already have full and partial tiles.
SMALL = cpu_spec("small", vector_bytes=16, registers=16, instr_tile=(2, 4), l2_bytes=1 << 18)
WIDE = cpu_spec("wide", vector_bytes=64, registers=32, instr_tile=(7, 64), l2_bytes=1 << 20)


#: What a schedule for a GPU needs to know of one.
GPU = DeviceSpec("gpu", "cuda", vector_bytes=16, registers=255, instr_tile=(16, 8), l2_bytes=1 << 22)


@lru_cache(maxsize=64)
def on_gpu(program: Program, config: TileConfig) -> ScheduledProgram:
    return schedule_program(program, GPU, config, None, "kernel", forms=IN_WARPS)


def scheduled(program: Program, config: TileConfig | None = None, recorder: Any = None, name: str = "kernel",
              spec: DeviceSpec = SMALL) -> ScheduledProgram:
    return schedule_program(program, spec, config, recorder, name)


@dataclass(frozen=True)
class Pieces:
    """What schedule_program makes on its way."""

    scop: Scop
    deps: Dependences
    found: Pattern
    promoted: Promoted


def pieces(program: Program, config: TileConfig | None = None) -> Pieces:
    made = analyse(normalised(program))
    config = config or made.found.default_config(SMALL)
    return Pieces(made.scop, made.deps, made.found, made.found.tree(config, Build(made.scop, made.deps)).promoted)


def inputs_for(program: Program, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for b in program.inputs:
        shape = tuple(d.evaluate(sizes) for d in b.shape)
        if b.dtype == "int64":
            made[b.name] = rng.integers(-sizes["V"], sizes["V"], shape)
        elif b.dtype == "bool":
            made[b.name] = rng.random(shape) > 0.5
        else:
            made[b.name] = rng.standard_normal(shape).astype(b.dtype)
    return made


def run(func: Func, program: Program, sizes: Mapping[str, int], inputs: Mapping[str, Any],
        trace: list[Any] | None = None) -> dict[str, Any]:
    """The outputs of `func`; a cell that it does not write is NaN."""
    buffers = dict(inputs)
    for b in program.outputs:
        buffers[b.name] = np.full(tuple(d.evaluate(sizes) for d in b.shape), np.nan, b.dtype)
    interpret(func, buffers, sizes, trace)
    return {b.name: buffers[b.name] for b in program.outputs}


def check_values(func: Func, program: Program, sizes: Mapping[str, int], tolerance: float = 2e-5) -> None:
    """`func` in the interpreter against `program` in float64 in the te evaluator."""
    inputs = inputs_for(program, sizes)
    expected = evaluate(program, inputs, sizes, "float64")
    for name, found in run(func, program, sizes, inputs).items():
        np.testing.assert_allclose(found, expected[name], rtol=tolerance, atol=tolerance, err_msg=f"{name} at {dict(sizes)}")


def prescribed_order(tree: str, sizes: Mapping[str, int]) -> list[tuple[str, tuple[int, ...]]]:
    """The instances of a schedule tree in its order at concrete sizes, those added by extensions left out."""
    schedule = islpy.Schedule(tree)
    fixed = " and ".join(f"{name} = {value}" for name, value in sizes.items())
    point = islpy.Set(f"[{', '.join(sizes)}] -> {{ : {fixed} }}") if sizes else None
    timed: list[tuple[tuple[int, ...], tuple[str, tuple[int, ...]]]] = []
    _collect(schedule.get_root(), None, [], point, timed)
    timed.sort(key=lambda item: item[0])
    return [instance for _, instance in timed]


def _collect(node: Any, domain: Any, rows: list[Any], point: Any, timed: list[Any]) -> None:
    kind, types = node.get_type(), islpy.schedule_node_type
    if kind == types.domain:
        domain = node.domain_get_domain()
        domain = domain if point is None else domain.intersect_params(point)
    elif kind == types.filter:
        domain = domain.intersect(node.filter_get_filter())
    elif kind == types.band:
        schedule = node.band_get_partial_schedule()
        rows = rows + [islpy.UnionMap.from_multi_union_pw_aff(islpy.MultiUnionPwAff.from_union_pw_aff(schedule.get_at(i)))
                       for i in range(node.band_n_member())]
    elif kind == types.leaf:
        domain.foreach_point(lambda p: timed.append((_time(p, rows), (p.to_set().get_tuple_name(), _values(p)))))
    for i in range(node.n_children()):
        _collect(node.child(i), domain, [*rows, i] if kind == types.sequence else rows, point, timed)


def _values(point: Any) -> tuple[int, ...]:
    return tuple(int(point.get_coordinate_val(islpy.dim_type.set, i).to_python())
                 for i in range(point.to_set().dim(islpy.dim_type.set)))


def _time(point: Any, rows: list[Any]) -> tuple[int, ...]:
    instance = islpy.UnionSet.from_set(point.to_set())
    return tuple(row if isinstance(row, int) else _values(instance.apply(row).sample_point())[0] for row in rows)
