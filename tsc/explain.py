"""`explain --node`: how the kernel of one node came about, from the fusion decisions to the memory traffic of a block."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import onnx

from tsc.attempts import cut, made_of
from tsc.config import Options
from tsc.errors import InputError, ShapeError, typed
from tsc.graph.define import needed
from tsc.graph.fusion.group import FusionGroup, split_group
from tsc.graph.fusion.to_te import LoweredGroup, lower_group
from tsc.graph.onnx.importer import import_onnx
from tsc.ir import Graph
from tsc.kernels import CheckedLoops, Workshop, checked_loops, order_of, workshop
from tsc.loop_ir.nodes import Func
from tsc.ops.control import runs_graphs
from tsc.ops.define import CustomOp, is_custom
from tsc.pipeline import check_request, front, lower_groups, to_groups
from tsc.poly.pattern import Wanted
from tsc.poly.schedule import ScheduledProgram
from tsc.poly.steps import Steps, Traffic
from tsc.sym import ZERO, ShapeEnv, SymExpr, product
from tsc.trace import Recorder


@typed
def explain_node(source: str | Path | onnx.ModelProto, node: str, dims: Mapping[str, Any] | None = None, target: str = "cpu",
                 sizes: Mapping[str, int] | None = None, ops: Sequence[CustomOp] = ()) -> str:
    """Everything about the kernels that `node` (the name of an ONNX node or value) is computed in.

    Why it was fused, the statements, dependences, matrix, the schedule tree after each step, what lives where, and how many
    bytes a block and all blocks move; `sizes` (by dim) turns the expressions into numbers. Raises InputError for an unknown
    node, and what `tsc.compile` raises.
    """
    check_request(target, dims, ops)
    _check_question(node, sizes)
    shop = workshop(target, Options(use_cache=False))
    graph, env, groups = front(source, dims, shop.recorder, shop.device, ops)
    for name in sizes or ():
        if name not in env.ranges:
            raise ShapeError(f"there is no dim '{name}'; this model's dims are {', '.join(env.ranges) or 'none'}")
    parts = [*_parts(graph, env, groups, shop)]
    found = [(part, g) for part in parts for g in part[2] if any(_is(node, n.name, n.outputs) for n in g.nodes)]
    if not found:
        raise InputError(_absent(node, import_onnx(source, dims, ops)[0], [g for part in parts for g in part[2]]))
    lines = [f"node '{node}' is computed in {len(found)} group{'s' if len(found) > 1 else ''}"]
    for (graph, env, groups), group in found:
        programs = {groups[k].name: lowered for k, lowered in lower_groups(groups, graph, env, shop).items()}
        lines += ["", *_about(group, Model(graph, env, groups, programs, shop, sizes or {}))]
    return "\n".join(lines)


def _parts(graph: Graph, env: ShapeEnv, groups: Sequence[FusionGroup], shop: Workshop) -> Iterator[Front]:
    """A graph with its groups, and those within its nodes."""
    yield graph, env, groups
    for body in (body for group in groups if runs_graphs(group.anchor) for body in group.anchor.attrs["bodies"]):
        yield from _parts(*to_groups(body.graph, body.env, shop.recorder, shop.device, shop.options.limits), shop)


#: A graph, what is known of its sizes, and its groups.
Front = tuple[Graph, ShapeEnv, Sequence[FusionGroup]]


def _check_question(node: object, sizes: object) -> None:
    """Raise InputError for a node or sizes of the wrong kind."""
    if not isinstance(node, str):
        raise InputError(f"node is a {type(node).__name__}, expected the name of a node or of a value")
    if not isinstance(sizes, Mapping | None):
        raise InputError(f"sizes is a {type(sizes).__name__}, expected a dict of sizes by dim name")
    for name, value in (sizes or {}).items():
        if not isinstance(value, Integral) or value < 0:
            raise InputError(f"the size of dim '{name}' is {value!r}, expected a whole number of at least 0")


@dataclass(frozen=True, slots=True)
class Model:
    """What a group is told about in: the graph with its groups and the Programs they get by name, and sizes for numbers."""

    graph: Graph
    env: ShapeEnv
    groups: Sequence[FusionGroup]
    programs: Mapping[str, LoweredGroup]
    shop: Workshop
    sizes: Mapping[str, int]


def _is(wanted: str, name: str, outputs: Sequence[str]) -> bool:
    """Whether a node is the one wanted, came from it by decomposition or merging, or makes the value wanted."""
    return wanted in outputs or any(part == wanted or part.startswith(f"{wanted}/") for part in (name, *name.split(" + ")))


def _absent(node: str, graph: Graph, groups: Sequence[FusionGroup]) -> str:
    if any(_is(node, n.name, n.outputs) for n in graph.nodes):
        return f"node '{node}' is in no kernel: its value is a view of another, shape arithmetic, a constant, or not needed"
    names = [n.name for g in groups for n in g.nodes]
    close = difflib.get_close_matches(node, names, 3, 0.4) or names[:3]
    return f"there is no node '{node}'; did you mean {' or '.join(map(repr, close))}?"


# -- one group -------------------------------------------------------------------------------------------------

def _about(group: FusionGroup, model: Model) -> Iterator[str]:
    graph, env = model.graph, model.env
    yield f"=== group {group.name}: {group.kind.value}, anchored at '{group.anchor.name}'"
    yield from (f"  {n.name} ({n.op}) -> {', '.join(f'{o}: {graph.types[o]}' for o in n.outputs if o)}" for n in group.nodes)
    yield from _section("why it was fused", [f"{d.node}: {d.reason}" for d in group.decisions if d.fused])
    names = {n.name for n in group.nodes}
    refused = [f"{d.node} not with {d.anchor}: {d.reason}" for g in model.groups for d in g.decisions
               if not d.fused and (g is group or d.node in names)]
    yield from _section("refused alternatives", list(dict.fromkeys(refused)))
    if runs_graphs(group.anchor):
        yield "its graphs are regions of the plan; each of their nodes can be asked for"
        return
    attempt = partial(_scheduled, graph=graph, shop=model.shop)
    if is_custom(group.anchor):
        recorder = Recorder()
        runs = cut(needed(group.anchor, group.outputs), group.outputs, env, recorder, attempt)
        yield from _section("cut", [f"{d.subject}: {d.reason}" for d in recorder.decisions])
        for computes, lowered, kernel in runs:
            yield f"== the kernel of {', '.join(computes)}"
            yield from _kernel(lowered, kernel, model.sizes)
        return
    own = lower_group(group, graph, env)
    general = model.programs.get(group.name, own)
    if general.program != own.program:
        yield from _section("shared", ["its kernel serves other groups too, which are equal to it up to constants: these are "
                                       "sizes, given with each call"])
    recorder = Recorder()
    found = made_of(group, general if general.program != own.program else None, lambda: own, attempt, recorder)
    for decision in recorder.decisions:
        yield from _section(_ABOUT_A_CHOICE[decision.stage], [decision.reason])
    if found is not None:
        yield from _kernel(*found, model.sizes)
        return
    for part in split_group(group, graph):
        yield ""
        yield from _about(part, model)


#: What decisions about the Program of a group are told under.
_ABOUT_A_CHOICE = {"refused": "refused", "split": "refused: no pattern fits all of it", "plain": "by plain patterns"}


@dataclass(frozen=True, slots=True)
class Explained:
    """One kernel: its loops, the steps that led to them, and what was decided about them."""

    loops: CheckedLoops
    steps: Steps
    recorder: Recorder


def _scheduled(lowered: LoweredGroup, graph: Graph, shop: Workshop, wanted: Wanted = Wanted.ANY) -> Explained:
    """Schedule one Program, as `compile` does. Raises PatternMismatch when no pattern fits."""
    recorder = Recorder()
    loops = checked_loops(order_of(lowered, graph, shop, wanted), lowered.kind.value, recorder, Steps)
    return Explained(loops, loops.steps or Steps(), recorder)


def _kernel(lowered: LoweredGroup, kernel: Explained, sizes: Mapping[str, int]) -> Iterator[str]:
    yield from _section("names", [f"{name} is {value}" for name, value in lowered.values.items()]
                        + [f"{name} is {value}" for name, value in lowered.sizes.items()])
    yield from _schedule(kernel.steps, kernel.loops.scheduled, kernel.recorder)
    yield from _section("memory of locals", _locals(kernel.steps, lowered, sizes))
    yield from _section("memory traffic", _traffic(kernel.steps.traffic, lowered, kernel.loops.func, sizes))


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"--- {title}"
    yield from (f"  {line}" for text in lines or ["none"] for line in text.splitlines())


def _schedule(steps: Steps, made: ScheduledProgram, recorder: Recorder) -> Iterator[str]:
    trees = [title.startswith("tree: ") for title, _ in steps.kept]
    first = trees.index(True) if True in trees else len(trees)
    for title, text in steps.kept[:first]:
        yield from _section(title, [text])
    yield from _section("pattern and matrix", made.log)
    yield from _section("tile sizes", [str(made.config)])
    yield from _section("sizes to choose from", [] if steps.space is None else steps.space.described(made.config))
    for title, text in steps.kept[first:]:
        yield from _section(title, [text])
    yield from _section("loops", [f"{d.stage}: {d.reason}" for d in recorder.decisions])


# -- memory ----------------------------------------------------------------------------------------------------

def _number(expr: SymExpr, sizes: Mapping[str, int]) -> str:
    return str(expr.evaluate(sizes)) if expr.dims() <= sizes.keys() else str(expr)


def _locals(steps: Steps, lowered: LoweredGroup, sizes: Mapping[str, int]) -> list[str]:
    lines = []
    for local in steps.locals:
        shape = " x ".join(_number(extent.substitute(lowered.sizes), sizes) for extent in local.storage.shape)
        lines.append(f"{local.buffer.name}: {local.scope}, {shape} of {local.storage.dtype}")
    return lines


def _traffic(found: Sequence[Traffic], lowered: LoweredGroup, func: Func, sizes: Mapping[str, int]) -> list[str]:
    """Each buffer's bytes a block, and over all blocks beside its own size; then the sums."""
    blocks = func.blocks.substitute(lowered.sizes)
    lines = [f"{_number(blocks, sizes)} blocks"]
    totals: dict[str, SymExpr] = {"reads": ZERO, "writes": ZERO}
    for item in found:
        name = lowered.values.get(item.buffer.name, item.buffer.name)
        if item.extents is None or item.bytes is None:
            lines.append(f"{item.how} {name}: its footprint has no affine box")
            continue
        box = [extent.substitute(lowered.sizes) for extent in item.extents]
        each = item.bytes.substitute(lowered.sizes)
        whole = product(e.substitute(lowered.sizes) for e in item.buffer.shape)
        totals[item.how] = totals[item.how] + each * blocks
        lines.append(f"{item.how} {name}: at most {' x '.join(_number(e, sizes) for e in box)} a block, {_number(each, sizes)} "
                     f"bytes; {_number(each * blocks, sizes)} in all, of {_number(whole, sizes)} elements"
                     + ("" if item.exact else " (not affine: it may touch less)"))
    return [*lines, *(f"{how} at most {_number(total, sizes)} bytes in all" for how, total in totals.items())]
