"""Rows that become columns: the same bits at every size around a square's, on each CPU, in memory that ends there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tsc
from tests.graph.models import model
from tests.memory.guarded import check_guarded
from tsc.codegen_c.specs import CPU_SPECS
from tsc.runtime.drivers.cpu import read_cpu_flags

#: Rows and columns, around whole squares of 4, 8 and 16.
SIZES = ((1, 1), (4, 16), (16, 16), (17, 33), (15, 47), (1, 40), (40, 1), (31, 8))


on_each_cpu = pytest.mark.parametrize("target", [
    pytest.param(name, marks=pytest.mark.skipif(bool({*spec.cpu_flags} - read_cpu_flags()), reason="this CPU cannot run it"))
    for name, spec in CPU_SPECS.items()])


def turned(kind: str) -> onnx.ModelProto:
    return model("y = Transpose <perm=[1, 0]> (x)", f"{kind}[r, c] x", f"{kind}[c, r] y")


@on_each_cpu
@pytest.mark.parametrize("kind", ["float", "int32", "uint32"])
def test_a_transpose(kind: str, target: str) -> None:
    executable, rng = tsc.compile(turned(kind), target=target), np.random.default_rng(0)
    for rows, columns in SIZES:
        bits = rng.integers(0, 1 << 32, (rows, columns), np.uint32)  # numbers of all kinds: infinite, denormal, none
        x = bits.view({"float": np.float32, "int32": np.int32, "uint32": np.uint32}[kind])
        (y,) = check_guarded(executable, {"x": x})
        np.testing.assert_array_equal(y.view(np.uint32), bits.T)


@on_each_cpu
def test_a_product_with_a_transposed_matrix(target: str) -> None:
    nodes = "t = Transpose <perm=[0, 2, 1]> (k) y = MatMul (q, t)"
    proto = model(nodes, "float[b, s, d] q, float[b, t, d] k", "float[b, s, t] y")
    executable, rng = tsc.compile(proto, target=target), np.random.default_rng(1)
    assert len(executable.launches) == 1
    for rows, columns in SIZES:
        q, k = (rng.standard_normal((2, n, 21 if columns < 40 else 64), np.float32) for n in (rows, columns))
        (y,) = check_guarded(executable, {"q": q, "k": k})
        np.testing.assert_allclose(y, np.float64(q) @ np.float64(k).transpose(0, 2, 1), rtol=2e-5, atol=2e-5)
