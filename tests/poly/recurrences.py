"""Programs that carry values along an axis, and what they compute as loops over NumPy arrays in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.poly.programs import at, axis, buffer
from tests.poly.support import inputs_for
from tsc.te.compute import MAX, SUM, Axis, Carried, Compute, Program, SizeParam
from tsc.te.expr import Buffer, Const, Expr, Load, Var, add, call, index, mul, select

Array = NDArray[Any]


@dataclass(frozen=True)
class Example:
    """A Program and its meaning: all outputs from all inputs."""

    program: Program
    meaning: Callable[[Mapping[str, Array]], dict[str, Array]]

    def inputs(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Random inputs; weights are so small that a state forgets what it was, and roundings with it."""
        found = inputs_for(self.program, sizes)
        return {name: x / np.float32(2 * np.sqrt(len(x))) if name == "w" else x for name, x in found.items()}


def earlier(target: Buffer, axes: tuple[Axis, ...], along: int = 0, reverse: bool = False, first: float = 0.0) -> Expr:
    """The element of the trip before at these axes; `first` where there is none."""
    place: list[Expr] = [Var(a.name) for a in axes]
    size = index(target.shape[along])
    place[along] = add(place[along], index(1 if reverse else -1))
    inside = call("lt", place[along], size) if reverse else call("lt", index(0), Var(axes[along].name))
    return select(inside, Load(target, tuple(place)), Const(first, "float32"))


def sigmoid(x: Expr) -> Expr:
    one = Const(1.0, "float32")
    return call("div", one, add(one, call("exp", call("neg", x))))


def summed(along: int, reverse: bool = False) -> Example:
    """A running sum along an axis."""
    x, s, axes = buffer("x", "R", "T"), buffer("s", "R", "T"), (axis("r", "R"), axis("t", "T"))
    body = add(at(x, *axes), earlier(s, axes, along, reverse))
    made = Compute(s, axes, body, carried=Carried("sum", axes[along].name, reverse))

    def meaning(given: Mapping[str, Array]) -> dict[str, Array]:
        turned = np.flip(given["x"], along) if reverse else given["x"]
        total = np.cumsum(turned, along)
        return {"s": np.flip(total, along) if reverse else total}

    return Example(Program((x,), (s,), (made,), (SizeParam("R"), SizeParam("T"))), meaning)


def cell(hidden: int, reverse: bool = False) -> Example:
    """h[t] = tanh(x[t] + h[t-1] w), as ONNX's RNN has it."""
    x, w = buffer("x", "T", "B", hidden), buffer("w", hidden, hidden)
    h, z = buffer("h", "T", "B", hidden), buffer("z", "T", "B", hidden)
    t, b, i, k = axis("t", "T"), axis("b", "B"), axis("i", hidden), axis("k", hidden)
    own = (axis("u", "T"), axis("c", "B"), axis("j", hidden))
    product = mul(at(w, k, i), earlier(h, (t, b, k), 0, reverse))
    computes = (Compute(z, (t, b, i), product, (k,), SUM, Carried("cell", "t", reverse)),
                Compute(h, own, call("tanh", add(at(x, *own), at(z, *own))), carried=Carried("cell", "u", reverse)))

    def meaning(given: Mapping[str, Array]) -> dict[str, Array]:
        result, state = np.empty_like(given["x"]), np.zeros(given["x"].shape[1:])
        steps = range(len(result))
        for step in reversed(steps) if reverse else steps:
            state = np.tanh(given["x"][step] + state @ given["w"])
            result[step] = state
        return {"h": result}

    return Example(Program((x, w), (h,), computes, (SizeParam("T"), SizeParam("B"))), meaning)


