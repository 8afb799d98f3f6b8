"""Chains: which groups are joined, which are not and why, what their programs look like, and that they compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.graph.group_runner import UNCHAINED, Groups, lowered, run_groups
from tests.graph.models import attention, model
from tests.graph.test_fuse import check_order, normal, random_models
from tsc.codegen_c.specs import host_spec
from tsc.graph.fusion.fuse import fuse
from tsc.graph.fusion.group import FusionGroup, leaves, split_group
from tsc.graph.fusion.to_te import lower_group
from tsc.ir import Graph
from tsc.poly import pattern, schedule
from tsc.poly.pattern.chain import match_chained
from tsc.sym import ShapeEnv

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"


def chained(source: Any) -> tuple[Graph, ShapeEnv, Groups]:
    graph, env, groups = lowered(source)
    check_order(graph, [g for g, _ in groups])
    return graph, env, groups


def check(proto: onnx.ModelProto, feeds: dict[str, Any], rtol: float = 1e-4) -> Groups:
    graph, env, groups = chained(proto)
    for got, want in zip(run_groups(graph, env, groups, feeds), ReferenceEvaluator(proto).run(None, feeds)):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)
    return groups


def with_constants(proto: onnx.ModelProto, **arrays: Any) -> onnx.ModelProto:
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


def shape_of(group: FusionGroup) -> str:
    """A chain's links by kind, as "contraction-reduce-contraction"."""
    return "-".join(g.kind.value for g in leaves(group))


def shapes(groups: Groups) -> list[str]:
    return [shape_of(g) for g, _ in groups]


def reasons(groups: Groups) -> str:
    return "\n".join(d.reason for g, _ in groups for d in g.decisions if not d.fused)


ATTENTION = "contraction-reduce-contraction"

# -- what is chained -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch, length", [(1, 1), (2, 5), (3, 1)])
def test_attention_is_one_kernel(batch: int, length: int) -> None:
    weights = {w: normal(6, 6, seed=k) for k, w in enumerate(("wq", "wk", "wv", "wo"))}
    feeds = {"x": normal(batch, length, 6), "mask": normal(batch, 1, 1, length), **weights}
    groups = check(attention(), feeds)
    assert shapes(groups) == ["contraction"] * 3 + [ATTENTION, "contraction"]
    program = groups[3][1].program
    assert [c.name for c in program.computes] == ["acc", "t5", "t6", "t7", "t8", "t9", "acc1", "t11"]
    assert program.outputs == (program.computes[-1].target,)
    assert str(program.computes[6]).endswith("mul(t7[i24, i25, i26, i28], t3[i24, i28, i25, i27])"), "plain exponentials"
    assert "t9[" in str(program.computes[7]), "the sum's reciprocal comes once an output"
    members = {n.name for n in groups[3][0].nodes}
    assert not any(d.node in members for d in groups[3][0].decisions if not d.fused), "what was refused at first has joined"


CAUSAL = """
    s = MatMul(q, k)
    allowed = LessOrEqual(column, row)
    m = Where(allowed, s, minus)
    p = Softmax<axis = -1>(m)
    o = MatMul(p, v)
    y = Transpose<perm = [0, 2, 1, 3]>(o)"""


def test_causal_attention_is_one_kernel() -> None:
    proto = with_constants(
        model(CAUSAL, "float[B, 2, L, 4] q, float[B, 2, 4, T] k, float[B, 2, T, 4] v, int64[L, 1] row, int64[T] column",
              "float[B, L, 2, 4] y"), minus=np.array(-np.inf, np.float32))
    feeds = {"q": normal(2, 2, 3, 4), "k": normal(2, 2, 4, 5), "v": normal(2, 2, 5, 4), "row": np.array([[2], [3], [4]]),
             "column": np.arange(5)}
    assert shapes(check(proto, feeds)) == ["injective", ATTENTION]


GROUPED = """
    k5 = Unsqueeze(k, two)
    kx = Expand(k5, wide)
    kr = Reshape(kx, heads)
    kt = Transpose<perm = [0, 1, 3, 2]>(kr)
    v5 = Unsqueeze(v, two)
    vx = Expand(v5, wide)
    vr = Reshape(vx, heads)
    s = MatMul(q, kt)
    p = Softmax<axis = -1>(s)
    y = MatMul(p, vr)"""


@pytest.mark.parametrize("batch, length, total", [(1, 1, 1), (2, 3, 5)])
def test_heads_in_groups_read_shared_keys_in_place(batch: int, length: int, total: int) -> None:
    proto = model(GROUPED, "float[B, 6, L, 4] q, float[B, 2, T, 4] k, float[B, 2, T, 4] v", "float[B, 6, L, 4] y",
                  "int64[1] two = {2}, int64[5] wide = {1, 1, 3, 1, 1}, int64[4] heads = {0, 6, -1, 4}")
    feeds = {"q": normal(batch, 6, length, 4), "k": normal(batch, 2, total, 4), "v": normal(batch, 2, total, 4, seed=1)}
    (group, low), = check(proto, feeds)
    assert shape_of(group) == ATTENTION and "floordiv(i1, 3)" in str(low.program)


