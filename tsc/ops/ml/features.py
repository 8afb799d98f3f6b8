"""What is done to features before a model sees them: scaled, normed, filled in, chosen, joined, and encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.contraction import scalar_operand
from tsc.ops.ml.common import DOMAIN, STRINGS, chosen, features, in_floats, listed, working
from tsc.ops.movement import reshape, shape_operand
from tsc.ops.reduce import cast, reduction
from tsc.ops.samples import floats, ints, vector
from tsc.ops.shapes import canonical, is_float, where
from tsc.sym import ONE, ZERO, SymExpr, product

# -- scaled, normed, filled in -----------------------------------------------------------------------------------

def _scaler(builder: Builder) -> tuple[str, ...]:
    """(X - offset) * scale."""
    ctx = builder.infer
    dtype, offset, scale = working(ctx), listed(ctx, "offset", "float32"), listed(ctx, "scale", "float32")
    if len(offset) != len(scale):
        raise ModelError(f"{where(ctx)} has {len(offset)} offsets and {len(scale)} scales, expected as many of each")
    features(ctx, len(offset))
    x = cast(builder, ctx.node.inputs[0], ctx.type(0).dtype, dtype)
    moved = builder.emit("Sub", x, builder.constant(offset.astype(dtype)))
    return (in_floats(builder, builder.emit("Mul", moved, builder.constant(scale.astype(dtype))), dtype),)


def _normalizer(builder: Builder) -> tuple[str, ...]:
    """Rows by their greatest element, the sum of absolute values or the root of that of squares; by 1 where that is 0."""
    ctx = builder.infer
    norm, dtype = chosen(ctx, "norm", ("MAX", "L1", "L2")), working(ctx)
    features(ctx, 1)
    x, axes = cast(builder, ctx.node.inputs[0], ctx.type(0).dtype, dtype), (ctx.type(0).rank - 1,)
    match norm:
        case "MAX":
            length = reduction(builder, "ReduceMax", x, axes)
        case "L1":
            length = reduction(builder, "ReduceSum", builder.emit("Abs", x), axes)
        case _:
            length = builder.emit("Sqrt", reduction(builder, "ReduceSum", builder.emit("Mul", x, x), axes))
    none = builder.emit("Equal", length, scalar_operand(builder, 0, dtype))
    length = builder.emit("Where", none, scalar_operand(builder, 1, dtype), length)
    return (in_floats(builder, builder.emit("Div", x, length), dtype),)


def _binarizer(builder: Builder) -> tuple[str, ...]:
    """1 where X is above the threshold, else 0."""
    ctx = builder.infer
    x, dtype, inner = ctx.node.inputs[0], ctx.type(0).dtype, working(ctx)
    threshold = scalar_operand(builder, float(ctx.attr("threshold")), inner)
    above = builder.emit("Greater", cast(builder, x, dtype, inner), threshold)
    return (cast(builder, above, "bool", dtype),)


def _imputer(builder: Builder) -> tuple[str, ...]:
    """X with what is missing replaced: what equals a number, or is none."""
    ctx = builder.infer
    x, dtype = ctx.node.inputs[0], ctx.type(0).dtype
    kind = "float" if is_float(dtype) else "int64"
    filling = listed(ctx, f"imputed_value_{kind}s", "float32" if kind == "float" else "int64").astype(dtype)
    features(ctx, len(filling))
    replaced = ctx.attr(f"replaced_value_{kind}")
    missing = builder.emit("IsNaN", x) if replaced != replaced else builder.emit(
        "Equal", x, builder.constant(np.array(replaced).astype(dtype)))
    return (builder.emit("Where", missing, builder.constant(filling), x),)


# -- chosen and joined -------------------------------------------------------------------------------------------

def _extractor(builder: Builder) -> tuple[str, ...]:
    """The features that Y lists."""
    ctx = builder.infer
    x, places = ctx.node.inputs[:2]
    if not ctx.type(0).rank:
        raise ModelError(f"{where(ctx)} has a scalar input, expected features to choose from")
    places = reshape(builder, places, (product(canonical(ctx, 1)),))
    made = builder.emit("Gather", x, places, axis=ctx.type(0).rank - 1)
    return (builder.emit("Unsqueeze", made, axes=(0,)) if ctx.type(0).rank == 1 else made,)


def _vectorizer(builder: Builder) -> tuple[str, ...]:
    """Inputs side by side, each with as many features as an attribute says: it is cut, or zeros stand behind it."""
    ctx = builder.infer
    counts = listed(ctx, "inputdimensions", "int64").tolist()
    if len(counts) != len(ctx.types) or min(counts) < 0:
        raise ModelError(f"{where(ctx)} has the inputdimensions {counts[:20]} for {len(ctx.types)} inputs, expected a size of "
                         "each")
    parts = [_wide(builder, i, count) for i, count in enumerate(counts)]
    return (builder.emit("Concat", *parts, axis=1) if len(parts) > 1 else parts[0],)


def _wide(builder: Builder, i: int, count: int) -> str:
    ctx = builder.infer
    shape = canonical(ctx, i)
    if not 1 <= len(shape) <= 2:
        raise ModelError(f"{where(ctx)} has an input {i} of rank {len(shape)}, expected rows of features")
    x = cast(builder, ctx.node.inputs[i], ctx.type(i).dtype, "float32")
    if len(shape) == 1:  # one row, as the standard says
        shape = (ONE, *shape)
        x = builder.emit("Unsqueeze", x, axes=(0,))
    behind = ctx.env.canon(SymExpr.of(count) - shape[1])
    return x if behind == ZERO else builder.emit("Pad", x, shape_operand(builder, (ZERO, ZERO, ZERO, behind)))


# -- encoded -----------------------------------------------------------------------------------------------------

def _first(builder: Builder, x: str, keys: NDArray[Any]) -> tuple[str, str]:
    """Where in a list an element stands first, which is behind it where it does not; and which keys it is, along a new axis."""
    rank, wide = builder.infer.type(0).rank, builder.emit("Unsqueeze", x, axes=(builder.infer.type(0).rank,))
    same = builder.emit("Equal", wide, builder.constant(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        none = builder.emit("And", builder.emit("IsNaN", wide), builder.constant(np.isnan(keys)))
        same = builder.emit("Or", same, none)
    count = len(keys)
    found = builder.emit("Where", same, builder.constant(np.arange(count)), builder.constant(np.array(count)))
    return reduction(builder, "ReduceMin", found, (rank,), keepdims=0), same


def _one_hot(builder: Builder) -> tuple[str, ...]:
    """1 at the category that an element is, along a new axis; where `zeros` is 0 it must be one."""
    ctx = builder.infer
    keys = listed(ctx, "cats_int64s", "int64")
    if len(np.unique(keys)) < len(keys):
        raise ModelError(f"{where(ctx)} names a category twice, expected each once; export it again")
    place, same = _first(builder, cast(builder, ctx.node.inputs[0], ctx.type(0).dtype, "int64"), keys)
    if not ctx.attr("zeros"):
        known = builder.emit("Gather", builder.constant(np.arange(len(keys))), place, axis=0)
        same = builder.emit("Equal", builder.emit("Unsqueeze", known, axes=(ctx.type(0).rank,)),
                            builder.constant(np.arange(len(keys))))
    return (cast(builder, same, "bool", "float32"),)


def _label_encoder(builder: Builder) -> tuple[str, ...]:
    """What elements stand for: the value of the key that each is, or a default."""
    ctx = builder.infer
    keys, values = (_column(ctx, what) for what in ("keys", "values"))
    if len(keys) != len(values):
        raise ModelError(f"{where(ctx)} has {len(keys)} keys and {len(values)} values, expected as many of each")
    default = ctx.attr("default_tensor") if ctx.attr("values_tensor") is not None else ctx.attr(
        "default_float" if values.dtype.kind == "f" else "default_int64")
    default = np.asarray(-1 if default is None and values.dtype.kind != "f" else -0.0 if default is None else default)
    if default.size != 1:
        raise ModelError(f"{where(ctx)} has a default of {default.size} elements, expected one")
    if keys.dtype.name != ctx.type(0).dtype:
        raise ModelError(f"{where(ctx)} has an input of type {ctx.type(0).dtype} and keys of type {keys.dtype.name}, expected "
                         "one type")
    place, _ = _first(builder, ctx.node.inputs[0], keys)
    table = np.concatenate([values, default.reshape(1).astype(values.dtype)])
    return (builder.emit("Gather", builder.constant(table), place, axis=0),)


def _column(ctx: InferContext, what: str) -> NDArray[Any]:
    """The keys or the values, of which there is one attribute."""
    types = {"int64s": "int64", "floats": "float32", "tensor": None}
    given = {dtype: ctx.attr(f"{what}_{kind}") for kind, dtype in types.items()}
    found = [np.asarray(values, dtype) for dtype, values in given.items() if values is not None]
    found = [array for array in found if array.size] or found
    if len(found) != 1 or found[0].ndim != 1:
        raise ModelError(f"{where(ctx)} has {len(found)} lists of {what}, expected one")
    return found[0]


# -- samples -----------------------------------------------------------------------------------------------------

def _scales() -> Sequence[Sample]:
    many = {"offset": (0.5, -1.0, 2.0), "scale": (2.0, 0.25, -1.0)}
    return [Sample([floats(5, 3)], many), Sample([floats(3)], many),
            Sample([floats(4, 2)], {"offset": (0.5,), "scale": (3.0,)})]


def _norms() -> Sequence[Sample]:
    x = np.concatenate([floats(4, 3), np.zeros((1, 3), np.float32)])
    return [*(Sample([x + np.float32(norm == "MAX") * 3], {"norm": norm}) for norm in ("MAX", "L1", "L2")),
            Sample([abs(floats(2, 5))])]


def _thresholds() -> Sequence[Sample]:
    return [Sample([floats(2, 5)], {"threshold": 0.25}), Sample([floats(7)]), Sample([floats(2, 3, dtype="float64")])]


def _imputations() -> Sequence[Sample]:
    x = floats(4, 3)
    x[[0, 2, 3], [1, 0, 2]] = np.nan
    many = {"replaced_value_float": float("nan"), "imputed_value_floats": (1.5, -2.0, 0.25)}
    return [Sample([x], many), Sample([np.where(np.isnan(x), np.float32(0), x)], {"imputed_value_floats": (7.0,)}),
            Sample([ints(5, 2)], {"replaced_value_int64": 2, "imputed_value_int64s": (-3, 9)})]


def _extractions() -> Sequence[Sample]:
    return [Sample([floats(4, 6), vector(5, 0, 3)]), Sample([floats(5), vector(2, 1)]),
            Sample([ints(2, 3, 4), np.array([[3, 0]])]), Sample([floats(3, 4, dtype="float64"), vector(1)])]


def _joins() -> Sequence[Sample]:
    return [Sample([floats(4, 2), floats(4, 3), floats(4, 5)], {"inputdimensions": (2, 4, 3)}),
            Sample([floats(4, 2)], {"inputdimensions": (2,)})]


def _categories() -> Sequence[Sample]:
    return [Sample([ints(4, 2, low=0, high=5)], {"cats_int64s": (0, 3, 1)}), Sample([ints(6)], {"cats_int64s": (-1, 2, 5, 4)}),
            Sample([np.array([[1.0], [3.0], [2.0]], np.float32)], {"cats_int64s": (1, 2, 3), "zeros": 0})]


def _codes() -> Sequence[Sample]:
    return [Sample([ints(3, 4)], {"keys_int64s": (0, -2, 3), "values_int64s": (7, 8, 9), "default_int64": -5}),
            Sample([ints(6)], {"keys_int64s": (1, 2), "values_floats": (0.5, 2.5), "default_float": 1.25}),
            Sample([np.array([0.5, 2.0, 1.0], np.float32)], {"keys_floats": (0.5, 1.0), "values_int64s": (3, 4)}),
            Sample([ints(5, low=0, high=4)], {
                "keys_tensor": vector(0, 2), "values_tensor": np.array([1.5, 2.5]), "default_tensor": np.array([-1.0])})]


def _op(name: str, kind: PatternKind, decompose: Callable[[Builder], tuple[str, ...]], samples: Callable[[], Sequence[Sample]],
        reads: tuple[str, ...] = (), ignores: tuple[str, ...] = ()) -> OpDef:
    return OpDef(name, kind, decompose=decompose, samples=samples, domain=DOMAIN, reads=reads, ignores=ignores, instead=STRINGS)


_MISSING = ("replaced_value_float", "replaced_value_int64", "imputed_value_floats", "imputed_value_int64s")
_COLUMNS = tuple(f"{what}_{kind}" for what in ("keys", "values") for kind in ("int64s", "floats", "tensor"))

OPS: tuple[OpDef, ...] = (
    _op("Scaler", PatternKind.ELEMENTWISE, _scaler, _scales, ("offset", "scale")),
    _op("Normalizer", PatternKind.REDUCE, _normalizer, _norms, ("norm",)),
    _op("Binarizer", PatternKind.ELEMENTWISE, _binarizer, _thresholds, ("threshold",)),
    _op("Imputer", PatternKind.ELEMENTWISE, _imputer, _imputations, _MISSING),
    _op("ArrayFeatureExtractor", PatternKind.INJECTIVE, _extractor, _extractions),
    _op("FeatureVectorizer", PatternKind.INJECTIVE, _vectorizer, _joins, ("inputdimensions",)),
    _op("OneHotEncoder", PatternKind.REDUCE, _one_hot, _categories, ("cats_int64s", "zeros")),
    _op("LabelEncoder", PatternKind.REDUCE, _label_encoder, _codes,
        (*_COLUMNS, "default_int64", "default_float", "default_tensor"), ("default_string",)),
)
