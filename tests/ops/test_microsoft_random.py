"""ONNX Runtime's fused operators with random attributes, operands left out and sizes, all symbolic, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc

Array = np.ndarray[Any, Any]
#: How many draws of each operator, by default and with `-m slow`.
FEW, MANY = 1, 40
#: Sizes of a dim in a model's runs.
RUNS = 3


@dataclass
class Draw:
    """A node with operands whose dims are names or sizes, and what values of an operand are drawn from."""

    op: str
    rng: Random
    inputs: list[str] = field(default_factory=list)
    dims: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    values: dict[str, Callable[[Array, tuple[int, ...], dict[str, int]], Array]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    sizes: list[dict[str, int]] = field(default_factory=list)

    def operand(self, *dims: str | int) -> None:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.dims[name], self.kinds[name] = dims, TensorProto.FLOAT

    def whole(self, *dims: str | int, below: Callable[[dict[str, int]], int], least: int = 0) -> None:
        self.operand(*dims)
        name = self.inputs[-1]
        self.kinds[name] = TensorProto.INT32
        self.values[name] = lambda rng, shape, run: rng.integers(least, max(least + 1, below(run)), shape).astype(np.int32)

    def absent(self, count: int = 1) -> None:
        self.inputs += [""] * count

    def maybe(self, *dims: str | int) -> bool:
        """An operand, or none."""
        chosen = self.rng.random() < 0.5
        self.operand(*dims) if chosen else self.absent()
        return chosen

    def model(self) -> onnx.ModelProto:
        while self.inputs and not self.inputs[-1]:
            self.inputs.pop()
        outputs = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, self.inputs, outputs, "node", domain="com.microsoft", **self.attrs)
        inputs = [helper.make_tensor_value_info(n, self.kinds[n], self.dims[n]) for n in self.inputs if n]
        infos = [helper.make_value_info(n, onnx.TypeProto()) for n in outputs]
        graph = helper.make_graph([node], "random", inputs, infos)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self, run: dict[str, int], seed: int) -> dict[str, Array]:
        rng, found = np.random.default_rng(seed), {}
        for name in filter(None, self.inputs):
            shape = tuple(run[d] if isinstance(d, str) else d for d in self.dims[name])
            draw = self.values.get(name)
            found[name] = rng.standard_normal(shape, np.float32) if draw is None else draw(rng, shape, run)
        return found


def _runs(d: Draw, **most: int) -> list[dict[str, int]]:
    """Sizes of each run: 1, and what is random."""
    return [{name: 1 if d.rng.random() < 0.2 else d.rng.randint(1, size) for name, size in most.items()} for _ in range(RUNS)]


def _elementwise(d: Draw) -> None:
    d.op = d.rng.choice(("Gelu", "FastGelu", "BiasGelu", "QuickGelu"))
    d.operand("a", "b", "c")
    if d.op == "BiasGelu" or (d.op == "FastGelu" and d.rng.random() < 0.5):
        d.operand("c")
    if d.op == "QuickGelu":
        d.attrs["alpha"] = d.rng.choice((1.0, 1.702, -0.5))
    d.sizes = _runs(d, a=3, b=5, c=40)


def _product(d: Draw) -> None:
    rank = d.rng.choice((2, 3, 4))
    batch = ["p", "q"][:rank - 2]
    d.attrs = {name: d.rng.randint(0, 1) for name in ("transA", "transB")} | {"alpha": d.rng.choice((1.0, 0.125))}
    sides = (["m", "k"], ["k", "n"])
    for side, own in zip("AB", sides):
        if rank == 3 and d.rng.random() < 0.4:
            d.attrs[f"transBatch{side}"] = 1
            first, last = reversed(own) if d.attrs[f"trans{side}"] else own
            d.operand(first, *batch, last)
        else:
            d.operand(*batch, *(reversed(own) if d.attrs[f"trans{side}"] else own))
    d.sizes = _runs(d, p=3, q=4, m=20, k=30, n=25)


def _norm(d: Draw) -> None:
    simplified = d.op.startswith("SkipSimplified")
    d.operand("b", "l", "h")
    d.operand(*d.rng.choice((("b", "l", "h"), ("l", "h"), (1, "l", "h"))))
    d.operand("h")
    if not simplified:
        d.maybe("h")
    d.maybe("h")
    d.attrs["epsilon"] = d.rng.choice((1e-5, 0.5))
    d.sizes = _runs(d, b=3, l=9, h=40)


def _mask(d: Draw, rows: str, total: str) -> None:
    """A mask of any kind, or none. Each row sees a key at least: where it sees none, -10000 is added to all its scores, which
    leaves three digits of them in float32."""
    kind = d.rng.choice(("none", "lengths", "keys", "rows"))
    if kind == "none":
        d.absent()
    elif kind == "lengths":
        d.whole("b", below=lambda run: run[total] + 1, least=1)
    else:
        d.whole(*(("b", total) if kind == "keys" else ("b", rows, total)), below=lambda run: 2)
        name = d.inputs[-1]
        drawn = d.values[name]
        d.values[name] = lambda rng, shape, run: np.where(
            np.arange(shape[-1]) == 0, 1, drawn(rng, shape, run)).astype(np.int32)


def _attention(d: Draw) -> None:
    heads, size = d.rng.choice((1, 2, 3)), d.rng.choice((4, 8, 5))
    width, past = heads * size, d.rng.random() < 0.4
    d.attrs = {"num_heads": heads, "unidirectional": d.rng.randint(0, 1)}
    if d.rng.random() < 0.3:
        d.attrs["scale"] = 0.3
    d.operand("b", "l", 6)
    d.operand(6, 3 * width)
    d.maybe(3 * width)
    _mask(d, "l", "t")
    if past:
        d.operand(2, "b", heads, "p", size)
        d.outputs = 2
    else:
        d.absent()
    if not past and d.rng.random() < 0.3:
        d.operand(*d.rng.choice((("b", heads, "l", "t"), (1, heads, "l", "t"), ("b", 1, "l", "t"))))
    d.sizes = _runs(d, b=3, l=9, p=5)
    for run in d.sizes:
        run["t"] = run["l"] + (run["p"] if past else 0)


def _multi_head(d: Draw) -> None:
    heads, size = d.rng.choice((1, 2, 3)), d.rng.choice((4, 8))
    value, past = size if (cached := d.rng.random() < 0.4) else d.rng.choice((size, 6)), cached
    keys = "l" if past else "m"
    d.attrs = {"num_heads": heads}
    d.operand("b", "l", heads * size)
    d.operand("b", keys, heads * size)
    d.operand("b", keys, heads * value)
    d.maybe(heads * (2 * size + value))
    _mask(d, "l", "t")
    d.maybe(*d.rng.choice((("b", heads, "l", "t"), (1, heads, "l", "t"))))
    if past:
        d.operand("b", heads, "p", size)
        d.operand("b", heads, "p", value)
        d.outputs = 3
    d.sizes = _runs(d, b=3, l=9, m=11, p=5)
    for run in d.sizes:
        run["t"] = run["l"] + run["p"] if past else run["m"]


def _rotary(d: Draw) -> None:
    heads, half = d.rng.choice((1, 2, 4)), d.rng.choice((4, 8))
    size = 2 * half + d.rng.choice((0, 0, 8))
    d.attrs = {"interleaved": d.rng.randint(0, 1)}
    if d.rng.random() < 0.5:
        d.operand("b", heads, "l", size)
        if size > 2 * half:
            d.attrs |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    else:
        d.operand("b", "l", heads * size)
        if size > 2 * half:
            d.attrs |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    d.whole(*d.rng.choice((("b", "l"), (1,))), below=lambda run: 20)
    name = d.inputs[-1]
    whole, d.kinds[name] = d.values[name], TensorProto.INT64
    d.values[name] = lambda rng, shape, run: whole(rng, shape, run).astype(np.int64)
    d.operand(40, half)
    d.operand(40, half)
    d.sizes = _runs(d, b=3, l=9)


KINDS: dict[str, Callable[[Draw], None]] = {
    "Gelu": _elementwise, "FusedMatMul": _product, "SkipLayerNormalization": _norm, "SkipSimplifiedLayerNormalization": _norm,
    "Attention": _attention, "MultiHeadAttention": _multi_head, "RotaryEmbedding": _rotary}
CASES = [pytest.param(op, seed, marks=() if seed < FEW else pytest.mark.slow) for op in KINDS for seed in range(MANY)]


@pytest.mark.parametrize(("op", "seed"), CASES)
def test_any(op: str, seed: int) -> None:
    draw = Draw(op, Random(f"{op} {seed}"))
    KINDS[op](draw)
    proto = draw.model()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    compiled = tsc.compile(proto, threads=1)
    for number, run in enumerate(draw.sizes):
        feeds = draw.feeds(run, number)
        for got, want in zip(compiled.run(None, feeds), session.run(None, feeds), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{draw.attrs} {draw.dims} {run}")
