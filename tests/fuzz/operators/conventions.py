"""Where ONNX Runtime and the reference evaluator of onnx 1.23 part ways: what the standard says, and whom we follow.

An oracle that is outvoted here is wrong or incomplete; "open" means that the standard leaves it open: either's value will do,
or NaN, or any integer. A disagreement that is not on this list is a finding. Where the reference evaluator is plainly wrong,
`mended.py` has the operator anew.
"""

from __future__ import annotations

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


_MAXIMA = _names("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "ArgMax", "ArgMin", "Clip", "Relu",
                 "Softmax", "LogSoftmax", "ReduceLogSumExp", "HardSigmoid", "HardSwish", "Celu", "Elu", "Selu", "Sign", "PRelu",
                 "LeakyRelu", "ThresholdedRelu", "Shrink")

def _before_opset(newest: int) -> Callable[[NodeProto, Values, int], bool]:
    return lambda node, inputs, opset: opset < newest


def _one_resized(node: NodeProto, inputs: Values, opset: int) -> bool:
    """pytorch_half_pixel by scales that leave one element of some axis."""
    if attribute(node, "coordinate_transformation_mode") != "pytorch_half_pixel" or inputs[0] is None:
        return False
    scales = next((x for x in inputs[1:3] if x is not None and x.size == inputs[0].ndim), None)
    return scales is not None and any(int(n * s) == 1 for n, s in zip(inputs[0].shape, scales))


def _large_integers(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers that a double does not hold."""
    x = inputs[0]
    if x is None or x.dtype.kind not in "iu" or not x.size:
        return False
    power = 2 if node.op_type in ("ReduceL2", "ReduceSumSquare") else 1
    return float(np.abs(x.astype(np.float64)).max()) ** power * x.size >= 2.0 ** min(53, 8 * x.dtype.itemsize - 1)


def has_infinity(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Whether the first operand holds what is not finite."""
    return inputs[0] is not None and inputs[0].dtype.kind == "f" and not bool(np.isfinite(inputs[0]).all())


def _power_overflows(node: NodeProto, inputs: Values, opset: int) -> bool:
    """Integers whose power their type does not hold."""
    base, exponent = inputs[0], inputs[1]
    if base is None or exponent is None or base.dtype.kind not in "iu" or not base.size or not exponent.size:
        return False
    return float(np.abs(base.astype(np.float64)).max()) ** float(exponent.max()) >= 2.0 ** (8 * base.dtype.itemsize - 1)


CONVENTIONS: tuple[Convention, ...] = (
    Convention(_names("Resize", "Upsample"), "a neighbour that is not finite and weighs nothing", "open",
               "whether it is multiplied by 0, which makes a NaN, or left out is not said", has_infinity),
    Convention(_names("Pow"), "integers beyond their type", "open",
               "the standard does not say what becomes of powers that are too large", _power_overflows),
    Convention(_names("Resize"), "pytorch_half_pixel where one element is left", "runtime",
               "'length_resized > 1 ? … : 0' is of the length of the output, a whole number; the reference takes the product "
               "of length and scale", _one_resized),
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
    Convention(_MAXIMA, "NaN among what is compared", "open",
               "the standard does not say what the maximum of a NaN and a number is", has_nan),
    Convention(_names("Slice"), "an end behind the last element, with a negative step", "reference",
               "an end is clamped to [-1, dims[axes[i]]-1]; ONNX Runtime takes INT_MAX for 'to the end' backwards too, for "
               "which the text names INT_MIN", _end_beyond_backwards),
    Convention(_names("MaxPool", "AveragePool"), "auto_pad SAME with dilations", "reference",
               "'SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])', "
               "whatever the dilations", _same_and_dilated),
)


def convention_for(nodes: Sequence[tuple[NodeProto, Values]], opset: int) -> Convention | None:
    """The first entry that fits a node of the model."""
    for entry in CONVENTIONS:
        for node, inputs in nodes:
            if node.op_type in entry.ops and entry.when(node, inputs, opset):
                return entry
    return None
