"""Sizes that only the data tell: which steps wait for them, how much memory there has to be, and models that have them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tsc
from tsc.errors import InternalError, ShapeError, UnsupportedError
from tsc.plan.counted import in_order, most
from tsc.runtime.plan import Axis, Bind, Copy, Element, Eval, Launch, Step
from tsc.sym import ONE, Guard, ShapeEnv, SymExpr, dim, sym_max, sym_min

Array = np.ndarray[Any, Any]
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


# -- the order of steps --------------------------------------------------------------------------------------------------------

def launch(name: str, args: tuple[int, ...], *sizes: SymExpr) -> Launch:
    return Launch(name, args, sizes, (), name)


def ordered(steps: Sequence[Step]) -> list[Step]:
    """Each launch writes the last of its arguments."""
    return in_order(steps, lambda step: {step.args[-1]})


def test_what_has_a_counted_size_waits_for_the_count() -> None:
    n, d, e = dim("n"), dim("d"), dim("e")
    bind, told = Bind("n", Axis(0, 0)), Bind("d", Element(2, "int64"))
    early, counts = launch("early", (0, 1), n), launch("counts", (1, 2), n)
    late, reads, apart = launch("late", (1, 3), e), launch("reads", (3, 4), ONE), launch("apart", (0, 5), n)
    twice, guard, copy = Eval("e", 2 * d), Guard("<=", d, n, ""), Copy(4, 6, n)
    assert ordered([bind, twice, guard, late, early, reads, counts, apart, copy, told]) == [
        bind, early, counts, told, twice, guard, late, reads, apart, copy]


def test_steps_without_counts_stand_as_they_are() -> None:
    n = dim("n")
    steps: list[Step] = [Bind("n", Axis(0, 0)), Eval("m", n + 1), launch("a", (0, 1), dim("m")), launch("b", (1, 2), n)]
    assert ordered(steps) == steps


def test_what_waits_for_itself_is_no_plan() -> None:
    with pytest.raises(InternalError, match="counts what it has to know before: d"):
        ordered([launch("counts", (0, 1), dim("d")), Bind("d", Element(1, "int64"))])


# -- memory --------------------------------------------------------------------------------------------------------------------

def test_most_is_no_less_than_any_size() -> None:
    rng, env = random.Random(4), ShapeEnv()
    n, d = env.declare("n", 0, 40), env.count("value", dim("n") + 3)
    pieces = [n, d, d * n, d // 4, d % 5, sym_max(d, n), sym_min(d, 7), (d + 3) // 4 * n, sym_max(d - n, 0), SymExpr.of(64)]
    seen = 0
    for _ in range(200):
        size = sum((rng.choice((-8, 4, 4, 12)) * rng.choice(pieces) for _ in range(rng.randint(1, 4))), SymExpr.of(0))
        try:
            found = most(size, {"value_count": n + 3}, env)
        except UnsupportedError:
            continue
        seen += "value_count" in size.dims()
        assert "value_count" not in found.dims()
        for k in (0, 1, 7, 40):
            top = found.evaluate({"n": k})
            assert all(size.evaluate({"n": k, "value_count": c}) <= top for c in range(k + 4)), (size, found)
    assert seen > 100


def test_a_value_is_counted_once() -> None:
    env = ShapeEnv()
    n = env.declare("n", 1, 9)
    first = env.count("a.b", n)
    assert env.count("a.b", n) == first != env.count("a_b", n)
    assert env.bounds(first) == (0, 9) and list(env.counted) == ["a_b_count", "a_b_count_1"]
    env.assume_eq(first, n, "they meet")
    assert env.canon(first) == n and env.count("a.b", n) == n


# -- models --------------------------------------------------------------------------------------------------------------------

def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, tuple[int, Sequence[int | str]]],
          *outputs: str) -> onnx.ModelProto:
    """Of these nodes; outputs have no declared shape, and their type is int64 where their name begins with 'i'."""
    made = [helper.make_tensor_value_info(name, INT if name[0] == "i" else FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", [helper.make_tensor_value_info(n, *spec) for n, spec in inputs.items()], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sparse(share: float, *shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) * (rng.random(shape) < share)).astype(np.float32)


#: What kernels count, search and select on both kinds of devices.
on_both = pytest.mark.parametrize("target", ["cpu", "emu:sm_80"])


def check(made: onnx.ModelProto, *feeds: Mapping[str, Array], target: str = "cpu") -> tsc.Executable:
    executable, reference = tsc.compile(made, target=target), ReferenceEvaluator(made)
    for given in feeds:
        for got, want in zip(executable.run(None, given), reference.run(None, dict(given)), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5)
    return executable


X, CONDITION = {"x": (FLOAT, ("a",))}, {"c": (BOOL, ("a",))}
MARKS = [np.arange(n) % step == 0 for n, step in ((1, 1), (1, 2), (7, 3), (100, 1), (100, 7))]


@on_both
def test_elements_go_where_they_came_from(target: str) -> None:
    """As PyTorch exports `x[x != 0] = -x[x != 0]`; the sizes of three kernels are known while the run is under way."""
    nodes = [node("NonZero", "x", "p"), node("Transpose", "p", "i", perm=[1, 0]), node("GatherND", "x i", "v"),
             node("Neg", "v", "n"), node("ScatterND", "x i n", "z"), node("ReduceSum", "v", "s", keepdims=0)]
    made = model(nodes, {"x": (FLOAT, ("a", 8))}, "z", "i", "s")
    feeds = [{"x": sparse(share, rows, 8)} for rows in (1, 3, 50) for share in (0.0, 0.3, 1.0)]
    executable = check(made, *feeds, target=target)
    assert executable.peak_bytes(a=50) >= 50 * 8 * 8  # there is room for all of them
    assert "NonZero" in executable.explain()


@on_both
def test_counts_of_what_was_counted(target: str) -> None:
    nodes = [node("Compress", "x c", "u", axis=0), node("Cast", "u", "b", to=BOOL), node("Compress", "u b", "y", axis=0),
             node("Shape", "y", "i")]
    check(model(nodes, {**X, **CONDITION}, "y", "i"), *({"x": sparse(0.5, len(c)), "c": c} for c in MARKS), target=target)


@on_both
def test_two_counts_that_meet_are_one_size(target: str) -> None:
    nodes = [node("Compress", "x c", "u", axis=0), node("Compress", "y e", "v", axis=0), node("Add", "u v", "z")]
    made = model(nodes, {**X, "y": X["x"], **CONDITION, "e": CONDITION["c"]}, "z")
    feeds = [{"x": sparse(0.9, len(c)), "y": sparse(0.8, len(c)), "c": c, "e": c[::-1]} for c in MARKS[2:]]
    executable = check(made, *feeds, target=target)
    with pytest.raises(ShapeError, match="what was counted for 'v_count' meets another size"):
        executable.run(None, {"x": sparse(1, 3), "y": sparse(1, 3), "c": np.arange(3) < 2, "e": np.arange(3) < 3})


def test_a_count_that_meets_an_inputs_size_is_held_to_it() -> None:
    nodes = [node("Compress", "x c", "u", axis=0), node("Add", "u w", "z")]
    executable = check(model(nodes, {**X, **CONDITION, "w": (FLOAT, ("k",))}, "z"),
                       {"x": sparse(1, 9), "c": np.arange(9) < 4, "w": sparse(1, 4)})
    for count in (0, 3, 5, 9):
        with pytest.raises(ShapeError, match="counted"):
            executable.run(None, {"x": sparse(1, 9), "c": np.arange(9) < count, "w": sparse(1, 4)})


def test_a_size_that_is_linear_in_a_count_is_held_to_it() -> None:
    """No input tells the count, nor does the count tell the input's dim; and names that look like ours are taken."""
    nodes = [node("Compress", "x c", "u", axis=0), node("Concat", "u u one", "v", axis=0), node("Add", "v w", "z")]
    inputs = {"x": (FLOAT, ("u_count",)), "c": (BOOL, ("u_count",)), "one": (FLOAT, ("u_count_told",)), "w": (FLOAT, ("k",))}
    made = model(nodes, inputs, "z")
    feeds = [{"x": sparse(1, 9), "c": np.arange(9) < n, "one": sparse(1, 3), "w": sparse(1, 2 * n + 3)} for n in (0, 1, 4, 9)]
    executable = check(made, *feeds)
    with pytest.raises(ShapeError):
        executable.run(None, {**feeds[2], "w": sparse(1, 12)})


