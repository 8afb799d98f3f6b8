"""Small files that would take all memory or time: refused by a typed error that names the limit, as soon as it is reached."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tsc
from tests.graph.models import model
from tests.graph.run_graph import front_end, run_graph
from tsc.config import Limits
from tsc.errors import LaunchError, ModelError, ShapeError, UnsupportedError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.shapes import infer_shapes
from tsc.ops.base import MOST_OPERANDS

pytestmark = pytest.mark.defect(15)


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < 30


def repeated(step: str, count: int, start: str = "s0 = Shape<start = 0, end = 1>(x)") -> onnx.ModelProto:
    """`step` again and again, `{i}` the one before and `{j}` the one it makes, over sizes."""
    steps = "\n".join(step.format(i=i, j=i + 1) for i in range(count))
    constants = "k = Constant<value_ints = [3]>()\n o = Constant<value_ints = [1]>()"
    return model(f"{constants}\n{start}\n{steps}\n y = Identity(s{count})", "float[n] x", "int64[1] y")


@pytest.mark.parametrize(("step", "count", "says"), [
    ("s{j} = Mul(s{i}, s{i})", 16, "factors"), ("s{j} = Mul(s{i}, s{i})", 2000, "factors"),
    ("s{j} = Add(s{i}, s{i})", 200, "bits"),
    ("a{i} = Div(s{i}, k)\n c{i} = Mod(s{i}, k)\n b{i} = Add(a{i}, o)\n s{j} = Mul(b{i}, c{i})", 40, "parts|inside"),
    ("a{i} = Div(s{i}, k)\n s{j} = Add(a{i}, o)", 60, "functions inside of one another")])
def test_sizes_that_grow_without_end(step: str, count: int, says: str) -> None:
    with pytest.raises(UnsupportedError, match=f"node '.*a size is an expression with more than .* ({says})"):
        infer_shapes(*import_onnx(repeated(step, count)))


def test_a_number_that_grows_without_end_wraps_around_as_kernels_do() -> None:
    executable = tsc.compile(repeated("s{j} = Mul(s{i}, s{i})", 40, "s0 = Constant<value_ints = [3]>()"))
    wanted = pow(3, 2**40, 2**64)
    assert executable.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [wanted - 2**64 if wanted >> 63 else wanted]


@pytest.mark.parametrize("long", ["30000", "b"])
@pytest.mark.parametrize(("body", "made", "wanted"), [
    ("CumSum(x, k)", "float[m, n] y", lambda x: x.cumsum(1)),
    ("ReduceMax<keepdims = 0>(x, k)", "float[m] y", lambda x: x.max(1)),
    ("Softmax<axis = 1>(x)", "float[m, n] y", lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    ("Relu(x)", "float[m, n] y", lambda x: x)], ids=["recurrence", "reduction", "rows", "elements"])
def test_long_axes_take_no_longer_to_compile(body: str, made: str, wanted: Callable[[Any], Any], long: str) -> None:
    """By their constant extent, or by their least: what is tried at sizes is tried at no smaller ones."""
    axis = "k = Constant<value_int = 1>()" if "CumSum" in body else "k = Constant<value_ints = [1]>()"
    executable = tsc.compile(model(f"{axis}\n y = {body}", f"float[a, {long}] x", made, opset=18),
                             dims={"b": (30000, None)} if long == "b" else None)
    x = np.arange(60000, dtype=np.float32).reshape(2, 30000) % 7
    np.testing.assert_allclose(executable.run(None, {"x": x})[0], wanted(x), rtol=1e-5)


def test_long_axes_take_little_memory_to_compile(tmp_path: Path) -> None:
    """What is compared at sizes is held in memory: ten million elements took 5 GB."""
    path = tmp_path / "long.onnx"
    body = "y = Softmax<axis = 1>(x)\n z = ReduceMax<axes = [1]>(x)"
    onnx.save(model(body, "float[a, 10000000] x", "float[m, n] y, float[k, l] z"), path)
    code = ("import resource, sys, tsc; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); "
            "print(tsc.compile(sys.argv[1]).stats['kernels'])")
    env = {**os.environ, "TSC_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0 and int(done.stdout) >= 1, done.stderr


def test_a_range_as_wide_as_memory_multiplied_again_and_again() -> None:
    """Beside what has no end at all: such a bound has more digits than a float can be made of."""
    steps = "\n".join(f"s{k + 1} = Mul(s{k}, s0)" for k in range(20))
    made = model(f"s0 = Shape<start = 0, end = 1>(x)\n{steps}\n y = ConstantOfShape(s20)", "float[n, m] x", "float[l] y")
    executable = tsc.compile(made, dims={"n": (1, 2**63 - 1)})
    for n in (1, 2):
        assert executable.run(None, {"x": np.ones((n, 2), np.float32)})[0].shape == (n**21,)
    with pytest.raises(LaunchError, match=r"an output would have 109418989131512359209 elements along an axis at m=2, n=9"):
        executable.run(None, {"x": np.ones((9, 2), np.float32)})


def test_a_product_of_many_sums() -> None:
    def product(rank: int) -> onnx.ModelProto:
        dims = [", ".join(f"{a}{k}" for k in range(rank)) for a in "pq"]
        body = "a = Shape(x)\n b = Shape(z)\n c = Add(a, b)\n y = ReduceProd<keepdims = 0>(c)"
        return model(body, f"float[{dims[0]}] x, float[{dims[1]}] z", "int64 y")

    with pytest.raises(UnsupportedError, match=r"'ReduceProd_3'.*more than 1024 terms"):
        infer_shapes(*import_onnx(product(14)))
    x, z = np.ones((2, 3, 4), np.float32), np.ones((5, 6, 7), np.float32)
    assert tsc.compile(product(3)).run(None, {"x": x, "z": z})[0] == 7 * 9 * 11


RANGE = "a = Constant<value_int = 0>()\n b = Constant<value_int = {}>()\n c = Constant<value_int = 1>()\n" \
        "r = Range(a, b, c)\n y = ReduceMax<keepdims = 0>(r)"


def test_a_value_that_no_machine_holds() -> None:
    with pytest.raises(UnsupportedError, match=r"'Range_3'.*more than 8589934592 elements.*Limits\(elements"):
        tsc.compile(model(RANGE.format(1 << 40), "float[n] x", "int64 y"))
    assert tsc.compile(model(RANGE.format(1000), "float[n] x", "int64 y")).run(None, {"x": np.ones(1, np.float32)})[0] == 999
    with pytest.raises(UnsupportedError, match="more than 999 elements"):
        tsc.compile(model(RANGE.format(1000), "float[n] x", "int64 y"), options=tsc.Options(limits=Limits(elements=999)))


def test_an_input_that_no_machine_holds() -> None:
    """Found by mutated files: the number of its elements is beyond what validation counts in, and beyond int64, in which
    decompositions write sizes."""
    with pytest.raises(UnsupportedError, match=r"input 'x' is .*more than 8589934592 elements.*Limits\(elements"):
        tsc.compile(model("y = ReduceSumSquare(x)", "float[3, 4611686018427387904, 5] x", "float[1, 1, 1] y"))
    with pytest.raises(UnsupportedError, match=r"'NonZero_0' .*a size of 69175290276410818560, which no machine has"):
        tsc.compile(model("y = NonZero(x)", "bool[3, 4611686018427387904, 5] x", "int64[3, k] y"))


def test_negative_sizes_and_many_dims() -> None:
    pad = model("p = Constant<value_ints = [-3, -3]>()\n y = Pad(x, p)", "float[5] x", "float[k] y")
    with pytest.raises((ModelError, ShapeError), match="Pad_1"):
        tsc.compile(pad)
    dims = ", ".join(f"d{k}" for k in range(64))
    with pytest.raises(UnsupportedError, match=r"rank 64, more than 16.*Limits\(rank"):
        tsc.compile(model("y = Transpose(x)", f"float[{dims}] x", f"float[{dims}] y"))


def test_what_is_folded_is_bounded_and_right_all_the_same() -> None:
    """Where the budget does not reach, the node runs with the model."""
    body = "k = Constant<value_ints = [40, 40]>()\n e = Expand(w, k)\n f = MatMul(e, e)\n y = Add(f, x)"
    weight = f"float[1, 40] w = {{{', '.join(map(str, range(40)))}}}"
    proto = model(body, "float[40, 40] x", "float[40, 40] y", weight)
    x = np.ones((40, 40), np.float32)
    want = np.broadcast_to(np.arange(40, dtype=np.float64), (40, 40))
    want = want @ want + x
    for folding in (1 << 29, 5000, 0):
        got = tsc.compile(proto, options=tsc.Options(limits=Limits(folding=folding))).run(None, {"x": x})[0]
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_as_many_nodes_as_the_limit() -> None:
    proto = model("a = Relu(x)\n b = Relu(a)\n y = Relu(b)", "float[n] x", "float[n] y")
    import_onnx(proto, limits=Limits(nodes=3))
    with pytest.raises(UnsupportedError, match=r"more than 2 nodes.*Limits\(nodes"):
        import_onnx(proto, limits=Limits(nodes=2))


@pytest.mark.parametrize(("op", "wanted"), [
    ("Sum", lambda xs: xs.sum(axis=0)), ("Mean", lambda xs: xs.mean(axis=0)), ("Max", lambda xs: xs.max(axis=0)),
    ("Min", lambda xs: xs.min(axis=0)), ("Concat<axis = 0>", np.concatenate)])
@pytest.mark.parametrize("count", [MOST_OPERANDS, MOST_OPERANDS + 1, 2000])
def test_many_operands_become_nodes_of_few(op: str, wanted: Callable[[Any], Any], count: int) -> None:
    names = [f"x{k}" for k in range(count)]
    graph, env = front_end(model(f"y = {op}({', '.join(names)})", ", ".join(f"float[n] {x}" for x in names), "float[m] y"))
    assert max(len(node.inputs) for node in graph.nodes) <= MOST_OPERANDS
    xs = np.random.default_rng(0).standard_normal((count, 5)).astype(np.float32)
    found, = run_graph(graph, env, dict(zip(names, xs)))
    np.testing.assert_allclose(found, wanted(xs.astype(np.float64)), rtol=1e-6, atol=1e-4)