def norm(tail: str, outputs: str, width: int = 8, depth: int = 8) -> onnx.ModelProto:
    lines = "h = MatMul(x, w)\n b = Add(h, bias)\n a = Add(b, r)\n n = LayerNormalization<axis = -1>(a, gamma, beta)"
    proto = model(lines + tail, f"float[B, L, {depth}] x, float[B, L, {width}] r", outputs)
    return with_constants(proto, w=normal(depth, width), bias=normal(width), gamma=normal(width), beta=normal(width))


def norm_feeds(width: int = 8, depth: int = 8, batch: int = 2, length: int = 3) -> dict[str, Any]:
    return {"x": normal(batch, length, depth), "r": normal(batch, length, width, seed=1)}


@pytest.mark.parametrize("batch, length", [(1, 1), (2, 3)])
def test_a_projection_with_its_residual_and_norm_is_one_kernel(batch: int, length: int) -> None:
    groups = check(norm("\n y = Identity(n)", "float[B, L, 8] y"), norm_feeds(batch=batch, length=length))
    assert shapes(groups) == ["contraction-reduce"]


def test_a_residual_stream_is_written_beside_its_norm() -> None:
    groups = check(norm("\n y = Tanh(n)\n z = Neg(a)", "float[B, L, 8] y, float[B, L, 8] z"), norm_feeds())
    (group, low), *_ = groups
    assert shape_of(group) == "contraction-reduce" and len(low.program.outputs) == 2


def test_two_small_layers_with_an_activation_between_are_one_kernel() -> None:
    proto = with_constants(model("h = MatMul(x, w)\n t = Tanh(h)\n o = MatMul(t, u)\n y = Add(o, x)", "float[M, 6] x",
                                 "float[M, 6] y"), w=normal(6, 9), u=normal(9, 6, seed=1))
    (group, low), = check(proto, {"x": normal(5, 6)})
    assert shape_of(group) == "contraction-contraction"
    assert [c.name for c in low.program.computes] == ["acc", "t4", "acc1", "t6"]


# -- what is not -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("proto, feeds, reason", [
    (norm("\n y = Identity(n)", "float[B, L, 8] y", depth=9), norm_feeds(depth=9), "shared among rows alone"),
    (with_constants(model("h = MatMul(x, w)\n y = Softmax<axis = -1>(h)", "float[M, 4] x", "float[M, 4096] y"),
                    w=normal(4, 4096)), {"x": normal(2, 4)}, "does not stay on the chip"),
    (with_constants(model("h = MatMul(x, w)\n t = Tanh(h)\n y = MatMul(t, u)", "float[M, 256] x", "float[M, 256] y"),
                    w=normal(256, 256) / 16, u=normal(256, 256, seed=1) / 16), {"x": normal(2, 256)},
     "do not stay on the chip"),
    (with_constants(model("h = MatMul(x, w)\n t = Tanh(h)\n y = MatMul(t, u)", "float[M, 6] x", "float[M, 6] y, float[M, 6] t"),
                    w=normal(6, 6), u=normal(6, 6, seed=1)), {"x": normal(5, 6)}, "must be stored anyway"),
    (model("h = MatMul(x, w)\n y = MatMul(h, h)", "float[4, 4] x, float[4, 4] w", "float[4, 4] y"),
     {"x": normal(4, 4), "w": normal(4, 4, seed=1)}, "both factors"),
    (model("h = MatMul(x, w)\n t = Tanh(h)\n y = MatMul(u, t)", "float[4, 4] x, float[4, 4] w, float[4, 4] u", "float[4, 4] y"),
     {"x": normal(4, 4), "w": normal(4, 4, seed=1), "u": normal(4, 4, seed=2)}, "over the chain's strip"),
    (model("h = MatMul(x, w)\n s = ReduceMax<axes = [0], keepdims = 1>(h)\n y = Sub(h, s)", "float[M, 4] x, float[4, 4] w",
           "float[M, 4] y", opset=13), {"x": normal(3, 4), "w": normal(4, 4, seed=1)}, "not the last ones"),
    (model("h = MatMul(x, w)\n f = Reshape(h, flat)\n s = ReduceMax<axes = [1], keepdims = 1>(f)\n y = Sub(f, s)",
           "float[4, 4] x, float[4, 4] w", "float[2, 8] y", "int64[2] flat = {2, 8}", opset=13),
     {"x": normal(4, 4), "w": normal(4, 4, seed=1)}, "another length"),
], ids=["deep for its width", "wide strip", "large constants", "stored anyway", "squared", "strip is no row", "columns reduced",
        "rows of another length"])
