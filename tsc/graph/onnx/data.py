"""What an ONNX file stores, as NumPy arrays and plain Python values. External data only from the model's own folder.

Everything here treats the file as hostile: no path leaves the folder, and no size is believed before the bytes are there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tsc.errors import ModelError, UnsupportedError

_A = AttributeProto


def dtype_name(element_type: int, where: str) -> str:
    """NumPy's name of an ONNX element type. Raises UnsupportedError for strings and complex numbers, ModelError if unknown."""
    if element_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        kind = TensorProto.DataType.Name(element_type)
        raise UnsupportedError(f"{where} has elements of type {kind}, which are not supported")
    try:
        return str(np.dtype(helper.tensor_dtype_to_np_dtype(element_type)).name)
    except KeyError as error:
        raise ModelError(f"{where} has the unknown element type {element_type}; {_ALTERED}") from error


def read_tensor(tensor: TensorProto, folder: Path | None, where: str) -> NDArray[Any]:
    """The array that `tensor` holds, read-only. `folder` is the model's own, None when the model did not come from a file.

    Raises ModelError when sizes and data disagree, or when external data would be read from outside `folder`.
    """
    dtype = dtype_name(tensor.data_type, where)
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{where} has a negative size in its shape {list(shape)}; {_ALTERED}")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read_external(tensor, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), shape, folder, where)
    item = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    try:
        if tensor.HasField("raw_data") and dtype in _WHOLE_BYTES:
            found: NDArray[Any] = np.frombuffer(tensor.raw_data, item.newbyteorder("<")).reshape(shape).astype(item, copy=False)
        else:
            found = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, MemoryError) as error:
        raise ModelError(f"{where} has shape {list(shape)} but other data ({error}); {_ALTERED}") from error
    found.flags.writeable = False
    return found


def read_attribute(attribute: AttributeProto, folder: Path | None, where: str) -> Any:
    """An attribute as a plain value: int, float, str, tuples of them, or an array. Raises UnsupportedError for other kinds."""
    match attribute.type:
        case _A.INT:
            return attribute.i
        case _A.FLOAT:
            return attribute.f
        case _A.STRING:
            return _text(attribute.s, where)
        case _A.INTS:
            return tuple(attribute.ints)
        case _A.FLOATS:
            return tuple(attribute.floats)
        case _A.STRINGS:
            return tuple(_text(s, where) for s in attribute.strings)
        case _A.TENSOR:
            return read_tensor(attribute.t, folder, f"{where}, attribute '{attribute.name}',")
    if attribute.type in _A.AttributeType.values():
        kind = _A.AttributeType.Name(attribute.type)
        raise UnsupportedError(f"{where} has an attribute '{attribute.name}' of kind {kind}, which is not supported")
    raise ModelError(f"{where} has an attribute '{attribute.name}' of unknown kind; {_ALTERED}")


_ALTERED = "the file is truncated or altered, export it again"
_WHOLE_BYTES = frozenset({
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64"})


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{where} has a text attribute that is not UTF-8; {_ALTERED}") from error


def _read_external(
        tensor: TensorProto, item: np.dtype[Any], shape: tuple[int, ...], folder: Path | None, where: str) -> NDArray[Any]:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if item.name not in _WHOLE_BYTES:
        raise UnsupportedError(f"{where} keeps {item.name} elements in an external file; store them inside the model")
    if folder is None:
        raise ModelError(f"{where} lies in the external file '{location}', so give the model by its path instead of its bytes")
    size = prod(shape) * item.itemsize
    offset, length = _number(entries, "offset", 0, where), _number(entries, "length", size, where)
    if length != size:
        raise ModelError(f"{where} needs {size} bytes for its shape {list(shape)}, but has {length} bytes of external data")
    with open(_open_inside(folder, location, where), "rb") as file:
        if offset + length > os.fstat(file.fileno()).st_size:
            raise ModelError(f"{where} reaches beyond the end of '{location}'; the file is truncated, fetch or export it again")
        file.seek(offset)
        found: NDArray[Any] = np.frombuffer(file.read(length), item.newbyteorder("<")).reshape(shape).astype(item, copy=False)
    found.flags.writeable = False
    return found


def _number(entries: Mapping[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ModelError(f"{where} has the external data {key} '{text[:40]}', expected a whole number of bytes")
    return int(text)


def _open_inside(folder: Path, location: str, where: str) -> int:
    """A file descriptor of the regular file `location` inside `folder`; links of either kind do not lead anywhere else."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    outside = posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts)
    if not location or "\0" in location or outside:
        raise ModelError(f"{where} lies in '{location[:200]}', but external data may only be inside the model's own folder")
    root, path = os.path.realpath(folder), os.path.realpath(folder / location)
    if os.path.commonpath([root, path]) != root:
        raise ModelError(f"{where} lies in '{location}', a link that leads out of the model's own folder; copy the file there")
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ModelError(f"{where} lies in '{location}', which cannot be read ({error.strerror})") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise ModelError(f"{where} lies in '{location}', a hard link or a device instead of a file of its own; copy it there")
    return descriptor
