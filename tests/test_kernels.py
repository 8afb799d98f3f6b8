"""What was compiled or refused before is not scheduled again: within one compilation, and from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tsc import kernels, targets, te
from tsc.explain import explain_node
from tsc.loop_ir.nodes import For, Func, walk
from tsc.ops.base import PatternKind
from tsc.plan.kernel import Refusal, kernel_from_bytes, kernel_to_bytes
from tsc.poly import PatternMismatch, scop
from tsc.poly.pattern.contraction import Contraction
from tsc.poly.pattern.stencil import Stencil
from tsc.runtime.interface import wrong_sizes
from tsc.sym import OversizeError, dim
from tsc.te.compute import Axis, Compute, Program, SizeParam
from tsc.te.dsl import assemble
from tsc.te.expr import Buffer, Load, Var
from tsc.te.passes import transform
from tsc.trace import Recorder


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are looked at by the polyhedral stage from now on."""
    names: list[str] = []
    function = kernels.schedule_program

    def noted(*arguments: Any) -> object:
        names.append(arguments[4])
        return function(*arguments)

    monkeypatch.setattr(kernels, "schedule_program", noted)
    return names


def layers(count: int) -> onnx.ModelProto:
    """Equal layers with weights of their own: matrix product, softmax, all of it kept."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((24, 24)).astype(np.float32), f"w{k}") for k in range(count)]
    nodes = []
    for k in range(count):
        nodes += [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"y{k}"]), helper.make_node("Relu", [f"y{k}"], [f"x{k + 1}"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 24]) for name in ("x0", f"x{count}")]
    return helper.make_model(helper.make_graph(nodes, "layers", value[:1], value[1:], weights),
                             opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_equal_groups_are_scheduled_once_without_a_cache(scheduled: list[str]) -> None:
    model = layers(4)
    executable = tsc.compile(model, options=tsc.Options(use_cache=False))
    assert executable.stats["launches"] > len(scheduled) == executable.stats["kernels"]
    x = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x0": x})[0]
    np.testing.assert_allclose(executable.run(None, {"x0": x})[0], expected, rtol=1e-4, atol=1e-4)


def products() -> list[te.Tensor]:
    """Two products of unlike shapes with a reduction over both, which no kernel takes together."""
    m, k = te.dim("M"), te.dim("K")
    a, b = te.placeholder((m, k), "float32", "a"), te.placeholder((k, m), "float32", "b")
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(m, "s")
    c = te.compute((m, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    return [te.compute((m, m), lambda i, j: te.sum(c[i, s] * c[s, j], axis=s), "d"), c]


def test_nothing_is_scheduled_again_not_even_what_was_refused(scheduled: list[str], tmp_path: Path) -> None:
    options = tsc.Options(cache_dir=tmp_path)
    first = tsc.build(products(), options=options)
    made = len(scheduled)
    second = tsc.build(products(), options=options)
    assert made > first.stats["kernels"] and len(scheduled) == made
    assert "split: d: not in the kernel of c: " in first.explain() and first.explain() == second.explain()
    a, b = (np.random.default_rng(2).standard_normal(shape).astype(np.float32) for shape in ((9, 4), (4, 9)))
    product = a.astype(np.float64) @ b
    for executable in (first, second):
        np.testing.assert_allclose(executable.run(None, {"a": a, "b": b})[0], product @ product, rtol=1e-4, atol=1e-4)


def test_a_model_from_the_cache_asks_isl_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor whether Programs may be shared, or compiled for wider ranges."""
    rng, widths = np.random.default_rng(6), (64, 128, 192, 256)
    weights = [numpy_helper.from_array(rng.standard_normal((w, 40)).astype(np.float32), f"w{w}") for w in widths]
    nodes = [helper.make_node("MatMul", [f"x{w}", f"w{w}"], [f"y{w}"]) for w in widths]
    inputs = [helper.make_tensor_value_info(f"x{w}", TensorProto.FLOAT, ["n", w]) for w in widths]
    outputs = [helper.make_tensor_value_info(f"y{w}", TensorProto.FLOAT, ["n", 40]) for w in widths]
    model = helper.make_model(helper.make_graph(nodes, "shared", inputs, outputs, weights),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def compiled() -> tsc.Executable:
        return tsc.compile(model, {"n": (1, 500)}, options=tsc.Options(cache_dir=tmp_path))

    first = compiled()
    monkeypatch.setattr(scop, "_sizes", None)
    second = compiled()
    assert "one kernel for 4 Programs" in first.explain() and first.explain() == second.explain()


def test_a_model_from_the_cache_is_not_scheduled(scheduled: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        executable = tsc.compile(layers(2), options=tsc.Options(cache_dir=tmp_path))
        assert len(scheduled) == executable.stats["kernels"]


def test_a_range_that_no_kernel_uses_is_in_no_key(scheduled: list[str], tmp_path: Path) -> None:
    model = layers(2)
    x = np.random.default_rng(3).standard_normal((300, 24)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x0": x})[0]
    for most in (300, 1024, None, 64):
        executable = tsc.compile(model, {"n": (1, most)}, options=tsc.Options(cache_dir=tmp_path))
        assert len(scheduled) == executable.stats["kernels"] == 1
        found = executable.run(None, {"x0": x[:most]})[0]
        np.testing.assert_allclose(found, expected[:most], rtol=1e-4, atol=1e-4)
    with pytest.raises(tsc.ShapeError, match="n"):
        executable.run(None, {"x0": x[:65]})
    tsc.compile(model, {"n": (1, 12)}, options=tsc.Options(cache_dir=tmp_path))  # fewer register tiles
    assert len(scheduled) == 2


def test_a_range_that_a_kernel_uses_is_in_its_key(scheduled: list[str], tmp_path: Path) -> None:
    """Positions of a table: without an end they would be read beyond it."""
    table = np.random.default_rng(4).standard_normal((100, 3)).astype(np.float32)
    n = te.dim("n", 1, 100)
    x, rows = te.placeholder((n, 3), "float32", "x"), te.constant(table, "table")
    sums = te.compute((n, 3), lambda i, j: x[i, j] + rows[i, j], "sums")
    for _ in range(2):
        kernel = tsc.build(sums, options=tsc.Options(cache_dir=tmp_path))
        assert len(scheduled) == 1
    a = np.ones((100, 3), np.float32)
    np.testing.assert_allclose(kernel.run(None, {"x": a})[0], table + 1, rtol=1e-6)
    with pytest.raises(tsc.TscError):
        kernel.run(None, {"x": np.ones((101, 3), np.float32)})


#: What is computed of x, whose first axis is at most 100 long, and of a table of 100 rows.
USES = {
    "the first rows of a table": "rows = Slice(table, zero, n) y = Add(x, rows)",
    "the last rows of a table": "m = Sub(n, one) y = Slice(table, m, hundred)",
    "zeros behind": "m = Sub(hundred, n) p = Concat<axis = 0>(zero, zero, m, zero) y = Pad(x, p)",
    "a table behind": "rows = Slice(table, n, hundred) y = Concat<axis = 0>(x, rows)",
    "sums of rows": "rows = Slice(table, zero, n) z = Mul(x, rows) y = ReduceSum<keepdims = 0>(z, one)",
    "sums of columns": "rows = Slice(table, zero, n) z = Mul(x, rows) y = ReduceSum<keepdims = 0>(z, zero)",
    "softmax of columns": "rows = Slice(table, zero, n) z = Mul(x, rows) y = Softmax<axis = 0>(z)",
    "a product": "t = Transpose(x) y = MatMul(x, t)"}


@pytest.mark.parametrize("use", USES)
def test_results_up_to_the_end_of_a_range(use: str, tmp_path: Path) -> None:
    """Whether a kernel needs the end or not, it is right up to it, beside a cache that knows it for another."""
    model = onnx.parser.parse_model(
        "<ir_version: 8, opset_import: ['' : 17]> g (float[N, 3] x) => (float y) <int64[1] zero = {0}, int64[1] one = {1}, "
        f"int64[1] hundred = {{100}}> {{ n = Shape<start = 0, end = 1>(x) {USES[use]} }}".replace("'", '"'))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(5)
    model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal((100, 3)).astype(np.float32), "table"))
    x = rng.standard_normal((100, 3)).astype(np.float32)
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    for most in (100, 70, 99, 12):
        executable = tsc.compile(model, {"N": (1, most)}, options=tsc.Options(cache_dir=tmp_path))
        for n in (1, most - 1, most):
            expected = oracle.run(None, {"x": x[:n]})[0]
            np.testing.assert_allclose(executable.run(None, {"x": x[:n]})[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reason", ["", "reduction: nothing is reduced; \u00fc"])
def test_a_refusal_is_read_back(reason: str) -> None:
    assert kernel_from_bytes(kernel_to_bytes(Refusal(reason))) == Refusal(reason)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"symbol": 1}', b'"refused"', b"3"])
def test_what_is_no_kernel_counts_as_absent(data: bytes, tmp_path: Path) -> None:
    shop = kernels.workshop("cpu", tsc.Options(cache_dir=tmp_path))
    shop.cache.put("key", data)
    assert kernels.known("key", shop) is None
    shop.cache.put("key", kernel_to_bytes(Refusal("why")))
    assert kernels.known("key", shop) == Refusal("why")


# -- loops that a check refuses --------------------------------------------------------------------------------

def _refusing(monkeypatch: pytest.MonkeyPatch, every: bool) -> None:
    """From now on a check refuses loops with vectors in them, or all loops."""
    accepted = targets.check_lowered

    def check(before: Func, after: Func, *rest: Any) -> Any:
        if every or any(isinstance(s, For) and s.kind == "vector" for s in walk(after.body)):
            raise tsc.InternalError("these lanes are not understood")
        return accepted(before, after, *rest)

    monkeypatch.setattr(targets, "check_lowered", check)


@pytest.mark.parametrize("op", ["matmul", "softmax"])
def test_refused_vectors_give_way_to_plain_loops(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, every=False)
    body = "MatMul(x, c)" if op == "matmul" else "Softmax(x)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 24] x, float[24, m] c) => (y) {{ y = {body} }}')
    rng = np.random.default_rng(0)
    for _ in range(2):  # the second time from the cache, where the complaint is kept
        with pytest.warns(tsc.SlowKernelWarning, match="these lanes are not understood"):
            executable = tsc.compile(model, options=tsc.Options(cache_dir=tmp_path, jobs=1))
        for n in (1, 7, 130):
            feeds = {"x": rng.standard_normal((n, 24), "f"), "c": rng.standard_normal((24, n + 1), "f")}
            wanted, = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
            np.testing.assert_allclose(executable.run(None, feeds)[0], wanted, rtol=1e-5, atol=1e-5)


def test_what_is_refused_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, every=False)
    text = explain_node(layers(1), "y0")
    assert "element by element, since vectors and tiles were refused: these lanes are not understood" in text


def test_what_is_refused_without_vectors_too_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _refusing(monkeypatch, every=True)
    with pytest.raises(tsc.InternalError, match="these lanes are not understood"):
        tsc.compile(layers(1), options=tsc.Options(use_cache=False, jobs=1))


# -- patterns that take too many operations --------------------------------------------------------------------

@pytest.fixture
def exhausting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the trees of windows and matrix products take more operations than a kernel may."""
    def tree(*_: Any) -> Any:
        raise PatternMismatch("its index expressions take too many operations")

    for pattern in (Stencil, Contraction):
        monkeypatch.setattr(pattern, "tree", tree)


@pytest.mark.usefixtures("exhausting")
@pytest.mark.parametrize("body", [
    "MatMul(x, w)", "Conv<pads = [2, 0, 1, 3]>(x, w)", "MaxPool<kernel_shape = [3, 2], pads = [1, 1, 0, 1]>(x)",
    "AveragePool<kernel_shape = [2, 3], dilations = [2, 1], ceil_mode = 1>(x)"])
def test_what_cannot_be_cut_is_made_by_plain_patterns(body: str) -> None:
    """With an epilogue that is cut off first."""
    model = onnx.parser.parse_model(f'''<ir_version: 8, opset_import: ["" : 19]>
        g (float[2, 3, n, 5] x, float[2, 3, 5, 4] w) => (y) {{ t = {body} y = Tanh(t) }}''')
    executable = tsc.compile(model, options=tsc.Options(use_cache=False, jobs=1))
    rng = np.random.default_rng(0)
    for n in (5, 6, 37):
        feeds = {"x": rng.standard_normal((2, 3, n, 5), "f"), "w": rng.standard_normal((2, 3, 5, 4), "f")}
        wanted, = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
        np.testing.assert_allclose(executable.run(None, feeds)[0], wanted, rtol=1e-5, atol=1e-5)
    assert "its index expressions take too many operations" in executable.explain()


@pytest.mark.usefixtures("exhausting")
def test_why_it_is_plain_is_explained() -> None:
    assert "--- by plain patterns\n  its index expressions take too many operations" in explain_node(layers(1), "y0")


@pytest.mark.usefixtures("exhausting")
def test_a_users_product_is_made_by_plain_patterns_too() -> None:
    m, n, k = te.dim("M"), te.dim("N"), te.dim("K")
    x, w = te.placeholder((m, k), "float32", "x"), te.placeholder((k, n), "float32", "w")
    r = te.reduce_axis(k, "r")
    product = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "product")
    kernel = tsc.build(product, options=tsc.Options(use_cache=False, jobs=1))
    rng = np.random.default_rng(0)
    for sizes in ((1, 1, 1), (7, 33, 19), (65, 2, 130)):
        feeds = {"x": rng.standard_normal(sizes[:2], "f"), "w": rng.standard_normal(sizes[1:], "f")}
        np.testing.assert_allclose(kernel.run(None, feeds)[0], feeds["x"].astype(np.float64) @ feeds["w"], rtol=1e-4, atol=1e-4)


# -- sizes of which no fact says enough ------------------------------------------------------------------------

def test_without_facts_kernels_say_what_they_need_of_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a window stays within its image, or half of a dim within the dim, is then held at each call."""
    monkeypatch.setattr(transform, "size_facts", lambda *names: ())
    model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 18]>
        g (float[1, 3, n, m] x) => (pooled, first, second, turned) {
            pooled = MaxPool <kernel_shape = [3, 2], strides = [2, 3]> (x)
            first, second = Split <axis = -1, num_outputs = 2> (x)
            start = Constant <value_ints = [-2]> ()
            end = Constant <value_ints = [-9]> ()
            axis = Constant <value_ints = [2]> ()
            step = Constant <value_ints = [-2]> ()
            turned = Slice (x, start, end, axis, step)
        }''')
    for _ in range(2):  # the second time from the cache
        executable = tsc.compile(model, options=tsc.Options(cache_dir=tmp_path, jobs=1))
        assert "each call is held to" in executable.explain()
        for n, m in ((3, 2), (8, 5), (9, 64), (33, 17)):
            x = np.random.default_rng(n).standard_normal((1, 3, n, m), "f")
            session = onnxruntime.InferenceSession(model.SerializeToString())
            for found, wanted in zip(executable.run(None, {"x": x}), session.run(None, {"x": x})):
                np.testing.assert_array_equal(found, wanted)


def test_a_call_that_breaks_what_a_kernel_needs_is_refused() -> None:
    m, n = dim("M"), dim("N")
    source, target = Buffer("x", "float32", (n,)), Buffer("y", "float32", (m,))
    copy = Compute(target, (Axis("i", m),), Load(source, (Var("i"),)))
    program = Program((source,), (target,), (copy,), (SizeParam("M"), SizeParam("N")))
    order = kernels.Order(program, PatternKind.ELEMENTWISE, frozenset(), targets.find("cpu"), "content")
    interface = kernels.make_kernel(order, "copy", Recorder(None, None)).interface
    assert wrong_sizes(interface, (4, 4)) is wrong_sizes(interface, (4, 9)) is None
    assert "its sizes break M - 1*N - 1 <= -1 at M=5, N=4" in (wrong_sizes(interface, (5, 4)) or "")


# -- indices that nothing holds within their extents -----------------------------------------------------------

def test_whatever_wrote_a_program_its_open_indices_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front end that forgets to: reads outside of `x` once went unseen."""
    monkeypatch.setattr(assemble, "_checked", lambda expr, ranges, notes: expr)
    m = te.dim("M")
    x, z = te.placeholder((te.dim("N"),), "float32", "x"), te.placeholder((m,), "float32", "z")
    exe = tsc.build(te.compute((m,), lambda i: x[te.cast(te.cast(i, "int32") * 3, "int64")] + z[i], "y"))
    feeds = {"x": np.arange(20, dtype=np.float32), "z": np.zeros(7, np.float32)}
    np.testing.assert_array_equal(exe.run(None, feeds)[0], feeds["x"][::3])
    with pytest.raises(tsc.InputError, match="out of bounds"):
        exe.run(None, {**feeds, "z": np.zeros(8, np.float32)})



def test_an_index_beyond_any_expression_is_a_reason_to_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As three reshapes in one kernel have it (program 1923 of seed 20272002): what is left has indices that can be written."""
    function, refused = kernels.schedule_program, []

    def limited(program: Program, *arguments: Any) -> object:
        if len(program.computes) > 3:
            refused.append(program)
            raise OversizeError("too many parts")
        return function(program, *arguments)

    monkeypatch.setattr(kernels, "schedule_program", limited)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        case (float[a, b] x) => (float[a, b] y) { s = Softmax <axis = 1> (x) t = Exp (s) y = Softmax <axis = 1> (t) }""")
    compiled = tsc.compile(model, options=tsc.Options(use_cache=False))  # which may know the kernel
    x = np.random.default_rng(0).standard_normal((3, 5), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(compiled.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=1e-5)
    assert refused and len(compiled.launches) > 1
