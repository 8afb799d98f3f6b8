"""The graph as fusion sees it: the values that nodes compute, what each reads, and which are mere index maps of another.

All of it is read off the te bodies: an operator says once what it computes, and fusion asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tsc.errors import InternalError
from tsc.ir import Contents, Graph, Node, TensorType
from tsc.ops import definition
from tsc.ops.base import Body, InferContext, Lowering, PatternKind, Reduction
from tsc.ops.derive import permutation
from tsc.ops.shapes import constant_contents
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import Axis
from tsc.te.expr import Buffer, Call, Cast, CheckedIndex, Expr, Load, Var, checking, loads, walk
from tsc.te.intrinsics import EXPENSIVE
from tsc.te.linear import Ranges, simplify

#: What the parts of a body count; a looked-up row is no neighbour of the row before and counts as several operations.
_WEIGHTS: dict[type, int] = {Call: 1, Cast: 1, Load: 1, CheckedIndex: 8}

Read = Callable[[str, tuple[Expr, ...]], Expr]
NewAxis = Callable[[str, SymExpr], Axis]


@dataclass(frozen=True, slots=True)
class Item:
    """One value that a node computes.

    `reads` are the values its te body loads, once per load (views not resolved). `map_index` is set when the value is an
    index map: the element at `d0, d1, ..` is the element of `reads[0]` at that index; `is_permutation` says that this reads
    each element of the source once, in another order of its dims. `operand` and `reduced` are set for
    reductions: the shape of the tensor reduced and which of its dims are. `weight` counts the body's operations.
    """

    value: str
    node: Node
    output: int
    position: int
    kind: PatternKind
    type: TensorType
    reads: tuple[str, ...] = ()
    map_index: tuple[Expr, ...] | None = None
    is_permutation: bool = False
    weight: int = 1
    expensive: bool = False
    operand: tuple[SymExpr, ...] = ()
    reduced: tuple[int, ...] = ()

    @property
    def is_map(self) -> bool:
        """Whether this only moves data, by an index that data does not decide."""
        return self.map_index is not None

    @property
    def is_generated(self) -> bool:
        """Whether the value is made by index arithmetic alone, cheaply, out of no tensor; a sum of such terms is not."""
        kinds = (PatternKind.ELEMENTWISE, PatternKind.BROADCAST, PatternKind.INJECTIVE)
        return not self.reads and self.weight <= 8 and not self.expensive and self.kind in kinds


def value_type(graph: Graph, env: ShapeEnv, value: str) -> TensorType:
    """The type of a value, its shape canonical. Raises InternalError when shape inference has not seen the value."""
    found = graph.types.get(value)
    if found is None:
        raise InternalError(f"value '{value}' has no type after shape inference")
    return TensorType(found.dtype, tuple(env.canon(d) for d in found.shape))


def body_of(graph: Graph, env: ShapeEnv, node: Node, output: int, at: tuple[Expr, ...], read: Read,
            axis: NewAxis) -> Body:
    """The te body of one output element of a node; `read(value, index)` is asked for the elements of its inputs."""
    opdef = definition(node)
    if opdef.te is None:
        raise InternalError(f"node '{node.name}' ({node.op}) has no te body; it should have been decomposed")
    types = [value_type(graph, env, i) if i else None for i in node.inputs]
    infer = InferContext(node, graph.opset, types, [graph.constants.get(i) for i in node.inputs],
                         [_contents(graph, i) for i in node.inputs], env)
    outputs = tuple(value_type(graph, env, o) if o else TensorType("", ()) for o in node.outputs)
    return opdef.te(Lowering(infer, outputs, lambda i, idx: checking(read(node.inputs[i], idx), idx), axis,
                             lambda idx: read(node.outputs[output], idx)), output, at)


def _contents(graph: Graph, value: str) -> Contents | None:
    found, constant = graph.contents.get(value), graph.constants.get(value)
    return constant_contents(constant) if found is None and constant is not None else found


def dynamic_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The inputs a kernel of `node` may read: all but absent ones and compile-time parameters."""
    static = definition(node).static_inputs
    return tuple(dict.fromkeys(i for k, i in enumerate(node.inputs) if i and k not in static))


def live_values(graph: Graph) -> set[str]:
    """The values that the graph's outputs depend on through kernels (shape arithmetic does not count)."""
    producers = graph.producers()
    live: set[str] = set()
    pending = list(graph.outputs)
    while pending:
        value = pending.pop()
        if value not in live:
            live.add(value)
            if value in producers:
                pending.extend(dynamic_inputs(graph, producers[value]))
    return live


def items_of(graph: Graph, env: ShapeEnv) -> dict[str, Item]:
    """Every live value that a node other than a view computes, in graph order."""
    live = live_values(graph)
    return {value: item_of(graph, env, node, output, position)
            for position, node in enumerate(graph.nodes) if not definition(node).is_view
            for output, value in enumerate(node.outputs) if value in live}


