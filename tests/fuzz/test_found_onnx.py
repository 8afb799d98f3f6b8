"""Models that random search found to fail once, each by what mattered of it, judged as all random models are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.fuzz.operators.case import Case, Dims, Draft, Size, values_of
from tests.fuzz.operators.chains import random_case
from tests.fuzz.operators.check import check
from tests.fuzz.operators.unneeded import outputs_anyhow, with_indices_inside
from tests.fuzz.operators.values import Draw, fixed, plain


@dataclass(frozen=True)
class Value:
    """An operand: fed, or constant where it has a role."""

    dims: Dims
    dtype: str = "float32"
    draw: Draw | None = None
    role: str = "feed"


def fed(*dims: str | int, dtype: str = "float32", values: Any = None, mood: str = "ordinary") -> Value:
    """A fed operand of given values, or of random ones."""
    return Value(dims, dtype, plain(dtype, mood) if values is None else fixed(values, dtype))


def constant(values: Any, *dims: int, dtype: str = "int64") -> Value:
    """An initializer."""
    return Value(dims, dtype, fixed(values, dtype), "initializer")


def one(op: str, opset: int, operands: Sequence[Value | None], *runs: dict[str, int], outputs: int = 1, broken: str = "",
        **attributes: Any) -> Case:
    """A model of one node."""
    d = Draft(Random(0), opset)
    names = ["" if v is None else d.operand([x if isinstance(x, int) else 1 for x in v.dims], v.dtype, v.draw, v.role)
             for v in operands]
    made = d.node(op, names, outputs, **attributes)
    given = [v for v in operands if v is not None]
    symbolic = {x for v in given for x in v.dims if isinstance(x, str)}
    chosen = tuple(replace(o, dims=v.dims) for o, v in zip(d.operands, given))
    sizes = {n: Size(n, (1,)) for n in symbolic}
    return Case(op, opset, tuple(d.nodes), chosen, tuple(made), sizes, runs or ({},), "shared", True, 0, broken)


SIZES = ({"a": 1, "b": 1}, {"a": 3, "b": 17}, {"a": 16, "b": 65})

INDICES = fed("a", dtype="int64", values=[-5, -1, 0, 3, 4])


def _folded(op: str, *values: list[int], dtype: str = "int64", **attributes: Any) -> Case:
    return one(op, 14, [constant(v, len(v), dtype=dtype) for v in values], **attributes)


def _behind(op: str, case: Case) -> Case:
    """A Case, with an operator behind its output."""
    return replace(case, nodes=(*case.nodes, helper.make_node(op, case.outputs, ["behind"], op)), outputs=("behind",))


def _size_as_byte() -> Case:
    """Shape, narrowed to uint8, plus 1: the size 300 is 44 there."""
    d = Draft(Random(0), 17)
    x = d.operand((1,), role="feed")
    sizes, = d.node("Shape", [x])
    small, = d.node("Cast", [sizes], to=2)
    made = d.node("Add", [small, d.operand((1,), "uint8", fixed(1, "uint8"), "initializer")])
    chosen = tuple(replace(o, dims=("a",) if o.role == "feed" else o.dims) for o in d.operands)
    runs = ({"a": 7}, {"a": 300})
    return Case("Shape", 17, tuple(d.nodes), chosen, tuple(made), {"a": Size("a", (1,))}, runs, "shared", True, 0)


def _cut_backwards() -> Case:
    """A Slice with a negative step and an end behind the last element, of what another node gives."""
    d = Draft(Random(0), 13)
    x, = d.node("Transpose", [d.operand((4, 5), role="feed")], perm=[1, 0])
    bounds = [d.operand((1,), "int64", fixed([v]), "initializer") for v in (-3, 2**31 - 1, -1, -2)]
    made = d.node("Slice", [x, *bounds])
    return Case("Slice", 13, tuple(d.nodes), tuple(d.operands), tuple(made), {}, ({},), "shared", True, 0)


def _unneeded_index(op: str) -> Case:
    """Of five elements, the eighth; of what is gathered `op` takes the shape, or every element."""
    d = Draft(Random(0), 17)
    x = d.operand((5,), role="feed")
    taken, = d.node("Gather", [x, d.operand((2,), "int64", fixed([1, 7]), "feed")], axis=0)
    made = d.node(op, [taken])
    return Case(op, 17, tuple(d.nodes), tuple(d.operands), tuple(made), {}, ({},), "shared", True, 0, "index")


RIGHT = {
    # what is outside is never read: neither oracle says so
    "an index outside that no output needs": _unneeded_index("Shape"),
    # that none of the rows in a tile begins before the first is a product of two names, which isl cannot say
    "an image in one tile": one("Conv", 10, [fed(1, 1, "a", "b"), fed(2, 1, 2, 4), fed(2)], {"a": 3, "b": 8}, {"a": 7, "b": 7},
                                dilations=[2, 2], pads=[1, 2, 0, 3]),
    # the maximum of nothing was compared as a residue with the constant that it is
    "the sum of no exponentials": one("ReduceLogSumExp", 18, [fed(8, 6, 0), constant([-2, 0, -1], 3)]),
    # no bug: only ceil_mode leaves windows out that begin behind the image
    # its copy of the padded image took more of isl's operations to prove than a kernel may, and nothing was left to cut
    "a window spaced along three padded axes": one("AveragePool", 19, [fed(1, 1, "a", "b", "c")], {"a": 13, "b": 7, "c": 9},
                                                   {"a": 10, "b": 8, "c": 17}, kernel_shape=[5, 4, 5], strides=[2, 1, 3],
                                                   dilations=[3, 2, 2], pads=[2, 2, 2, 3, 0, 0]),
    "places in a scalar": one("NonZero", 21, [fed(values=0.0)]),
    "pads larger than the window": one("MaxPool", 7, [fed(2, 1, "a", 16)], {"a": 13}, broken="pads", kernel_shape=[4, 1],
                                       strides=[3, 1], pads=[9, 9, 9, 9]),
    # gcc 12 makes -x of 0.0 + -x, also where x is 0
    "nothing plus what is negated": _behind("Neg", one("Range", 17, [
        constant(v, dtype="float32") for v in (0, -2, -1)])),
    # code for unsigned vectors was missing
    "unsigned Trilu": one("Trilu", 14, [fed("a", "b", dtype="uint64")], *SIZES),
    "unsigned MatMul": one("MatMul", 13, [fed("a", "b", dtype="uint32"), fed("b", 17, dtype="uint32")], *SIZES),
    "unsigned Split": one("Split", 18, [fed("a", 6, dtype="uint16")], {"a": 5}, outputs=2, num_outputs=2),
    # roots and logarithms of integers were called on integers
    "norm of integers": one("ReduceL2", 18, [fed("a", "b", dtype="int32")], *SIZES),
    # attributes were cut to integers before they were compared with integers
    "Shrink of integers": one("Shrink", 9, [fed("a", dtype="int16", values=[-3, -1, 0, 1, 3])], {"a": 5}, bias=0.6, lambd=1.5),
    # a kernel without instances
    "a constant without elements": one("ConstantOfShape", 9, [constant([0, 3], 2)]),
    # before opset 11 indices did not count from the end
    "OneHot of negative indices": one("OneHot", 9, [INDICES, constant(4), fed(2)], {"a": 5}),
    "OneHot from the end": one("OneHot", 11, [INDICES, constant(4), fed(2)], {"a": 5}),
    # mean and deviation are of the type of stash_type
    "statistics of doubles": one("LayerNormalization", 17, [fed("a", 8, dtype="float64"), fed(8, dtype="float64")], {"a": 3},
                                 outputs=3),
    # no bug: the exponential of the body is beyond all numbers, in float64 too
    "the largest of Softplus": one("Softplus", 22, [fed("a", values=[3418.0, 88.0, 90.0, -90.0, 3e38, np.inf])], {"a": 6}),
    # it was 0 where 1 and the exponential are 1, and what was divided by it infinite; the judge took it to be near enough
    "a small Softplus": one("Softplus", 22, [fed("a", values=[-10.0, -16.0, -16.6, -17.0, -20.0, -40.0, -87.0, -100.0])],
                            {"a": 8}),
    "a small Softplus of doubles": one("Softplus", 22, [fed("a", dtype="float64", values=[-30.0, -36.7, -40.0, -300.0])],
                                       {"a": 4}),
    # no bug: the reference takes an infinite maximum from itself
    "the exponential of infinity": one("ReduceLogSumExp", 17, [fed(4, "a", values=[[np.inf], [-np.inf], [0], [np.nan]])],
                                       {"a": 1}, axes=[1]),
    # no bug: the body's variance is a difference of infinities there
    "a norm of the largest double": one("LayerNormalization", 17, [
        fed(2, 4, dtype="float64", values=[[1, 2, 3, 4], [1.7e308, 0, -1, 2]]), fed(4, dtype="float64")], axis=1),
    # constants were folded in integers without end, and then did not fit their type
    "a sum beyond int8": _folded("Add", [100, -100], [100, -100], dtype="int8"),
    "a difference below 0": _folded("Sub", [1], [2], dtype="uint8"),
    "a product beyond int64": _folded("Mul", [2**40], [2**40]),
    "the least integer negated": _folded("Neg", [-(2**63)]),
    "the magnitude of the least integer": _folded("Abs", [-128, 5], dtype="int8"),
    "a narrowing cast": _folded("Cast", [300, -1, 7], to=2),
    "a narrowing cast of sizes": _size_as_byte(),
    "squares of large integers": one("ReduceL2", 13, [constant([2**63 - 1, -(2**63), 1, 2**62], 4)]),
    "a product of many integers": one("ReduceProd", 13, [constant([2**31 - 1] * 7, 7)]),
    "a power beyond int64": one("Pow", 13, [constant([2**31 - 1], 1), constant([7], 1)]),
    "bounds of one element": one("Clip", 17, [fed("a", "b"), fed(1), fed(1, 1)], *SIZES),
    "mean of large integers": one("ReduceMean", 18, [constant([[2**62, 2**62, 5]], 1, 3)]),
    # gcc's vectoriser gave rows of two elements the mask of other rows
    "joined rows of two": one("Concat", 13, [fed("a", 2), constant([[0.5, -1.5]] * 8, 8, 2, dtype="float32")],
                              {"a": 1}, {"a": 65}, axis=0),
    # what they are decomposed to was held to the element types that the opset allows a model
    "ArgMax in an old opset": one("ArgMax", 10, [fed("a", "b")], *SIZES, axis=1),
    "ArgMin of int16": one("ArgMin", 21, [fed("a", "b", dtype="int16")], *SIZES, axis=0),
    # -1 does not fit an unsigned type
    # of widths from 5 to 8: that (W + 1) // 4 is at least 1, and that there are four runs of W - 3 in 4 * W - 12, went unseen
    "windows over few widths": one("Conv", 10, [fed("b", 1, 8, 3, "a"), fed(5, 1, 5, 3, 4)], {"a": 5, "b": 1}, {"a": 8, "b": 3},
                                   kernel_shape=[5, 3, 4]),
    # lanes outside of a load are 0.0, and 0.0 counted as equal to -0.0
    "padding with a negative zero": one("Pad", 18, [fed("a", "b"), constant([1, 2, 0, -1], 4),
                                                    constant(-0.0, dtype="float32")], {"a": 5, "b": 17}),
    "an infinite bias times nothing": one("Gemm", 13, [fed("a", 3), fed(3, 2), fed(2, values=[np.inf, 1])], {"a": 2}, beta=0.0),
    "minus a product of unsigned numbers": one("Gemm", 13, [fed("a", 3, dtype="uint32"), fed(3, 2, dtype="uint32")], {"a": 2},
                                               alpha=-1.0),
    # an array that is no register tile was held to the reads of one
    "strided depthwise windows of one": one("Conv", 21, [fed(2, 8, "a", "b"), fed(8, 1, 1, 1)], {"a": 3, "b": 16},
                                            {"a": 1, "b": 33}, group=8, kernel_shape=[1, 1], strides=[1, 2]),
    # a loop over every second element was cut between two of them
    "strided windows of one behind a padded edge": one(
        "Conv", 21, [fed(1, 17, 14, "a"), fed(17, 1, 3, 1)], {"a": 5}, {"a": 33}, group=17, strides=[1, 2], dilations=[3, 1],
        auto_pad="SAME_UPPER"),
    "strided windows of one of a known image": one(
        "Conv", 21, [fed(1, 17, 14, 5), fed(17, 1, 3, 1)], group=17, strides=[1, 2], dilations=[3, 1], auto_pad="SAME_UPPER"),
    # weights of cubic interpolation were sums of terms that cancel
    "cubic weights close to 0": one("Resize", 18, [fed(1, 2, "a", 16), None, None, constant([1, 2, 7, 7], 4)], {"a": 17},
                                    {"a": 31}, mode="cubic"),
    # the oracles part: about halves, about a coordinate that is whole but for rounding, about bounds behind the end
    "integers, interpolated": one("Resize", 19, [fed(1, 1, 16, "a", dtype="uint8"), None, None, constant([1, 1, 16, 7], 4)],
                                  {"a": 16}, {"a": 13}, {"a": 8}, mode="linear",
                                  coordinate_transformation_mode="half_pixel_symmetric"),
    "the middle of 13": one("Resize", 18, [fed(1, 2, 16, 13), None, None, constant([1, 2, 16, 1], 4)], nearest_mode="floor"),
    "axes from the back": one("Resize", 18, [fed(1, 2, "a", 8), None, None, constant([2, 1], 2)], {"a": 2}, {"a": 3},
                              axes=[-1, -2], keep_aspect_ratio_policy="not_smaller"),
    "the shape of nothing": one("Shape", 24, [fed("a", "b", 2, dtype="int8")], *SIZES, start=-3, end=-4),
    "cut backwards": _cut_backwards(),
    # the last place of a crop was rounded to just behind the last element, where nothing is; or to just before an element
    "a crop up to the last element": one("Resize", 13, [
        fed(1, 2, 8, "a"), constant([0, 0, 0, 0, 1, 1, 1, 1], 8, dtype="float32"), None, constant([1, 2, 26, 3], 4)], {"a": 4},
        mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.5),
    "a crop that hits elements": one("Resize", 13, [
        fed(1, 2, 14, 29), constant([0, 0, 0, 0.75, 1, 1, 1, 0.25], 8, dtype="float32"), None, constant([1, 2, 24, 26], 4)],
        nearest_mode="floor", coordinate_transformation_mode="tf_crop_and_resize"),
    # an output without elements is no statement of the schedule
    "statistics of nothing": one("LayerNormalization", 21, [fed(0), fed(0), fed(0)], outputs=3),
    # ONNX Runtime keeps a negative axis then
    "norms of nothing": one("ReduceL2", 12, [fed(2, 0, "a")], {"a": 8}, axes=[-2, -1]),
    # proofs failed where indices have fewer rows than the data
    "GatherElements of fewer rows": one("GatherElements", 13, [fed("a", 2), fed("b", 2, dtype="int64", values=[[0, 0]])],
                                        {"a": 3, "b": 1}),
    # vectors behind those of an image's row were thought to repeat each other: that a loop outside is short was not asked
    "rows of 4 lanes behind a slice": replace(
        one("Conv", 24, [fed("a", 3, "b", "c", 9, dtype="float64"), fed(5, 3, 4, 1, 3, dtype="float64"),
                         fed(5, dtype="float64")], {"a": 1, "b": 7, "c": 5}, {"a": 2, "b": 5, "c": 1}, pads=[1, 0, 0, 0, 0, 1]),
        target="cpu-avx2"),
    # products of doubles overflow, or do not where they are added at once: the judge wanted NaN
    "sums of doubles that are too large": one(
        "Conv", 17, [fed(1, 1, 5, 7, dtype="float64", mood="extreme"), fed(2, 1, 3, 3, dtype="float64", mood="extreme")]),
    # a reduction that reads nothing was taken for index arithmetic
    "what lies before the only element": _behind("Abs", one("CumSum", 14, [fed("a", 1), constant(-1)], *SIZES, exclusive=1)),
    # both oracles reshape to -1 elements a group; ours took a known 0 for 'copy this dim'
    "groups of no elements": one("GroupNormalization", 21, [fed("a", 4, "b"), fed(4), fed(4)], {"a": 0, "b": 3},
                                 {"a": 2, "b": 0}, {"a": 2, "b": 5}, num_groups=2),
    "groups of a known image without pixels": one("GroupNormalization", 18, [fed(2, 6, 0, 3), fed(3), fed(3)], num_groups=3),
    # the scaled mean left float32, what is left of x less the mean would not
    "a scale near the greatest number": one("BatchNormalization", 15, [
        fed("a", 3, 5), fed(3, values=[-3.4e38, 1, 1]), fed(3), fed(3, values=[-1.66, 0, 2]), fed(3, values=[1.36, 1, 1])],
        {"a": 1}, {"a": 17}),
    # ONNX Runtime rounds up
    "whole windows alone": one("MaxPool", 12, [fed(1, 3, "a")], {"a": 15}, {"a": 7}, kernel_shape=[5], strides=[3],
                               auto_pad="VALID", ceil_mode=1),
    # no bug: the reference does not reduce over an axis that is named twice, and float32 said nothing
    "an axis twice": one("ReduceLogSum", 18, [fed("a", "b"), constant([-1, -1], 2)], *SIZES, broken="an axis twice",
                         noop_with_empty_axes=1),
}

REFUSED = {
    "two edges in place of one": one("MelWeightMatrix", 21, [
        constant(3), constant(255), constant(8000), constant([1.6, 0.05], 2, dtype="float32"), fed(values=3268.5)],
        broken="an operand of another rank"),
    "axes of rank 0 to squeeze": one("Squeeze", 22, [fed(1, 1, 1), constant(1)], broken="rank"),
    # 'it must be a scalar'; more dims than the operand's became dims of the output
    "a scalar with a bound that has a dim": one("Clip", 17, [fed(), None, fed(1)], broken="rank"),
    # where the value is the same whatever the index
    "an index outside of a dim of 1": one("Gather", 18, [fed(1, "b"), fed("d", dtype="int64", values=[-2, 0, 1])],
                                          {"b": 2, "d": 3}, broken="index"),
    "an index outside of a dim of 1, by element": one(
        "GatherElements", 18, [fed("b", 1), fed("b", 2, dtype="int64", values=[[0, 5]])], {"b": 1}, broken="index", axis=1),
    "an index outside that the output needs": _unneeded_index("Neg"),
    "an index into nothing": one("Gather", 12, [fed(0), fed("b", 2, dtype="int64", values=[[0, -1]])], {"b": 1}, broken="index",
                                 axis=-1),
    "starts and ends of unequal lengths": one(
        "Slice", 13, [fed("a"), constant([0, 1], 2), constant([1], 1), constant([0], 1)], {"a": 5}, broken="lengths"),
    "steps in rows": one("Slice", 17, [fed("a"), constant([0], 1), constant([3], 1), constant([0], 1), constant([[2]], 1, 1)],
                         {"a": 5}, broken="rank"),
    "a reflection of one element": one("Pad", 18, [fed("a"), constant([0, 2], 2)], {"a": 1}, broken="size", mode="reflect"),
    "some elements out of none": one("Resize", 18, [fed(1, 2, 0, 5), None, None, constant([1, 2, 1, 7], 4)], broken="size",
                                     mode="linear"),
    "a depth of 0": one("OneHot", 11, [fed(1, "a", dtype="int64"), constant(0), fed(2)], {"a": 5}, broken="size"),
    "a ratio of two": one("Dropout", 21, [fed(), constant([-1.5, 0.25], 2, dtype="float32")], broken="rank"),
    # onnx's own inference of shapes does not survive it
    "nothing to be like": one("EyeLike", 17, [None], broken="an input less"),
    "rows of no tensor": one("Softmax", 12, [fed()], broken="rank"),
    # the default is 1
    "an axis behind the only one": one("LogSoftmax", 12, [fed("a")], {"a": 5}, broken="rank"),
    "an axis behind the last, before opset 11": one("Softmax", 10, [fed("a", 3)], {"a": 7}, broken="axis", axis=2),
    "axes that are no list": one("Pad", 19, [fed(3, 3, 1), constant([0, -1], 2), None, constant(-3)], broken="rank"),
    "weights without elements": one("Conv", 11, [fed(1, 3, "a", 5), fed(4, 3, 3, 0)], {"a": 7}, broken="size"),
    "an edge of nothing": one("Pad", 19, [fed(0, dtype="uint8"), constant([2, 3], 2)], broken="size", mode="edge"),
}


#: The standard allows them and does not say what they are.
UNSUPPORTED = {
    "the error function of integers": one("Erf", 9, [fed("a", dtype="int64")], {"a": 5}),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_it_is_refused_as_unsupported(name: str) -> None:
    verdict = check(UNSUPPORTED[name])
    assert verdict.refused and verdict.refused[0].startswith("UnsupportedError") and not verdict.right, verdict


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_right_now(name: str) -> None:
    verdict = check(RIGHT[name])
    assert verdict.right == len(RIGHT[name].runs), verdict


@pytest.mark.parametrize("size", [2**31 - 1, 2**40, 2**62, 2**63 - 1])
def test_a_window_of_far_more_than_there_is(size: int) -> None:
    """What lies outside in every window was walked: the values' check overflowed, or took all memory."""
    case = one("LRN", 13, [fed(1, "a", 2, 3)], {"a": 7}, broken="size", size=size, alpha=float(size), beta=0.5)
    for seed, is_known in ((0, True), (2, False)):  # with the range of channels, and without
        verdict = check(replace(case, seed=seed))
        assert bool(verdict.right) == (is_known and size < 2**47), verdict
        assert all(why.startswith("UnsupportedError") for why in verdict.rightly_refused), verdict


