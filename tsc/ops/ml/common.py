"""What the operators of classical models share: their inputs, their attributes, and what is said of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.errors import ModelError
from tsc.ops.base import Builder, InferContext
from tsc.ops.movement import reshape
from tsc.ops.reduce import cast
from tsc.ops.shapes import canonical, is_float, unify, where
from tsc.sym import ONE, SymExpr

DOMAIN = "ai.onnx.ml"
_NUMBERS = "strings are not supported; export the model with numbers in their place"
_LABELS = "strings are not supported; fit the model with integer labels and export it again"
#: What to do instead of giving attributes that hold strings.
STRINGS = {name: _NUMBERS for name in ("cats_strings", "keys_strings", "values_strings", "classes_strings")} | {
    "classlabels_strings": _LABELS}


def features(ctx: InferContext, count: int) -> SymExpr:
    """How many numbers a row of the input has, which must be `count` or, where there is one for all, any. Raises ModelError for
    a rank other than 1 and 2."""
    shape = canonical(ctx, 0)
    if not 1 <= len(shape) <= 2:
        raise ModelError(f"{where(ctx)} has an input of rank {len(shape)}, expected rows of features")
    return shape[-1] if count == 1 else unify(
        ctx.env, shape[-1], SymExpr.of(count), f"{where(ctx)}: its input has as many features as its attributes")


def rows(builder: Builder, dtype: str) -> str:
    """The input as a matrix of rows in a type; a list is one row."""
    ctx = builder.infer
    value, shape = ctx.node.inputs[0], canonical(ctx, 0)
    if not 1 <= len(shape) <= 2:
        raise ModelError(f"{where(ctx)} has an input of rank {len(shape)}, expected rows of features")
    matrix = value if len(shape) == 2 else reshape(builder, value, (ONE, *shape))
    return cast(builder, matrix, ctx.type(0).dtype, dtype)


def working(ctx: InferContext) -> str:
    """The type in which an operator computes: that of its input, single floats for integers."""
    dtype = ctx.type(0).dtype
    return dtype if is_float(dtype) else "float32"


def numbers(ctx: InferContext, name: str, dtype: str) -> NDArray[Any]:
    """The list that an attribute holds, which is empty where it is left out."""
    return np.asarray(ctx.attr(name, ()), dtype)


def listed(ctx: InferContext, name: str, dtype: str) -> NDArray[Any]:
    """The list that an attribute holds. Raises ModelError where it is empty or left out."""
    found = numbers(ctx, name, dtype)
    if not found.size:
        raise ModelError(f"{where(ctx)} lacks the attribute '{name}', expected a list of numbers; export it again")
    return found


def chosen(ctx: InferContext, name: str, allowed: Sequence[str]) -> str:
    """A word that an attribute holds. Raises ModelError for one that is not among those allowed."""
    found = str(ctx.attr(name))
    if found not in allowed:
        raise ModelError(f"{where(ctx)} has {name} '{found[:40]}', expected {', '.join(allowed)}")
    return found


def in_floats(builder: Builder, value: str, dtype: str) -> str:
    """A result as single floats, of which the outputs are."""
    return cast(builder, value, dtype, "float32")