@dataclass(frozen=True, slots=True)
class Element:
    """What the element of a value at `d0, d1, ..` is made of: its simplified body over its node's inputs, the reduction that
    the body is a term of (None: it is no reduction), and the extent of every axis that occurs."""

    body: Expr
    reduction: Reduction | None
    extents: dict[str, SymExpr]


def element_of(graph: Graph, env: ShapeEnv, node: Node, output: int) -> Element:
    """The Element of one output of a node that has a te body."""
    at, extents = axes_of(graph, env, node.outputs[output])
    made = _written(graph, env, node, output, at, extents)
    reduction = made if isinstance(made, Reduction) else None
    body = simplify(made if isinstance(made, Expr) else made.body, Ranges(extents, env))
    return Element(body, reduction, extents)


def moved_element(graph: Graph, env: ShapeEnv, node: Node,
                  literal: Callable[[str], Expr | None]) -> tuple[Load, dict[str, SymExpr]] | None:
    """The element of a node's first output and the extents of its axes, where it is an element of an operand; else None.
    What is a `literal` everywhere is not loaded."""
    at, extents = axes_of(graph, env, node.outputs[0])
    made = _written(graph, env, node, 0, at, extents, literal)
    found = simplify(made, Ranges(extents, env)) if isinstance(made, Load) else None
    return (found, extents) if isinstance(found, Load) else None


def element_at(graph: Graph, env: ShapeEnv, node: Node, value: str, at: tuple[Expr, ...],
               extents: Mapping[str, SymExpr]) -> Expr | None:
    """The element of a node's output `value` at an index over axes of `extents`; None where it is a reduction or a recurrence,
    or has no te body."""
    made = None if definition(node).te is None else _written(graph, env, node, node.outputs.index(value), at, dict(extents))
    return simplify(made, Ranges(extents, env)) if isinstance(made, Expr) else None


def axes_of(graph: Graph, env: ShapeEnv, value: str) -> tuple[tuple[Expr, ...], dict[str, SymExpr]]:
    """The axes `d0, d1, ..` of a value, and their extents."""
    shape = value_type(graph, env, value).shape
    return tuple(Var(f"d{k}") for k in range(len(shape))), {f"d{k}": extent for k, extent in enumerate(shape)}


def _written(graph: Graph, env: ShapeEnv, node: Node, output: int, at: tuple[Expr, ...], extents: dict[str, SymExpr],
             literal: Callable[[str], Expr | None] = lambda value: None) -> Body:
    """The te body of an output's element at `at`; `extents` gains those of reduced axes."""
    def read(name: str, idx: tuple[Expr, ...]) -> Expr:
        source, known = value_type(graph, env, name), literal(name)
        return Load(Buffer(name, source.dtype, source.shape), idx) if known is None else known

    def axis(hint: str, extent: SymExpr) -> Axis:
        made = Axis(f"r{len(extents)}", extent)
        extents[made.name] = extent
        return made

    return body_of(graph, env, node, output, at, read, axis)


def item_of(graph: Graph, env: ShapeEnv, node: Node, output: int, position: int) -> Item:
    """The Item of one output of a node."""
    value, opdef = node.outputs[output], definition(node)
    made_type = value_type(graph, env, value)
    if opdef.te is None:
        return Item(value, node, output, position, PatternKind.OPAQUE, made_type, dynamic_inputs(graph, node))
    element = element_of(graph, env, node, output)
    body, found = element.body, [x for x in loads(element.body) if x.buffer.name != value]
    item = Item(value, node, output, position, opdef.kind, made_type, tuple(x.buffer.name for x in found),
                weight=sum(_WEIGHTS.get(type(e), 0) for e in walk(body)),
                expensive=any(isinstance(e, Call) and e.fn in EXPENSIVE for e in walk(body)))
    if element.reduction is not None:
        return _with_reduction(item, element.reduction, found)
    if item.kind is PatternKind.OPAQUE:  # a kernel of its own, whatever it computes
        return item
    if item.kind is PatternKind.REDUCE:  # over no axes: nothing is reduced
        item = replace(item, kind=PatternKind.ELEMENTWISE)
    if isinstance(body, Load) and len(found) == 1:
        return replace(item, map_index=body.index, is_permutation=permutation(body, element.extents) is not None)
    return item


def _with_reduction(item: Item, made: Reduction, found: list[Load]) -> Item:
    names = {a.name for a in made.axes}
    for load in found:
        dims = tuple(k for k, e in enumerate(load.index) if isinstance(e, Var) and e.name in names)
        if len(dims) == len(names):
            return replace(item, operand=load.buffer.shape, reduced=dims)
    return item


def scalar_constant(graph: Graph, value: str) -> bool:
    """Whether `value` is a constant of one element: a literal in the kernel, not a buffer."""
    return value in graph.constants and graph.constants[value].size == 1
