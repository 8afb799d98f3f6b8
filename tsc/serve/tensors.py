"""Tensors as the Open Inference Protocol writes them: in JSON, or as bytes behind it (the binary tensor data extension)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tsc.runtime.memory import Array
from tsc.runtime.plan import TensorSpec, numpy_dtype
from tsc.serve.errors import wrong

#: The protocol's name of each element type, by ours.
_NAMES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16",
          **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)}}
_DTYPES = {theirs: ours for ours, theirs in _NAMES.items()}
#: Whose elements no JSON has.
BYTES_ALONE = ("FP16", "BF16")
_MOST_AXES = 32


def datatype(dtype: str) -> str:
    """The protocol's name of a dtype."""
    return _NAMES[dtype]


def described(spec: TensorSpec) -> dict[str, Any]:
    """A tensor as metadata has it: what is symbolic in its shape is -1."""
    sizes = [size.as_int() for size in spec.shape]
    return {"name": spec.name, "datatype": datatype(spec.dtype), "shape": [-1 if size is None else size for size in sizes]}


def dtype_named(name: str, given: Any) -> np.dtype[Any]:
    """The dtype that an input says to have. Raises Refusal for one that there is not."""
    if not isinstance(given, str) or given not in _DTYPES:
        raise wrong(f"input '{name}' has datatype {given!r}; there are {', '.join(_DTYPES)}")
    return numpy_dtype(_DTYPES[given])


def checked_shape(name: str, given: Any) -> tuple[int, ...]:
    """The shape that an input says to have."""
    sizes = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if sizes is None or len(sizes) > _MOST_AXES or any(type(n) is not int or not 0 <= n < 1 << 63 for n in sizes):
        raise wrong(f"input '{name}' has no shape of whole numbers from 0 on, but {_short(given)}")
    return tuple(sizes)


def from_bytes(name: str, given: Any, shape: tuple[int, ...], raw: bytes | memoryview) -> Array:
    """A tensor of its elements' bytes, little end first, which stay where they are."""
    dtype = dtype_named(name, given)
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise wrong(f"input '{name}' has {len(raw)} bytes, expected {expected} of a {given} tensor of shape {list(shape)}")
    if dtype == np.bool_ and (most := int(np.frombuffer(raw, np.uint8).max(initial=0))) > 1:
        raise wrong(f"input '{name}' holds a byte of {most}, expected 0 or 1 of a BOOL tensor")
    return np.frombuffer(raw, dtype).reshape(shape) if expected else np.empty(shape, dtype)


def from_json(name: str, given: Any, shape: tuple[int, ...], data: Any) -> Array:
    """A tensor of its elements, in a row or nested as its axes are. Raises Refusal where one is no value of its type."""
    dtype = dtype_named(name, given)
    if given in BYTES_ALONE:
        raise wrong(f"input '{name}' has datatype {given}, which JSON has no numbers for; send its bytes behind the JSON")
    if not isinstance(data, list):
        raise wrong(f"input '{name}' has no list as its data, but {_short(data)}")
    try:
        found = np.array(data) if data else np.empty(0, dtype)
    except (ValueError, OverflowError, RecursionError) as error:
        raise wrong(f"input '{name}' has data that are no tensor: lists differ in length, or numbers are too large") from error
    count = math.prod(shape)
    if found.size != count:
        raise wrong(f"input '{name}' has {found.size} elements, expected {count} of shape {list(shape)}")
    if not count:
        return np.empty(shape, dtype)
    if found.dtype.kind not in {"b": "b", "f": "iuf"}.get(dtype.kind, "iu"):
        theirs = "other things" if found.dtype.kind not in "biuf" else found.dtype
        raise wrong(f"input '{name}' has elements that are no {given}, but {theirs}")
    if dtype.kind in "iu":
        limits, low, high = np.iinfo(dtype), int(found.min()), int(found.max())
        if low < limits.min or high > limits.max:
            raise wrong(f"input '{name}' holds {low if low < limits.min else high}, beyond what {given} has")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, as in any conversion
        return found.astype(dtype).reshape(shape)


def to_json(array: Array) -> list[Any]:
    """The elements, in a row."""
    found: list[Any] = np.ascontiguousarray(array).reshape(-1).tolist()
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
