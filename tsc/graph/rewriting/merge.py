"""Horizontal merge: contractions of one value with constants become one contraction with the constants side by side.

What each computed is a part of the wider result, read through a free index map and never copied; constants that every branch
goes on to add are laid side by side too, so that the query, key and value projections of a layer are one kernel with one bias.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.graph.dataflow import element_of, item_of, value_type
from tsc.graph.fusion.group import Decision
from tsc.graph.fusion.state import analyse
from tsc.graph.views import is_view, resolve
from tsc.ir import Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import PatternKind
from tsc.ops.movement import split_node
from tsc.sym import ShapeEnv, SymExpr, product
from tsc.te.expr import Var, loads, walk

#: A merged result may be this many times as wide as a column of its constant is long: all its parts are in memory at once.
MOST_WIDTH = 4

Tell = Callable[[Decision], None]


def merge_contractions(graph: Graph, env: ShapeEnv, tell: Tell = lambda decision: None) -> Graph:
    """The same function with contractions merged. `graph` is ready for fusion; so is the result.

    A branch is left alone, with the reason told, where its result is an output of the model, where elementwise work would leave
    its kernel for another, and where a reader could not take the part's index into its own accesses.
    """
    refused: set[str] = set()
    while True:
        merging = _Merging(graph, env, refused, tell)
        merged = merging.run()
        fusion = analyse(merged, env) if merging.parts else None
        stored = {} if fusion is None else {v: b for v, b in merging.parts.items() if v not in fusion.free}
        if not stored:
            for decision in merging.decisions:
                tell(decision)
            return merged
        for branch in stored.values():
            tell(_refusal(branch, "what reads it cannot read a part of a wider result in place"))
            refused.add(branch.node.outputs[0])


@dataclass(frozen=True, slots=True)
class Branch:
    """A contraction whose constant operand `weight` (an input's number) can be laid beside others: its dim `column` is the
    result's dim `dim` and occurs nowhere else. `steps` are the nodes that then combine the result with constants as wide; None
    is a step that only other branches take and that would change nothing here."""

    node: Node
    weight: int
    column: int
    dim: int
    steps: tuple[Node | None, ...] = ()

    @property
    def value(self) -> str:
        """What the branch makes in the end."""
        return [n for n in (self.node, *self.steps) if n is not None][-1].outputs[0]


def _refusal(branch: Branch, reason: str) -> Decision:
    return Decision(branch.node.name, branch.node.inputs[1 - branch.weight], False, reason)


@dataclass(slots=True)
class _Merging:
    """One attempt; `parts` are the branches merged, by the value that each makes."""

    graph: Graph
    env: ShapeEnv
    refused: Collection[str]
    tell: Tell
    parts: dict[str, Branch] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    producers: dict[str, Node] = field(default_factory=dict)
    consumers: dict[str, list[Node]] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    made: dict[Hashable, str] = field(default_factory=dict)

    def run(self) -> Graph:
        self.taken = self.graph.names()
        self.producers, self.consumers = self.graph.producers(), self.graph.consumers()
        self.constants, self.types = dict(self.graph.constants), dict(self.graph.types)
        made: dict[int, list[Node]] = {}
        gone: set[int] = set()
        for branches in self.merges():
            branches = self.with_steps(branches)
            lost = [reason for b in branches if (reason := self.lost_work(b.value)) is not None]
            if lost:
                self.decisions += [_refusal(b, lost[0]) for b in branches]
                continue
            made[id(branches[0].node)] = self.merged(branches)
            gone |= {id(n) for b in branches for n in (b.node, *b.steps) if n is not None}
            self.parts |= {b.value: b for b in branches}
        if not made:
            return self.graph
        nodes = [n for node in self.graph.nodes for n in made.get(id(node), [] if id(node) in gone else [node])]
        read = {i for n in nodes for i in n.inputs} | set(self.graph.outputs)
        constants = {k: c for k, c in self.constants.items() if k in read}
        return replace(self.graph, nodes=tuple(nodes), types=self.types, constants=constants)

    # -- what can be merged ------------------------------------------------------------------------------------

    def merges(self) -> Iterator[list[Branch]]:
        """Branches that belong together, two or more, no more of them than fit."""
        alike: dict[Hashable, list[Branch]] = {}
        for node in self.graph.nodes:
            branch = self.branch(node)
            if branch is not None:
                alike.setdefault(self.key(branch), []).append(branch)
        for found in alike.values():
            if len(found) < 2:
                continue
            fitting = [b for b in found if self.accepts(b)]
            while fitting:
                count = max(1, sum(w <= MOST_WIDTH * self.depth(fitting[0]) for w in accumulate(map(self.width, fitting))))
                if count > 1:
                    yield fitting[:count]
                elif len(fitting) > 1:
                    self.decisions.append(_refusal(fitting[0], "with others its result would be too wide to keep in memory"))
                fitting = fitting[count:]

    def branch(self, node: Node) -> Branch | None:
        """A node as a branch, if its te body says that its constant's columns are columns of the result."""
        if definition(node).kind is not PatternKind.CONTRACTION or len(node.inputs) != 2 or node.outputs[0] in self.refused:
            return None
        constant = [k for k, i in enumerate(node.inputs) if i in self.constants and self.constants[i].size > 1]
        if len(constant) != 1:
            return None
        weight, body = constant[0], element_of(self.graph, self.env, node, 0).body
        found = [load for load in loads(body) if load.buffer.name == node.inputs[weight]]
        if len(found) != 1:
            return None
        for column, place in enumerate(found[0].index):
            if isinstance(place, Var) and place.name.startswith("d") and sum(e == place for e in walk(body)) == 1:
                return Branch(node, weight, column, int(place.name[1:]))
        return None

    def key(self, branch: Branch) -> Hashable:
        """Equal for branches that compute the same but for the constant's columns."""
        node, weight = branch.node, self.constants[branch.node.inputs[branch.weight]]
        return (node.op, node.domain, tuple(sorted((k, repr(v)) for k, v in node.attrs.items())),
                node.inputs[1 - branch.weight], branch.weight, branch.column, branch.dim, weight.dtype.name,
                _without(weight.shape, branch.column), _without(self.type(node.outputs[0]).shape, branch.dim))

    def accepts(self, branch: Branch) -> bool:
        """Whether a branch is better merged; the reason where it is not is a decision."""
        reason = self.loss(branch)
        if reason is not None:
            self.decisions.append(_refusal(branch, reason))
        return reason is None

    def loss(self, branch: Branch) -> str | None:
        steps = list(self.steps(branch))
        outputs = {resolve(o, self.producers) for o in self.graph.outputs}
        if any(n.outputs[0] in outputs for n in (branch.node, *steps)):
            return "its result is an output of the model"
        return self.lost_work((steps or [branch.node])[-1].outputs[0])

    def lost_work(self, value: str) -> str | None:
        """Why a contraction's kernel that ends at `value` would lose work by being merged."""
        found = list(self.readers(value))
        if any(definition(n).kind is PatternKind.OPAQUE for n in found):
            return "what reads it is opaque"
        if found and all(definition(n).kind is PatternKind.ELEMENTWISE and self.count(n.outputs[0]) == self.count(value)
                         for n in found):
            return f"{found[0].name} would leave its kernel for one of its own"
        return None

    def readers(self, value: str) -> Iterator[Node]:
        """The nodes that read `value`, through views and permutations."""
        for node in self.consumers.get(value, ()):
            moves = is_view(node) or item_of(self.graph, self.env, node, 0, 0).is_permutation
            yield from self.readers(node.outputs[0]) if moves else [node]

    # -- constants behind it -----------------------------------------------------------------------------------

    def steps(self, branch: Branch) -> Iterator[Node]:
        """The nodes behind a branch that combine its result, which nothing else reads, with constants as wide as broadcasting
        does."""
        value, result = branch.node.outputs[0], self.type(branch.node.outputs[0])
        while len(readers := self.consumers.get(value, [])) == 1:
            node = readers[0]
            if (definition(node).broadcasts_from is None or len(node.inputs) != 2
                    or self.type(node.outputs[0]) != result):
                return
            other = node.inputs[1 - node.inputs.index(value)]
            dim = self.constant_dim(other, branch)
            if dim is None or self.constants[other].shape[dim] != self.width(branch):
                return
            yield node
            value = node.outputs[0]

    def constant_dim(self, value: str, branch: Branch) -> int | None:
        """The dim of a constant that lines up with the result's columns."""
        if value not in self.constants:
            return None
        dim = branch.dim - self.type(branch.node.outputs[0]).rank + self.constants[value].ndim
        return dim if dim >= 0 else None

    def with_steps(self, branches: Sequence[Branch]) -> list[Branch]:
        """The branches with the steps that all of them take alike; who lacks one takes it with the neutral element."""
        pending = [list(self.steps(b)) for b in branches]
        steps: list[tuple[Node | None, ...]] = []
        while len({self.step_key(b, s[0]) for b, s in zip(branches, pending) if s}) == 1:
            column = tuple(s.pop(0) if s else None for s in pending)
            if None in column and any(self.neutral(n) is None for n in column if n is not None):
                break
            steps.append(column)
        return [replace(b, steps=tuple(column[k] for column in steps)) for k, b in enumerate(branches)]

    def step_key(self, branch: Branch, node: Node) -> Hashable:
        side = self.constant_side(node)
        constant, dim = self.constants[node.inputs[side]], self.constant_dim(node.inputs[side], branch)
        attrs = tuple(sorted((k, repr(v)) for k, v in node.attrs.items()))
        return node.op, node.domain, attrs, side, constant.dtype.name, dim, _without(constant.shape, dim or 0)

    def constant_side(self, node: Node) -> int:
        """Which operand of a step is the constant."""
        return next(k for k, i in enumerate(node.inputs) if i in self.constants)

    # -- merging -----------------------------------------------------------------------------------------------

    def merged(self, branches: Sequence[Branch]) -> list[Node]:
        """The wide contraction, the steps behind it, and the Split whose outputs are what the branches made."""
        first = branches[0]
        name = " + ".join(b.node.name for b in branches)
        weights = [b.node.inputs[b.weight] for b in branches]
        nodes = [self.combined(first.node, first.weight, self.operand(first), weights, first.column, branches, name)]
        for column in zip(*(b.steps for b in branches)):
            node = next(n for n in column if n is not None)
            side = self.constant_side(node)
            dim = self.constant_dim(node.inputs[side], first) or 0
            parts = [self.neutrals(node, dim, self.width(b)) if n is None else n.inputs[side] for b, n in zip(branches, column)]
            nodes.append(self.combined(node, side, nodes[-1].outputs[0], parts, dim, branches, node.name))
        value = nodes[-1].outputs[0]
        widths = tuple(map(self.width, branches))
        nodes.append(split_node(value, first.dim, widths, tuple(b.value for b in branches), f"{name}/parts"))
        self.decisions += [Decision(b.node.name, first.node.name, True, f"one contraction of '{self.operand(b)}' for all")
                           for b in branches[1:]]
        return nodes

    def combined(self, node: Node, side: int, other: str, names: Sequence[str], dim: int, branches: Sequence[Branch],
                 name: str) -> Node:
        """`node` over `other` and, as its operand `side`, the named constants side by side."""
        constant, value = self.side_by_side(names, dim), unused_name(f"{node.outputs[0]}.merged", self.taken)
        self.types[value] = self.widened(branches)
        return replace(node, inputs=(constant, other) if side == 0 else (other, constant), outputs=(value,), name=name)

    def neutral(self, node: Node) -> float | None:
        """What a step's constant may be for its other operand to stay; None where there is no such number."""
        return next(iter(definition(node).neutral[self.constant_side(node):]), None)

    def neutrals(self, node: Node, dim: int, width: int) -> str:
        """A constant that changes nothing and stands in for a step's of another width."""
        like, number = self.constants[node.inputs[self.constant_side(node)]], self.neutral(node)
        made = np.full(_with(like.shape, dim, width), number).astype(like.dtype)
        key = f"neutral.{number}.{made.dtype.name}.{made.shape}"
        return self.new_constant(key, key, made)

    def side_by_side(self, names: Sequence[str], dim: int) -> str:
        """The constant that holds the named ones along `dim`; equal lists share one."""
        key = (*names, dim)
        if key in self.made:
            return self.made[key]
        return self.new_constant(key, "|".join(names), np.concatenate([self.constants[n] for n in names], axis=dim))

    def new_constant(self, key: Hashable, base: str, array: NDArray[Any]) -> str:
        """The name of `array`, which `key` stands for: one constant a key."""
        if key not in self.made:
            name = self.made[key] = unused_name(base, self.taken)
            self.constants[name] = array
            self.types[name] = TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
        return self.made[key]

    def widened(self, branches: Sequence[Branch]) -> TensorType:
        found, dim = self.type(branches[0].node.outputs[0]), branches[0].dim
        return replace(found, shape=_with(found.shape, dim, SymExpr.of(sum(map(self.width, branches)))))

    # -- facts -------------------------------------------------------------------------------------------------

    def type(self, value: str) -> TensorType:
        return value_type(self.graph, self.env, value)

    def count(self, value: str) -> SymExpr:
        return self.env.canon(product(self.type(value).shape))

    def operand(self, branch: Branch) -> str:
        return branch.node.inputs[1 - branch.weight]

    def width(self, branch: Branch) -> int:
        return int(self.constants[branch.node.inputs[branch.weight]].shape[branch.column])

    def depth(self, branch: Branch) -> int:
        return prod(_without(self.constants[branch.node.inputs[branch.weight]].shape, branch.column))


def _without(shape: tuple[Any, ...], dim: int) -> tuple[Any, ...]:
    return shape[:dim] + shape[dim + 1:]


def _with(shape: tuple[Any, ...], dim: int, extent: Any) -> tuple[Any, ...]:
    return (*shape[:dim], extent, *shape[dim + 1:])
