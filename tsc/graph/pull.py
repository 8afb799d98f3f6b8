"""Pulling: the expression of a value's element, written in terms of the buffers that are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tsc.errors import InternalError
from tsc.graph.dataflow import body_of, scalar_constant, value_type
from tsc.graph.views import resolve
from tsc.ir import Graph, Node
from tsc.ops.base import Body
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import Axis
from tsc.te.expr import INDEX, Buffer, Const, Expr, Load
from tsc.te.linear import Ranges, simplify


@dataclass(frozen=True, slots=True)
class Puller:
    """Writes elements in terms of stored values.

    `computed` are the values that the kernel makes; of these, `targets` (with their buffer names) can be read, all others are
    recomputed in place. Everything else is an input, and a view of an input is a buffer of the view's own shape. `extents`
    collects the extent of every axis handed out. `orders` are those of the Graph.
    """

    graph: Graph
    env: ShapeEnv
    producers: Mapping[str, Node]
    computed: Collection[str]
    targets: Mapping[str, str]
    extents: dict[str, SymExpr] = field(default_factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def new_axis(self, hint: str, extent: SymExpr) -> Axis:
        """A fresh axis; the name is the count, canonical naming comes later."""
        axis = Axis(f"{hint}{len(self.extents)}", self.env.canon(extent))
        self.extents[axis.name] = axis.extent
        return axis

    def ranges(self) -> Ranges:
        """What is known of all axes handed out so far."""
        return Ranges(self.extents, self.env)

    def read(self, value: str, at: tuple[Expr, ...]) -> Expr:
        """The element of `value` at `at`."""
        base = resolve(value, self.producers)
        if scalar_constant(self.graph, base):
            found = self.graph.constants[base]
            return Const(found.reshape(-1)[0].item(), value_type(self.graph, self.env, base).dtype)
        if base in self.computed and (value != base or base not in self.targets):
            return self.body(value, at)
        made, order = value_type(self.graph, self.env, value), self.order(value)
        shape = tuple(made.shape[d] for d in order)
        return Load(Buffer(self.targets.get(base, base), made.dtype, shape), tuple(at[d] for d in order))

    def order(self, value: str) -> tuple[int, ...]:
        """The dims of a value in memory, slowest first."""
        return self.orders.get(value) or tuple(range(len(self.graph.types[value].shape)))

    def body(self, value: str, at: tuple[Expr, ...]) -> Expr:
        """The element of a computed `value` out of its node's inputs. Raises InternalError for a reduction or a recurrence."""
        made = self.written(value, at)
        if not isinstance(made, Expr):
            raise InternalError(f"{type(made).__name__.lower()} '{self.producers[value].name}' cannot be inlined")
        return made

    def written(self, value: str, at: tuple[Expr, ...]) -> Body:
        """The te body of a computed `value`, its inputs pulled in turn."""
        node = self.producers[value]
        known: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        asked = 0

        def read(name: str, idx: tuple[Expr, ...]) -> Expr:
            nonlocal asked
            asked += 1
            if (name, idx) not in known:
                known[name, idx] = self.read(name, idx)
            return known[name, idx]

        made = body_of(self.graph, self.env, node, node.outputs.index(value), at, read, self.new_axis)
        if asked > len(known) and isinstance(made, Expr) and made.dtype == INDEX:
            return simplify(made, self.ranges())  # `x + x` is `2 x`, of which fusion knows: a chain of them does not double
        return made
