"""The spine: from an ONNX model to an Executable that runs any shape, one arrow a line. Read this first."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tsc.attempts import compile_definitions, made_of
from tsc.codegen_c.build import Ahead
from tsc.config import DEFAULT_LIMITS, Limits, Options
from tsc.errors import InputError, SlowKernelWarning, typed
from tsc.from_torch import exported, is_module
from tsc.graph.decompose import decompose
from tsc.graph.define import define, definitions_of, needed
from tsc.graph.fusion.fuse import fuse
from tsc.graph.fusion.group import Decision, FusionGroup, split_group
from tsc.graph.fusion.to_te import LoweredGroup, lower_group
from tsc.graph.onnx.file import Source
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.regions import with_regions
from tsc.graph.rewriting.channels import channels_last
from tsc.graph.rewriting.halves import compute_wide
from tsc.graph.rewriting.narrow import narrow_factors
from tsc.graph.rewriting.rewrite import rewrite
from tsc.graph.shapes import check_inputs, infer_shapes
from tsc.graph.views import resolve
from tsc.ir import Graph, Node, format_graph
from tsc.kernels import Workshop, bind, compile_program, shared, workshop
from tsc.loop_ir.cpu.dots import DOTS, WHOLE
from tsc.ops.control import runs_graphs
from tsc.ops.define import CustomOp, is_custom
from tsc.plan.build import KernelCall, Part, RegionCall, build_plan, packed_constants
from tsc.plan.kernel import Kernel
from tsc.poly.extents import check_reads
from tsc.progress import shown
from tsc.provenance import provenance
from tsc.runtime.executable import Executable, thread_count
from tsc.runtime.package import Module, Package
from tsc.sym import ShapeEnv
from tsc.targets import Target
from tsc.trace import Recorder
from tsc.workers import scheduling_ahead


@typed
def compile(source: Source | Any, dims: Mapping[str, Any] | None = None, target: str = "cpu",
            threads: int | None = None, options: Options | None = None, ops: Sequence[CustomOp] = (),
            verbose: bool | None = None, example_args: Sequence[Any] | None = None, dynamic_shapes: Any = None) -> Executable:
    """Compile an ONNX model once, for every shape.

    Args:
        source: A path, the file's bytes, a ModelProto, or a torch.nn.Module, which PyTorch's exporter makes a model of.
        dims: Ranges by the names of dims (`{"batch": (1, 64)}`, `{"batch": 8}`, `{"seq": (1, None)}`; a third number is a
            divisor of all sizes), or shapes by the names of inputs (`{"x": ("N", 3, "H", None)}`; None: as the model has it).
        target: What to compile for: "cpu", which is this machine, or the name of another CPU or of a GPU.
        threads: How many cores a run may use (None: all that the process may use).
        options: How to compile.
        ops: Operators of your own (see `tsc.op`).
        verbose: Whether to show progress on stderr (None: on a terminal and in a notebook).
        example_args: The arguments of a call of the torch.nn.Module, by which it is exported.
        dynamic_shapes: Which axes of them may have any size, as torch.export takes it (None: every axis of every tensor).

    Returns:
        The compiled model, ready to run.

    Raises:
        InputError: An argument is of the wrong kind.
        ModelError: The model is wrong (UnsupportedError: it has what `tsc` does not compile; all of it is listed).
        ShapeError: The model's sizes contradict each other, or `dims`.
        LaunchError: The machine lacks a compiler, or the target's.
    """
    check_request(target, dims, ops, threads, options)
    if is_module(source):
        source = exported(source, example_args, dynamic_shapes)     # torch.nn.Module  -> ModelProto
    with shown(options or Options(), verbose) as told_options:
        package = build_package(source, dims, workshop(target, told_options), ops)
    return Executable(package, threads=threads)                     # Package          -> Executable


def build_package(source: Source, dims: Mapping[str, Any] | None, shop: Workshop,
                  ops: Sequence[CustomOp] = ()) -> Package:
    """All of `compile` before anything is loaded: with a Workshop of one's own, and for any machine."""
    shop.options.tell("reading the model", 0, 1)
    graph, env, groups = front(source, dims, shop.recorder, shop.device, ops,
                               shop.options.limits)                 # path             -> [FusionGroup]
    check_inputs(graph, env, shop.options.limits)
    with provenance(source, shop) as made:                          # told beside the rest, of what was accepted
        with shop.device.ahead(shop.device.spec, shop.options) as compile_ahead:
            part, pairs = compile_part(graph, env, groups, shop, compile_ahead)  # [FusionGroup] -> kernels, their calls
        package = link(part, pairs, shop, compile_ahead)            # calls + kernels  -> Package
    split = sum(decision.stage == "split" for decision in shop.recorder.decisions)
    return replace(package, stats={"groups": len(groups), "split": split},
                   made=made.result() | ({"compiler": named} if (named := compile_ahead.compiler) else {}))


