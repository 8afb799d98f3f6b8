"""Local rules of the graph rewriter: what one node can be replaced by, given what is known of its operands.

A rule returns the name of a value that its node's output equals, a Node to stand in its place, or None where it does not
apply. The order of `RULES` is the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.ir import Contents, Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.sym import ONE, ZERO, SymExpr


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A graph while its nodes are looked at one by one; `producers` are those of the graph, `taken` the names in use."""

    graph: Graph
    producers: Mapping[str, Node]
    new_contents: dict[str, Contents]
    taken: set[str]

    def type(self, value: str) -> TensorType:
        return self.graph.types[value]

    def same_type(self, node: Node) -> bool:
        """Whether the node's output has the type of its first input."""
        return self.type(node.inputs[0]) == self.type(node.outputs[0])

    def numbers(self, value: str) -> list[SymExpr] | None:
        """The contents of a value of shape arithmetic, flat; None when unknown."""
        found = self.graph.contents.get(value)
        if found is not None:
            return list(found.ravel())
        constant = self.graph.constants.get(value)
        return None if constant is None or constant.dtype.kind not in "iub" else [SymExpr.of(int(v)) for v in constant.ravel()]

    def all_are(self, number: SymExpr, node: Node, k: int) -> bool:
        """Whether operand `k` of `node` is absent, or known to hold nothing but `number`."""
        if k >= len(node.inputs) or not node.inputs[k]:
            return True
        found = self.numbers(node.inputs[k])
        return found is not None and set(found) <= {number}

    def uniform(self, value: str) -> Any:
        """The one value that all elements of a constant have, else None."""
        constant: NDArray[Any] | None = self.graph.constants.get(value)
        if constant is None or constant.size == 0:
            return None
        first = constant.ravel()[0]
        return first if constant.size == 1 or bool(np.all(constant == first)) else None

    def reshaped(self, node: Node, source: str) -> Node:
        """A Reshape of `source` into the shape of the node's output."""
        operand = unused_name(f"{node.outputs[0]}/shape", self.taken)
        shape = self.type(node.outputs[0]).shape
        values = np.empty(len(shape), dtype=object)
        values[:] = shape
        self.new_contents[operand] = values
        return Node("Reshape", (source, operand), node.outputs, {"allowzero": 1}, node.name)


Found = str | Node | None
Rule = Callable[[Node, Surroundings], Found]


def no_op(node: Node, around: Surroundings) -> Found:
    """Operators that return their input where its type does not change."""
    if any(node.outputs[1:]):
        return None
    if (node.op == "Slice" and not around.all_are(ONE, node, 4)) or (node.op == "Pad" and not around.all_are(ZERO, node, 1)):
        return None
    if node.op in _MAY_CHANGE_NOTHING or definition(node).is_view:
        return node.inputs[0] if around.same_type(node) else None
    if node.op == "Concat" and len(node.inputs) == 1:
        return node.inputs[0]
    return None


_MAY_CHANGE_NOTHING = ("Identity", "Cast", "Dropout", "Expand", "Slice", "Pad", "Tile")


def neutral_operand(node: Node, around: Surroundings) -> Found:
    """x * 1, x / 1, x - 0, and(x, true), or(x, false): exact for every x, NaN and -0 included."""
    neutral = {"Mul": 1, "Div": 1, "Sub": 0, "And": True, "Or": False}.get(node.op)
    if neutral is None:
        return None
    for kept, other in ((0, 1), (1, 0)) if node.op in ("Mul", "And", "Or") else ((0, 1),):
        value = around.uniform(node.inputs[other])
        if value is not None and value == neutral and around.type(node.inputs[kept]) == around.type(node.outputs[0]):
            return node.inputs[kept]
    return None


def decided_choice(node: Node, around: Surroundings) -> Found:
    """Where with one answer for all elements."""
    chosen = around.uniform(node.inputs[0]) if node.op == "Where" else None
    if chosen is None:
        return None
    value = node.inputs[1 if chosen else 2]
    return value if around.type(value) == around.type(node.outputs[0]) else None


def transposes(node: Node, around: Surroundings) -> Found:
    """Two Transposes are one; one that moves only dims of size 1 is a Reshape, which moves nothing; the identity is none."""
    if node.op != "Transpose":
        return None
    source, rank = node.inputs[0], around.type(node.inputs[0]).rank
    perm = tuple(node.attrs.get("perm", range(rank)[::-1]))
    if perm == tuple(range(rank)):
        return source
    shape = around.type(source).shape
    moved = [p for p in perm if shape[p] != ONE]
    if moved == sorted(moved):
        return around.reshaped(node, source)
    before = around.producers.get(source)
    if before is not None and before.op == "Transpose":
        first = tuple(before.attrs.get("perm", range(rank)[::-1]))
        return replace(node, inputs=before.inputs, attrs={"perm": tuple(first[p] for p in perm)})
    return None


def views(node: Node, around: Surroundings) -> Found:
    """A view of a view is one around."""
    if not definition(node).is_view:
        return None
    before = around.producers.get(node.inputs[0])
    if before is None or not definition(before).is_view or before.op == "Identity":
        return None
    return around.reshaped(node, before.inputs[0])


def needless_expand(node: Node, around: Surroundings) -> Found:
    """An elementwise node that broadcasts reads the operand of an Expand instead, where its own shape stays."""
    if definition(node).kind is not PatternKind.ELEMENTWISE or len(node.inputs) < 2:
        return None
    inputs = list(node.inputs)
    for k, value in enumerate(node.inputs):
        before = around.producers.get(value)
        if before is None or before.op != "Expand":
            continue
        shapes = [around.type(i).shape for i in (*inputs[:k], before.inputs[0], *inputs[k + 1:]) if i]
        if _joint(shapes) == around.type(node.outputs[0]).shape:
            inputs[k] = before.inputs[0]
    return replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else None


RULES: tuple[Rule, ...] = (no_op, neutral_operand, decided_choice, transposes, views, needless_expand)


def _joint(shapes: list[tuple[SymExpr, ...]]) -> tuple[SymExpr, ...] | None:
    """The broadcast shape where dims are equal or 1, else None. Assumes nothing."""
    joint: list[SymExpr] = []
    for k in range(1, max(map(len, shapes)) + 1):
        extents = {s[-k] for s in shapes if len(s) >= k} - {ONE}
        if len(extents) > 1:
            return None
        joint.append(extents.pop() if extents else ONE)
    return tuple(reversed(joint))