def test_a_count_that_must_be_a_number_is_held_to_it() -> None:
    nodes = [node("Compress", "x c", "u", axis=0), node("Add", "u three", "z")]
    made = model(nodes, {**X, **CONDITION, "three": (FLOAT, (3,))}, "z")
    executable = check(made, {"x": sparse(1, 9), "c": np.arange(9) < 3, "three": sparse(1, 3)})
    for count in (0, 2, 4, 9):
        with pytest.raises(ShapeError, match="counted"):
            executable.run(None, {"x": sparse(1, 9), "c": np.arange(9) < count, "three": sparse(1, 3)})


@on_both
def test_nothing_is_counted_in_nothing(target: str) -> None:
    made = model([node("NonZero", "x", "i"), helper.make_node("Unique", ["x"], ["y", "i1", "i2", "i3"], axis=0)],
                 {"x": (FLOAT, ("a", 3))}, "i", "y", "i1", "i2", "i3")
    executable = tsc.compile(made, dims={"a": (0, 40)}, target=target)
    for rows, counts in ((0, (0, 0)), (1, (3, 1)), (40, (120, 40)), (0, (0, 0))):
        x = 1 + np.arange(3 * rows).reshape(rows, 3).astype(np.float32)
        places, parts, first, inverse, each = executable.run(None, {"x": x})
        assert (places.shape, parts.shape, inverse.shape) == ((2, counts[0]), (counts[1], 3), (rows,))
        assert first.tolist() == list(range(rows)) and (each == 1).all()