def front(source: Source, dims: Mapping[str, Any] | None, recorder: Recorder, device: Target,
          ops: Sequence[CustomOp] = (), limits: Limits = DEFAULT_LIMITS) -> tuple[Graph, ShapeEnv, Sequence[FusionGroup]]:
    """From a model to the groups that become kernels."""
    graph, env = import_onnx(source, dims, ops, limits)             # path             -> Graph
    graph = record(recorder, "import", graph)
    graph = with_regions(graph, env, limits)                        # Graph            -> Graph, those in its nodes as Bodies
    graph = record(recorder, "shapes", infer_shapes(graph, env, limits))  # Graph      -> Graph + ShapeEnv
    return to_groups(graph, env, recorder, device, limits)


def to_groups(graph: Graph, env: ShapeEnv, recorder: Recorder, device: Target,
              limits: Limits = DEFAULT_LIMITS) -> tuple[Graph, ShapeEnv, Sequence[FusionGroup]]:
    """From an inferred graph, a model's or one within a node, to the groups that become kernels."""
    graph = compute_wide(graph, env, limits)                        # Graph            -> Graph that computes in float32
    graph = infer_shapes(decompose(graph, env), env)                # Graph            -> Graph of primitives
    dots = frozenset(DOTS[name] for name in WHOLE if name in device.spec.intrinsics)
    graph = rewrite(graph, env, partial(told, recorder, "merge"), limits, dots)  # Graph      -> Graph
    graph = channels_last(graph, env, device.spec)                  # Graph            -> Graph, images in two orders
    graph = record(recorder, "rewrite", graph)
    graph = define(graph, env)                                      # Graph            -> Graph, users' Computes in it
    for node, definitions in definitions_of(graph):
        check_reads(definitions, env, f"node '{node.name}'")
    graph = narrow_factors(graph, env, device.factors)              # Graph            -> Graph, factors in fewer bits
    return graph, env, fuse(graph, env, device.spec)                # Graph            -> [FusionGroup]


def compile_part(graph: Graph, env: ShapeEnv, groups: Sequence[FusionGroup], shop: Workshop,
                 ahead: Ahead) -> tuple[Part, list[tuple[KernelCall, Kernel]]]:
    """Groups to the calls that compute a graph, and their kernels, those of graphs in its nodes among them."""
    calls: list[KernelCall | RegionCall] = []
    pairs: list[tuple[KernelCall, Kernel]] = []
    programs = lower_groups(groups, graph, env, shop)               # [FusionGroup]    -> te.Programs, few of them different
    with scheduling_ahead(programs.values(), graph, shop, ahead) as own:
        for done, group in enumerate(groups):
            own.options.tell("scheduling kernels", done, len(groups))
            if runs_graphs(group.anchor):
                call, made = compile_regions(group.anchor, own, ahead)
                calls.append(call)
            else:
                made = compile_group(group, graph, env, own, programs.get(done))  # te.Program -> kernels and their calls
                calls += [call for call, _ in made]
            pairs += made
            for source in (source for _, kernel in made for source in kernel.sources.values()):
                ahead(source)                                       # C -> objects, while others are scheduled
    return Part(graph, env, tuple(calls), partial(resolve, producers=graph.producers())), pairs


def compile_regions(node: Node, shop: Workshop, ahead: Ahead) -> tuple[RegionCall, list[tuple[KernelCall, Kernel]]]:
    """The graphs of a node, each compiled as a model's is."""
    parts, pairs = list[Part](), list[tuple[KernelCall, Kernel]]()
    for body in node.attrs["bodies"]:
        graph, env, groups = to_groups(body.graph, body.env, shop.recorder, shop.device, shop.options.limits)
        part, made = compile_part(graph, env, groups, shop, ahead)
        parts.append(part)
        pairs += made
    return RegionCall(node, tuple(parts)), pairs


