"""Horizontal merge: what is merged, what is not and why, and that the merged graph computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.graph.group_runner import UNCHAINED, Groups, lowered, run_groups
from tests.graph.models import model
from tsc.graph.decompose import decompose
from tsc.graph.fusion.group import Decision
from tsc.graph.onnx.importer import import_onnx
from tsc.graph.rewriting.rewrite import rewrite
from tsc.graph.shapes import infer_shapes

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_constants(proto: onnx.ModelProto, **arrays: Any) -> onnx.ModelProto:
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


def decisions(proto: Any) -> list[Decision]:
    graph, env = import_onnx(proto)
    graph = infer_shapes(graph, env)
    told: list[Decision] = []
    rewrite(infer_shapes(decompose(graph, env), env), env, told.append)
    return told


def check(proto: onnx.ModelProto, feeds: dict[str, Any], contractions: int) -> Groups:
    """`proto` has so many contraction kernels, and computes what the reference computes."""
    graph, env, groups = lowered(proto, levels=UNCHAINED)
    for got, want in zip(run_groups(graph, env, groups, feeds), ReferenceEvaluator(proto).run(None, feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert sum(g.kind.value == "contraction" for g, _ in groups) == contractions
    return groups


def branches(tail: str, outputs: str, bias: tuple[str, ...] = ("b0", "b1", "b2"), widths: tuple[int, ...] = (4, 6, 2),
             inputs: str = "float[B, L, 5] x") -> onnx.ModelProto:
    """Projections a0, a1, .. of x with different widths, those in `bias` with a bias, then `tail`."""
    bias = bias[:len(widths)]
    lines = []
    for k in range(len(widths)):
        if f"b{k}" in bias:
            lines += [f"h{k} = MatMul(x, w{k})", f"a{k} = Add(b{k}, h{k})"]
        else:
            lines.append(f"a{k} = MatMul(x, w{k})")
    weights = {f"w{k}": normal(5, n, seed=k) for k, n in enumerate(widths)}
    biases = {b: normal(widths[int(b[1])], seed=9) for b in bias}
    return with_constants(model("\n".join(lines) + tail, inputs, outputs), **weights, **biases)


@pytest.mark.parametrize("batch, length", [(1, 1), (2, 3)])
def test_projections_of_one_value_with_their_biases_are_one_kernel(batch: int, length: int) -> None:
    proto = with_constants(branches("\n n = ReduceSum<keepdims = 1>(a0, last)\n c = Concat<axis = 2>(a2, a1)\n y = Mul(c, n)",
                                    "float[B, L, 8] y"), last=np.array([2]))
    groups = check(proto, {"x": normal(batch, length, 5)}, contractions=1)
    merged = next(g for g, _ in groups if g.kind.value == "contraction")
    assert [n.op for n in merged.nodes] == ["MatMul", "Add"] and len(merged.outputs) == 1
    assert len(groups) == 3, "the parts are read in place: no kernel copies them"


def test_a_branch_without_a_bias_adds_zeros() -> None:
    """Two have a bias, one has none, as where only keys lack one."""
    proto = branches("\n c = Concat<axis = 2>(a0, a1, a2)\n m = ReduceMax<keepdims = 0>(c)\n n = Neg(m)", "float n",
                     bias=("b0", "b2"))
    groups = check(proto, {"x": normal(2, 3, 5)}, contractions=1)
    assert [n.op for n in groups[0][0].nodes] == ["MatMul", "Add"]


def test_different_work_behind_the_branches_stays_with_them() -> None:
    proto = branches("\n c0 = Mul(a0, b0)\n c = Concat<axis = 2>(c0, a1)\n m = ReduceMax<keepdims = 0>(c)\n n = Neg(m)",
                     "float n", bias=("b1",), widths=(4, 6))
    check(with_constants(proto, b0=normal(4)), {"x": normal(2, 3, 5)}, contractions=2)
    assert all("leave its kernel" in d.reason for d in decisions(proto))


def test_an_output_of_the_model_is_no_part_of_a_wider_tensor() -> None:
    proto = branches("\n c = Concat<axis = 2>(a1, a2)\n m = ReduceMax<keepdims = 0>(c)\n y = Neg(m)",
                     "float y, float[B, L, 4] a0")
    check(proto, {"x": normal(2, 3, 5)}, contractions=2)
    refused, = (d for d in decisions(proto) if not d.fused)
    assert "output of the model" in refused.reason


def test_elementwise_work_keeps_its_contraction() -> None:
    """A gate and what it gates: merged, their product would be a kernel of its own."""
    proto = branches("\n g = Sigmoid(a0)\n m = Mul(g, a1)\n y = Neg(m)", "float[B, L, 4] y", widths=(4, 4))
    check(proto, {"x": normal(2, 3, 5)}, contractions=2)
    assert all("leave its kernel" in d.reason and not d.fused for d in decisions(proto))


def test_a_part_that_no_reader_can_take_in_place_is_not_merged() -> None:
    """Rows of y mix tokens and columns: a part of a wider tensor cannot be read so by a contraction."""
    proto = branches("\n f = Reshape(a0, flat)\n y = MatMul(f, v)\n t = Transpose<perm = [0, 2, 1]>(a1)\n"
                     " u = ReduceSum<keepdims = 0>(t, last)\n z = ReduceSum<keepdims = 0>(a2, last)",
                     "float[B, N] y, float[B, P] u, float[B, L] z", inputs="float[B, 3, 5] x")
    proto = with_constants(proto, flat=np.array([0, -1]), v=normal(12, 3), last=np.array([2]))
    check(proto, {"x": normal(2, 3, 5)}, contractions=3)
    assert any("in place" in d.reason for d in decisions(proto))


def test_wide_results_are_not_kept_in_memory_together() -> None:
    proto = branches("\n c = Concat<axis = 2>(a0, a1, a2)\n m = ReduceMax<keepdims = 0>(c)\n n = Neg(m)", "float n",
                     widths=(9, 10, 11))
    check(proto, {"x": normal(2, 3, 5)}, contractions=2)


def test_convolutions_of_one_image_are_one_over_all_channels() -> None:
    proto = with_constants(
        model("a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)\n b = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)\n d = Conv(x, w2)\n"
              "m = MaxPool<kernel_shape = [2, 2]>(a)\n n = ReduceMax<axes = [2, 3], keepdims = 0>(b)\n"
              "o = ReduceMax<axes = [2, 3], keepdims = 0>(d)",
              "float[B, 3, H, W] x", "float[B, 2, P, Q] m, float[B, 4] n, float[B, 2] o", opset=13),
        w0=normal(2, 3, 3, 3), w1=normal(4, 3, 3, 3), b0=normal(2), b1=normal(4), w2=normal(2, 3, 3, 3))
    check(proto, {"x": normal(2, 3, 5, 4)}, contractions=2)


def test_different_operands_and_a_grouped_convolution_stay_apart() -> None:
    proto = with_constants(
        model("a = Conv<group = 2>(x, w0)\n b = Conv<group = 2>(x, w1)\n y = ReduceMax<axes = [2], keepdims = 0>(a)\n"
              "z = ReduceMax<axes = [2], keepdims = 0>(b)", "float[B, 4, L] x", "float[B, 4] y, float[B, 4] z", opset=13),
        w0=normal(4, 2, 3), w1=normal(4, 2, 3, seed=1))
    check(proto, {"x": normal(2, 4, 7)}, contractions=2)


@pytest.mark.skipif(not MODELS.is_dir(), reason=f"no shared model files at {MODELS}")
@pytest.mark.parametrize("exporter", ["ts", "dynamo"])
@pytest.mark.parametrize("name", ["bert", "albert", "vit", "clip_text", "llama_kv", "t5_encoder"])
def test_each_of_two_layers_projects_queries_keys_and_values_at_once(name: str, exporter: str) -> None:
    merged = [d for d in decisions(MODELS / f"{name}.{exporter}.onnx") if d.fused]
    assert len({d.anchor for d in merged}) == 2 and len(merged) == 2 * 2