def test_what_nothing_is_reshaped_to_is_as_sizes_say() -> None:
    """Neither oracle divides 0 by 0, even where what is known of sizes says enough."""
    case = one("Reshape", 18, [fed("a", 1, "b"), constant([0, -1], 2)], {"a": 0, "b": 3}, {"a": 2, "b": 3})
    verdict = check(replace(case, seed=4))  # with the ranges of dims
    assert verdict.right == 1 and verdict.conventions == ["-1, of no elements"]


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_now(name: str) -> None:
    verdict = check(REFUSED[name])
    assert verdict.rightly_refused and not verdict.right, verdict


def test_a_dim_that_is_squeezed_at_one_size_is_refused_there() -> None:
    """The rank depends on the size, which is taken not to be 1."""
    verdict = check(one("Squeeze", 11, [fed("a", 3, 1)], {"a": 1}, {"a": 2}, broken="size"))
    assert verdict.rightly_refused and verdict.right == 1, verdict


def test_an_index_outside_that_an_output_needs_is_not_excused() -> None:
    for op, is_excused in (("Shape", True), ("Neg", False)):
        case = _unneeded_index(op)
        assert (with_indices_inside(case, values_of(case, 0)) is not None) == is_excused


def test_an_index_into_nothing_is_excused_where_no_output_needs_it() -> None:
    for chosen, is_excused in ((False, True), (True, False)):
        d = Draft(Random(0), 13)
        x, at = d.operand((1,), "float32", plain("float32"), "feed"), d.operand((2,), "int64", fixed([-1, -1]), "feed")
        which = d.operand((1,), "bool", fixed([chosen], "bool"), "feed")
        y = d.operand((2,), "float32", plain("float32"), "feed")
        (row,) = d.node("Gather", [x, at])
        made = d.node("Where", [which, row, y])
        shapes: tuple[Dims, ...] = (("a",), (2,), (1,), (2,))
        operands = tuple(replace(o, dims=dims) for o, dims in zip(d.operands, shapes))
        case = Case("chain", 13, tuple(d.nodes), operands, tuple(made), {"a": Size("a", (0,))}, ({"a": 0},), "shared", True, 0)
        assert (outputs_anyhow(case, values_of(case, 0)) is not None) == is_excused