def link(part: Part, pairs: Sequence[tuple[KernelCall, Kernel]], shop: Workshop, ahead: Ahead | None = None) -> Package:
    """Kernels and their calls to a Package; `ahead` has compiled some of them."""
    for call, kernel in pairs:
        for complaint in filter(None, (code.complaint for code in kernel.codes)):
            warnings.warn(f"node '{call.node}' is computed element by element, since a check refused its vectors and tiles; "
                          f"please report the reason: {complaint}", SlowKernelWarning, stacklevel=2)
    kernels = {kernel.symbol: kernel for _, kernel in pairs}
    spec = shop.device.spec
    sources = {name: source for kernel in kernels.values() for name, source in kernel.sources.items()}
    shop.options.tell("compiling kernels", 0, len(sources))
    interfaces = {symbol: kernel.interface for symbol, kernel in kernels.items()}
    binary = shop.device.build(sources, spec, shop.options, interfaces, ahead)  # sources -> one binary
    shop.options.tell("compiling kernels", len(sources), len(sources))
    shop.options.tell("planning memory", 0, 1)
    plan = build_plan(part)                                         # calls            -> Plan
    decided = [f"{k.symbol}: {line.rstrip()}" for k in kernels.values() for code in k.codes for line in code.log]
    return Package(                                                 # Plan + binary    -> Package
        {spec.name: plan}, packed_constants(part, plan), {spec.name: Module(binary, spec.cpu_flags)},
        log=(*map(str, shop.recorder.decisions), *decided))


def check_request(target: object, dims: object = None, ops: object = (), threads: object = None,
                  options: object = None) -> None:
    """Raise InputError for an argument of the wrong kind."""
    for name, value, kind, expected in (
            ("target", target, str, "the name of one"),
            ("dims", dims, Mapping | None, "a dict of ranges by dim name or of shapes by input name"),
            ("options", options, Options | None, "tsc.Options"),
            ("ops", ops, Sequence, "a list of operators made with tsc.op")):
        if not isinstance(value, kind):
            raise InputError(f"{name} is a {type(value).__name__}, expected {expected}")
    thread_count(threads)
    for item in ops if isinstance(ops, Sequence) else ():
        if not isinstance(item, CustomOp):
            raise InputError(f"ops has a {type(item).__name__} in it, expected operators made with tsc.op")


def record(recorder: Recorder, stage: str, graph: Graph) -> Graph:
    """Pass a Graph through the recorder."""
    recorder.record(stage, graph.name, lambda: format_graph(graph))
    return graph


def told(recorder: Recorder, stage: str, decision: Decision) -> None:
    """A decision about two nodes, for the log."""
    verb = ("" if decision.fused else "not ") + {"merge": "merged", "fuse": "fused"}[stage]
    recorder.decide(stage, decision.node, f"{verb} with {decision.anchor}: {decision.reason}")


def lower_groups(groups: Sequence[FusionGroup], graph: Graph, env: ShapeEnv, shop: Workshop) -> dict[int, LoweredGroup]:
    """The Program of each group by its place; those equal up to constants are one. What users wrote is lowered later."""
    places = [k for k, group in enumerate(groups) if not is_custom(group.anchor) and not runs_graphs(group.anchor)]
    lowered = [lower_group(groups[k], graph, env) for k in places]  # FusionGroup      -> te.Program
    return dict(zip(places, shared(lowered, shop.recorder, shop.cache) if shop.options.share_kernels else lowered))


def compile_group(group: FusionGroup, graph: Graph, env: ShapeEnv, shop: Workshop,
                  program: LoweredGroup | None = None) -> list[tuple[KernelCall, Kernel]]:
    """FusionGroup -> kernels with their calls: one, or one a part where no pattern fits the whole (with the reason). `program`
    is the one to take for it, by default its own."""
    for decision in group.decisions:
        told(shop.recorder, "fuse", decision)
    if is_custom(group.anchor):                                     # what users wrote is fused by what they wrote
        node, outputs = group.anchor, group.outputs
        return compile_definitions(needed(node, outputs), outputs, graph, env, shop, node.name)
    own = partial(lower_group, group, graph, env)                   # FusionGroup      -> te.Program
    made = made_of(group, program, own, partial(compile_program, graph=graph, shop=shop), shop.recorder)
    if made is None:
        return [pair for part in split_group(group, graph) for pair in compile_group(part, graph, env, shop)]
    lowered, kernel = made
    return [(bind(lowered, kernel, group.anchor.name, tuple(n.name for n in group.nodes)), kernel)]
