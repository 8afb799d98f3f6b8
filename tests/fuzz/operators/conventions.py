"""Where ONNX Runtime and the reference evaluator of onnx 1.23 part ways: what the standard says, and whom we follow.

An oracle that is outvoted here is wrong or incomplete; "open" means that the standard leaves it open: either's value will do,
or NaN, or any integer. A disagreement that is not on this list is a finding. Where the reference evaluator is plainly wrong,
`mended.py` has the operator anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper

Values = Sequence[np.ndarray[Any, Any] | None]


@dataclass(frozen=True)
class Convention:
    """For `ops`, where `when` holds of the node, its inputs and the opset: `side` is "runtime", "reference" or "open"."""

    ops: frozenset[str]
    situation: str
    side: str
    why: str
    when: Callable[[NodeProto, Values, int], bool] = lambda node, inputs, opset: True


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """An attribute's value, or its default."""
    found = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
    return found.decode() if isinstance(found, bytes) else found


def has_nan(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Whether some float operand holds a NaN."""
    return any(x is not None and x.dtype.kind == "f" and bool(np.isnan(x).any()) for x in inputs)


def _end_beyond_backwards(node: NodeProto, inputs: Values, opset: int) -> bool:
    """A negative step with an end that lies behind the last element."""
    if len(inputs) < 5 or inputs[0] is None or inputs[2] is None or inputs[4] is None:
        return False
    axes = inputs[3] if inputs[3] is not None else np.arange(inputs[2].size)
    return any(step < 0 and end >= inputs[0].shape[axis] for end, step, axis in zip(inputs[2], inputs[4], axes))


def _same_and_dilated(node: NodeProto, inputs: Values, opset: int) -> bool:
    """auto_pad SAME with dilations."""
    return str(attribute(node, "auto_pad", "")).startswith("SAME") and any(r != 1 for r in attribute(node, "dilations", ()))


def _no_trip(node: NodeProto, inputs: Values, opset: int) -> bool:
    """A loop that ends before its first trip."""
    trips, condition = inputs[:2]
    return (trips is not None and int(np.ravel(trips)[0]) <= 0) or (condition is not None and not bool(np.all(condition)))


def _valid_and_rounded_up(node: NodeProto, inputs: Values, opset: int) -> bool:
    """auto_pad VALID with ceil_mode."""
    return attribute(node, "auto_pad") == "VALID" and bool(attribute(node, "ceil_mode"))


_MAXIMA = _names("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "ArgMax", "ArgMin", "Hardmax", "Clip",
                 "Relu", "Softmax", "LogSoftmax", "ReduceLogSumExp", "HardSigmoid", "HardSwish", "Celu", "Elu", "Selu", "Sign",
                 "PRelu", "LeakyRelu", "ThresholdedRelu", "Shrink")

def _before_opset(newest: int) -> Callable[[NodeProto, Values, int], bool]:
    return lambda node, inputs, opset: opset < newest


def _fractional_length(node: NodeProto, inputs: Values, opset: int) -> bool:
    """align_corners or a crop, by scales that make no whole lengths."""
    if attribute(node, "coordinate_transformation_mode") not in ("align_corners", "tf_crop_and_resize") or inputs[0] is None:
        return False
    scales = next((x for x in inputs[1:3] if x is not None and x.dtype.kind == "f" and x.size == inputs[0].ndim), None)
    return scales is not None and any(float(n * s) % 1 for n, s in zip(inputs[0].shape, scales))


def _takes_nearest(node: NodeProto, inputs: Values, opset: int) -> bool:
    """The nearest element, which a coordinate in floats may miss."""
    return opset >= 11 and attribute(node, "mode", "nearest") == "nearest"


def _interpolates_integers(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Values between integers."""
    return attribute(node, "mode", "nearest") != "nearest" and inputs[0] is not None and inputs[0].dtype.kind in "iu"


def _keeps_ratio_of_last_axes(node: NodeProto, inputs: Values, opset: int) -> bool:
    """A policy for axes that are counted from the back."""
    stretches = attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
    return not stretches and any(a < 0 for a in attribute(node, "axes", ()))


def _nothing_from_the_back(node: NodeProto, inputs: Values, opset: int) -> bool:
    """No elements, reduced over axes that are counted from the back."""
    given = attribute(node, "axes") or [attribute(node, "axis", 0)]
    axes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else given
    return inputs[0] is not None and inputs[0].size == 0 and any(int(a) < 0 for a in axes)


def _empty(node: NodeProto, inputs: Values, opset: int) -> bool:
    """An image without pixels, or another first operand without elements."""
    return inputs[0] is not None and inputs[0].size == 0


def _pads_hold_windows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Pads in which a window finds room."""
    kernel, pads = attribute(node, "kernel_shape", ()), attribute(node, "pads", ())
    dilations = attribute(node, "dilations") or [1] * len(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    return any(pad >= span for pad, span in zip(pads, [*spans, *spans]))


def _no_integers(node: NodeProto, inputs: Values, opset: int) -> bool:
    """No elements, of an integer type, which has no NaN."""
    return inputs[0] is not None and inputs[0].size == 0 and inputs[0].dtype.kind in "iu"


def _is_padded_cubic(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Cubic interpolation with elements beyond the borders."""
    return attribute(node, "mode", "linear") in ("cubic", "bicubic") and attribute(node, "padding_mode", "zeros") != "zeros"


def _crops(node: NodeProto, inputs: Values, opset: int) -> bool:
    """A crop of what is resized."""
    return bool(attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize")


def _beyond_float32(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers that a float32 does not hold."""
    x = inputs[0]
    return x is not None and x.dtype.kind in "iu" and bool(x.size) and float(np.abs(x.astype(np.float64)).max()) >= 2.0**24


def _no_number_as_integer(node: NodeProto, inputs: Values, opset: int) -> bool:
    """A bias that is not finite, for integers: NumPy itself makes two things of it, in arrays and alone."""
    return inputs[0] is not None and inputs[0].dtype.kind in "iu" and not np.isfinite(float(attribute(node, "bias", 0.0)))


def _weights_not_finite(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Whether a window's weights hold an infinity or a NaN."""
    return len(inputs) > 1 and inputs[1] is not None and inputs[1].dtype.kind == "f" and not bool(np.isfinite(inputs[1]).all())


def _same_beyond_windows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """auto_pad SAME where a stride is longer than what the weights span."""
    if not str(attribute(node, "auto_pad", "")).startswith("SAME") or len(inputs) < 2 or inputs[1] is None:
        return False
    kernel = inputs[1].shape[2:]
    strides, dilations = (attribute(node, name) or [1] * len(kernel) for name in ("strides", "dilations"))
    return any((k - 1) * d + 1 < s for k, d, s in zip(kernel, dilations, strides))


def _large_integers(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers that a double does not hold."""
    x = inputs[0]
    if x is None or x.dtype.kind not in "iu" or not x.size:
        return False
    power = 2 if node.op_type in ("ReduceL2", "ReduceSumSquare") else 1
    return float(np.abs(x.astype(np.float64)).max()) ** power * x.size >= 2.0 ** min(53, 8 * x.dtype.itemsize - 1)


def _sum_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers whose sum their type may not hold."""
    x = inputs[0]
    return x is not None and x.dtype.kind in "iu" and bool(x.size) and (
        float(np.abs(x.astype(np.float64)).max()) * x.size >= 2.0 ** (8 * x.dtype.itemsize - 1))


def _large_sum_of_one_operand(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers of one operand, summed over dims that it alone has, which a double or their type may not hold."""
    left, arrow, right = attribute(node, "equation", "").replace(" ", "").replace(".", "").partition("->")
    terms = left.split(",")
    kept = right if arrow else "".join(c for c in left if left.count(c) == 1)
    for k, (term, x) in enumerate(zip(terms, inputs)):
        elsewhere = set(kept).union(*terms[:k], *terms[k + 1:])
        if set(term) - elsewhere and x is not None and x.dtype.kind in "iu" and x.size and (
                float(np.abs(x.astype(np.float64)).max()) * x.size >= 2.0 ** min(53, 8 * x.dtype.itemsize - 1)):
            return True
    return False


def _square_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Floats whose squares, or a sum of them, their type does not hold."""
    x = inputs[0]
    if x is None or x.dtype.kind != "f" or not x.size:
        return False
    largest = float(np.abs(x[np.isfinite(x)]).max(initial=0))
    return largest > math.sqrt(float(np.finfo(x.dtype).max) / x.size)


def _exponential_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Floats whose exponential their type does not hold."""
    x = inputs[0]
    return x is not None and x.dtype.kind == "f" and bool((x > math.log(float(np.finfo(x.dtype).max))).any())


def _product_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers whose product their type may not hold."""
    x = inputs[0]
    return x is not None and x.dtype.kind in "iu" and bool(x.size) and (
        x.size * np.log2(max(float(np.abs(x.astype(np.float64)).max()), 1)) >= 8 * x.dtype.itemsize - 1)


def has_infinity(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Whether the first operand holds what is not finite."""
    return inputs[0] is not None and inputs[0].dtype.kind == "f" and not bool(np.isfinite(inputs[0]).all())


def _power_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers whose power their type does not hold: one that is too large, or infinite."""
    base, exponent = inputs[0], inputs[1]
    if base is None or exponent is None or base.dtype.kind not in "iu" or not base.size or not exponent.size:
        return False
    if (base == 0).any() and (exponent < 0).any():
        return True
    largest = float(np.abs(base.astype(np.float64)).max())
    return largest > 1 and float(exponent.max()) * math.log2(largest) >= 8 * base.dtype.itemsize - 1


_REDUCTIONS = _names("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
                     "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin")

CONVENTIONS: tuple[Convention, ...] = (
    Convention(_names("Attention"), "a negative scale", "open",
               "the text multiplies the scores by it, the function body both operands by its root",
               lambda node, inputs, opset: attribute(node, "scale", 1.0) < 0),
    Convention(_names("TreeEnsemble"), "members of a set that are whole numbers", "reference",
               "ONNX Runtime cuts a feature to a whole number before it looks for it: 1.5 is a member of {1, 2}",
               lambda node, inputs, opset: attribute(node, "membership_values") is not None),
    Convention(_names("ReduceMean"), "the mean of no integers", "open",
               "'Reduction over an empty set of values yields undefined'", _no_integers),
    Convention(_REDUCTIONS, "no elements, and axes counted from the back", "reference",
               "'Accepted range is [-r, r-1]'; ONNX Runtime leaves a negative axis as it is where there are no elements",
               _nothing_from_the_back),
    Convention(_names("GlobalMaxPool", "GlobalAveragePool", "MaxPool", "AveragePool", "LpPool"), "an image without pixels",
               "open",
               "the standard does not say what the maximum or mean of nothing is, nor whether ceil_mode has a window there",
               _empty),
    Convention(_names("AveragePool"), "windows of padding alone", "open",
               "the standard does not say what the mean of nothing is; ONNX Runtime takes no pads as large as the window",
               _pads_hold_windows),
    Convention(_names("Resize", "Upsample", "GridSample"), "a neighbour that is not finite and weighs nothing", "open",
               "whether it is multiplied by 0, which makes a NaN, or left out is not said", has_infinity),
    Convention(_names("GridSample"), "a cubic beyond the borders", "runtime",
               "the reference moves a place beyond the borders to the edge, and so jumps there; ONNX Runtime, as PyTorch, "
               "keeps each of the sixteen elements inside", _is_padded_cubic),
    Convention(_names("Resize"), "filters against aliases", "reference",
               "beyond the borders the edge goes on where nothing says exclude_outside, as the standard's own data have it "
               "(resize_downsample_sizes_linear_antialias); ONNX Runtime never counts what is there, as Pillow does not",
               lambda node, inputs, opset: bool(attribute(node, "antialias", 0))),
    Convention(_names("RoiAlign"), "before opset 16", "runtime",
               "it did what output_half_pixel is, without an attribute for that; the reference takes a later default",
               lambda node, inputs, opset: opset < 16),
    Convention(_names("ScatterElements", "ScatterND"), "extrema of what is no number", "open",
               "the standard does not say whether it is one; the reference drops it in one of two orders, here it stays",
               lambda node, inputs, opset: attribute(node, "reduction") in ("min", "max") and has_nan(node, inputs, opset)),
    Convention(_names("TopK"), "what is no number", "open",
               "the standard does not say where it stands among infinities, nor whether it is the greatest", has_nan),
    Convention(_names("Pow"), "integers beyond their type", "open",
               "the standard does not say what becomes of powers that are too large", _power_overflows),
    Convention(_names("ReduceSum"), "integers beyond their type", "open",
               "the standard does not say what becomes of sums that are too large", _sum_overflows),
    Convention(_names("ReduceSum", "ReduceProd"), "integers beyond a double", "reference",
               "what their type holds is that; ONNX Runtime gives a single element of int64 as a double holds it",
               _large_integers),
    Convention(_names("Einsum"), "integers of one operand whose sum is large", "reference",
               "'output[output-term] = reduce-sum( input1[term1] * input2[term2] )' is one number modulo 2**n in any order; "
               "ONNX Runtime first sums what one operand alone has, in doubles, and cuts that to the ends of the type",
               _large_sum_of_one_operand),
    Convention(_names("ReduceProd"), "integers beyond their type", "open",
               "the standard does not say what becomes of products that are too large", _product_overflows),
    Convention(_names("Resize"), "lengths that are fractions before they are cut", "reference",
               "the standard's own test data (resize_downsample_scales_linear_align_corners) take the product of length and "
               "scale for the length; ONNX Runtime takes the whole number", _fractional_length),
    Convention(_names("Resize"), "the nearest element", "reference",
               "its coordinate is a quotient of integers by the text; in ONNX Runtime's floats it may fall short of "
               "the element that it hits (5.9999998 for the middle of 13)", _takes_nearest),
    Convention(_names("Upsample"), "integers beyond a float32, interpolated", "open",
               "Upsample takes integers from opset 9 on and does not say in which type they are weighted", _beyond_float32),
    Convention(_names("Resize"), "integers, interpolated", "reference",
               "the standard says 'a weighted average' of integers too; we round it to the nearest, ONNX Runtime cuts it",
               _interpolates_integers),
    Convention(_names("Resize"), "keep_aspect_ratio_policy with negative axes", "reference",
               "'Negative value means counting dimensions from the back'; ONNX Runtime leaves these axes as they are",
               _keeps_ratio_of_last_axes),
    Convention(_names("Resize"), "tf_crop_and_resize", "reference",
               "'The coordinate of each dimension is transformed individually', with two bounds an axis; ONNX Runtime crops no "
               "axis that keeps its length, and interpolates the last two alone", _crops),
    Convention(_names("Mod"), "integers beyond a double", "reference",
               "a remainder of integers is one; ONNX Runtime takes that of the doubles next to them where fmod is set",
               lambda node, inputs, opset: any(x is not None and x.dtype.kind in "iu" and x.size and float(np.abs(
                   x.astype(np.float64)).max()) >= 2.0**53 for x in inputs)),
    Convention(_names("Shrink"), "integers beyond a float32", "open",
               "lambd and bias are floats; the standard does not say in which type they meet integers", _beyond_float32),
    Convention(_names("Shrink"), "a bias that is not finite, for integers", "open",
               "the standard does not say which integer it becomes", _no_number_as_integer),
    Convention(_names("Conv", "ConvTranspose"), "weights that are not finite, over the border", "open",
               "'the number of pixels added' does not say whether 0 times infinity is added for them", _weights_not_finite),
    Convention(_names("ConvTranspose"), "SAME where strides are longer than windows", "reference",
               "'output_shape[i] = input_shape[i] * strides[i]'; ONNX Runtime leaves out what no weight reaches",
               _same_beyond_windows),
    Convention(_names("ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare"), "integers beyond a double", "open",
               "the standard says neither in which type integers are averaged nor what becomes of a sum that is too large",
               _large_integers),
    Convention(_names("ReduceLogSum", "ReduceLogSumExp"), "integers", "open",
               "the schema allows them, but the body that defines the operator, Log(ReduceSum(Exp)), does not",
               lambda node, inputs, opset: inputs[0] is not None and inputs[0].dtype.kind in "iu"),
    Convention(_names("Dropout"), "the mask outside training, up to opset 11", "open",
               "its values are not defined before opset 12, nor its type before opset 10 (T by the table, bool by the text)",
               lambda node, inputs, opset: len(node.output) > 1 and opset < 12),
    Convention(_names("OneHot"), "negative indices up to opset 10", "reference",
               "'values outside the range [0, depth) will result in one-hot representation with all off_value'",
               _before_opset(11)),
    Convention(_names("LayerNormalization"), "the type of mean and inverse deviation of doubles", "runtime",
               "they are of type U: float32 or bfloat16, as stash_type says",
               lambda node, inputs, opset: len(node.output) > 1),
    Convention(_names("Softplus", "Mish"), "an exponential beyond its type", "reference",
               "the logarithm of what is beyond all numbers is a number again, if so taken; ONNX Runtime expands the body",
               _exponential_overflows),
    Convention(_names("LayerNormalization", "GroupNormalization", "MeanVarianceNormalization"), "squares beyond their type",
               "open",
               "a mean of squares less the square of the mean, as the bodies have the variance, is a difference of infinities "
               "there, the mean of squared deviations infinite; the standard does not say how it is computed",
               _square_overflows),
    Convention(_MAXIMA, "NaN among what is compared", "open",
               "the standard does not say what the maximum of a NaN and a number is", has_nan),
    Convention(_names("Slice"), "an end behind the last element, with a negative step", "reference",
               "an end is clamped to [-1, dims[axes[i]]-1]; ONNX Runtime takes INT_MAX for 'to the end' backwards too, for "
               "which the text names INT_MIN", _end_beyond_backwards),
    Convention(_names("MaxPool", "AveragePool", "LpPool"), "auto_pad SAME with dilations", "reference",
               "'SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])', "
               "whatever the dilations", _same_and_dilated),
    Convention(_names("MaxPool", "AveragePool", "LpPool"), "auto_pad VALID with ceil_mode", "reference",
               "'ceil((input_spatial_shape[i] - ((kernel_spatial_shape[i] - 1) * dilations[i] + 1) + 1) / "
               "strides_spatial_shape[i])' is the same number with and without; ONNX Runtime rounds up",
               _valid_and_rounded_up),
    Convention(_names("NonZero"), "a scalar", "reference",
               "'for scalar input, NonZero produces output shape (0, N) instead of (1, N)'",
               lambda node, inputs, opset: inputs[0] is not None and inputs[0].ndim == 0),
    Convention(_names("Loop"), "slices that no trip makes", "reference",
               "they have the shape that they would have; ONNX Runtime has 0 for each size that it does not know", _no_trip),
    Convention(_names("Reshape"), "-1, of no elements", "open",
               "what -1 is beside a dim of 0 is a quotient of 0 by 0, which both oracles refuse; we divide sizes before their "
               "values are known", lambda node, inputs, opset: _empty(node, inputs, opset) and -1 in np.ravel(inputs[1])),
)


def convention_for(nodes: Sequence[tuple[NodeProto, Values]], opset: int) -> Convention | None:
    """The first entry that fits a node of the model."""
    for entry in CONVENTIONS:
        for node, inputs in nodes:
            if node.op_type in entry.ops and entry.when(node, inputs, opset):
                return entry
    return None
