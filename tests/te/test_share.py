"""Programs equal up to constants: one Program stands for them and means the same; what has to be a number stays one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tsc
from tests.poly.programs import at, axis, buffer, gemm, softmax, v
from tests.poly.support import inputs_for
from tsc.codegen_c.cache import CompiledCache
from tsc.config import Options
from tsc.graph.fusion.to_te import LoweredGroup
from tsc.kernels import shared
from tsc.ops.base import PatternKind
from tsc.poly.scop import unproved
from tsc.sym import SymExpr, dim
from tsc.te.compute import SUM, Compute, Program, SizeParam
from tsc.te.evaluate import evaluate
from tsc.te.expr import Const, call, index, mul, select
from tsc.te.passes.share import FEWEST, share
from tsc.trace import Recorder


def concat(first: int, second: int = 32) -> Program:
    """x[N, first] and y[N, second] side by side."""
    x, y, out = buffer("x", "N", first), buffer("y", "N", second), buffer("out", "N", first + second)
    i, j = axis("i", "N"), axis("j", first + second)
    value = select(call("lt", v(j), index(first)), at(x, i, j), at(y, i, call("sub", v(j), index(first))))
    return Program((x, y), (out,), (Compute(out, (i, j), value),), (SizeParam("N"),))


def test_constants_that_grow_together_are_one_size() -> None:
    members = [concat(n) for n in (64, 96, 128, 160)]
    found = share(members)
    general = found[members[0]].program
    assert set(found) == set(members) and {s.program for s in found.values()} == {general}
    size = general.sizes[-1]
    assert (size.lo, size.divisor) == (64, 32) and general.inputs[1].shape[1] == SymExpr.of(32)
    assert general.outputs[0].shape[1] - general.inputs[0].shape[1] == SymExpr.of(32)
    for member in members:
        sizes = {"N": 3, **found[member].values}
        inputs = inputs_for(member, {"N": 3})
        np.testing.assert_array_equal(evaluate(general, inputs, sizes)["out"], evaluate(member, inputs, {"N": 3})["out"])


def test_what_is_equal_stays_a_constant_and_the_rest_gets_its_divisor() -> None:
    members = [gemm("M", 128, k) for k in (64, 192, 256, 320)]
    general = share(members)[members[0]].program
    assert [str(s) for s in general.sizes] == ["M>=1", "s1>=64 by 64"]
    assert [str(b) for b in general.inputs[:2]] == ["a: float32[M, s1]", "w: float32[s1, 128]"]


def divided(width: int) -> Program:
    x, out = buffer("x", dim("N") * 1, 512), buffer("out", "N", 512)
    i, j = axis("i", "N"), axis("j", 512)
    where = call("add", mul(call("floordiv", v(j), index(width)), index(width)), call("mod", v(j), index(width)))
    return Program((x,), (out,), (Compute(out, (i, j), at(x, i, where)),), (SizeParam("N"),))


@pytest.mark.parametrize("members", [
    [softmax("R", n) for n in (3, 5, 7, 9, 63)],                  # small
    [divided(n) for n in (64, 128, 256, 512)],                    # divisors and factors
    [concat(n) for n in (64, 96, 128)],                           # few
    [concat(64), concat(64), concat(96), concat(128)],            # few different ones
    [softmax("R", 64), gemm("M", 64, 96), concat(128), gemm("M", 64, 96, act="gelu")],  # not alike
], ids=["small", "divisors", "few", "equal", "different"])
def test_they_keep_their_own(members: list[Program]) -> None:
    assert share(members) == {}


def test_a_sum_over_a_size_means_the_same() -> None:
    def program(n: int) -> Program:
        x, out = buffer("x", "N", n), buffer("out", "N")
        i, j = axis("i", "N"), axis("j", n)
        value = mul(at(x, i, j), call("sub", Const(1.0, "float32"), at(x, i, call("sub", index(n - 1), v(j)))))
        return Program((x,), (out,), (Compute(out, (i,), value, (j,), SUM),), (SizeParam("N"),))

    members = [program(n) for n in (65, 80, 99, 200)]
    found = share(members)
    assert found[members[0]].program.sizes[-1].divisor == 1
    for member in members:
        inputs = inputs_for(member, {"N": 2})
        np.testing.assert_array_equal(evaluate(found[member].program, inputs, {"N": 2, **found[member].values})["out"],
                                      evaluate(member, inputs, {"N": 2})["out"])


# -- a whole model ---------------------------------------------------------------------------------------------

def dense_block(layers: int, growth: int = 32, first: int = 64) -> onnx.ModelProto:
    """Each layer normalises, reduces to 64 channels by a 1x1 convolution, adds `growth` by a 3x3 one, and is concatenated."""
    rng = np.random.default_rng(0)
    nodes, constants, x, width = [], [], "x", first

    def constant(name: str, *shape: int) -> str:
        constants.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 8, name))
        return name

    for k in range(layers):
        nodes += [
            helper.make_node("Mul", [x, constant(f"scale{k}", 1, width, 1, 1)], [f"scaled{k}"]),
            helper.make_node("Relu", [f"scaled{k}"], [f"active{k}"]),
            helper.make_node("Conv", [f"active{k}", constant(f"w{k}", 64, width, 1, 1)], [f"narrow{k}"]),
            helper.make_node("Conv", [f"narrow{k}", constant(f"v{k}", growth, 64, 3, 3)], [f"new{k}"], pads=[1, 1, 1, 1]),
            helper.make_node("Concat", [x, f"new{k}"], [f"x{k}"], axis=1)]
        x, width = f"x{k}", width + growth
    graph = helper.make_graph(nodes, "dense", [helper.make_tensor_value_info("x", 1, ["B", first, "H", "W"])],
                              [helper.make_tensor_value_info(x, 1, ["B", width, "H", "W"])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_dense_block_takes_four_kernels_and_two_copies() -> None:
    made = dense_block(FEWEST + 1)
    executable = tsc.compile(made, threads=1)
    assert len({launch.kernel for launch in executable._plan.launches}) == 6  # into channels last and back
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for shape in ((1, 64, 1, 1), (2, 64, 5, 7), (1, 64, 14, 14)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        want = np.asarray(session.run(None, {"x": x})[0])
        np.testing.assert_allclose(executable.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def embedded_layers(layers: int, width: int = 64, embedding: int = 128) -> onnx.ModelProto:
    """Convolutions in a row, each adding a Linear of its own of one embedding, as in a diffusion U-Net: the Linears are merged
    into one of `layers * width` columns, and each convolution reads its part at a constant offset."""
    rng = np.random.default_rng(0)
    nodes, constants, x = [], [], "x"

    def constant(name: str, *shape: int) -> str:
        constants.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 16, name))
        return name

    constants.append(numpy_helper.from_array(np.array([2, 3], np.int64), "axes"))
    for k in range(layers):
        nodes += [
            helper.make_node("Conv", [x, constant(f"w{k}", width, width, 3, 3)], [f"c{k}"], pads=[1, 1, 1, 1]),
            helper.make_node("Gemm", ["e", constant(f"l{k}", embedding, width), constant(f"b{k}", width)], [f"g{k}"]),
            helper.make_node("Unsqueeze", [f"g{k}", "axes"], [f"u{k}"]),
            helper.make_node("Add", [f"c{k}", f"u{k}"], [f"x{k}"])]
        x = f"x{k}"
    inputs = [helper.make_tensor_value_info("x", 1, ["B", width, "H", "W"]),
              helper.make_tensor_value_info("e", 1, ["B", embedding])]
    outputs = [helper.make_tensor_value_info(x, 1, ["B", width, "H", "W"])]
    graph = helper.make_graph(nodes, "embedded", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.defect(4)
@pytest.mark.parametrize("share_kernels", [True, False])
def test_layers_that_add_their_part_of_one_embedding(share_kernels: bool) -> None:
    layers = FEWEST + 1
    made = embedded_layers(layers)
    executable = tsc.compile(made, threads=1, options=Options(share_kernels=share_kernels))
    convolutions = {launch.kernel for launch in executable._plan.launches if any("c" in name for name in launch.nodes)}
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for shape in ((1, 1, 1), (2, 9, 7), (1, 14, 14)):
        rng = np.random.default_rng(1)
        feeds = {"x": rng.standard_normal((shape[0], 64, *shape[1:])).astype(np.float32),
                 "e": rng.standard_normal((shape[0], 128)).astype(np.float32)}
        want = np.asarray(session.run(None, feeds)[0])
        np.testing.assert_allclose(executable.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    kernels = 2 + (3 if share_kernels else layers + 1)  # into channels last and back
    assert len({launch.kernel for launch in executable._plan.launches}) == kernels, convolutions


def part(offset: int, width: int, total: int) -> Program:
    """Columns `offset` to `offset + width` of `total`."""
    x, out = buffer("x", "N", total), buffer("out", "N", width)
    i, j = axis("i", "N"), axis("j", width)
    return Program((x,), (out,), (Compute(out, (i, j), at(x, i, call("add", v(j), index(offset)))),), (SizeParam("N"),))


@pytest.mark.defect(4)
@pytest.mark.parametrize("members", [
    [part(o, 64, 320) for o in (64, 128, 192, 256)],                                    # one size, bounded
    [part(o, 96, o + 96 + 7 * k) for k, o in enumerate((64, 100, 129, 400))],           # two, tied to each other
    [part(o, w, 1000) for o, w in ((64, 900), (200, 300), (500, 499), (300, 65))],      # neither, but for their sum
], ids=["bounded", "tied", "sum"])
def test_what_holds_for_all_is_known_of_their_sizes(members: list[Program]) -> None:
    found = share(members)
    general = found[members[0]].program
    assert unproved(general) is None and unproved(replace(general, facts=())) is not None
    for member in members:
        for fact in general.facts:
            left, right = (e.evaluate(found[member].values) for e in (fact.left, fact.right))
            assert fact.relation == "<=" and left <= right


@pytest.mark.defect(4)
def test_what_cannot_be_proved_of_all_is_not_shared() -> None:
    """Offsets, widths and totals that three of a kind tie: no relation of two of them says that a part ends within."""
    members = [part(o, w, o + w) for o, w in ((64, 900), (200, 64), (500, 400), (300, 123))]
    general = share(members)[members[0]].program
    recorder = Recorder(None, None)
    groups = [LoweredGroup(m, {}, {"N": dim("B")}, PatternKind.INJECTIVE) for m in members]
    assert unproved(general) is not None and shared(groups, recorder, CompiledCache(None)) == groups
    assert "extents" in recorder.decisions[0].reason


def test_layers_of_growing_width_take_one_kernel() -> None:
    """Rows and columns of the weights differ, which are read in panels."""
    rng = np.random.default_rng(2)
    widths = [64, 576, 640, 704, 768, 832, 896]
    weights = [numpy_helper.from_array(rng.standard_normal((a, b)).astype(np.float32) / 16, f"w{k}")
               for k, (a, b) in enumerate(itertools.pairwise(widths))]
    nodes = []
    for k in range(len(weights)):
        nodes += [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"y{k}"]), helper.make_node("Relu", [f"y{k}"], [f"x{k + 1}"])]
    graph = helper.make_graph(nodes, "mlp", [helper.make_tensor_value_info("x0", 1, ["M", widths[0]])],
                              [helper.make_tensor_value_info(f"x{len(weights)}", 1, ["M", widths[-1]])], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    executable = tsc.compile(made, threads=1)
    assert len({launch.kernel for launch in executable._plan.launches}) == 1 < len(executable._plan.launches)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for rows in (1, 7, 33):
        x = rng.standard_normal((rows, widths[0])).astype(np.float32)
        np.testing.assert_allclose(executable.run(None, {"x0": x})[0], session.run(None, {"x0": x})[0], rtol=1e-4, atol=1e-5)
