"""Fusion: what becomes one kernel, what does not and why, and that any graph is cut into an executable order of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.graph.group_runner import UNCHAINED, Groups, lowered, run_groups
from tests.graph.models import attention, gelu, model
from tsc.graph.fusion.group import FusionGroup
from tsc.graph.views import root
from tsc.ir import Graph


def groups_of(proto: onnx.ModelProto) -> tuple[Graph, Groups]:
    graph, _, groups = lowered(proto, levels=UNCHAINED)
    check_order(graph, [g for g, _ in groups])
    return graph, groups


def check_order(graph: Graph, groups: list[FusionGroup]) -> None:
    """Each stored value is written once, before it is read; every graph output is there in the end."""
    known = {*graph.inputs, *graph.constants}
    for group in groups:
        assert set(group.inputs) <= known, group.name
        assert not set(group.outputs) & known, group.name
        known |= set(group.outputs)
    assert {root(o, graph) for o in graph.outputs} <= known


def check_values(proto: onnx.ModelProto, feeds: dict[str, Any], rtol: float = 1e-5) -> Groups:
    graph, env, groups = lowered(proto, levels=UNCHAINED)
    check_order(graph, [g for g, _ in groups])
    expected = ReferenceEvaluator(proto).run(None, feeds)
    for got, want in zip(run_groups(graph, env, groups, feeds), expected):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)
    return groups


def ops(group: FusionGroup) -> list[str]:
    return [n.op for n in group.nodes]


def reasons(groups: Groups, fused: bool = False) -> str:
    return "\n".join(f"{d.node}: {d.reason}" for g, _ in groups for d in g.decisions if d.fused is fused)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- contraction level -----------------------------------------------------------------------------------------

def test_bias_gelu_and_residual_join_the_matmul() -> None:
    feeds = {"x": normal(3, 5, 6), "r": normal(3, 5, 10, seed=1), "w": normal(6, 10), "b": normal(10)}
    (group, low), = check_values(gelu(), feeds)
    assert ops(group) == ["MatMul", "Add", "Div", "Erf", "Add", "Mul", "Mul", "Add"]
    assert low.program.computes[0].name == "acc" and len(low.program.computes) == 2


def test_attention_is_seven_kernels() -> None:
    weights = {w: normal(6, 6, seed=k) for k, w in enumerate(("wq", "wk", "wv", "wo"))}
    feeds = {"x": normal(2, 5, 6), "mask": normal(2, 1, 1, 5), **weights}
    groups = check_values(attention(), feeds)
    assert [g.kind.value for g, _ in groups] == ["contraction"] * 4 + ["reduce"] + ["contraction"] * 2
    scores, softmax, values = (g for g, _ in groups[3:6])
    assert ops(scores).count("Transpose") == 2 and {"Mul", "Add"} <= set(ops(scores))
    assert "ReduceMax" in ops(softmax) and "ReduceSum" in ops(softmax)
    assert ops(values) == ["Transpose", "MatMul", "Transpose"]


def test_casts_of_floats_stay_out_of_contractions() -> None:
    proto = model("h = MatMul(x, w)\n c = Cast<to = 11>(h)\n y = Mul(c, c)", "float[M, 4] x, float[4, 4] w", "double[M, 4] y")
    groups = check_values(proto, {"x": normal(3, 4), "w": normal(4, 4)})
    assert [g.kind.value for g, _ in groups] == ["contraction", "injective"]
    assert "casts stay out" in reasons(groups)


def test_a_broadcast_result_and_a_wider_one_are_refused() -> None:
    proto = model("h = MatMul(x, w)\n y = Add(h, big)", "float[M, 4] x, float[4, 4] w, float[3, M, 4] big", "float[3, M, 4] y")
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4), "big": normal(3, 5, 4)})
    assert len(groups) == 2 and "its shape differs" in reasons(groups)


def test_what_needs_another_kernel_in_between_is_refused() -> None:
    """y = h - sum(h): the sum lies between the matmul and the difference."""
    proto = model("h = MatMul(x, w)\n s = ReduceSum(h, axes)\n y = Sub(h, s)", "float[M, 4] x, float[4, 4] w",
                  "float[M, 4] y", "int64[1] axes = {1}")
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4)})
    assert [g.kind.value for g, _ in groups] == ["contraction", "reduce"]
    assert "by another kernel" in reasons(groups)


def test_different_points_of_the_result_are_not_combined() -> None:
    proto = model("h = MatMul(x, w)\n t = Transpose<perm = [1, 0]>(h)\n y = Add(h, t)", "float[4, 4] x, float[4, 4] w",
                  "float[4, 4] y")
    groups = check_values(proto, {"x": normal(4, 4), "w": normal(4, 4)})
    assert len(groups) == 2 and "different points" in reasons(groups)


def test_squares_go_to_the_reduction_that_reads_them() -> None:
    proto = model("h = MatMul(x, w)\n q = Mul(h, h)\n s = ReduceSum(q, axes)\n y = Mul(h, s)",
                  "float[M, 4] x, float[4, 4] w", "float[M, 4] y", "int64[1] axes = {1}")
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4)})
    assert [ops(g) for g, _ in groups] == [["MatMul"], ["Mul", "ReduceSum", "Mul"]]
    assert "left to the reduce level" in reasons(groups)


def test_at_most_two_outputs() -> None:
    lines = "\n".join(f"y{k} = {op}(h)" for k, op in enumerate(("Neg", "Exp", "Tanh", "Abs")))
    outputs = ", ".join(f"float[M, 4] y{k}" for k in range(4))
    proto = model(f"h = MatMul(x, w)\n {lines}", "float[M, 4] x, float[4, 4] w", outputs)
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4)})
    assert all(len(g.outputs) <= 2 for g, _ in groups) and "more than 2 tensors" in reasons(groups)


def test_a_scale_on_either_side_moves_behind_the_matmul() -> None:
    proto = model("s = Slice(x, zero, three, two)\n a = Mul(s, c)\n at = Transpose<perm = [1, 0]>(a)\n b = Div(w, c)\n"
                  "y = MatMul(b, at)", "float[4, 6] x, float[4, 3] w", "float[4, 4] y",
                  "float c = {0.5}, int64[1] zero = {0}, int64[1] three = {3}, int64[1] two = {1}")
    (group, low), = check_values(proto, {"x": normal(4, 6), "w": normal(4, 3)})
    assert sorted(ops(group)) == ["Div", "MatMul", "Mul", "Slice", "Transpose"]
    assert len(low.program.computes) == 2


def test_arithmetic_on_an_operand_is_a_kernel_of_its_own() -> None:
    proto = model("a = Exp(x)\n y = MatMul(a, w)", "float[M, 4] x, float[4, 4] w", "float[M, 4] y")
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4)})
    assert [g.kind.value for g, _ in groups] == ["injective", "contraction"]


def test_what_windows_read_is_computed_in_their_copy() -> None:
    conv = "z = Conv<pads = [1, 1, 1, 1]>(y, k)"
    pads = "int64[8] pads = {0, 0, 1, 2, 0, 0, 2, 0}"
    for body, inputs, constants, names in (
            ("y = Relu(x)", "float[B, 2, H, W] x", "", ["Convolve", "Relu"]),
            ("r = Relu(x)\n y = Pad(r, pads)", "float[B, 2, H, W] x", pads, ["Convolve", "Pad", "Relu"]),
            ("y = Concat<axis = 1>(a, b)", "float[B, 1, H, W] a, float[B, 1, H, W] b", "", ["Concat", "Convolve"])):
        proto = model(f"{body}\n {conv}", f"{inputs}, float[3, 2, 3, 3] k", "float[B, 3, P, Q] z", constants)
        feeds = {i.name: normal(2, i.type.tensor_type.shape.dim[1].dim_value, 4, 5) for i in proto.graph.input if i.name != "k"}
        (group, _), = check_values(proto, {**feeds, "k": normal(3, 2, 3, 3)})
        assert sorted(ops(group)) == names


def test_what_is_costly_or_read_elsewhere_stays_out_of_the_copy() -> None:
    for body, outputs, reason in (("y = Exp(x)", "float[B, 3, P, Q] z", "too costly to compute again for every window"),
                                  ("y = Relu(x)", "float[B, 3, P, Q] z, float[B, 2, H, W] y", "reads it too")):
        proto = model(f"{body}\n z = Conv(y, k)", "float[B, 2, H, W] x, float[3, 2, 3, 3] k", outputs)
        groups = check_values(proto, {"x": normal(1, 2, 4, 5), "k": normal(3, 2, 3, 3)})
        assert len(groups) == 2 and reason in reasons(groups)


# -- operands of few bytes -------------------------------------------------------------------------------------

def test_what_is_costly_together_is_cut_where_fewest_bytes_are_read() -> None:
    """A quantisation is not made again for each of nine windows: its bytes are stored, and converted later."""
    proto = model("q = QuantizeLinear(x, s, z)\n d = Cast<to = 1>(q)\n y = Conv<pads = [1, 1, 1, 1]>(d, k)",
                  "float[1, 4, H, W] x, float[8, 4, 3, 3] k", "float[1, 8, P, Q] y", "float s = {0.1}, uint8 z = {7}")
    kernel = np.random.default_rng(0).integers(-9, 9, (8, 4, 3, 3)).astype(np.float32)  # so that sums are exact
    groups = check_values(proto, {"x": normal(1, 4, 5, 6), "k": kernel})
    stored = next(group for group, _ in groups if "Div" in ops(group))
    (anchor,) = [group for group, _ in groups if "Convolve" in ops(group)]
    assert ops(stored)[-1] == "Cast" and ops(anchor).count("Cast") == 1 and "Div" not in ops(anchor)
    assert "too costly to compute again for every window" in reasons(groups)


def test_whole_numbers_are_centred_once_where_channels_are_summed_up() -> None:
    """A panel's copy takes them as they stand then; what has no channels to sum up is read in vectors, from bytes."""
    for group, apart in ((1, True), (4, False)):
        proto = model(f"y = ConvInteger<pads = [1, 1, 1, 1], group = {group}>(q, k, z)",
                      f"uint8[1, 4, H, W] q, int8[8, {4 // group}, 3, 3] k", "int32[1, 8, P, Q] y", "uint8 z = {7}")
        rng = np.random.default_rng(0)
        feeds = {"q": rng.integers(0, 256, (1, 4, 5, 6)).astype(np.uint8),
                 "k": rng.integers(-9, 9, (8, 4 // group, 3, 3)).astype(np.int8)}
        (anchor,) = [group for group, _ in check_values(proto, feeds) if "Convolve" in ops(group)]
        assert ("Sub" in ops(anchor)) != apart


def unpacked(dtype: str = "uint8", kept: str = "") -> onnx.ModelProto:
    """x @ ((w - 8) * scale): weights of few bytes, a scale a column."""
    outputs = ", float[64, 24] scaled" if kept else ""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[m, 64] x, {dtype}[64, 24] w, float[24] scale) => (float[m, 24] y{outputs}) <float eight = {{8.0}}> {{
            floats = Cast <to = 1> (w) centred = Sub(floats, eight) scaled = Mul(centred, scale) y = MatMul(x, scaled) }}""")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_what_has_fewer_bytes_is_unpacked_where_it_is_copied(dtype: str) -> None:
    feeds = {"x": normal(5, 64), "w": np.arange(64 * 24).reshape(64, 24).astype(dtype), "scale": normal(24, seed=1)}
    (group, _), = check_values(unpacked(dtype), feeds, rtol=1e-4)
    assert sorted(group.inputs) == ["scale", "w", "x"] and "of fewer bytes" in group.decisions[-1].reason


def test_what_is_as_large_or_read_elsewhere_is_unpacked_once() -> None:
    assert len(groups_of(unpacked("int32"))[1]) == 2  # as many bytes
    assert len(groups_of(unpacked(kept="scaled"))[1]) == 2
    turned = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[m, 64] x, uint8[24, 64] w) => (float[m, 24] y) {
            floats = Cast <to = 1> (w) s = Sqrt(floats) across = Transpose <perm = [1, 0]> (s) y = MatMul(x, across) }""")
    assert len(groups_of(turned)[1]) == 2  # its columns are no neighbours
    rows = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[32, 64] w, float[64, 24] x) => (float[32, 24] y) { f = Cast <to = 1> (w) s = Sqrt(f) y = MatMul(s, x) }""")
    assert len(groups_of(rows)[1]) == 2  # each row is read for every column


# -- reduce level ----------------------------------------------------------------------------------------------

def test_layer_norm_with_its_embedding_is_one_kernel() -> None:
    proto = model("g = Gather(table, ids)\n e = Add(g, pos)\n y = LayerNormalization<axis = -1>(e, gamma, beta)",
                  "int64[B, L] ids, float[9, 6] table, float[L, 6] pos, float[6] gamma, float[6] beta", "float[B, L, 6] y")
    feeds = {"ids": np.array([[1, 8, 0], [3, 3, -2]]), "table": normal(9, 6), "pos": normal(3, 6), "gamma": normal(6),
             "beta": normal(6)}
    (group, low), = check_values(proto, feeds)
    assert group.kind.value == "reduce" and ops(group).count("ReduceSum") == 2
    gathered = [str(c) for c in low.program.computes if "checked" in str(c)]
    assert len(gathered) == 1, "the gathered row is looked up once"


def test_an_embedding_read_twice_is_a_second_output() -> None:
    proto = model("e = Mul(a, b)\n n = LayerNormalization<axis = -1>(e, gamma)\n h = MatMul(n, w)\n y = Add(h, e)",
                  "float[M, 6] a, float[M, 6] b, float[6] gamma, float[6, 6] w", "float[M, 6] y")
    groups = check_values(proto, {"a": normal(5, 6), "b": normal(5, 6, seed=1), "gamma": normal(6), "w": normal(6, 6)})
    assert [g.kind.value for g, _ in groups] == ["reduce", "contraction"] and len(groups[0][0].outputs) == 2


def test_softmax_guarded_against_empty_rows_is_one_kernel() -> None:
    proto = model("p = Softmax<axis = -1>(x)\n n = IsNaN(p)\n y = Where(n, zero, p)", "float[B, H, L, L] x",
                  "float[B, H, L, L] y", "float zero = {0.0}")
    x = normal(2, 3, 5, 5)
    x[1, 1, 2] = -np.inf
    (_, low), = check_values(proto, {"x": x})
    assert [len(c.axes) for c in low.program.computes] == [1, 2, 1, 1, 2]
    assert sum(c.monoid is not None for c in low.program.computes) == 2


@pytest.mark.parametrize("axes, stitched", [((1, 1), True), ((1, 0), False), ((0, 0), True)])
def test_only_reductions_over_the_same_rows_are_stitched(axes: tuple[int, int], stitched: bool) -> None:
    first, second = axes
    proto = model(f"a = ReduceMax<keepdims = 1, axes = [{first}]>(x)\n d = Sub(x, a)\n"
                  f"s = ReduceMax<keepdims = 1, axes = [{second}]>(d)\n y = Add(d, s)",
                  "float[M, N] x", "float[M, N] y", opset=13)
    groups = check_values(proto, {"x": normal(5, 7)})
    assert (len(groups) == 1) is stitched
    if not stitched:
        assert "it reduces other rows" in reasons(groups)


@pytest.mark.parametrize("axes", ["[0]", "[1]", "[0, 2]", "[1, 2]", "[0, 1, 2]"])
def test_a_normalisation_over_any_axes_is_one_kernel(axes: str) -> None:
    proto = model(f"m = ReduceMean<axes = {axes}>(x)\n d = Sub(x, m)\n q = Mul(d, d)\n v = ReduceMean<axes = {axes}>(q)\n"
                  "s = Sqrt(v)\n y = Div(d, s)", "float[B, M, N] x", "float[B, M, N] y")
    (group, _), = check_values(proto, {"x": normal(3, 5, 7)}, rtol=1e-4)
    assert ops(group).count("ReduceSum") == 2


def test_reductions_of_one_tensor_are_one_kernel() -> None:
    """Nothing but what they read connects them; row statistics do not count as tensors written."""
    names = ["ReduceMin", "ReduceMax", "ReduceMean", "ReduceProd"]
    proto = model("\n".join(f"y{k} = {op}<axes = [1]>(x)" for k, op in enumerate(names)), "float[M, N] x",
                  ", ".join(f"float[M, 1] y{k}" for k in range(4)))
    (group, _), = check_values(proto, {"x": normal(5, 7)})
    assert len(group.outputs) == 4


def test_a_mean_and_a_mean_of_squares_are_one_kernel() -> None:
    """One reduces x and the other its square: what reads both ties them."""
    proto = model("m = ReduceMean<axes = [1]>(x)\n q = Mul(x, x)\n e = ReduceMean<axes = [1]>(q)\n mm = Mul(m, m)\n"
                  "v = Sub(e, mm)\n y = Div(x, v)", "float[M, N] x", "float[M, N] y")
    (group, _), = check_values(proto, {"x": normal(5, 7)}, rtol=1e-3)
    assert ops(group).count("ReduceSum") == 2


def test_a_layer_norm_with_its_statistics_is_one_kernel() -> None:
    proto = model("y, m, s = LayerNormalization<axis = -1>(x, g)", "float[M, 6] x, float[6] g",
                  "float[M, 6] y, float[M, 1] m, float[M, 1] s")
    (group, _), = check_values(proto, {"x": normal(5, 6), "g": normal(6)})
    assert len(group.outputs) == 3


@pytest.mark.parametrize("opset", [18, 21])
def test_a_group_norm_is_one_kernel(opset: int) -> None:
    count = 3 if opset == 18 else 6
    proto = model("y = GroupNormalization<num_groups = 3>(x, g, b)", f"float[B, 6, H, W] x, float[{count}] g, float[{count}] b",
                  "float[B, 6, H, W] y", opset=opset)
    check, = check_values(proto, {"x": normal(2, 6, 3, 5), "g": normal(count), "b": normal(count, seed=1)}, rtol=1e-4)
    assert check[0].kind.value == "reduce"


def test_a_costly_small_producer_is_not_recomputed_for_each_row() -> None:
    proto = model("t = Exp(m)\n a = Add(x, t)\n y = Softmax<axis = -1>(a)", "float[B, L, N] x, float[N] m", "float[B, L, N] y")
    groups = check_values(proto, {"x": normal(2, 3, 5), "m": normal(5)})
    assert ops(groups[0][0]) == ["Exp"] and len(groups) == 2
    assert "too costly" in reasons(groups)


def test_a_running_sum_stands_alone() -> None:
    proto = model("e = Tanh(x)\n c = CumSum(e, axis)\n y = Neg(c)", "float[M, N] x", "float[M, N] y", "int64 axis = {1}")
    groups = check_values(proto, {"x": normal(3, 5)})
    assert [ops(g) for g, _ in groups] == [["Tanh"], ["CumSum"], ["Neg"]]


@pytest.mark.parametrize("exclusive", [0, 1])
def test_a_sum_up_to_one_element_is_that(exclusive: int) -> None:
    """It reads no sum before; what follows it asked for one without end."""
    body = f"c = CumSum<exclusive = {exclusive}>(x, axis)\n y = Neg(c)"
    proto = model(body, "float[M, 1] x", "float[M, 1] y", "int64 axis = {1}")
    check_values(proto, {"x": normal(3, 1)})


def test_a_shared_producer_ties_two_reductions() -> None:
    """Both reduce the same difference, and nothing else connects them: it is stored, so that rows can be matched."""
    proto = model("d = Sub(x, b)\n t = Tanh(d)\n s = ReduceSum(t, axes)\n m = ReduceSum(d, axes)\n"
                  "y = Sub(t, s)\n z = Sub(d, m)", "float[M, 4] x, float[4] b", "float[M, 4] y, float[M, 4] z",
                  "int64[1] axes = {1}")
    (_, low), = check_values(proto, {"x": normal(5, 4), "b": normal(4)})
    shared = low.program.computes[0].target
    assert sum(f"{shared.name}[" in str(c) for c in low.program.computes[1:]) >= 2


def test_a_producer_read_out_of_order_is_not_stored_by_rows() -> None:
    proto = model("e = Exp(x)\n t = Transpose<perm = [1, 0]>(e)\n a = Add(t, t)\n s = ReduceSum(a, axes)\n y = Div(a, s)",
                  "float[M, N] x", "float[N, M] y", "int64[1] axes = {1}")
    groups = check_values(proto, {"x": normal(5, 3)})
    assert all(len(low.program.outputs) == 1 for _, low in groups)


# -- the rest --------------------------------------------------------------------------------------------------

def test_injective_chains_are_one_kernel_and_movement_disappears() -> None:
    proto = model("t = Transpose<perm = [1, 0]>(x)\n c = Concat<axis = 0>(t, z)\n s = Slice(c, one, four)\n y = Relu(s)",
                  "float[M, N] x, float[P, M] z", "float[Q, M] y", "int64[1] one = {1}, int64[1] four = {4}")
    (group, low), = check_values(proto, {"x": normal(5, 7), "z": normal(2, 5)})
    assert ops(group) == ["Transpose", "Concat", "Slice", "Relu"] and len(low.program.computes) == 1


def test_a_shared_value_is_computed_once() -> None:
    proto = model("e = Exp(x)\n a = Neg(e)\n y = Transpose<perm = [1, 0]>(a)\n z = Abs(e)", "float[M, N] x",
                  "float[N, M] y, float[M, N] z")
    groups = check_values(proto, {"x": normal(5, 7)})
    assert sum("Exp" in ops(g) for g, _ in groups) == 1


def test_an_output_that_is_a_view_keeps_its_root() -> None:
    proto = model("e = Exp(x)\n y = Reshape(e, flat)\n z = Neg(e)", "float[M, 4] x",
                  "float[N] y, float[M, 4] z", "int64[1] flat = {-1}")
    graph, groups = groups_of(proto)
    assert root("y", graph) in groups[0][0].outputs


@pytest.mark.parametrize("head, tail", [("a = Abs(x)", "y = Neg({v})"), ("a = MatMul(x, w)", "y = Neg({v})"),
                                        ("a = Abs(x)", "s = ReduceSum({v}, axes)\n y = Sub({v}, s)")])
def test_values_used_twice_again_and_again_do_not_explode(head: str, tail: str) -> None:
    """Written out, thirty doublings would take a billion operations."""
    lines, value = [head], "a"
    for k in range(30):
        lines += [f"d{k} = Add({value}, {value})", f"h{k} = Mul(d{k}, half)"]
        value = f"h{k}"
    proto = model("\n".join([*lines, tail.format(v=value)]), "float[M, 4] x, float[4, 4] w", "float[M, 4] y",
                  "float half = {0.5}, int64[1] axes = {1}")
    groups = check_values(proto, {"x": normal(5, 4), "w": normal(4, 4)})
    assert max(len(str(low.program)) for _, low in groups) < 10_000


# -- any graph -------------------------------------------------------------------------------------------------

@st.composite
def random_models(draw: st.DrawFn) -> onnx.ModelProto:
    """Nodes over square tensors [S, S] and row statistics, in any wiring; a few of the values are outputs."""
    square, rows = ["x0", "x1"], []
    lines: list[str] = []
    for k in range(draw(st.integers(2, 14))):
        name, a, b = f"v{k}", draw(st.sampled_from(square)), draw(st.sampled_from(square))
        match draw(st.sampled_from(["unary", "binary", "matmul", "transpose", "sum", "max", "row", "slice", "scale", "views"])):
            case "unary":
                lines.append(f"{name} = {draw(st.sampled_from(['Tanh', 'Neg', 'Sigmoid']))}({a})")
            case "binary":
                lines.append(f"{name} = {draw(st.sampled_from(['Add', 'Sub', 'Max']))}({a}, {b})")
            case "matmul":
                lines += [f"{name}m = MatMul({a}, {b})", f"{name} = Tanh({name}m)"]
            case "transpose":
                lines.append(f"{name} = Transpose<perm = [1, 0]>({a})")
            case "sum" | "max" as fn:
                axis = draw(st.sampled_from([0, 1, 1]))
                op = {"sum": "ReduceMean", "max": "ReduceMax"}[fn]
                lines += [f"{name}r = {op}<axes = [{axis}], keepdims = 1>({a})", f"{name} = Sub({a}, {name}r)"]
                rows += [f"{name}r"] if axis == 1 else []
            case "row" if rows:
                lines.append(f"{name} = Add({a}, {draw(st.sampled_from(rows))})")
            case "slice":
                lines += [f"{name}a = Slice({a}, zero, two, first)", f"{name}b = Slice({a}, two, four, first)",
                          f"{name} = Concat<axis = 1>({name}b, {name}a)"]
            case "views":
                lines += [f"{name}f = Reshape({a}, flat)", f"{name}g = Neg({name}f)", f"{name} = Reshape({name}g, both)"]
            case _:
                lines.append(f"{name} = Mul({a}, half)")
        square.append(name)
    outputs = draw(st.lists(st.sampled_from(square[2:]), min_size=1, max_size=3, unique=True))
    return model("\n".join(lines), "float[S, 4] x0, float[S, 4] x1", ", ".join(f"float[S, 4] {o}" for o in outputs),
                 "float half = {0.5}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] first = {1}, "
                 "int64[1] flat = {-1}, int64[2] both = {4, 4}", opset=13)


@settings(max_examples=60, deadline=None)
@given(random_models(), st.integers(0, 100))
def test_any_graph_is_cut_into_groups_that_compute_it(proto: onnx.ModelProto, seed: int) -> None:
    check_values(proto, {"x0": normal(4, 4, seed=seed), "x1": normal(4, 4, seed=seed + 1)}, rtol=1e-3)
