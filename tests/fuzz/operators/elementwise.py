"""Recipes: how to draw a legal node of each elementwise operator, and of those that make tensors of their shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from tests.fuzz.operators.case import Dims, Draft
from tests.fuzz.operators.values import FAR, Draw, fixed, mood, nonzero, plain, within

#: Adds one node to a Draft, with fresh operands.
Recipe = Callable[[Draft], None]

UNARY = ("Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Sin", "Cos", "Floor", "Ceil", "Round", "IsNaN",
         "Identity", "Relu", "Tanh", "Sigmoid", "HardSwish", "Softplus", "Softsign", "Mish", "Not")
BINARY = ("Add", "Sub", "Mul", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")
#: Functions by the range that is of interest.
ANGLES: dict[str, tuple[float, float]] = {
    "Tan": (-9, 9), "Asin": (-1.1, 1.1), "Acos": (-1.1, 1.1), "Atan": (-30, 30), "Sinh": (-9, 9), "Cosh": (-9, 9),
    "Asinh": (-30, 30), "Acosh": (0.9, 30), "Atanh": (-1.1, 1.1)}
VARIADIC = ("Max", "Min", "Sum", "Mean")
#: Activations by their float attributes and the range each is drawn from.
PARAMETRIC: dict[str, dict[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (-0.5, 1.5)}, "ThresholdedRelu": {"alpha": (-1, 2)}, "Elu": {"alpha": (-1, 2)},
    "Celu": {"alpha": (0.2, 3)},
    "Selu": {"alpha": (0.5, 2), "gamma": (0.5, 2)}, "HardSigmoid": {"alpha": (-0.5, 0.5), "beta": (-1, 1)},
    "Swish": {"alpha": (-1, 2)}, "Shrink": {"bias": (-1, 1), "lambd": (-0.5, 2)}}


def input_letter(op: str, opset: int, k: int = 0) -> str:
    """The type variable of input `k`."""
    return str(onnx.defs.get_schema(op, opset, "").inputs[k].type_str)


def rank(d: Draft, least: int = 0, most: int = 5) -> int:
    """A rank, mostly 1 to 3."""
    return min(max(d.rng.choice((0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5)), least), most)


def stretched(d: Draft, dims: Dims) -> Dims:
    """A shape that broadcasts with `dims`: some leading dims left out, some dims 1."""
    kept = dims[d.rng.choice((0, 0, 0, d.rng.randint(0, len(dims)))):]
    return tuple(1 if d.chance(0.2) else x for x in kept)


def operands(d: Draft, count: int, dtypes: Sequence[str], draws: Sequence[Draw] | None = None) -> list[str]:
    """`count` operands that broadcast with each other; one of them has all dims, unless by chance."""
    dims = d.extents(rank(d))
    full = d.rng.randrange(count)
    return [d.operand(dims if k == full else stretched(d, dims), dtypes[k % len(dtypes)],
                      None if draws is None else draws[k % len(draws)]) for k in range(count)]


def unary(op: str, d: Draft) -> None:
    d.node(op, [d.operand(d.extents(rank(d)), d.dtype(op, input_letter(op, d.opset)))])


def parametric(op: str, d: Draft) -> None:
    x = d.operand(d.extents(rank(d)), d.dtype(op, input_letter(op, d.opset)))
    d.node(op, [x], **{name: d.maybe(0.7, d.rng.uniform(*span)) for name, span in PARAMETRIC[op].items()})


def binary(op: str, d: Draft) -> None:
    d.node(op, operands(d, 2, [d.dtype(op, input_letter(op, d.opset))]))


def division(op: str, d: Draft) -> None:
    dtype = d.dtype(op, input_letter(op, d.opset))
    fmod = (1 if dtype.startswith("float") else d.maybe(0.4, 1)) if op == "Mod" else None
    kind = "ordinary" if op == "Mod" and d.chance(0.8) else mood(d.rng)
    d.node(op, operands(d, 2, [dtype], [plain(dtype, kind), nonzero(dtype, kind)]), fmod=fmod)


def power(d: Draft) -> None:
    base = d.dtype("Pow", "T")
    exponent = d.dtype("Pow", "T1") if d.opset >= 12 and d.chance(0.3) else base
    draw: Draw | None = None
    if not base.startswith("float") or not exponent.startswith("float"):
        draw = within(exponent, 0, 4)
    elif d.chance(0.5):
        known = d.rng.choice((0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5, 2.5))
        x = d.operand(d.extents(rank(d)), base)
        d.node("Pow", [x, d.operand(d.rng.choice(((), (1,))), exponent, fixed(known, exponent))])
        return
    draws = [plain(base, mood(d.rng)) if base.startswith("float") else within(base, 0, 6), draw or within(exponent, -3, 4)]
    d.node("Pow", operands(d, 2, [base, exponent], draws))


def variadic(op: str, d: Draft) -> None:
    count, dtype = d.rng.choice((1, 2, 2, 3, 5)), d.dtype(op)
    if d.opset >= 8:
        d.node(op, operands(d, count, [dtype]))
        return
    dims = d.extents(rank(d))  # before opset 8 nothing broadcasts
    d.node(op, [d.operand(dims, dtype) for _ in range(count)])


def clip(d: Draft) -> None:
    dtype = d.dtype("Clip")
    x = d.operand(d.extents(rank(d)), dtype)
    if d.opset < 11:
        d.node("Clip", [x], min=d.maybe(0.7, -0.75), max=d.maybe(0.7, d.rng.choice((0.5, -1.5))))
        return
    limits = (d.rng.choice((0, 1)), d.rng.choice((2, 3, 0)))
    bounds = [d.operand((), dtype, fixed(v, dtype)) if d.chance(0.75) else "" for v in limits]
    d.node("Clip", [x, *bounds] if bounds[1] else [x, bounds[0]] if bounds[0] else [x])


def is_inf(d: Draft) -> None:
    dtype = d.dtype("IsInf", "T1")
    x = d.operand(d.extents(rank(d)), dtype, plain(dtype, "special") if d.opset < 20 else None)
    d.node("IsInf", [x], detect_positive=d.maybe(0.5, d.rng.choice((0, 1))), detect_negative=d.maybe(0.5, d.rng.choice((0, 1))))


def where(d: Draft) -> None:
    dtype = d.dtype("Where")
    d.node("Where", operands(d, 3, ["bool", dtype, dtype]))


def prelu(d: Draft) -> None:
    dims, dtype = d.extents(rank(d, 1)), d.dtype("PRelu")
    d.node("PRelu", [d.operand(dims, dtype), d.operand(stretched(d, dims), dtype)])


def gelu(d: Draft) -> None:
    d.node("Gelu", [d.operand(d.extents(rank(d)), d.dtype("Gelu"))], approximate=d.maybe(0.6, d.rng.choice(("none", "tanh"))))


_CASTS = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float64": 11,
          "uint32": 12, "uint64": 13}


def cast(d: Draft) -> None:
    source, target = d.dtype("Cast", "T1"), d.rng.choice(list(_CASTS))
    draw: Draw | None = plain(source, "ordinary") if source.startswith("float") and not target.startswith("float") else None
    if draw is not None and target.startswith("u"):  # what a negative value becomes is not defined
        draw = within(source, 0, 200)
    elif draw is not None and target in ("int32", "int64") and d.chance(0.3):
        draw = within(source, -2e9, 2e9)
    x = d.operand(d.extents(rank(d)), source, draw)
    if d.opset >= 15 and d.chance(0.2):
        d.node("CastLike", [x, d.operand(d.extents(1), target)])
    else:
        d.node("Cast", [x], to=_CASTS[target])


def dropout(d: Draft) -> None:
    x, outputs = d.operand(d.extents(rank(d)), d.dtype("Dropout")), d.rng.choice((1, 1, 2))
    if d.opset < 12:
        d.node("Dropout", [x], outputs, ratio=d.maybe(0.5, 0.3))
    else:
        d.node("Dropout", [x, d.constant(fixed(0.25, "float32"), (), "float32")] if d.chance(0.5) else [x], outputs)


# -- made of shapes alone --------------------------------------------------------------------------------------

def shape(d: Draft) -> None:
    dims = d.extents(rank(d))
    limit = len(dims) + 1
    d.node("Shape", [d.operand(dims, d.dtype("Shape"), role="feed")],
           **({"start": d.maybe(0.4, d.rng.randint(-limit, limit)), "end": d.maybe(0.4, d.rng.randint(-limit, limit))}
              if d.opset >= 15 else {}))


def size(d: Draft) -> None:
    d.node("Size", [d.operand(d.extents(rank(d)), d.dtype("Size"), role="feed")])


def arange(d: Draft) -> None:
    dtype = d.rng.choice(("int64", "int64", "int32", "float32"))
    start, step = d.rng.choice((0, 0, 1, -3, 7)), d.rng.choice((1, 1, 2, -1, 3, -2))
    limit = start + step * d.rng.choice((0, 1, 4, 5, 17)) + d.rng.choice((0, 0, 1, -1))
    d.node("Range", [d.constant(fixed(v, dtype), (), dtype) for v in (start, limit, step)])


def filled(d: Draft) -> None:
    wanted = [d.rng.choice((0, 1, 2, 3, 5, 17)) for _ in range(d.rng.randint(0, 3))]
    dtype = d.rng.choice(("float32", "int64", "bool", "int32", "float64"))
    value = np.asarray(plain(dtype)(np.random.default_rng(d.rng.randrange(99)), (1,), {}))
    d.node("ConstantOfShape", [d.constant(fixed(wanted), (len(wanted),))], value=d.maybe(0.7, numpy_helper.from_array(value)))


def eye_like(d: Draft) -> None:
    x = d.operand(d.extents(2), d.dtype("EyeLike", "T1"), role="feed")
    diagonal = d.rng.choice(FAR) if d.chance(0.2) else d.rng.randint(-3, 3)
    d.node("EyeLike", [x], k=d.maybe(0.5, diagonal), dtype=d.maybe(0.5, d.rng.choice((1, 6, 7, 11))))


def one_hot(d: Draft) -> None:
    dims, depth = d.extents(rank(d, 0, 3)), d.rng.choice((1, 2, 5, 17))
    kind, values = d.rng.choice(("int64", "int32")), d.rng.choice(("float32", "int64", "int32"))
    indices = d.operand(dims, kind, within(kind, -depth - 1, depth + 2))  # outside: a row of off values
    amount = d.constant(fixed(depth, kind), d.rng.choice(((), (1,))), kind)
    d.node("OneHot", [indices, amount, d.operand((2,), values)], axis=d.maybe(0.6, d.rng.randint(-len(dims) - 1, len(dims))))


def constant(d: Draft) -> None:
    """A Constant of each form, added to a fed operand so that something runs."""
    form, values = d.rng.choice((("value_float", 1.5), ("value_floats", [0.5, -1.0, 2.0]), ("value_int", 3),
                                 ("value_ints", [1, -2, 3])))
    if d.opset < 12:
        form, values = "value", numpy_helper.from_array(np.array([1.5, -0.0], np.float32))
    count = len(values) if isinstance(values, list) else 2 if form == "value" else 1
    dtype = "int64" if "int" in form else "float32"
    made, = d.node("Constant", [], **{form: values})
    d.node("Add", [made, d.operand((d.size(), count), dtype)])


def shift(d: Draft) -> None:
    dtype = d.dtype("BitShift")
    x, by = operands(d, 2, [dtype], [plain(dtype, mood(d.rng)), within(dtype, 0, 8 * np.dtype(dtype).itemsize)])
    d.node("BitShift", [x, by], direction=d.rng.choice(("LEFT", "RIGHT")))


def angle(op: str, d: Draft) -> None:
    dtype = d.dtype(op)
    d.node(op, [d.operand(d.extents(rank(d)), dtype, within(dtype, *ANGLES[op]) if d.chance(0.8) else None)])


RECIPES: dict[str, Recipe] = {
    **{op: partial(angle, op) for op in ANGLES}, "BitShift": shift,
    **{op: partial(binary, op) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")}, "BitwiseNot": partial(unary, "BitwiseNot"),
    **{op: partial(unary, op) for op in UNARY}, **{op: partial(binary, op) for op in BINARY},
    **{op: partial(variadic, op) for op in VARIADIC}, **{op: partial(parametric, op) for op in PARAMETRIC},
    "Div": partial(division, "Div"), "Mod": partial(division, "Mod"), "Pow": power, "Clip": clip, "IsInf": is_inf,
    "Where": where,
    "PRelu": prelu, "Gelu": gelu, "Cast": cast, "Dropout": dropout, "Shape": shape, "Size": size, "Range": arange,
    "ConstantOfShape": filled, "EyeLike": eye_like, "OneHot": one_hot, "Constant": constant,
}


def schema_versions(op: str) -> list[int]:
    """The opsets that changed an operator."""
    return sorted(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == "")


