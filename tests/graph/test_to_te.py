"""Lowering: the form of each kind of kernel's Program, and how its buffers and sizes tie to the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.graph.group_runner import lowered, run_groups
from tests.graph.models import attention, gelu, model
from tsc.errors import InternalError
from tsc.graph.fusion.group import FusionGroup, split_group
from tsc.graph.fusion.to_te import LoweredGroup, lower_group
from tsc.graph.views import root
from tsc.ops.base import PatternKind
from tsc.te.expr import walk


def programs(lowered_groups: list[tuple[FusionGroup, LoweredGroup]]) -> str:
    return "\n".join(f"-- {low.kind.value}: {' '.join(n.op for n in group.nodes)}\n{low.program}"
                     for group, low in lowered_groups)


def test_programs_of_an_attention_block(golden: Callable[[str, str], None]) -> None:
    golden("te/attention.txt", programs(lowered(attention())[2]))


def test_program_of_a_gelu_layer(golden: Callable[[str, str], None]) -> None:
    golden("te/gelu.txt", programs(lowered(gelu())[2]))


def test_projections_of_equal_shape_share_one_program() -> None:
    _, _, groups = lowered(attention())
    projections = [str(low.program) for group, low in groups if group.nodes[0].op == "MatMul"]
    assert len(projections) == 4 and len(set(projections)) == 2  # queries, keys, values alike; the last has a residual


def test_a_softmax_is_four_computes() -> None:
    proto = model("y = Softmax<axis = -1>(x)", "float[B, L] x", "float[B, L] y")
    (_, low), = lowered(proto)[2]
    shapes = [(len(c.axes), c.monoid.fn if c.monoid else None) for c in low.program.computes if "1.0" not in str(c)]
    assert shapes == [(1, "max"), (2, None), (1, "add"), (2, None)]


def test_buffers_name_the_memory_and_sizes_the_dims() -> None:
    graph, _, groups = lowered(attention())
    dims = {"B", "L"}
    for group, low in groups:
        program = low.program
        assert set(low.values) == {b.name for b in (*program.inputs, *program.outputs)}
        assert set(low.sizes) == {s.name for s in program.sizes}
        assert {low.values[b.name] for b in program.outputs} == set(group.outputs)
        assert {low.values[b.name] for b in program.inputs} == set(group.inputs)
        assert all(root(v, graph) == v for v in low.values.values())
        assert all(e.dims() <= dims for e in low.sizes.values())


def test_a_contraction_has_one_local_and_every_output_reads_only_it_and_inputs() -> None:
    proto = model("h = MatMul(x, w)\n y = Add(h, b)\n z = Tanh(y)", "float[M, 4] x, float[4, 4] w, float[4] b",
                  "float[M, 4] y, float[M, 4] z")
    (group, low), = lowered(proto)[2]
    assert low.kind is PatternKind.CONTRACTION and len(group.outputs) == 2
    first, *rest = low.program.computes
    assert first.name == "acc" and first.target not in low.program.outputs
    targets = {c.name for c in rest}
    assert not any(getattr(getattr(e, "buffer", None), "name", None) in targets for c in rest for e in walk(c.body))


def test_a_contraction_that_is_an_output_itself_is_copied_out() -> None:
    (_, low), = lowered(model("y = MatMul(x, w)", "float[M, 4] x, float[4, 3] w", "float[M, 3] y"))[2]
    assert [c.name for c in low.program.computes] == ["acc", "t3"]


def test_scalar_constants_are_literals_and_shapes_are_read_from_sizes() -> None:
    proto = model("s = Shape(x)\n c = Cast<to = 1>(s)\n n = ReduceProd<keepdims = 0>(c)\n y = Div(x, n)", "float[M, 3] x",
                  "float[M, 3] y")
    graph, env, groups = lowered(proto)
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_allclose(run_groups(graph, env, groups, {"x": x})[0], x / 15)
    assert all("x" in low.values.values() or not low.program.inputs for _, low in groups)


@pytest.mark.parametrize("proto", [gelu(), attention()], ids=["gelu", "attention"])
def test_a_split_group_computes_the_same(proto: object) -> None:
    """What is left when no schedule fits: one group a node."""
    graph, env, groups = lowered(proto)
    rng = np.random.default_rng(0)
    sizes = {"B": 2, "L": 5}
    feeds = {name: rng.standard_normal([d.evaluate(sizes) for d in graph.types[name].shape]).astype(np.float32)
             for name in graph.inputs}
    parts = [(p, lower_group(p, graph, env)) for g, _ in groups for p in split_group(g, graph)]
    for got, want in zip(run_groups(graph, env, parts, feeds), run_groups(graph, env, groups, feeds)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_node_of_several_outputs_is_split_into_those_needed() -> None:
    body = """
        a, b, c = Split<axis = 1>(x, sizes)
        n = Neg(b)
        y = ReduceSum<keepdims = 0>(n, axis)
        z = Add(a, c)"""
    graph, _, groups = lowered(model(body, "float[M, 6] x", "float[M] y, float[M, 2] z",
                                     "int64[3] sizes = {2, 2, 2}, int64[1] axis = {1}"))
    for group, _ in groups:
        parts = split_group(group, graph)
        read = {i for part in parts for i in part.inputs}
        assert all(set(part.outputs) <= read | set(group.outputs) for part in parts)
        split, = (part for part in parts if part.anchor.op == "Split")
        assert split.outputs == (("b",) if "y" in group.outputs else ("a", "c"))
        assert [part.outputs for part in split_group(split, graph)] == [(o,) for o in split.outputs]


def test_a_compound_node_is_our_own_mistake() -> None:
    """Lowering needs primitives: a Softmax must have been decomposed."""
    graph, env, ((group, _),) = lowered(model("y = Relu(x)", "float[M, 4] x", "float[M, 4] y"))
    node = group.nodes[0]
    softmax = replace(node, op="Softmax", name="soft")
    compound = replace(group, nodes=(softmax,), anchor=softmax)
    with pytest.raises(InternalError, match="soft"):
        lower_group(compound, replace(graph, nodes=(softmax,)), env)
