"""Local rules of the graph rewriter: what one node can be replaced by, given what is known of its operands.

A rule returns the name of a value that its node's output equals, a Node to stand in its place, or None where it does not
apply. The order of `RULES` is the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.graph.dataflow import dynamic_inputs, moved_element
from tsc.graph.views import is_view
from tsc.ir import Contents, Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.derive import Axes, is_copy, permutation
from tsc.ops.movement import reshape_node, transpose_node
from tsc.sym import ONE, ShapeEnv, SymExpr
from tsc.te.expr import BOOL, Const, Load


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A graph while its nodes are looked at one by one; `producers` are those of the graph, `taken` the names in use."""

    graph: Graph
    env: ShapeEnv
    producers: Mapping[str, Node]
    new_contents: dict[str, Contents]
    taken: set[str]
    elements: dict[str, tuple[Load, Axes] | None] = field(default_factory=dict)

    def type(self, value: str) -> TensorType:
        return self.graph.types[value]

    def same_type(self, node: Node, k: int = 0) -> bool:
        """Whether the node's output has the type of its operand `k`."""
        return self.type(node.inputs[k]) == self.type(node.outputs[0])

    def uniform(self, value: str) -> NDArray[Any] | None:
        """What all elements of a constant hold, bit for bit, as an array of one; else None."""
        constant = self.graph.constants.get(value)
        if constant is None or constant.size == 0:
            return None
        flat = constant.ravel()
        alike = flat[:1].tobytes() == flat[-1:].tobytes() and (flat[1:].view(np.uint8) == flat[:-1].view(np.uint8)).all()
        return flat[:1] if alike else None

    def condition(self, value: str) -> Const | None:
        """The truth value that all elements of a constant have; else None."""
        found = self.uniform(value) if self.type(value).dtype == BOOL else None
        return None if found is None else Const(bool(found[0]), BOOL)

    def moved(self, node: Node) -> tuple[Load, Axes] | None:
        """The element of a node's one output, and its axes, where that is an element of an operand; else None."""
        operator = definition(node)
        if operator.te is None or operator.kind in _COMPUTING or not node.outputs[0] or any(node.outputs[1:]):
            return None
        if node.outputs[0] not in self.elements:
            data = dynamic_inputs(self.graph, node)
            possible = any(self.may_permute(i, node.outputs[0]) for i in data) and (
                operator.kind is not PatternKind.ELEMENTWISE or len(data) == 1 or any(map(self.condition, data)))
            self.elements[node.outputs[0]] = (
                moved_element(self.graph, self.env, node, self.condition) if possible else None)
        return self.elements[node.outputs[0]]

    def may_permute(self, source: str, value: str) -> bool:
        """Whether `value` could be `source` with its dims in some order, as far as their types say."""
        a, b = self.type(source), self.type(value)
        return a.dtype == b.dtype and len(a.shape) == len(b.shape) and set(a.shape) == set(b.shape)

    def reshaped(self, node: Node, source: str) -> Node:
        """A view of `source` in the shape of the node's output."""
        operand = unused_name(f"{node.outputs[0]}/shape", self.taken)
        shape = self.type(node.outputs[0]).shape
        values = np.empty(len(shape), dtype=object)
        values[:] = shape
        self.new_contents[operand] = values
        return reshape_node(source, operand, node.outputs[0], node.name)


Found = str | Node | None
Rule = Callable[[Node, Surroundings], Found]

_COMPUTING = (PatternKind.CONTRACTION, PatternKind.REDUCE, PatternKind.OPAQUE)


def copies(node: Node, around: Surroundings) -> Found:
    """What copies one operand: a conversion to its own type, a part that is the whole, a choice that is decided, .."""
    found = around.moved(node)
    return found[0].buffer.name if found is not None and is_copy(*found) else None


def neutral_operand(node: Node, around: Surroundings) -> Found:
    """x * 1, x / 1, x - 0, x + -0, and(x, true), or(x, false): exact for every x, NaN and -0 included."""
    if len(node.inputs) != 2:
        return None
    for k, number in enumerate(definition(node).neutral):
        value = around.uniform(node.inputs[k]) if number is not None and around.same_type(node, 1 - k) else None
        if value is not None and value.tobytes() == np.array([number]).astype(value.dtype).tobytes():
            return node.inputs[1 - k]
    return None


def permutations(node: Node, around: Surroundings) -> Found:
    """Two permutations are one; one that moves only dims of size 1 is a view, which moves nothing."""
    found = around.moved(node)
    perm = None if found is None else permutation(*found)
    if found is None or perm is None:
        return None
    source = found[0].buffer
    moved = [p for p in perm if source.shape[p] != ONE]
    if moved == sorted(moved):
        return around.reshaped(node, source.name)
    before = around.moved(around.producers[source.name]) if source.name in around.producers else None
    first = None if before is None else permutation(*before)
    if before is None or first is None:
        return None
    return transpose_node(before[0].buffer.name, tuple(first[p] for p in perm), node.outputs[0], node.name)


def views(node: Node, around: Surroundings) -> Found:
    """A view of a view is one around."""
    before = around.producers.get(node.inputs[0]) if is_view(node) else None
    if before is None or not is_view(before) or around.same_type(before):
        return None
    return around.reshaped(node, before.inputs[0])


def needless_expand(node: Node, around: Surroundings) -> Found:
    """A node that broadcasts reads the operand of an Expand instead, where its own shape stays."""
    first = definition(node).broadcasts_from
    if first is None or len(node.inputs) < 2:
        return None
    inputs = list(node.inputs)
    for k, value in enumerate(node.inputs):
        before = around.producers.get(value)
        if k < first or before is None or definition(before).kind is not PatternKind.BROADCAST:
            continue
        shapes = [around.type(i).shape for i in (*inputs[:k], before.inputs[0], *inputs[k + 1:]) if i]
        if _joint(shapes) == around.type(node.outputs[0]).shape:
            inputs[k] = before.inputs[0]
    return replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else None


RULES: tuple[Rule, ...] = (copies, neutral_operand, permutations, views, needless_expand)


def _joint(shapes: list[tuple[SymExpr, ...]]) -> tuple[SymExpr, ...] | None:
    """The broadcast shape where dims are equal or 1, else None. Assumes nothing."""
    joint: list[SymExpr] = []
    for k in range(1, max(map(len, shapes)) + 1):
        extents = {s[-k] for s in shapes if len(s) >= k} - {ONE}
        if len(extents) > 1:
            return None
        joint.append(extents.pop() if extents else ONE)
    return tuple(reversed(joint))
