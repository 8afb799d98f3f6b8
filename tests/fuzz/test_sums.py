"""The judge of random operators where sums overflow: what any order of summation leads to is right, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from tests.fuzz.operators.case import Case, model_of, values_of
from tests.fuzz.operators.check import Finding, Run, Subject, check
from tests.fuzz.operators.oracles import Reference
from tests.fuzz.operators.values import Array
from tests.fuzz.test_found_onnx import Value, constant, fed, one

#: Nearly the greatest number of float32.
MOST = 3e38
LARGE = {"mood": "extreme"}


def _gives(values: Sequence[Any]) -> Subject:
    """In the place of the compiler, what gives these values."""
    def subject(case: Case, model: ModelProto, folder: Path | None) -> Run:
        return lambda feeds: [np.asarray(values, np.float32)]
    return subject


def _in_any_order(seed: int, parts: int) -> Subject:
    """One node's terms, added in an order of its own for each element, and divided by `parts` at the end. A term is what the
    node gives where one element of its first operand is alone."""
    def subject(case: Case, model: ModelProto, folder: Path | None) -> Run:
        reference, gen = Reference(model), np.random.default_rng(seed)

        def run(feeds: Mapping[str, Array]) -> list[Array]:
            x = feeds["x0"]
            alone = (np.where(np.arange(x.size).reshape(x.shape) == k, x, np.float32(0)) for k in range(x.size))
            with np.errstate(all="ignore"):
                terms = [(reference.run({**feeds, "x0": a}).values or [])[0].astype(np.float64) * parts for a in alone]
                total = np.zeros(terms[0].shape, np.float32)
                for term in gen.permuted(np.stack(terms), axis=0):
                    total = total + term.astype(np.float32)
                return [total / np.float32(parts)]
        return run
    return subject


#: Nodes, and by what each divides its sum.
NODES: dict[str, tuple[Case, int]] = {
    "MatMul": (one("MatMul", 13, [fed(3, 7, **LARGE), fed(7, 5, **LARGE)]), 1),
    "MatMul of one term": (one("MatMul", 13, [fed(3, 1, **LARGE), fed(1, 5, **LARGE)]), 1),
    "Gemm": (one("Gemm", 13, [fed(7, 3, **LARGE), fed(7, 5, **LARGE)], transA=1, alpha=-2.0), 1),
    "Conv": (one("Conv", 11, [fed(1, 2, 5, 6, **LARGE), fed(2, 2, 3, 2, **LARGE)]), 1),
    "ReduceSum": (one("ReduceSum", 13, [fed(4, 9, **LARGE), constant([1], 1)]), 1),
    "ReduceMean": (one("ReduceMean", 18, [fed(4, 9, **LARGE), constant([1], 1)]), 9),
    "CumSum": (one("CumSum", 14, [fed(4, 9, **LARGE), constant(1)]), 1),
    "AveragePool": (one("AveragePool", 18, [fed(1, 1, 5, 5, 5, **LARGE)], kernel_shape=[4, 3, 3]), 36),
    "GlobalAveragePool": (one("GlobalAveragePool", 7, [fed(2, 2, 3, 4, **LARGE)]), 12),
}


@pytest.mark.parametrize("name", NODES)
def test_any_order_is_right(name: str) -> None:
    case, parts = NODES[name]
    for seed in range(8):
        check(replace(case, seed=seed), _in_any_order(seed, parts))


def _sum(*terms: float) -> Case:
    return one("ReduceSum", 13, [fed(1, len(terms), values=[terms]), constant([1], 1)], keepdims=0)


def _mean(*terms: float) -> Case:
    return one("ReduceMean", 18, [fed(1, len(terms), values=[terms]), constant([1], 1)], keepdims=0)


def _logarithm(*terms: float) -> Case:
    """In an opset in which the standard has no body for it."""
    return one("ReduceLogSum", 12, [fed(1, len(terms), values=[terms])], axes=[1], keepdims=0)


def _product(*factors: float) -> Case:
    return one("ReduceProd", 18, [fed(1, len(factors), values=[factors]), constant([1], 1)], keepdims=0)


def _times(row: Sequence[float], column: Sequence[float]) -> Case:
    weight = Value((len(column), 1), draw=fed(len(column), 1, values=column).draw)
    return one("MatMul", 13, [fed(1, len(row), values=[row]), weight])


INF, NAN = np.inf, np.nan
#: A case of one element, what it may be, and what it may not be.
OUTCOMES: dict[str, tuple[Case, list[float], list[float]]] = {
    "no order overflows": (_sum(MOST / 4, MOST / 4, MOST / 4), [MOST * 0.75], [INF, NAN, -INF, MOST / 2]),
    "every order overflows": (_sum(MOST, MOST, 1.0), [INF], [-INF, NAN, 1.0]),
    "overflow above": (_sum(MOST, MOST, -MOST), [MOST, INF], [-INF, NAN, 1.0]),
    "overflow below": (_sum(MOST, -MOST, -MOST), [-MOST, -INF], [INF, NAN, 1.0]),
    "overflow on both sides": (_sum(MOST, MOST, -MOST, -MOST), [0.0, INF, -INF, NAN], [MOST, 1e37]),
    "beside an infinity of the same sign": (_sum(INF, MOST, MOST), [INF], [NAN, -INF, 1.0]),
    "beside an infinity of the other sign": (_sum(INF, -MOST, -MOST), [INF, NAN], [-INF, 1.0]),
    "infinity less infinity": (_sum(INF, -INF, MOST), [NAN], [INF, -INF, 0.0]),
    "a mean of what is too large together": (_mean(MOST, MOST, -1.0), [MOST / 1.5, INF], [-INF, NAN, MOST]),
    "the logarithm of what no order overflows": (_logarithm(MOST / 4, MOST / 4), [np.log(MOST / 2)], [INF, NAN, -INF]),
    "the logarithm of an overflow above": (_logarithm(MOST, MOST, -MOST), [np.log(MOST), INF], [-INF, NAN, 1.0]),
    "the logarithm of an overflow on both sides": (_logarithm(MOST, MOST, -MOST, -MOST), [-INF, INF, NAN], []),
    "the logarithm of an overflow below": (_logarithm(MOST, -MOST, -MOST), [NAN], [INF, -INF, 1.0]),
    "the logarithm beside an infinity": (_logarithm(INF, -MOST, -MOST), [INF, NAN], []),
    "the logarithm of infinity less infinity": (_logarithm(INF, -INF, MOST), [NAN], [INF, -INF, 0.0]),
    "a product that is too large beside an infinity": (_times([MOST, 1.0], [-2.5, INF]), [INF, NAN], [-INF, 1.0]),
    "products that are too large": (_times([MOST, MOST], [2.0, -2.0]), [0.0, INF, -INF, NAN], [1e37]),
    "factors that overflow": (_product(1e30, 1e30, 1e-30, 1e-30), [1.0, INF, 0.0, NAN], [-INF, 1e12]),
    "factors that overflow below": (_product(1e30, -1e30, 1e-30), [-1e30, -INF], [INF, NAN, 1.0]),
    "an overflow times nothing": (_product(1e30, 1e30, 0.0), [0.0, NAN], [INF, 1.0]),
    "factors within": (_product(1e30, 1e-30, 2.0), [2.0], [INF, 0.0, NAN, 3.0]),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_overflow_leads_to(name: str) -> None:
    case, right, wrong = OUTCOMES[name]
    shape = (1, 1) if case.nodes[0].op_type == "MatMul" else (1,)
    for value in right:
        assert check(case, _gives(np.full(shape, value))).right == 1, value
    for value in wrong:
        with pytest.raises(Finding, match="instead of"):
            check(case, _gives(np.full(shape, value)))


def _one_after_another(error: float) -> Subject:
    """A softmax of all elements, whose exponentials are added one after another, and which is wrong by `error` of itself."""
    def subject(case: Case, model: ModelProto, folder: Path | None) -> Run:
        def run(feeds: Mapping[str, Array]) -> list[Array]:
            powers = np.exp(feeds["x0"] - feeds["x0"].max())
            return [powers / np.cumsum(powers)[-1] * (1 + error)]
        return run
    return subject


def test_many_terms_of_one_sign() -> None:
    case = one("Softmax", 12, [fed(40, 500, dtype="float64")], axis=0)
    for seed in range(4):
        check(replace(case, seed=seed), _one_after_another(0.0))
        with pytest.raises(Finding, match="instead of"):
            check(replace(case, seed=seed), _one_after_another(1e-12))


def test_a_mean_of_two_is_rounded() -> None:
    """Both elements move the same way by what the mean was rounded, times 56 here."""
    x, factor = np.array([[[-2.895159, -3.0133858]]], np.float32), np.array([3.3206334], np.float32)
    case = one("InstanceNormalization", 17, [fed(1, 1, 2, values=x), fed(1, values=factor), fed(1, values=[1.8478566])])
    values = values_of(case, 0)
    exact = Reference(model_of(case, values)).expected(values, [x])
    assert exact is not None
    for moved, right in ((-7e-6, True), (7e-6, True), (-1e-3, False)):
        if right:
            check(case, _gives(exact.exact[0] + moved))
        else:
            with pytest.raises(Finding, match="instead of"):
                check(case, _gives(exact.exact[0] + moved))