def gated(hidden: int) -> Example:
    """Two states, one of them seen only inside: an LSTM without biases, gates in the order i, o, f, c."""
    x, w = buffer("x", "T", "B", 4 * hidden), buffer("w", hidden, 4 * hidden)
    g, s, h = buffer("g", "T", "B", 4 * hidden), buffer("s", "T", "B", hidden), buffer("h", "T", "B", hidden)
    t, b, q, k = axis("t", "T"), axis("b", "B"), axis("q", 4 * hidden), axis("k", hidden)
    inner, outer = ((axis(f"t{n}", "T"), axis(f"b{n}", "B"), axis(f"i{n}", hidden)) for n in (1, 2))

    def gate(number: int, axes: tuple[Axis, ...]) -> Expr:
        place = tuple(Var(a.name) for a in axes)
        place = (*place[:2], add(place[2], index(number * hidden)))
        return add(Load(x, place), Load(g, place))

    kept = mul(sigmoid(gate(2, inner)), earlier(s, inner))
    new = mul(sigmoid(gate(0, inner)), call("tanh", gate(3, inner)))
    computes = (
        Compute(g, (t, b, q), mul(at(w, k, q), earlier(h, (t, b, k))), (k,), SUM, Carried("gated", "t")),
        Compute(s, inner, add(kept, new), carried=Carried("gated", "t1")),
        Compute(h, outer, mul(sigmoid(gate(1, outer)), call("tanh", at(s, *outer))), carried=Carried("gated", "t2")))

    def meaning(given: Mapping[str, Array]) -> dict[str, Array]:
        steps, rows = given["x"].shape[:2]
        result, state, memory = np.empty((steps, rows, hidden)), np.zeros((rows, hidden)), np.zeros((rows, hidden))
        for step in range(steps):
            i, o, f, c = np.split(given["x"][step] + state @ given["w"], 4, axis=1)
            memory = memory / (1 + np.exp(-f)) + np.tanh(c) / (1 + np.exp(-i))
            state = np.tanh(memory) / (1 + np.exp(-o))
            result[step] = state
        return {"h": result}

    return Example(Program((x, w), (h,), computes, (SizeParam("T"), SizeParam("B"))), meaning)


def between() -> Example:
    """A running sum of what is made before, less the greatest of its row, which is made behind."""
    x, u, s, m, y = (buffer(n, *d) for n, d in (("x", "RT"), ("u", "RT"), ("s", "RT"), ("m", "R"), ("y", "RT")))
    first, own, over, last = ((axis(f"r{n}", "R"), axis(f"t{n}", "T")) for n in range(4))
    computes = (
        Compute(u, first, mul(at(x, *first), at(x, *first))),
        Compute(s, own, add(at(u, *own), earlier(s, own, 1)), carried=Carried("sum", "t1")),
        Compute(m, over[:1], at(s, *over), over[1:], MAX),
        Compute(y, last, call("sub", at(s, *last), at(m, last[0]))))

    def meaning(given: Mapping[str, Array]) -> dict[str, Array]:
        total = np.cumsum(given["x"] ** 2, 1)
        return {"y": total - total.max(1, keepdims=True)}

    return Example(Program((x,), (y,), computes, (SizeParam("R"), SizeParam("T"))), meaning)


def both_ways() -> Example:
    """A running sum forwards, one of it backwards, and both added."""
    x, f, g, y = (buffer(n, "R", "T") for n in "xfgy")
    there, back, last = ((axis(f"r{n}", "R"), axis(f"t{n}", "T")) for n in range(3))
    computes = (
        Compute(f, there, add(at(x, *there), earlier(f, there, 1)), carried=Carried("there", "t0")),
        Compute(g, back, add(at(f, *back), mul(Const(0.5, "float32"), earlier(g, back, 1, True))),
                carried=Carried("back", "t1", True)),
        Compute(y, last, add(at(f, *last), at(g, *last))))

    def meaning(given: Mapping[str, Array]) -> dict[str, Array]:
        forwards = np.cumsum(given["x"], 1)
        backwards, state = np.empty_like(forwards), np.zeros(len(forwards))
        for step in reversed(range(forwards.shape[1])):
            state = forwards[:, step] + 0.5 * state
            backwards[:, step] = state
        return {"y": forwards + backwards}

    return Example(Program((x,), (y,), computes, (SizeParam("R"), SizeParam("T"))), meaning)


EXAMPLES: dict[str, Callable[[], Example]] = {
    "sum_of_rows": lambda: summed(1), "sum_of_columns": lambda: summed(0), "sum_backwards": lambda: summed(1, True),
    "columns_backwards": lambda: summed(0, True), "cell": lambda: cell(5), "wide_cell": lambda: cell(33),
    "cell_backwards": lambda: cell(4, True), "gated": lambda: gated(3), "between": between, "both_ways": both_ways}
