"""Operators of very many operands."""

from __future__ import annotations

import numpy as np
import pytest

import tsc
from tests.graph.models import model
from tsc.pipeline import front
from tsc.targets import find
from tsc.trace import Recorder

pytestmark = pytest.mark.defect(14)


@pytest.mark.parametrize("count", [110, pytest.param(300, marks=pytest.mark.slow)])
def test_concat(count: int) -> None:
    """Each piece of another size than its neighbours, and another value."""
    x = {f"x{k}": np.full(k % 3 + 1, k, np.float32) for k in range(count)}
    inputs = ", ".join(f"float[{len(value)}] {name}" for name, value in x.items())
    executable = tsc.compile(model(f"y = Concat<axis = 0>({', '.join(x)})", inputs, "float[m] y"))
    np.testing.assert_array_equal(executable.run(None, x)[0], np.concatenate(list(x.values())))


@pytest.mark.parametrize("count", [301, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", ["Sum", "Max", "Mean"])
def test_elementwise(op: str, count: int) -> None:
    x, z = np.float32([1, -2, 3]), np.float32([0.5, 0.25, 4])
    operands = ["x"] * (count - 1) + ["z"]
    executable = tsc.compile(model(f"y = {op}({', '.join(operands)})", "float[n] x, float[n] z", "float[n] y"))
    total = x.astype(np.float64) * (count - 1) + z
    want = {"Sum": total, "Max": np.maximum(x, z), "Mean": total / count}[op]
    np.testing.assert_allclose(executable.run(None, {"x": x, "z": z})[0], want, rtol=1e-5)


@pytest.mark.defect(33)
@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_a_chain_of_norms(count: int) -> None:
    """Kernels of a dozen norms each, alike but for the first and the last, in place of one that isl cannot schedule."""
    body = "\n".join(f"y{k + 1} = RMSNormalization<axis = -1>(y{k}, s)" for k in range(count))
    text = f"y0 = Identity(x)\n{body}\ny = Identity(y{count})"
    norms = model(text, "float[n, 8] x, float[8] s", "float[n, 8] y", opset=23)
    executable = tsc.compile(norms)
    x = np.random.default_rng(count).normal(size=(5, 8)).astype(np.float32)
    s = np.linspace(0.5, 1.5, 8, dtype=np.float32)
    want = x.astype(np.float64)
    for _ in range(count):
        want = want / np.sqrt((want * want).mean(-1, keepdims=True) + 1e-5) * s
    np.testing.assert_allclose(executable.run(None, {"x": x, "s": s})[0], want, rtol=1e-4, atol=1e-6)
    calls = front(norms, None, Recorder(), find("cpu"))[2]
    assert 2 <= len(calls) <= 2 + count // 8 and all(len(group.outputs) <= 3 for group in calls)
