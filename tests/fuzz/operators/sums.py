"""Nodes that add or multiply many numbers: how large what is rounded on the way is, and what overflow on the way may lead to.

The standard says what is added, not in which order, nor whether a product is rounded before it is added. All partial sums lie
between the sum of the negative terms and that of the positive ones. Where both fit into the type no order overflows, and one
value is right. Where one does not, some order leads to an infinity of its sign; where both do not, or an infinite term has the
other sign, some order leads to infinity less infinity. Partial products lie between that of the factors below 1 and that of the
others: what overflows keeps its sign, what underflows is 0 or has lost all digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.operators.values import Array
from tests.fuzz.operators.windows import pooled

#: Linear in the first operands: the same node over their magnitudes says how large the terms are that cancel.
_LINEAR = {"MatMul": 2, "Gemm": 3, "Conv": 3, "ConvTranspose": 3, "ReduceSum": 1, "ReduceMean": 1, "CumSum": 1,
           "AveragePool": 1, "GlobalAveragePool": 1, "Sum": 99, "Mean": 99}
_PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose"}
#: Of sums of numbers of one sign: multiples, roots and squares, which are off relative to themselves, and logarithms, which are
#: off by as much wherever they are.
_RELATIVE = {"Softmax", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
_LOGARITHMS = {"LogSoftmax", "ReduceLogSum", "ReduceLogSumExp"}
#: What the order may lead to beside a finite number.
ABOVE, BELOW, NAN = 1, 2, 4
#: From a node's operands to its first output.
Run = Callable[[Sequence[Any]], Array]
#: What is known of a floating-point type.
Limits = np.finfo[Any]


@dataclass(frozen=True)
class Rounding:
    """Of each element that a node gives: how large what is rounded is, and which of ABOVE, BELOW and NAN it may be as well."""

    size: Array
    outcomes: Array


@dataclass(frozen=True)
class Roundings:
    """What is known of values, by their names, in the type of `limits`."""

    limits: Limits
    of: dict[str, Rounding] = field(default_factory=dict)

    def add(self, node: NodeProto, inputs: Sequence[Any], output: Array, run: Run) -> None:
        """Take a node's first output; `run` computes it from other operands."""
        made = rounding(node, inputs, output, run, self.limits)
        if made is not None:
            self.of[node.output[0]] = made

    def size(self, name: str) -> Array | None:
        """How large what is rounded in a value is, None where no larger than the value."""
        return self.of[name].size if name in self.of else None

    def outcomes(self, name: str, value: Array) -> Array:
        """What a value may be as well."""
        return self.of[name].outcomes if name in self.of else np.zeros(value.shape, int)

    def used(self, name: str, value: Any, rng: np.random.Generator) -> Any:
        """A value in its use: NaN or a number where it may have overflown, from which anything may follow (NaN alone would
        agree with a NaN that follows from the exact sum)."""
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        overflows = (np.abs(value) > self.limits.max) & np.isfinite(value)
        return np.where(overflows | (self.outcomes(name, value) > 0), rng.choice((np.nan, 1.0), value.shape), value)


def is_among(got: Array, outcomes: Array) -> Array:
    """Whether each element is one of its outcomes."""
    return np.asarray(((got == np.inf) & (outcomes & ABOVE > 0)) | ((got == -np.inf) & (outcomes & BELOW > 0))
                      | (np.isnan(got) & (outcomes & NAN > 0)))


