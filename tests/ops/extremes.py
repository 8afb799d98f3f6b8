"""Extreme data for the operators' samples: what is no number, infinities, signed zeros, denormals, ends of integer types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tsc.ops.base import OpDef, Sample

#: dtypes that kernels compute with, by the standard's name
DTYPES = {"float": "float32", "double": "float64", "bool": "bool", **{
    f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}}

#: Where the reference evaluator of onnx 1.23 is no oracle for extremes, and why.
CONVENTIONS: dict[str, str] = {
    "AveragePool": "the reference skips what is no number, as it marks its padding with it: ONNX Runtime is asked",
    "Conv": "the reference multiplies by zeros between dilated weights: ONNX Runtime is asked; only the data is extreme",
    "Gemm": "the reference multiplies integers in doubles; here their product wraps around, as MatMul's does everywhere",
    "DeformConv": "the reference cannot read at places that are no numbers, and leaves out neighbours of weight 0",
    "DFT": "fast transforms leave out products with 0, matrices of cosines do not: infinities are spread differently",
    "DequantizeLinear": "the reference rounds an int32 to a float before it subtracts, ONNX Runtime's difference wraps around",
    "GlobalLpPool": "the reference has none: ONNX Runtime is asked",
    "GlobalMaxPool": "as MaxPool",
    "LRN": "the reference computes as many channels as there are images, ONNX Runtime subtracts what it had added",
    "LinearAttention": "the reference keeps what is not finite in its state; here a weight of 0 is multiplied by it",
    "LpNormalization": "the reference adds numbers, not magnitudes, for p 1: ONNX Runtime is asked",
    "LpPool": "the reference averages what is inside and multiplies by the size of the window: ONNX Runtime is asked",
    "LogSoftmax": "the reference takes the logarithm of a rounded softmax, which is -inf where the result is finite",
    "MelWeightMatrix": "the reference writes out of bounds for edges that are no frequencies",
    "MaxPool": "both oracles skip what is no number, in some of their loops; here it is the greatest, as in Max and ReduceMax",
    "Mean": "the reference does not broadcast, ONNX Runtime has float32 only",
    "OneHot": "the reference takes a fraction's remainder; the standard casts indices that are no integers to int64",
    "PRelu": "both oracles multiply where x is 0, the standard only where it is less",
    "Pad": "the reference cannot crop, ONNX Runtime lacks some integer types",
    "Pow": "NumPy refuses negative exponents of integers",
    "RMSNormalization": "the reference's output has the wider of two types, the standard's that of the scale",
    "QuantizeLinear": "the reference cuts to int32 before it saturates, ONNX Runtime has no integers here",
    "ReduceLogSum": "of integers, both oracles fail or give the least integer",
    "ReduceLogSumExp": "the reference subtracts an infinite maximum; the standard's function body is log(sum(exp(x)))",
    "ReduceMean": "the reference rounds long integers to doubles; here their sum wraps around and the quotient is truncated",
    "ReduceSumSquare": "the reference's output is of a wider integer type than its input",
    "Resize": "the reference leaves out a neighbour of weight 0; 0 times an infinity is no number",
    "RoiAlign": "as DeformConv; its maximum drops what is no number in one of two orders",
    "STFT": "as DFT",
    "ScatterElements": "the reference's max and min drop what is no number in one of two orders; here it stays, as in Max",
    "Shrink": "both oracles compute with long integers in doubles, which cannot hold them all",
    "TopK": "the reference puts what is no number before infinities; here it is one of them, as it stands",
    "Softsign": "the reference takes no scalars, ONNX Runtime has float32 only",
}
#: Signs of zeros that a sum's or a formula's order decides: not compared.
ZEROS = {"Sum": "one operand is itself", "PRelu": "x < 0 is false of -0", "Selu": "gamma * (alpha * e^x - alpha) at 0 is +0",
         "Celu": "0 + 0 is +0", "ReduceSum": "over no axes", "ReduceMean": "over no axes", "CumSum": "0 + -0 is +0",
         "Pow": "the root of -0", "MatMul": "0 + -0 is +0", "Gemm": "0 + -0 is +0", "Conv": "0 + -0 is +0",
         "Einsum": "0 + -0 is +0", "ConvTranspose": "0 + -0 is +0",
         "Mod": "fmod of -0",
         "AveragePool": "0 + -0 is +0", "GlobalAveragePool": "0 + -0 is +0", "Resize": "0 + -0 is +0",
         "Det": "each swap of two rows negates it",
         "GridSample": "0 + -0 is +0", "ScatterElements": "0 + -0 is +0", "ScatterND": "0 + -0 is +0",
         "Clip": "max(-0, 0) is either", "Max": "max(-0, 0) is either", "Min": "min(-0, 0) is either",
         "Relu": "max(0, -0) is either",
         "BatchNormalization": "0 + -0 is +0", "InstanceNormalization": "0 + -0 is +0", "GroupNormalization": "0 + -0 is +0",
         "LayerNormalization": "0 + -0 is +0", "ReduceMax": "max(0, -0) is either", "ReduceMin": "min(0, -0) is either"}
#: Products and squares that overflow on the way, where the order of a sum decides between an infinity and no number.
MODERATE = frozenset({
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LayerNormalization", "InstanceNormalization",
    "GroupNormalization", "BatchNormalization", "RMSNormalization", "ReduceProd", "ReduceL2", "ReduceSumSquare",
    "ReduceSum", "ReduceL1", "ReduceMean", "AveragePool", "GlobalAveragePool", "CumSum", "CumProd", "Gelu", "Mean", "Sum",
    "Attention", "CausalConvWithState", "Col2Im", "ReduceLogSum", "Celu", "RNN", "GRU", "LSTM", "LpPool", "GlobalLpPool",
    "LpNormalization", "LRN"})


def extremes(dtype: str, moderate: bool = False) -> NDArray[Any]:
    """The values to draw from; `moderate` ones can be squared and added."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.array([True, False])
    if kind.kind == "f":
        limits = np.finfo(kind)
        usual = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 100.0, -100.0]
        ends = [] if moderate else [limits.max, -limits.max, limits.tiny, limits.smallest_subnormal]
        return np.array(usual + ends, kind)
    bounds = np.iinfo(kind)
    below = [-1, -2, -7, bounds.min + 1] if bounds.min else []
    return np.array([bounds.min, bounds.max, bounds.max - 1, 0, 1, 2, 3, 5, 7, *below], kind)


