"""From tensors of the DSL to an Executable, by the spine's own steps: `tsc.build`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tsc.config import Options
from tsc.errors import ModelError, ShapeError, UnsupportedError
from tsc.graph.to_te import LoweredGroup
from tsc.ir import Graph, TensorType
from tsc.ops.base import PatternKind
from tsc.ops.define import compute_kind
from tsc.pipeline import Workshop, bind, compile_program, link, workshop
from tsc.plan.build import KernelCall
from tsc.plan.kernel import Kernel
from tsc.poly import PatternMismatch
from tsc.poly.extents import check_extents
from tsc.poly.match import match
from tsc.poly.normalise import separate_outputs, without_empty
from tsc.poly.pattern import Staged
from tsc.poly.scop import build_scop
from tsc.runtime.executable import Executable
from tsc.sym import ShapeEnv
from tsc.te.assemble import Assembled, Definition, assemble, declare, reached, sources
from tsc.te.compute import Program
from tsc.te.tensor import Tensor
from tsc.te.transform import lower

#: At most this many Computes are tried as one kernel.
MOST_COMPUTES = 12


def build(outputs: Tensor | list[Tensor] | tuple[Tensor, ...], inputs: Sequence[Tensor] | None = None, name: str = "te",
          target: str = "cpu", threads: int | None = None, options: Options | None = None) -> Executable:
    """Compile tensor expressions once, for every size of their dims.

    The Executable takes the placeholders by name and gives `outputs` in order. `inputs` fixes which placeholders it takes and
    their order (None: those that `outputs` need, as they were made). Computes that fit one schedule pattern become one kernel;
    what does not is cut, and `explain()` says why. Raises ModelError or ShapeError with the user's line, UnsupportedError for a
    Compute that no pattern takes, and LaunchError when the machine lacks a compiler.

    >>> import numpy as np
    >>> from tsc import build, te
    >>> x, k = te.placeholder((te.dim("n"), te.dim("m")), "float32", "x"), te.reduce_axis(te.dim("m"), "k")
    >>> rows = te.compute((te.dim("n"),), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "rows")
    >>> build(rows, threads=1).run(None, {"x": np.ones((2, 3), np.float32)})[0]
    array([3., 3.], dtype=float32)
    """
    shop = workshop(target, options)
    wanted = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
    env = ShapeEnv()
    tensors = _checked(wanted, inputs)
    declare([*tensors, *(inputs or ())], env)                       # Tensors          -> ShapeEnv
    made = assemble(wanted, env)                                    # Tensors          -> Computes
    for definition in made.definitions:
        check_extents(definition, env)
    graph = _graph(name, wanted, inputs, made, env)
    pairs = compile_definitions(made.definitions, graph, env, shop)  # Computes         -> kernels and their calls
    return link(graph, env, pairs, shop, threads)                   # kernels          -> Executable


def _checked(outputs: Sequence[Tensor], inputs: Sequence[Tensor] | None) -> list[Tensor]:
    """All tensors that `outputs` are made of. Raises ModelError for what cannot be built."""
    if not outputs:
        raise ModelError("tsc.build has no outputs; give it a tensor that te.compute made")
    for tensor in (*outputs, *(inputs or ())):
        if not isinstance(tensor, Tensor):
            raise ModelError(f"tsc.build takes tensors made by te.compute and te.placeholder, not a {type(tensor).__name__}")
    tensors = reached([*outputs, *(inputs or ())])
    for given in inputs or ():
        if given.definition is not None or given.data is not None:
            raise ModelError(f"{given.place}: '{given.name}' is given as an input, but is no te.placeholder")
    if inputs is not None:
        foreign = [t for t in tensors if t.definition is None and t.data is None and all(t is not i for i in inputs)]
        for tensor in foreign:
            raise ModelError(f"{tensor.place}: the placeholder '{tensor.name}' is read, but is not among the inputs given")
    for tensor in outputs:
        if tensor.definition is None:
            raise ModelError(f"{tensor.place}: the output '{tensor.name}' is given, not computed; make it with te.compute")
    if len({t.name for t in outputs}) < len(outputs):
        raise ModelError("tsc.build has one output twice; give each once")
    return tensors


def _graph(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor] | None, made: Assembled, env: ShapeEnv) -> Graph:
    """A Graph without nodes: what the plan has to know of the tensors. Raises ShapeError for a dim that no input has."""
    given = made.placeholders if inputs is None else tuple(inputs)
    bound = {d for t in given for e in t.extents for d in e.dims()}
    for tensor in outputs:
        loose = sorted({d for e in tensor.extents for d in e.dims()} - bound)
        if loose:
            raise ShapeError(f"{tensor.place}: '{tensor.name}' has the dim '{loose[0]}', which no input has; its size would "
                             "not be known when the kernel runs")
    types = {t.name: TensorType(t.dtype, tuple(map(env.canon, t.extents))) for t in (*given, *made.constants)}
    types |= {d.compute.name: TensorType(d.compute.target.dtype, d.compute.target.shape) for d in made.definitions}
    constants = {t.name: t.data for t in made.constants if t.data is not None}
    return Graph(name, tuple(t.name for t in given), tuple(t.name for t in outputs), (), types, constants)


def compile_definitions(definitions: Sequence[Definition], graph: Graph, env: ShapeEnv,
                        shop: Workshop) -> list[tuple[KernelCall, Kernel]]:
    """Computes to kernels with their calls: the longest run, from the first on, that one pattern takes; then the rest."""
    for definition in definitions:
        for note in dict.fromkeys(definition.notes):
            shop.recorder.decide("access", definition.compute.name, note)
    pairs: list[tuple[KernelCall, Kernel]] = []
    start = 0
    while start < len(definitions):
        refusal = ""
        for end in range(min(len(definitions), start + MOST_COMPUTES), start, -1):
            lowered = _lowered(definitions[start:end], definitions[end:], graph, env)
            last = definitions[end - 1].compute.name
            try:
                _check_worthwhile(lowered, end - start)
                kernel = compile_program(lowered, graph, shop)
            except PatternMismatch as mismatch:
                refusal = f"not in the kernel of {definitions[start].compute.name}: {mismatch}"
                if end == start + 1:
                    raise UnsupportedError(f"no schedule pattern takes '{last}' alone: {mismatch}") from mismatch
                continue
            if refusal:
                shop.recorder.decide("split", definitions[end].compute.name, refusal)
            pairs.append((bind(lowered, kernel, last), kernel))
            start = end
            break
    return pairs


def _lowered(run: Sequence[Definition], later: Iterable[Definition], graph: Graph, env: ShapeEnv) -> LoweredGroup:
    """The canonical Program of a run of Computes; its outputs are the graph's and what `later` ones read."""
    needed = {*graph.outputs, *(name for d in later for name in sources(d))}
    computes = tuple(d.compute for d in run)
    found = lower(Program((), tuple(c.target for c in computes if c.name in needed), computes, ()), env)
    kinds = {compute_kind(c) for c in computes}
    kind = next((k for k in (PatternKind.CONTRACTION, PatternKind.REDUCE) if k in kinds), PatternKind.INJECTIVE)
    return LoweredGroup(found.program, found.buffers, found.sizes, kind)


def _check_worthwhile(lowered: LoweredGroup, count: int) -> None:
    """Raise PatternMismatch where a matrix product would run as one stage of many, without its register tiles."""
    if count > 1 and lowered.kind is PatternKind.CONTRACTION:
        found, _ = match(build_scop(separate_outputs(without_empty(lowered.program))))
        if isinstance(found, Staged):
            raise PatternMismatch("one kernel for all would run a sum of products without register tiles")
