"""Contractions with a constant operand on either side, in all the ways extents can be one: against NumPy in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tsc

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One contraction: `subscripts` say what it is, `constant` which of its two operands is one."""

    op: str
    shapes: tuple[Shape, Shape]
    subscripts: str
    constant: int
    attributes: tuple[tuple[str, Any], ...] = ()


def matmul(left: Shape, right: Shape, constant: int) -> Case:
    """Operands of rank one to three."""
    a = {1: "k", 2: "mk", 3: "bmk"}[len(left)]
    b = {1: "k", 2: "kn", 3: "bkn"}[len(right)]
    batch = "b" if "b" in a + b else ""
    return Case("MatMul", (left, right), f"{a},{b}->{batch}{'m' * ('m' in a)}{'n' * ('n' in b)}", constant)


def matmuls(sizes: Sequence[int], wide: Sequence[int]) -> Iterator[Case]:
    """All with two operands of rank one to three, batches broadcast or not."""
    batches: tuple[Shape, ...] = ((), (1,), (3,))
    for constant, m, k, n in itertools.product((0, 1), sizes, sizes, wide):
        for left, right in itertools.product(batches, batches):
            yield matmul((*left, m, k), (*right, k, n), constant)
        yield matmul((k,), (k, n), constant)
        yield matmul((m, k), (k,), constant)
        yield matmul((3, m, k), (k,), constant)


def gemms(sizes: Sequence[int], wide: Sequence[int]) -> Iterator[Case]:
    for constant, ta, tb, m, k, n in itertools.product((0, 1), (0, 1), (0, 1), sizes, sizes, wide):
        shapes = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
        subscripts = f"{'km' if ta else 'mk'},{'nk' if tb else 'kn'}->mn"
        yield Case("Gemm", shapes, subscripts, constant, (("transA", ta), ("transB", tb)))


def convolutions(sizes: Sequence[int], wide: Sequence[int]) -> Iterator[Case]:
    """With a kernel of one: a matrix product over the channels."""
    for c, image, n in itertools.product(sizes, sizes, wide):
        yield Case("Conv", ((2, c, image, 3), (n, c, 1, 1)), "bcyx,ncij->bnyx", 1)


FAMILIES = {"MatMul": matmuls, "Gemm": gemms, "Conv": convolutions}


def model_of(cases: Sequence[Case], arrays: Sequence[tuple[np.ndarray[Any, Any], ...]]) -> onnx.ModelProto:
    """Each case a node of its own; the first dim of what is fed is symbolic, unless it is a batch of one to broadcast."""
    nodes, inputs, outputs, constants = [], [], [], []
    for number, (case, operands) in enumerate(zip(cases, arrays)):
        names = [f"a{number}", f"b{number}"]
        nodes.append(helper.make_node(case.op, names, [f"y{number}"], f"n{number}", **dict(case.attributes)))
        constants.append(numpy_helper.from_array(operands[case.constant], names[case.constant]))
        fed = 1 - case.constant
        first, *rest = case.shapes[fed]
        inputs.append(helper.make_tensor_value_info(names[fed], 1, [1 if rest[1:] and first == 1 else f"d{number}", *rest]))
        rank = len(case.subscripts.split("->")[1])
        outputs.append(helper.make_tensor_value_info(f"y{number}", 1, [None] * rank))
    graph = helper.make_graph(nodes, "contractions", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(cases: Sequence[Case]) -> None:
    rng = np.random.default_rng(len(cases))
    arrays = [tuple(rng.standard_normal(s).astype(np.float32) for s in case.shapes) for case in cases]
    executable = tsc.compile(model_of(cases, arrays), threads=1)
    feeds = {f"{'ab'[1 - case.constant]}{i}": a[1 - case.constant] for i, (case, a) in enumerate(zip(cases, arrays))}
    for case, operands, found in zip(cases, arrays, executable.run(None, feeds)):
        left, right = (a.astype(np.float64) for a in operands)
        expected = left @ right if case.op == "MatMul" else np.einsum(case.subscripts, left, right)
        assert found.shape == expected.shape, case
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(case))


@pytest.mark.defect(9)
@pytest.mark.parametrize("family", FAMILIES)
def test_contractions_with_constants(family: str) -> None:
    """A fixed choice of all combinations: every fifth, or eleventh, so that all twelve forms of products are among them."""
    cases = list(FAMILIES[family]((1, 5), (1, 4, 67)))
    check(cases[::11 if len(cases) > 200 else 5 if len(cases) > 60 else 1])


@pytest.mark.slow
@pytest.mark.defect(9)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_contractions_with_constants(family: str) -> None:
    cases = list(FAMILIES[family]((1, 5), (1, 4, 67)))
    for start in range(0, len(cases), 40):
        check(cases[start:start + 40])


@pytest.mark.defect(9)
@pytest.mark.parametrize("shape", [(1, 4), (1, 6, 4), (1, 1 << 20, 2)])
def test_a_weight_with_a_unit_dim(shape: Shape) -> None:
    rng = np.random.default_rng(1)
    a, w = rng.standard_normal((2, shape[-2])).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
    case = matmul(a.shape, shape, 1)
    found = tsc.compile(model_of([case], [(a, w)]), threads=1).run(None, {"a0": a})[0]
    scale = np.abs(a.astype(np.float64)) @ np.abs(w.astype(np.float64))
    assert np.all(np.abs(found - a.astype(np.float64) @ w.astype(np.float64)) <= 1e-5 * scale + 1e-6)