def data_inputs(op: OpDef, sample: Sample, opset: int) -> tuple[list[str], list[int]]:
    """The dtypes that the operator's data may have, and the inputs that hold them: those of its first type that may be a float
    or any integer."""
    schema = onnx.defs.get_schema(op.name, opset)
    found: dict[str, tuple[list[str], list[int]]] = {}
    for i, x in enumerate(sample.inputs):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        constraint = next((t for t in schema.type_constraints if t.type_param_str == formal.type_str), None)
        if x is None or i in op.static_inputs or constraint is None:
            continue
        allowed = [DTYPES[t] for t in (a[7:-1] for a in constraint.allowed_type_strs) if t in DTYPES]
        if "float32" in allowed or {"int8", "uint8"} <= set(allowed) or allowed == ["bool"]:
            found.setdefault(formal.type_str, (allowed, []))[1].append(i)
    return next(iter(found.values()), ([], []))


def extreme_samples(op: OpDef, opset: int) -> Iterator[tuple[str, Sample]]:
    """Every sample with its data replaced by extremes, once for each dtype."""
    for number, sample in enumerate(op.samples() if op.samples is not None else ()):
        dtypes, inputs = data_inputs(op, sample, opset)
        if op.name == "GridSample" and sample.attrs["mode"] != "nearest":
            dtypes = [dtype for dtype in dtypes if dtype.startswith("float")]  # what it interpolates
        if op.name == "BitCast":
            dtypes = [dtype for dtype in dtypes if np.dtype(dtype).itemsize == sample.inputs[0].itemsize and dtype != "bool"]
        for dtype in dtypes:
            values = extremes(dtype, op.name in MODERATE)
            drawn = np.random.default_rng(number)
            replaced = [x if i not in inputs else np.asarray(x).astype(dtype) if i and op.name == "Conv"
                        else drawn.choice(values, np.shape(x)).astype(dtype) for i, x in enumerate(sample.inputs)]
            yield dtype, Sample(replaced, sample.attrs, sample.outputs)
