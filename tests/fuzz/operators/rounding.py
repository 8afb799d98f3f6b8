"""How operators round, which the oracles ask: exactly, once, or inside."""

from __future__ import annotations

from onnx import NodeProto

from tsc.ops import find
from tsc.ops.base import PatternKind

EXACT = {
    "Identity", "Relu", "Max", "Min", "Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Where", "Clip", "Cast", "CastLike",
    "Dropout", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Hardmax", "MaxPool", "GlobalMaxPool", "Constant", "IsNaN",
    "IsInf", "Mod", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Range", "And", "Or", "Xor", "Not",
    "ThresholdedRelu", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift",
    "MelWeightMatrix",  # but for the bin of an edge, which recipes put within one
    "If", "Loop", "Scan"}  # recipes put nothing into it that rounds
#: Each element is one of the operands' or minus that: a kernel may compute what was rounded before anew behind them as well.
PASS = {"Identity", "Relu", "Max", "Min", "Neg", "Abs", "Where", "Clip", "Dropout", "ReduceMax", "ReduceMin", "MaxPool",
         "GlobalMaxPool", "ThresholdedRelu", "If"}
#: What these read has been rounded: a sum alone may take in a product that has not, and constants may move through sums.
ONE_VALUE = {"Sub", "Max", "Min", "ReduceMax", "ReduceMin", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
#: One operation of IEEE arithmetic: its result is rounded correctly where it is all there is.
ROUNDED = {"Add", "Sub", "Mul", "Div", "Sqrt"}
#: Rounds inside and the standard has no body for it in smaller operators: its first operands are moved as well.
COMPOUND = {**dict.fromkeys((
    "ReduceLogSumExp", "ReduceLogSum", "ReduceL2", "Resize", "Upsample", "Gelu", "HardSigmoid", "Softmax", "LogSoftmax",
    "Softplus", "LpNormalization", "LpPool", "GlobalLpPool", "LRN", "DFT", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Asinh", "Acosh", "Atanh"), 1), "Pow": 2, "Det": 1, "GridSample": 2, "Attention": 3, "STFT": 3, "BatchNormalization": 5,
    "RNN": 6, "GRU": 6, "LSTM": 8}
#: Has a body that overflows, in float64 too, where the function itself does not.
WHOLE = {"Softplus"}
#: Float attributes and constants of these are float32 by the standard, whatever the elements are.
FLOAT_ATTRIBUTES = {
    "LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "HardSwish", "Swish", "Shrink", "ThresholdedRelu", "Gelu", "Gemm",
    "LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "MeanVarianceNormalization", "Resize", "Upsample", "LRN"}


def exactly(node: NodeProto) -> bool:
    """Whether a node computes its outputs without rounding."""
    if node.domain:
        return False
    if node.op_type in ("Resize", "Upsample"):
        return all(a.s == b"nearest" for a in node.attribute if a.name == "mode")
    return node.op_type in EXACT or _moves(node)


def passes(node: NodeProto) -> bool:
    """Whether elements of operands come out as they are."""
    return not node.domain and (node.op_type in PASS or _moves(node))


def _moves(node: NodeProto) -> bool:
    op = find(node.op_type)
    moves = op is not None and op.kind in (PatternKind.INJECTIVE, PatternKind.BROADCAST)
    return moves and node.op_type not in ("GridSample", "QuantizeLinear", "DequantizeLinear", "MelWeightMatrix")
