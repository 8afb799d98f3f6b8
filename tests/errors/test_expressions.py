"""Wrong tensor expressions: each is refused with the file and the line (marked `# !`) of the user's code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

import tsc
from tsc import te

Refused = Callable[..., AbstractContextManager[None]]
M, N, K = te.dim("M"), te.dim("N"), te.dim("K")
A = te.placeholder((M, K), "float32", "a")
B = te.placeholder((K, N), "float32", "b")
IDS = te.placeholder((M,), "int64", "ids")


def rank_of_an_index() -> None:
    te.compute((M,), lambda i: A[i] + 1.0, "y")  # !


def a_tensor_in_place_of_its_element() -> None:
    te.compute((M,), lambda i: te.exp(A[i, 0]) * (1.0 - A), "y")  # !


def tensors_multiplied() -> None:
    A @ B  # type: ignore[operator]  # !


def rank_of_a_function() -> None:
    te.compute((M, N), lambda i: A[i, 0], "y")  # !


def dtypes_differ() -> None:
    te.compute(
        (M,),
        lambda i: A[i, 0] * i, "y")  # !


def float_literal_with_integers() -> None:
    te.compute((M,), lambda i: IDS[i] + 0.5, "y")  # !


def float_index() -> None:
    te.compute((M,), lambda i: A[i, A[i, 0]], "y")  # !


def no_condition() -> None:
    te.compute((M,), lambda i: te.where(A[i, 0], 1.0, 0.0), "y")  # !


def truth_of_an_element() -> None:
    def step(i: te.Scalar) -> te.Scalar:
        if A[i, 0] > 0.0:  # !
            return A[i, 0]
        return A[i, 1]

    te.compute((M,), step, "y")


def chained_comparison() -> None:
    te.compute((M,), lambda i: te.where(0 < i < M, A[i, 0], 0.0), "y")  # !


def integers_divided() -> None:
    te.compute((M,), lambda i: A[i, 0] * te.cast(i / 2, "float32"), "y")  # !


def no_monoid() -> None:
    k = te.reduce_axis(K, "k")
    te.compute((M,), lambda i: te.reduce(lambda a, b: a - b, A[i, k], axis=k), "y")  # !


def no_monoid_of_two_operations() -> None:
    k = te.reduce_axis(K, "k")

    def blend(a: te.Scalar, b: te.Scalar) -> te.Scalar:
        return (a + b) * 0.5

    te.compute((M,), lambda i: te.reduce(blend, A[i, k], axis=k), "y")  # !


def reduction_inside_an_expression() -> None:
    k = te.reduce_axis(K, "k")
    te.compute((M,), lambda i: te.sum(A[i, k], axis=k) / 2.0, "y")  # !


def reduce_axis_not_reduced() -> None:
    k = te.reduce_axis(K, "k")
    te.compute((M,), lambda i: A[i, k], "y")  # !


def axis_of_another_compute() -> None:
    kept: list[te.Scalar] = []

    def first(i: te.Scalar) -> te.Scalar:
        kept.append(i)
        return A[i, 0]

    te.compute((M,), first, "x")
    te.compute((M,), lambda j: A[kept[0], 0] + A[j, 0], "y")  # !


def reduces_over_an_index() -> None:
    te.compute((M,), lambda i: te.sum(A[i, 0], axis=i), "y")  # !


def shadowed_index() -> None:
    i = te.reduce_axis(K, "j")
    te.compute((M, N), lambda row, j: te.sum(A[row, i], axis=i), "y")  # !


def shadowed_reduce_axis() -> None:
    p, q = te.reduce_axis(K, "k"), te.reduce_axis(N, "k")
    te.compute((M,), lambda i: te.sum(A[i, p] * B[p, q], axis=(p, q)), "y")  # !


def two_tensors_of_one_name() -> None:
    other = te.placeholder((K, N), "float32", "a")
    te.compute((M,), lambda i: A[i, 0] + other[0, 0], "y")  # !


def name_of_what_it_reads() -> None:
    te.compute((M,), lambda i: A[i, 0], "a")  # !


def dim_declared_twice() -> None:
    other = te.placeholder((te.dim("M", 1, 8),), "float32", "other")
    te.compute((M,), lambda i: A[i, 0] + other[i], "y")  # !


def no_expression() -> None:
    te.compute((M,), lambda i: "nothing", "y")  # !


def a_whole_tensor() -> None:
    te.compute((M,), lambda i: A[i, 0] + IDS, "y")  # !


def size_that_is_data() -> None:
    te.placeholder((IDS[0],), "float32", "x")  # !


def negative_size() -> None:
    te.placeholder((M, -3), "float32", "x")  # !


def unknown_dtype() -> None:
    te.placeholder((M,), "complex64", "x")  # !


def no_name() -> None:
    te.placeholder((M,), "float32", "my tensor")  # !


def impossible_range() -> None:
    te.dim("z", 5, 3)  # !


WORDS: dict[Callable[[], None], tuple[type[Exception], tuple[str, ...]]] = {
    rank_of_an_index: (tsc.ShapeError, ("'a'", "rank 2", "[M, K]", "1 indices")),
    a_tensor_in_place_of_its_element: (tsc.ModelError, ("'a' is a tensor", "write a[i, j]")),
    tensors_multiplied: (tsc.ModelError, ("'a' is a tensor", "write a[i, j]")),
    rank_of_a_function: (tsc.ShapeError, ("'y'", "1 indices", "rank 2")),
    dtypes_differ: (tsc.ModelError, ("'a[i, 0]' of float32", "'i' of int64", "te.cast")),
    float_literal_with_integers: (tsc.ModelError, ("int64", "0.5")),
    float_index: (tsc.ModelError, ("index 1 of 'a'", "float32", "integer")),
    no_condition: (tsc.ModelError, ("te.where", "'a[i, 0]'", "conditions")),
    truth_of_an_element: (tsc.ModelError, ("te.where", "'(a[i, 0] > 0.0)'")),
    chained_comparison: (tsc.ModelError, ("truth value", "te.all_of")),
    integers_divided: (tsc.ModelError, ("div", "int64", "//")),
    no_monoid: (tsc.ModelError, ("'(left - right)'", "no declared monoid", "associative")),
    no_monoid_of_two_operations: (tsc.ModelError, ("no declared monoid",)),
    reduction_inside_an_expression: (tsc.ModelError, ("reduction", "te.compute of its own")),
    reduce_axis_not_reduced: (tsc.ModelError, ("'y'", "the axis 'k'", "te.sum")),
    axis_of_another_compute: (tsc.ModelError, ("'y'", "the axis 'i'", "none of its axes")),
    reduces_over_an_index: (tsc.ModelError, ("te.sum", "'i'", "te.reduce_axis")),
    shadowed_index: (tsc.ModelError, ("'j'", "shadows")),
    shadowed_reduce_axis: (tsc.ModelError, ("'k'", "shadows")),
    two_tensors_of_one_name: (tsc.ModelError, ("two tensors", "'a'", "rename")),
    name_of_what_it_reads: (tsc.ModelError, ("'a'", "rename")),
    dim_declared_twice: (tsc.ModelError, ("dim 'M'", "1..8")),
    no_expression: (tsc.ModelError, ("'y'", "str")),
    a_whole_tensor: (tsc.ModelError, ("Tensor", "index it")),
    size_that_is_data: (tsc.ShapeError, ("'x'", "ids[0]", "te.dim")),
    negative_size: (tsc.ShapeError, ("'x'", "-3")),
    unknown_dtype: (tsc.ModelError, ("complex64", "float32")),
    no_name: (tsc.ModelError, ("my tensor", "identifier")),
    impossible_range: (tsc.ModelError, ("'z'", "5", "3")),
}


def marked(function: Callable[..., Any]) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_expressions.py:{next(first + k for k, line in enumerate(lines) if '# !' in line)}:"


@pytest.mark.parametrize("wrong", WORDS, ids=lambda f: f.__name__)
def test_refused_where_it_is_written(wrong: Callable[[], None], refused: Refused) -> None:
    kind, words = WORDS[wrong]
    with refused(kind, marked(wrong), *words):
        wrong()


# -- what only tsc.build can see -------------------------------------------------------------------------------

def index_beyond_the_end() -> te.Tensor:
    def neighbours(i: te.Scalar) -> te.Scalar:
        left = te.where(i >= 1, A[i - 1, 0], 0.0)
        return left + A[i + 1, 0]  # !

    return te.compute((M,), neighbours, "y")


def negative_index() -> te.Tensor:
    return te.compute((M,), lambda i: A[i - 1, 0], "y")  # !


def sizes_that_may_differ() -> te.Tensor:
    k = te.reduce_axis(K, "k")
    wide = te.placeholder((te.dim("K2"), N), "float32", "wide")
    return te.compute(
        (M, N),
        lambda i, j: te.sum(A[i, k] * wide[k, j], axis=k), "y")  # !


def guarded_by_data_only() -> te.Tensor:
    return te.compute((M,), lambda i: te.where(IDS[i] > 0, A[i + 1, 0], 0.0), "y")  # !


@pytest.mark.parametrize("wrong, words", [
    (index_beyond_the_end, ("a[i + 1, 0]", "M = 1", "i = 0", "te.where")), (negative_index, ("a[i - 1, 0]", "i = 0")),
    (sizes_that_may_differ, ("wide[k, j]", "K2 = 1")), (guarded_by_data_only, ("a[i + 1, 0]",))], ids=lambda x: getattr(
        x, "__name__", ""))
def test_an_index_that_can_leave_its_tensor(wrong: Callable[[], te.Tensor], words: tuple[str, ...], refused: Refused) -> None:
    with refused(tsc.ShapeError, marked(wrong), *words):
        tsc.build(wrong())


def test_the_same_indices_under_a_guard_are_fine() -> None:
    y = te.compute((M,), lambda i: te.where(i + 1 < M, A[te.minimum(i + 1, M - 1), 0], 0.0), "y")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(tsc.build(y).run(None, {"a": x})[0], [2, 4, 0])


@pytest.mark.parametrize("make, kind, words", [
    (lambda: tsc.build([]), tsc.ModelError, ("no outputs",)),
    (lambda: tsc.build(A), tsc.ModelError, ("'a'", "not computed")),
    (lambda: tsc.build(np.zeros(3)), tsc.ModelError, ("ndarray",)),
    (lambda: tsc.build(te.compute((M,), lambda i: A[i, 0], "y"), inputs=[B]), tsc.ModelError, ("'a'", "not among the inputs")),
    (lambda: tsc.build(te.compute((M,), lambda i: 1.0, "y")), tsc.ShapeError, ("'y'", "'M'", "no input")),
    (lambda: tsc.build(te.compute((M,), lambda i: A[i, 0], "y"), target="abacus"), tsc.LaunchError, ("abacus",))],
    ids=["nothing", "placeholder", "array", "foreign", "unbound", "target"])
def test_what_cannot_be_built(make: Callable[[], Any], kind: type[Exception], words: tuple[str, ...], refused: Refused) -> None:
    with refused(kind, *words):
        make()


def test_a_tensor_of_an_older_program_is_foreign(refused: Refused) -> None:
    """The same name twice among all that an output reaches."""
    x = te.compute((M,), lambda i: A[i, 0], "x")
    again = te.compute((M,), lambda i: A[i, 1 - 1], "x")
    y, z = te.compute((M,), lambda i: x[i], "y"), te.compute((M,), lambda i: again[i], "z")
    with refused(tsc.ModelError, "'x'", "rename"):
        tsc.build([y, z])
