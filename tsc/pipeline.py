"""The spine: from an ONNX model to an Executable that runs any shape, one arrow a line. Read this first."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import onnx

from tsc import targets
from tsc.codegen_c.cache import CompiledCache, default_cache_dir, digest
from tsc.config import Options, read_environment
from tsc.errors import InternalError
from tsc.graph.decompose import decompose
from tsc.graph.fuse import fuse
from tsc.graph.group import Decision, FusionGroup, split_group
from tsc.graph.onnx_import import import_onnx
from tsc.graph.rewrite import rewrite
from tsc.graph.shapes import infer_shapes
from tsc.graph.to_te import LoweredGroup, lower_group
from tsc.graph.views import resolve
from tsc.ir import Graph, format_graph
from tsc.plan.build import KernelCall, build_plan, packed_constants
from tsc.plan.kernel import Kernel, kernel_from_bytes, kernel_to_bytes
from tsc.poly import PatternMismatch
from tsc.poly.schedule import schedule_program
from tsc.runtime.executable import Executable
from tsc.runtime.package import Module, Package
from tsc.sym import ShapeEnv
from tsc.targets import Target
from tsc.trace import Recorder


def compile(source: str | Path | onnx.ModelProto, dims: Mapping[str, Any] | None = None, target: str = "cpu",
            threads: int | None = None, options: Options | None = None) -> Executable:
    """Compile an ONNX model once, for every shape.

    `dims` gives ranges by dim name (`{"batch": (1, 64)}`) or shapes by input name (`{"x": ("N", 3, "H", "W")}`); `threads` is
    how many cores a run may use (None: all). Raises ModelError, UnsupportedError or ShapeError when the model is at fault and
    LaunchError when the machine lacks a compiler.
    """
    shop = workshop(target, options)
    graph, env, groups = front(source, dims, shop.recorder)         # path             -> [FusionGroup]
    pairs: list[tuple[KernelCall, Kernel]] = []
    for done, group in enumerate(groups):
        shop.options.tell("scheduling kernels", done, len(groups))
        pairs += compile_group(group, graph, env, shop)             # FusionGroup      -> kernels and their calls
    return link(graph, env, pairs, shop, threads)                   # Graph + kernels  -> Executable


@dataclass(frozen=True, slots=True)
class Workshop:
    """What one compilation works with: how to compile, where traces go, the back end, and the kernels compiled before."""

    options: Options
    recorder: Recorder
    device: Target
    cache: CompiledCache


def workshop(target: str, options: Options | None) -> Workshop:
    """The Workshop for a target, as the options and the environment say. Raises LaunchError for an unknown target."""
    environment, options = read_environment(), options or Options()
    cache = CompiledCache(options.cache_dir or environment.cache or default_cache_dir() if options.use_cache else None)
    return Workshop(options, Recorder(environment.dump, environment.override), targets.find(target), cache)


def front(source: str | Path | onnx.ModelProto, dims: Mapping[str, Any] | None,
          recorder: Recorder) -> tuple[Graph, ShapeEnv, Sequence[FusionGroup]]:
    """From a model to the groups that become kernels."""
    graph, env = import_onnx(source, dims)                          # path             -> Graph
    graph = record(recorder, "import", graph)
    graph = record(recorder, "shapes", infer_shapes(graph, env))    # Graph            -> Graph + ShapeEnv
    graph = infer_shapes(decompose(graph, env), env)                # Graph            -> Graph of primitives
    graph = rewrite(graph, env, partial(told, recorder, "merge"))   # Graph            -> Graph
    graph = record(recorder, "rewrite", graph)
    return graph, env, fuse(graph, env)                             # Graph            -> [FusionGroup]


def link(graph: Graph, env: ShapeEnv, pairs: Sequence[tuple[KernelCall, Kernel]], shop: Workshop,
         threads: int | None) -> Executable:
    """Kernels and their calls to an Executable."""
    calls = [call for call, _ in pairs]
    kernels = {kernel.symbol: kernel for _, kernel in pairs}
    spec = shop.device.spec
    sources = {symbol: kernel.source for symbol, kernel in kernels.items()}
    shop.options.tell(f"building {len(sources)} kernels", 0, 1)
    binary = shop.device.build(sources, spec, shop.options)         # sources          -> one binary
    root = partial(resolve, producers=graph.producers())
    plan = build_plan(graph, env, calls, root)                      # Graph + calls    -> Plan
    package = Package(                                              # Plan + binary    -> Package
        plan, packed_constants(graph, calls, plan, root), {spec.name: Module(binary, spec.cpu_flags)},
        log=(*map(str, shop.recorder.decisions), *(f"{k.symbol}: {line.rstrip()}" for k in kernels.values() for line in k.log)))
    return Executable(package, threads=threads)                     # Package          -> Executable


def record(recorder: Recorder, stage: str, graph: Graph) -> Graph:
    """Pass a Graph through the recorder."""
    recorder.record(stage, graph.name, lambda: format_graph(graph))
    return graph


def told(recorder: Recorder, stage: str, decision: Decision) -> None:
    """A decision about two nodes, for the log."""
    verb = ("" if decision.fused else "not ") + {"merge": "merged", "fuse": "fused"}[stage]
    recorder.decide(stage, decision.node, f"{verb} with {decision.anchor}: {decision.reason}")


def compile_group(group: FusionGroup, graph: Graph, env: ShapeEnv, shop: Workshop) -> list[tuple[KernelCall, Kernel]]:
    """FusionGroup -> kernels with their calls: one, or one a node where no pattern fits the whole (with the reason)."""
    for decision in group.decisions:
        told(shop.recorder, "fuse", decision)
    lowered = lower_group(group, graph, env)                        # FusionGroup      -> te.Program
    try:
        kernel = compile_program(lowered, graph, shop)
    except PatternMismatch as mismatch:
        if len(group.nodes) == 1:
            raise InternalError(f"no schedule pattern fits node '{group.anchor.name}' ({mismatch})") from mismatch
        shop.recorder.decide("split", group.name, str(mismatch))
        parts = split_group(group, graph)
        return [pair for part in parts for pair in compile_group(part, graph, env, shop)]
    return [(bind(lowered, kernel, group.anchor.name), kernel)]


def compile_program(lowered: LoweredGroup, graph: Graph, shop: Workshop) -> Kernel:
    """te.Program -> Kernel, from the cache where an equal program was compiled before."""
    constants = frozenset(name for name, value in lowered.values.items() if value in graph.constants)
    program, device, recorder = lowered.program, shop.device, shop.recorder
    key = digest("kernel", str(program), *sorted(constants), repr(device.spec), code_fingerprint())
    symbol = f"{lowered.kind.value}_{key[:12]}"
    recorder.record("te", symbol, str(program))
    plain = recorder.override_from is None                          # what the user overrides is not for others to find
    cached = shop.cache.get(key) if plain and recorder.dump_to is None else None  # a dump wants every stage
    if cached is not None:
        return kernel_from_bytes(cached)
    recorder = replace(recorder, decisions=[])                      # what is decided here is kept with the kernel
    scheduled = schedule_program(program, lowered.kind, device.spec, None, recorder, symbol, constants)  # -> Func
    func = device.lower(scheduled.func, device.spec, recorder)      # Func             -> Func
    source = recorder.override("c", symbol) or device.emit(func, device.spec)  # Func -> C
    recorder.record("c", symbol, source)
    kernel = Kernel(
        symbol, source, tuple(b.name for b in func.buffers), func.outputs, tuple(s.name for s in func.sizes), func.blocks,
        func.scratch, func.messages, tuple(b.panel for b in func.buffers),
        scheduled.tree, (*scheduled.log, *(f"{decision.stage}: {decision.reason}" for decision in recorder.decisions)))
    if plain:
        shop.cache.put(key, kernel_to_bytes(kernel))
    return kernel


def bind(lowered: LoweredGroup, kernel: Kernel, node: str) -> KernelCall:
    """Tie a kernel's buffers and sizes to this group's values and Dims; `node` is what errors name."""
    sizes = {name: lowered.sizes[name] for name in kernel.sizes}
    messages = tuple(m.format_map({**lowered.values, **sizes}) for m in kernel.messages)
    return KernelCall(
        kernel.symbol, tuple(lowered.values[b] for b in kernel.buffers), tuple(lowered.values[b] for b in kernel.outputs),
        tuple(sizes.values()), kernel.blocks.substitute(sizes), kernel.scratch.substitute(sizes), node,
        messages, kernel.panels)


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the compiler's own source: a changed compiler must not find an old compiler's kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