def test_what_stays_apart(proto: onnx.ModelProto, feeds: dict[str, Any], reason: str) -> None:
    groups = check(proto, feeds)
    assert all("-" not in s for s in shapes(groups)) and reason in reasons(groups)


def test_a_third_contraction_starts_a_chain_of_its_own() -> None:
    lines = "\n".join(f"h{k} = MatMul(t{k}, w{k})\n t{k + 1} = Tanh(h{k})" for k in range(4))
    weights = {f"w{k}": normal(6, 6, seed=k) for k in range(4)}
    proto = with_constants(model(lines, "float[M, 6] t0", "float[M, 6] t4"), **weights)
    groups = check(proto, {"t0": normal(5, 6)})
    assert shapes(groups) == ["contraction-contraction"] * 2


# -- falling back ----------------------------------------------------------------------------------------------

def test_a_chain_gives_back_its_last_link_first() -> None:
    weights = {w: normal(6, 6, seed=k) for k, w in enumerate(("wq", "wk", "wv", "wo"))}
    feeds = {"x": normal(2, 5, 6), "mask": normal(2, 1, 1, 5), **weights}
    graph, env, groups = chained(attention())
    whole = next(g for g, _ in groups if g.links)
    first, last = split_group(whole, graph)
    assert (shape_of(first), shape_of(last)) == ("contraction-reduce", "contraction")
    for parts in ((first, last), (*split_group(first, graph), last)):
        split = [(p, lower_group(p, graph, env)) for g, _ in groups for p in (parts if g is whole else (g,))]
        check_order(graph, [g for g, _ in split])
        for got, want in zip(run_groups(graph, env, split, feeds), ReferenceEvaluator(attention()).run(None, feeds)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_where_no_pattern_fits_a_chain_its_links_are_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one kernel a node: the groups that fusion makes without chains."""
    monkeypatch.setenv("TSC_CACHE", str(tmp_path))
    others = tuple(p for p in pattern.PATTERNS if p is not match_chained)
    monkeypatch.setattr(schedule, "OWN", ((lambda program: program, others),))
    executable = tsc.compile(norm("\n y = Identity(n)", "float[B, L, 8] y"), threads=1)
    feeds = norm_feeds()
    want, = ReferenceEvaluator(norm("\n y = Identity(n)", "float[B, L, 8] y")).run(None, feeds)
    np.testing.assert_allclose(executable.run(None, feeds)[0], want, rtol=1e-5, atol=1e-5)
    stats = executable.stats
    assert (stats["launches"], stats["groups"], stats["split"]) == (2, 1, 1) and "split: " in executable.explain()


def test_without_chains_the_groups_are_the_links() -> None:
    graph, env, groups = chained(attention())
    plain = fuse(graph, env, host_spec(), UNCHAINED)
    links = [leaf for g, _ in groups for leaf in leaves(g)]
    assert [(g.nodes, g.outputs, g.inputs) for g in plain] == [(g.nodes, g.outputs, g.inputs) for g in links]


# -- any graph -------------------------------------------------------------------------------------------------

@settings(max_examples=60, deadline=None)
@given(random_models(), st.integers(0, 100))
def test_any_graph_is_cut_into_chains_that_compute_it(proto: onnx.ModelProto, seed: int) -> None:
    check(proto, {"x0": normal(4, 4, seed=seed), "x1": normal(4, 4, seed=seed + 1)}, rtol=1e-3)


# -- exported models -------------------------------------------------------------------------------------------

@pytest.mark.skipif(not MODELS.is_dir(), reason=f"no shared model files at {MODELS}")
@pytest.mark.parametrize("exporter", ["ts", "dynamo"])
@pytest.mark.parametrize("name, attentions", [
    ("bert", 2), ("albert", 2), ("gpt2", 2), ("gpt2_kv", 2), ("llama_kv", 2), ("t5", 6), ("vit", 2), ("clip_text", 2),
    ("clip_vision", 2), ("wav2vec2", 2), ("swin", 4)])
def test_every_attention_of_an_exported_model_is_one_kernel(name: str, attentions: int, exporter: str) -> None:
    _, _, groups = chained(MODELS / f"{name}.{exporter}.onnx")
    softmaxes = [g for g, _ in groups for leaf in leaves(g) if {"ReduceMax", "Exp"} <= {n.op for n in leaf.nodes}]
    assert [shape_of(g) for g in softmaxes] == [ATTENTION] * attentions


@pytest.mark.skipif(not MODELS.is_dir(), reason=f"no shared model files at {MODELS}")
@pytest.mark.parametrize("name", ["bert.ts", "bert.dynamo", "bert_eager.ts"])
def test_a_bert_layer_is_at_most_six_kernels(name: str) -> None:
    _, _, groups = chained(MODELS / f"{name}.onnx")
    first, second = (k for k, (g, _) in enumerate(groups) if shape_of(g) == ATTENTION)
    assert second - first <= 6