@pytest.mark.parametrize(("generation", "seed", "number"), [
    (0, 20261130, 2365),  # half of a dim that is even was not tied to it
    (0, 20261211, 11410),  # no bug: of no elements, the reference gives a mean of another type than the standard infers
    (0, 20261210, 640),   # two halves of an even dim, merged with another, were not the dim in the target's shape
    (0, 20261213, 17384),  # no bug: remainders of integers beyond a double
    (0, 20261231, 7119),  # no bug: the sign of a zero that is a sum of one product, by which something is divided
    (0, 20261213, 17551),  # no bug: the body of LayerNormalization does not broadcast a scale, so that float64 said nothing
    (0, 20261213, 10234),  # no bug: powers too large for a float, where the judge asks whether they are for an integer
    (0, 20261213, 2366),  # sums of int64 are data, where they depend on what nobody needs: they were taken for indices
    (0, 20271411, 2111),  # no bug: the logarithm of a sum without digits, in float64 too, where the judge saw one sign
    (0, 20271411, 10936),  # no bug: no number as an unsigned integer, which NumPy converts in two ways
    (0, 20261201, 7186),  # a quotient by twice a size, in two forms, of one of which a maximum with 0 was proved needless
    (4, 20272301, 7471),  # no bug: sums of large integers, which ONNX Runtime cuts to the ends of their type
    (4, 20272301, 17047),  # a read that the run checks was to be proved to be within its buffer
    (12, 4242, 37868),  # gcc 12 has no code for masked loads of bytes that it has made itself
    (1, 20271901, 12734),  # the Softplus of a large negative number was 0, and a quotient by it infinite
])
def test_a_random_case_is_right_now(generation: int, seed: int, number: int) -> None:
    verdict = check(random_case(seed, number, generation=generation))
    assert verdict.right and not verdict.slow, verdict


@pytest.mark.parametrize(("generation", "seed", "number"), [
    (12, 4242, 262),  # a center_point_box that is neither 0 nor 1
    (12, 999, 101),  # a diagonal of axes of which one has a single element
])
def test_a_random_case_is_refused_now(generation: int, seed: int, number: int) -> None:
    """What both oracles refuse was accepted."""
    verdict = check(random_case(seed, number, generation=generation))
    assert verdict.rightly_refused and not verdict.right, verdict
