"""Rows that become columns: the same bits at every size around a square's, on each CPU, in memory that ends there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tsc
from tests.graph.models import model
from tests.memory.cases import Case
from tests.memory.cases import lacking as lacking_machine
from tests.memory.guarded import check_guarded
from tests.memory.sanitized import SANITIZERS, lacking, prepared, run_sanitized
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
def test_nothing_is_turned(target: str) -> None:
    executable = tsc.compile(turned("float"), dims={"r": (0, 64), "c": (0, 64)}, target=target)
    for shape in ((0, 5), (5, 0), (0, 0), (1, 1), (17, 3)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(executable.run(None, {"x": x})[0], x.T)


@on_each_cpu
@pytest.mark.parametrize("kind", ["address", "undefined-gcc"])
def test_sanitizers_have_nothing_to_say(kind: str, target: str) -> None:
    sanitizer = SANITIZERS[kind]
    if reason := lacking_machine(target, sanitizer.compiler) or lacking(sanitizer):
        pytest.skip(reason)
    feeds = tuple({"x": np.ones(shape, np.float32)} for shape in SIZES)
    case = Case("turned", turned("float"), None, {"x": ("r", "c")}, feeds)
    assert run_sanitized(sanitizer, prepared([case], target, 4)) == []


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
