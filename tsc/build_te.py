"""From tensors of the DSL to an Executable, by the spine's own steps: `tsc.build`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tsc.attempts import compile_definitions
from tsc.config import Options
from tsc.errors import InputError, ModelError, ShapeError, typed
from tsc.graph.views import resolve
from tsc.ir import Graph, TensorType
from tsc.kernels import workshop
from tsc.pipeline import check_request, link
from tsc.plan.build import Part
from tsc.poly.extents import check_reads
from tsc.runtime.executable import Executable
from tsc.sym import ShapeEnv
from tsc.te.dsl.assemble import Assembled, assemble, declare, reached
from tsc.te.dsl.tensor import Tensor


@typed
def build(outputs: Tensor | list[Tensor] | tuple[Tensor, ...], inputs: Sequence[Tensor] | None = None, name: str = "te",
          target: str = "cpu", threads: int | None = None, options: Options | None = None) -> Executable:
    """Compile tensor expressions once, for every size of their dims.

    Computes that fit one schedule pattern become one kernel; what does not is cut, and `explain()` says why.

    Args:
        outputs: The tensor, or tensors in order, that a run gives.
        inputs: Which placeholders a run takes, and their order (None: those that `outputs` need, as they were made).
        name: What the whole is called.
        target: What to compile for, as `tsc.compile` has it.
        threads: How many cores a run may use (None: all that the process may use).
        options: How to compile.

    Returns:
        An Executable that takes the placeholders by name.

    Raises:
        InputError: An argument is of the wrong kind.
        ModelError: An expression is wrong, with the line of your code (ShapeError: a shape, or an index, is).
        UnsupportedError: No pattern takes a Compute.
        LaunchError: The machine lacks a compiler.

    Examples:
        >>> import numpy as np
        >>> from tsc import build, te
        >>> x, k = te.placeholder((te.dim("n"), te.dim("m")), "float32", "x"), te.reduce_axis(te.dim("m"), "k")
        >>> rows = te.compute((te.dim("n"),), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "rows")
        >>> build(rows, threads=1).run(None, {"x": np.ones((2, 3), np.float32)})[0]
        array([3., 3.], dtype=float32)
    """
    check_request(target, threads=threads, options=options)
    shop = workshop(target, options)
    wanted = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
    if not isinstance(inputs, list | tuple | None) or not isinstance(name, str):
        raise InputError("inputs are a list of placeholders, and name is a string")
    env = ShapeEnv()
    tensors = _checked(wanted, inputs)
    declare([*tensors, *(inputs or ())], env)                       # Tensors          -> ShapeEnv
    made = assemble(wanted, env)                                    # Tensors          -> Computes
    check_reads(made.definitions, env)
    graph = _graph(name, wanted, inputs, made, env)
    pairs = compile_definitions(made.definitions, graph.outputs, graph, env, shop)  # Computes -> kernels and their calls
    part = Part(graph, env, [call for call, _ in pairs], partial(resolve, producers=graph.producers()))
    return Executable(link(part, pairs, shop), threads=threads)     # kernels          -> Executable


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
