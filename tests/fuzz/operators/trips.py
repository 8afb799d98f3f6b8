"""Recipes of Loop and Scan, over whole numbers, which no sum rounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.elementwise import Recipe
from tests.fuzz.operators.values import Draw

_UNARY = ("Neg", "Abs", "Identity", "Sign", "Relu")
_BINARY = ("Add", "Sub", "Max", "Min")


def whole(low: int, high: int, dtype: str = "float32") -> Draw:
    """Whole numbers of [low, high)."""
    return lambda gen, shape, sizes: np.asarray(gen.integers(low, high, shape), dtype)


class _Body:
    """A graph in the making: its nodes, and names that nobody else has."""

    def __init__(self, d: Draft, prefix: str) -> None:
        self.d, self.nodes, self._names = d, list[NodeProto](), self._fresh(prefix)

    @staticmethod
    def _fresh(prefix: str) -> Iterator[str]:
        return (f"{prefix}{k}" for k in itertools.count())

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        made = next(self._names)
        self.nodes.append(helper.make_node(op, list(inputs), [made], **attributes))
        return made

    def some(self, values: Sequence[str]) -> str:
        """A value made of some of these, which have one shape."""
        value = self.d.rng.choice(values)
        for _ in range(self.d.rng.randint(1, 3)):
            if self.d.chance(0.4):
                value = self.add(self.d.rng.choice(_UNARY), value)
            else:
                value = self.add(self.d.rng.choice(_BINARY), value, self.d.rng.choice(values))
        return value

    def graph(self, name: str, inputs: Sequence[tuple[str, int, int]], outputs: Sequence[str],
              held: Sequence[TensorProto] = ()) -> GraphProto:
        """With inputs of some element type and rank each."""
        given = [helper.make_tensor_value_info(value, kind, [None] * rank) for value, kind, rank in inputs]
        return helper.make_graph(self.nodes, name, given, [helper.make_value_info(v, onnx.TypeProto()) for v in outputs], held)


def loop(d: Draft) -> None:
    """States of one shape, by chance one that grows; slices; and an end that comes early."""
    dims: Dims = d.extents(d.rng.randint(0, 2))
    states = [d.operand(dims, "float32", whole(-2, 3)) for _ in range(d.rng.randint(1, 3))]
    outside = d.operand(dims, "float32", whole(-2, 3))
    body = _Body(d, "w")
    own = [f"s{k}" for k in range(len(states))]
    number = body.add("Cast", "i", to=TensorProto.FLOAT)
    pool = [*own, outside, body.add("Add", d.rng.choice(own), number)]
    made = [d.rng.choice(own) if d.chance(0.2) else body.some(pool) for _ in own]
    slices = [body.some(pool) for _ in range(d.rng.choice((0, 1, 2)))]
    if dims and d.chance(0.4):  # one more row in each trip
        axis = d.rng.randrange(len(dims))
        states.append(d.operand(dims, "float32", whole(-2, 3)))
        own.append("grown")
        made.append(body.add("Concat", "grown", outside, axis=axis))
    held = [numpy_helper.from_array(np.array(d.rng.choice((2, 5, 9)), np.float32), "limit")]
    match d.rng.randrange(4):
        case 0:
            goes_on = body.add("Less", number, "limit")
        case 1:
            largest = body.add("ReduceMax", body.add("Abs", own[0]), keepdims=0)
            goes_on = body.add("Less", largest, "limit")
        case _:
            goes_on, held = body.add("Identity", "c"), []
    inputs = [("i", TensorProto.INT64, 0), ("c", TensorProto.BOOL, 0), *((name, TensorProto.FLOAT, len(dims)) for name in own)]
    trips = d.constant(whole(0, 5, "int64"), ())
    begins = "" if d.chance(0.5) else d.constant(lambda gen, shape, sizes: np.asarray(gen.random(shape) < 0.8), (), "bool")
    d.node("Loop", [trips, begins, *states], len(made) + len(slices),
           body=body.graph("body", inputs, [goes_on, *made, *slices], held))


def scan(d: Draft) -> None:
    """Along any axes, from either end; slices of each trip along any axis."""
    dims = d.extents(d.rng.randint(0, 2))
    length, count, scanned = d.size(1, 9), d.rng.randint(0, 2), d.rng.randint(1, 2)
    states = [d.operand(dims, "float32", whole(-2, 3)) for _ in range(count)]
    axes = [d.rng.randrange(len(dims) + 1) for _ in range(scanned)]
    taken = [d.operand((*dims[:a], length, *dims[a:]), "float32", whole(-2, 3)) for a in axes]
    body, own = _Body(d, "w"), [f"s{k}" for k in range(count)]
    pool = [*own, *(f"e{k}" for k in range(scanned))]
    made, slices = [body.some(pool) for _ in own], [body.some(pool) for _ in range(d.rng.randint(0 if count else 1, 2))]
    inputs = [(name, TensorProto.FLOAT, len(dims)) for name in pool]
    ways = {"scan_input_axes": axes if d.chance(0.8) or any(axes) else None,
            "scan_input_directions": d.maybe(0.5, [d.rng.choice((0, 1)) for _ in taken]),
            "scan_output_axes": d.maybe(0.5, [d.rng.randrange(len(dims) + 1) for _ in slices]) if slices else None,
            "scan_output_directions": d.maybe(0.5, [d.rng.choice((0, 1)) for _ in slices]) if slices else None}
    d.node("Scan", [*states, *taken], count + len(slices), num_scan_inputs=scanned,
           body=body.graph("body", inputs, [*made, *slices]), **ways)


RECIPES: dict[str, Recipe] = {"Loop": loop, "Scan": scan}