def test_what_is_no_number_is_like_itself_and_comes_last() -> None:
    made = model([helper.make_node("Unique", ["x"], ["y", "i1", "i2", "i3"]), node("NonZero", "x", "i")], X,
                 "y", "i1", "i2", "i3", "i")
    x = np.array([np.nan, 2, -np.inf, np.nan, 0, -0.0, np.inf, 2], np.float32)
    found, places = tsc.compile(made).run(None, {"x": x})[:4], tsc.compile(made).run(None, {"x": x})[4]
    for got, want in zip(found, np.unique(x, return_index=True, return_inverse=True, return_counts=True), strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(places, np.nonzero(x))


def test_threads_have_counts_of_their_own() -> None:
    executable = tsc.compile(model([node("NonZero", "x", "i")], {"x": (FLOAT, ("a", 8))}, "i"))

    def runs(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        feeds = [(rng.random((rng.integers(1, 60), 8)) < rng.random()).astype(np.float32) for _ in range(60)]
        return all(np.array_equal(executable.run(None, {"x": x})[0], np.nonzero(x)) for x in feeds)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(runs, range(8)))


@on_both
def test_kernels_of_all_kinds_have_counted_sizes(target: str) -> None:
    nodes = [node("Compress", "x c", "u", axis=0), node("MatMul", "u w", "v"), node("Softmax", "v", "z", axis=0),
             node("Concat", "x u", "t", axis=0), node("Shape", "u", "s"), node("Expand", "one s", "r")]
    made = model(nodes, {"x": (FLOAT, ("a", 8)), **CONDITION, "w": (FLOAT, (8, 5)), "one": (FLOAT, (1, 1))}, "z", "t", "r")
    feeds = [{"x": sparse(1, len(c), 8), "c": c, "w": sparse(1, 8, 5), "one": sparse(1, 1, 1)} for c in MARKS if c.any()]
    check(made, *feeds, target=target)


def test_no_kernel_makes_its_own_size() -> None:
    """What is counted and what has so many elements are made of the same values, which fusion would put together."""
    nodes = [helper.make_node("Unique", ["x"], ["y", "i1", "i2", "i3"], sorted=0), node("Exp", "x", "e"),
             node("Add", "e x", "f"), node("Greater", "f x", "c"), node("Compress", "f c", "z", axis=0),
             node("ReduceSum", "z", "s", keepdims=0)]
    check(model(nodes, X, "y", "i1", "i2", "i3", "z", "s", "f"), *({"x": np.round(sparse(0.7, n))} for n in (1, 7, 60)))


@on_both
def test_a_detectors_last_part(target: str) -> None:
    """Boxes that are kept, and their scores: two counts, of which one is made of the other, and what is gathered by them."""
    nodes = [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "score"], ["i"]),
             node("Slice", "i zero one axis", "b"), node("Slice", "i two three axis", "k"),
             node("Slice", "i one two axis", "c"), node("Concat", "b c k", "places", axis=1),
             node("GatherND", "scores places", "s")]
    made = model(nodes, {"boxes": (FLOAT, ("n", "m", 4)), "scores": (FLOAT, ("n", "classes", "m"))}, "i", "s")
    values = {"most": np.array([5]), "overlap": np.array([0.4], np.float32), "score": np.array([0.3], np.float32),
              "axis": np.array([1]), **{name: np.array([k]) for k, name in enumerate(("zero", "one", "two", "three"))}}
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
    rng = np.random.default_rng(2)
    feeds = []
    for batch, classes, boxes in ((1, 1, 1), (2, 3, 50), (1, 20, 400) if target == "cpu" else (1, 3, 70)):
        begin = rng.random((batch, boxes, 2))
        corners = np.concatenate([begin, begin + 0.2 * rng.random((batch, boxes, 2))], axis=-1).astype(np.float32)
        feeds.append({"boxes": corners, "scores": rng.random((batch, classes, boxes)).astype(np.float32)})
    check(made, *feeds, {**feeds[1], "scores": 0.2 * feeds[1]["scores"]}, target=target)


def test_a_package_with_counts_runs_again(tmp_path: Any) -> None:
    made = model([node("NonZero", "x", "i")], {"x": (FLOAT, ("a", "b"))}, "i")
    tsc.compile(made).save(tmp_path / "m.tscpack")
    loaded = tsc.load(tmp_path / "m.tscpack")
    for x in (sparse(0.5, 3, 7), sparse(0.1, 40, 2), sparse(0, 2, 2)):
        found, = loaded.run(None, {"x": x})
        np.testing.assert_array_equal(found, np.nonzero(x))


def test_what_nobody_needs_is_not_counted() -> None:
    made = model([node("NonZero", "x", "p"), node("Relu", "x", "z")], X, "z")
    assert "NonZero" not in check(made, {"x": sparse(0.5, 9)}).explain()
