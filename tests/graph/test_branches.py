"""If: one of its graphs takes its place where constants or sizes decide, and nothing of the other is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

import tsc
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.regions import with_regions

ZERO = numpy_helper.from_array(np.array(0), "zero")


def graph(nodes: Sequence[NodeProto], output: str, name: str = "branch", held: Sequence[onnx.TensorProto] = ()) -> GraphProto:
    return helper.make_graph(list(nodes), name, [], [helper.make_value_info(output, onnx.TypeProto())], list(held))


def node(op: str, x: str, y: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, x.split(), y.split(), f"{op} of {x}", **attributes)


def choice(then: GraphProto, otherwise: GraphProto, condition: str = "c", output: str = "y", name: str = "choice") -> NodeProto:
    return helper.make_node("If", [condition], [output], name, then_branch=then, else_branch=otherwise)


def model(nodes: Sequence[NodeProto], held: Sequence[onnx.TensorProto] = (), rank: int = 2,
          fed: str = "") -> onnx.ModelProto:
    """Nodes over x: float32["n", 3] to y, and a bool that is fed."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    flags = [helper.make_tensor_value_info(fed, TensorProto.BOOL, [])] if fed else []
    made = helper.make_graph(list(nodes), "model", [x, *flags], [y], [ZERO, *held])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_rows(op: str, count: int) -> tuple[list[NodeProto], list[onnx.TensorProto]]:
    """Whether x has fewer, as many or more rows than `count`: c."""
    nodes = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "rows"), node(op, "rows count", "c")]
    return nodes, [numpy_helper.from_array(np.array(count), "count")]


def check(proto: onnx.ModelProto, rows: Sequence[int], dims: Any = None, **fed: Any) -> None:
    """One compile gives what ONNX Runtime does for so many rows."""
    executable = tsc.compile(proto, dims=dims)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in rows:
        feeds = {"x": np.random.default_rng(count).standard_normal((count, 3), np.float32), **fed}
        (got,), (want,) = executable.run(None, feeds), session.run(None, feeds)
        assert got.shape == want.shape and got.tobytes() == want.tobytes()


NEG, ABS = graph([node("Neg", "x", "a")], "a"), graph([node("Abs", "x", "a")], "a")


@pytest.mark.parametrize("held", [np.array(True), np.array(False), np.array([True])])
def test_a_constant_decides(held: np.ndarray) -> None:
    check(model([choice(NEG, ABS)], [numpy_helper.from_array(held, "c")]), [1, 5])


@pytest.mark.parametrize("op, count, dims", [
    ("Greater", 0, None), ("Less", 1, None), ("Equal", 4, {"n": 4}), ("Equal", 4, {"n": (5, 9)}),
    ("Greater", 3, {"n": (4, 7)})])
def test_sizes_decide(op: str, count: int, dims: Any) -> None:
    nodes, held = by_rows(op, count)
    low, high = (1, 5) if dims is None else (4, 4) if dims == {"n": 4} else dims["n"]
    check(model([*nodes, choice(NEG, ABS)], held), sorted({low, high}), dims)


@pytest.mark.parametrize("dims", [{"n": 1}, {"n": (2, 6)}])
def test_ranks_may_differ(dims: Any) -> None:
    """What torch's exporter makes of squeeze()."""
    nodes, held = by_rows("Equal", 1)
    axes = numpy_helper.from_array(np.array([0]), "axes")
    squeezed = graph([node("Squeeze", "x axes", "a")], "a", held=[axes])
    proto = model([*nodes, choice(squeezed, graph([node("Identity", "x", "b")], "b"))], held, 1 if dims == {"n": 1} else 2)
    check(proto, [1] if dims == {"n": 1} else [2, 6], dims)


def test_names_stay_apart() -> None:
    """Branches use the same names for values of their own, nested ones read what those around them define, and a name of a
    branch is one of the model's later on. A branch's own constant and one value twice are outputs."""
    two = numpy_helper.from_array(np.float32([[2, 3, 4]]), "late")
    inner = choice(graph([node("Mul", "a late", "b")], "b", "inner", [two]), graph([node("Abs", "a", "b")], "b"), output="r")
    outer = graph([node("Neg", "x", "a"), inner, node("Add", "r a", "q")], "q")
    constant = graph([], "k", held=[numpy_helper.from_array(np.float32([[7, 8, 9]]), "k")])
    nodes = [choice(outer, ABS, output="first"), choice(constant, ABS, output="second"), node("Add", "first second", "late"),
             helper.make_node("If", ["c"], ["both", "same"], "twice", then_branch=helper.make_graph(
                 [node("Exp", "late", "a")], "two", [], [helper.make_value_info("a", onnx.TypeProto())] * 2), else_branch=NEG),
             node("Add", "both same", "y")]
    proto = model(nodes, [numpy_helper.from_array(np.array(True), "c")])
    x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    late = (-x * np.float32([[2, 3, 4]]) + -x) + np.float32([[7, 8, 9]])
    np.testing.assert_allclose(tsc.compile(proto).run(None, {"x": x})[0], 2 * np.exp(late), rtol=1e-5)


def test_what_is_not_taken_is_not_inferred() -> None:
    wrong = graph([node("MatMul", "x x", "a")], "a")
    check(model([choice(NEG, wrong)], [numpy_helper.from_array(np.array(True), "c")]), [2])
    with pytest.raises(tsc.TscError, match="MatMul of x x"):
        tsc.compile(model([choice(wrong, NEG)], [numpy_helper.from_array(np.array(True), "c")]), dims={"n": 4})


def test_nodes_say_where_they_come_from() -> None:
    found, env = import_onnx(model([choice(NEG, ABS)], [numpy_helper.from_array(np.array(True), "c")]))
    chosen = with_regions(found, env, tsc.Limits())
    assert [n.name for n in chosen.nodes] == ["choice/Neg of x", "choice/y"] and found.nodes[0].op == "If"


def test_sizes_that_do_not_decide_choose_in_the_run() -> None:
    nodes, held = by_rows("Equal", 4)
    check(model([*nodes, choice(NEG, ABS)], held), [1, 4, 5])


@pytest.mark.parametrize("change, says", [
    ("inputs", "graph 'then_branch' with inputs"), ("type", "condition of float32"), ("count", "has 1 outputs, but its graph"),
    ("many", "2 conditions"), ("undefined", "reads 'nothing', which does not exist"), ("output", "output 'gone' is made by no"),
    ("shadowed", "'x' is defined twice"), ("unknown", "NonMaxSuppression")])
def test_wrong_graphs(change: str, says: str) -> None:
    then, held = GraphProto(), numpy_helper.from_array(np.array(True), "c")
    then.CopyFrom(NEG)
    if change == "inputs":
        then.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, []))
    elif change == "type":
        held = numpy_helper.from_array(np.float32(1), "c")
    elif change == "count":
        then.output.append(then.output[0])
    elif change == "many":
        held = numpy_helper.from_array(np.array([True, True]), "c")
    elif change == "undefined":
        then.node[0].input[0] = "nothing"
    elif change == "output":
        then.output[0].name = "gone"
    elif change == "shadowed":
        then.node[0].output[0] = "x"
    else:
        then.node.append(helper.make_node("NonMaxSuppression", ["x", "x"], ["z"]))
    with pytest.raises((ModelError, UnsupportedError), match=says):
        tsc.compile(model([choice(then, ABS)], [held]))