def rounding(node: NodeProto, inputs: Sequence[Any], output: Array, run: Run, limits: Limits) -> Rounding | None:
    """Of a node in the type of `limits`; None where it neither adds nor multiplies many numbers. Of n roundings each is off by
    at most a unit of the sum of magnitudes, either way, so that together they are off by that root of n units and seldom by
    many times as much. A product of n factors is rounded n times as well, each time relative to itself."""
    if output.dtype.kind != "f":
        return None
    match node.op_type:
        case "Resize" | "Upsample":
            return _interpolated(node, inputs[0], output, limits)
        case "DFT" | "STFT":
            return _spread(inputs[0], np.asarray(inputs[0]).shape[-2] if node.op_type == "DFT" else 2 * output.shape[2], output)
        case "Attention":
            return _attended(inputs, output)
        case "GridSample":
            return _sampled(node, inputs[0], inputs[1], output, limits)
        case "Einsum":
            return _contracted(inputs, output, run, limits)
        case "ReduceProd":
            x, rest = np.abs(inputs[0]), inputs[1:]
            return _multiplied(lambda change: run([change(x), *rest]), max(x.size // max(output.size, 1), 1), output, limits)
        case "ScatterElements" | "ScatterND":
            return _placed(node, inputs, output, run, limits)
        case "DeformConv" | "RoiAlign":  # linear in images, weights, biases and masks, at places that are what they are
            places = 2 if node.op_type == "DeformConv" else 1
            large = [x if x is None or k == places or (places == 1 and k) else np.abs(x) for k, x in enumerate(inputs)]
            terms = 4 * (np.prod(np.shape(inputs[1])[1:]) if places == 2 else 9)
            return Rounding(run(large) * float(terms)**0.5, np.zeros(output.shape, int))
        case "LinearAttention":
            large = [x if x is None or k > 3 else np.abs(x) for k, x in enumerate(inputs)]
            sizes = max(np.abs(run(large)).max(initial=0), np.abs(output).max(initial=0))
            return Rounding(np.full(output.shape, sizes * np.shape(inputs[0])[1]), np.zeros(output.shape, int))
        case "BatchNormalization":
            return _normalised(node, inputs, output, limits)
        case "LRN":
            return _response(node, inputs[0], output, limits)
        case "InstanceNormalization":
            return _standardised(inputs[0], output, limits)
        case "ReduceLogSum":
            return Rounding(_of_one_sign(node, np.asarray(inputs[0]), output).size, _logarithm(inputs, output, run, limits))
        case op if op in _RELATIVE | _LOGARITHMS:
            return _of_one_sign(node, np.asarray(inputs[0]), output)
        case op if op not in _LINEAR:
            return None
    finite = [np.where(np.isfinite(x), x, 0) if k < _LINEAR[node.op_type] and x is not None else x
              for k, x in enumerate(inputs)]
    if node.op_type == "Gemm":
        return _scaled(node, finite, output, limits)
    terms, parts = _terms(node, inputs, output)
    above, below = _parts(finite, run, _LINEAR[node.op_type], node.op_type in _PRODUCTS)
    return Rounding((above + below) * terms**0.5, _outcomes(output, above * parts, below * parts, _most(limits, terms)))


def _parts(operands: Sequence[Any], run: Run, count: int, multiplies: bool) -> tuple[Array, Array]:
    """The sums of the positive and of the negative terms, the latter without its sign. `run` is linear in the first `count`
    operands, or in the product of two and in a third."""
    up, down = ([np.maximum(sign * x, 0) if k < count and x is not None else x for k, x in enumerate(operands)]
                for sign in (1, -1))
    if not multiplies:
        return run(up), run(down)
    none = [None if x is None else np.zeros_like(x) for x in operands[2:]]
    return (run([up[0], up[1], *up[2:]]) + run([down[0], down[1], *none]),
            run([up[0], down[1], *down[2:]]) + run([down[0], up[1], *none]))


def _most(limits: Limits, terms: float) -> float:
    """What a sum of so many terms may reach without overflow, however they are rounded."""
    return float(limits.max) * (1 - min(terms * float(limits.eps), 0.5))


def _outcomes(exact: Array, above: Array, below: Array, most: float) -> Array:
    """By the sums of the finite terms that are positive and negative; `exact` is the result with all terms."""
    unbounded = np.isinf(above) | np.isinf(below)  # too large together even for a double
    over, under, finite = (above > most) | unbounded, (below > most) | unbounded, np.isfinite(exact) | unbounded
    nan = (finite & over & under) | ((exact == np.inf) & under) | ((exact == -np.inf) & over)
    return np.asarray((finite & over) * ABOVE | (finite & under) * BELOW | nan * NAN)


def _terms(node: NodeProto, inputs: Sequence[Any], out: Array) -> tuple[float, Any]:
    """How many terms are summed at most, and by what the sum is divided."""
    first = np.asarray(inputs[0])
    match node.op_type:
        case "MatMul":
            return max(first.shape[-1], 1), 1
        case "Conv":
            return float(np.prod(np.shape(inputs[1])[1:])) + 1, 1
        case "ConvTranspose":
            return float(np.prod(np.shape(inputs[1]))) + 1, 1
        case "Sum" | "Mean":
            return len(inputs), len(inputs) if node.op_type == "Mean" else 1
        case "CumSum":
            return max(first.shape, default=1), 1
        case "AveragePool":
            given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            given["auto_pad"] = given.get("auto_pad", b"NOTSET").decode()
            _, inside, padded = pooled(first, given, np.zeros((), first.dtype), lambda windows: windows.sum(axis=-1))
            return float(np.prod(given["kernel_shape"])), np.maximum(padded if given.get("count_include_pad") else inside, 1)
    count = max(first.size // max(out.size, 1), 1)
    return count, 1 if node.op_type == "ReduceSum" else count


def _of_one_sign(node: NodeProto, x: Array, output: Array) -> Rounding:
    """What is made of a sum in which nothing cancels."""
    if node.op_type in ("Softmax", "LogSoftmax"):  # up to opset 12 all axes from one on are summed over
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        terms = float(np.prod(x.shape[axis:]))
    else:
        terms = x.size / max(output.size, 1)
    size = np.abs(output) if node.op_type in _RELATIVE else np.maximum(np.abs(output), 1)
    return Rounding(size * max(terms, 1) ** 0.5, np.zeros(output.shape, int))


def _logarithm(inputs: Sequence[Any], output: Array, run: Run, limits: Limits) -> Array:
    """ReduceLogSum: what the sum may be as well, through the logarithm, by which `run` also counts."""
    x, rest = np.asarray(inputs[0]), inputs[1:]

    def any_of(mask: Array) -> Array:
        return np.asarray(run([mask.astype(x.dtype), *rest]) >= 0)

    above, below = map(np.exp, _parts([np.where(np.isfinite(x), x, 0), *rest], run, 1, False))
    up, down = any_of(x == np.inf), any_of(x == -np.inf)
    exact = np.select([any_of(np.isnan(x)) | (up & down), up, down], [np.nan, np.inf, -np.inf], 0.0)
    of_sum = _outcomes(exact, above, below, _most(limits, max(x.size // max(output.size, 1), 1)))
    return np.asarray((of_sum & ABOVE) | (of_sum & (BELOW | NAN) > 0) * NAN)


def _scaled(node: NodeProto, finite: Sequence[Any], output: Array, limits: Limits) -> Rounding:
    """Gemm: alpha and beta scale each term, or what was added."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
    operands = [x.T if given.get(name) else x for x, name in zip(finite, ("transA", "transB"))]
    added = finite[2] if len(finite) > 2 and finite[2] is not None and beta else np.zeros(())

    def parts(first: float, second: float) -> tuple[Array, Array]:
        return _parts([operands[0] * np.sign(alpha or 1), operands[1], added * np.sign(beta)],
                      lambda xs: abs(first) * (xs[0] @ xs[1]) + abs(second) * xs[2], 3, True)

    above, below = parts(alpha, beta)
    terms = operands[0].shape[1] + 1
    found = _outcomes(output, *parts(max(abs(alpha), 1.0), max(abs(beta), 1.0)), _most(limits, terms))
    return Rounding((above + below) * terms**0.5,
                    found if alpha else np.where(found > 0, ABOVE | BELOW | NAN, 0))  # 0 times an infinity


def _contracted(inputs: Sequence[Any], output: Array, run: Run, limits: Limits) -> Rounding:
    """Einsum of one operand or two."""
    terms = float(run([np.ones_like(x) for x in inputs]).max(initial=1))
    above, below = _parts([np.where(np.isfinite(x), x, 0) for x in inputs], run, len(inputs), len(inputs) == 2)
    return Rounding((above + below) * terms**0.5, _outcomes(output, above, below, _most(limits, terms)))


def _multiplied(product: Callable[[Callable[[Array], Array]], Array], count: int, output: Array, limits: Limits) -> Rounding:
    """A product of so many factors; `product` is that of what a function makes of their magnitudes."""
    def finite(x: Array) -> Array:
        return np.where(np.isfinite(x), x, 1)

    over = product(lambda x: np.maximum(finite(x), 1)) > _most(limits, count)
    under = product(lambda x: np.where(finite(x) > 0, np.minimum(finite(x), 1), 1)) < 2 * float(limits.tiny)
    zero, sign = product(lambda x: np.where(x == 0, 0.0, 1.0)) == 0, np.where(np.signbit(output), BELOW, ABOVE)
    found = (over & ~zero & ~np.isnan(output)) * sign | ((over & (zero | under)) | (under & np.isinf(output))) * NAN
    return Rounding(np.abs(output) * np.where(under, 2 / float(limits.eps), count**0.5), np.asarray(found))


def _placed(node: NodeProto, inputs: Sequence[Any], output: Array, run: Run, limits: Limits) -> Rounding | None:
    """Scatter: sums and products of what is there and the updates that go there."""
    data, places, updates = inputs
    reduction, count = next((a.s for a in node.attribute if a.name == "reduction"), b"none"), np.size(places) + 1

    def over(change: Callable[[Array], Array]) -> Array:
        return run([change(data), places, change(updates)])

    if reduction == b"mul":
        return _multiplied(lambda change: over(lambda x: change(np.abs(x))), count, output, limits)
    if reduction != b"add":
        return None
    above, below = (over(lambda x, sign=sign: np.maximum(sign * np.where(np.isfinite(x), x, 0), 0))  # type: ignore[misc]
                    for sign in (1, -1))
    return Rounding((above + below) * count**0.5, _outcomes(output, above, below, _most(limits, count)))


def _normalised(node: NodeProto, inputs: Sequence[Any], output: Array, limits: Limits) -> Rounding:
    """BatchNormalization: x and the mean are subtracted before or after they are scaled."""
    x, scale, bias, mean, variance = (np.where(np.isfinite(v), v, 0) for v in inputs[:5])
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    by_channel = (-1, *(1,) * max(x.ndim - 2, 0))
    factor = np.abs(scale / np.sqrt(np.maximum(variance, 0) + given.get("epsilon", 1e-5))).reshape(by_channel)
    total = (np.abs(x) + np.abs(mean.reshape(by_channel))) * np.maximum(factor, 1) + np.abs(bias.reshape(by_channel))
    return Rounding(np.abs(output), (total > _most(limits, 3)) * (ABOVE | BELOW | NAN))


def _standardised(x: Array, output: Array, limits: Limits) -> Rounding:
    """InstanceNormalization: by an infinite variance everything becomes 0, so that any number may follow."""
    x, axes = np.where(np.isfinite(x), x, 0), tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    most = _most(limits, max(x.size // max(x.shape[0] * x.shape[1], 1), 1))
    over = (np.abs(x).sum(axis=axes, keepdims=True) > most) | ((centred * centred).sum(axis=axes, keepdims=True) > most)
    return Rounding(np.where(over, np.inf, np.abs(output)), np.zeros(output.shape, int))


def _response(node: NodeProto, x: Array, output: Array, limits: Limits) -> Rounding:
    """LRN: beyond what the type holds a power of an infinity is taken, where there is one of a number that is negative."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    most = float(np.square(np.where(np.isfinite(x), x, 0)).sum(axis=1).max(initial=0)) * abs(given.get("alpha", 1e-4))
    over = most + abs(given.get("bias", 1.0)) > limits.max
    return Rounding(np.full(output.shape, np.inf) if over else np.abs(output), np.zeros(output.shape, int))


def _spread(x: Array, count: int, output: Array) -> Rounding:
    """A sum of `count` elements, each times a root of unity."""
    size = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) * max(count, *x.shape)
    return Rounding(np.full(output.shape, size), np.zeros(output.shape, int))


def _attended(inputs: Sequence[Any], output: Array) -> Rounding:
    """A mean of values by shares that are off by units of the scores, which are at most the products of queries and keys."""
    most = [float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else 0.0
            for x in inputs]
    most += [0.0] * 6
    score = most[0] * max(most[1], most[4]) * inputs[0].shape[-1] + most[3]
    return Rounding(np.full(output.shape, max(most[2], most[5]) * (4 + score)), np.zeros(output.shape, int))


def _sampled(node: NodeProto, x: Array, grid: Array, output: Array, limits: Limits) -> Rounding:
    """GridSample: as Resize, along all axes; a place is off by units of itself, a value by as much of what it changes there."""
    made, moderate = _interpolated(node, x, output, limits), np.abs(grid[np.isfinite(grid)]).max(initial=1.0)
    size = made.size.astype(np.float64) * 4 * (1 + max(x.shape[2:]) * float(moderate))
    return Rounding(np.minimum(size, limits.max), made.outcomes)


def _interpolated(node: NodeProto, x: Array, output: Array, limits: Limits) -> Rounding:
    """Resize: the weights of cubic interpolation have both signs; their magnitudes are at most 2 along an axis."""
    size = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    over = bool(4 * size > limits.max) and any(a.name == "mode" and a.s == b"cubic" for a in node.attribute)
    return Rounding(np.full(output.shape, size), np.full(output.shape, over * (ABOVE | BELOW | NAN)))
