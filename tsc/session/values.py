"""Tensors as ONNX Runtime hands them around: their types by its names, and arrays that stay where they are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tsc.errors import InputError
from tsc.runtime.memory import Array, address, allocate_array, as_array

#: ONNX's number of an element type (TensorProto.DataType), and its name in a tensor's type, by NumPy's name.
_ELEMENTS = {
    "float32": (1, "float"), "uint8": (2, "uint8"), "int8": (3, "int8"), "uint16": (4, "uint16"), "int16": (5, "int16"),
    "int32": (6, "int32"), "int64": (7, "int64"), "bool": (9, "bool"), "float16": (10, "float16"), "float64": (11, "double"),
    "uint32": (12, "uint32"), "uint64": (13, "uint64"), "bfloat16": (16, "bfloat16")}
_BY_NUMBER = {number: name for name, (number, _) in _ELEMENTS.items()}


def type_name(dtype: str) -> str:
    """A tensor's type as ONNX Runtime writes it, of a dtype by NumPy's name."""
    return f"tensor({_ELEMENTS[dtype][1]})"


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """The dtype that is asked for as NumPy's or by ONNX's number. Raises InputError for what is none."""
    try:
        dtype = np.dtype(_BY_NUMBER[element_type] if isinstance(element_type, int) else element_type)
    except (KeyError, TypeError) as error:
        raise InputError(f"there is no element type {element_type!r}; give a NumPy dtype") from error
    if dtype.name not in _ELEMENTS:
        raise InputError(f"tensors have no elements of dtype {dtype}")
    return dtype


def check_device(device_type: str, what: str) -> None:
    """Raises InputError for a device whose memory is not this process's."""
    if device_type != "cpu":
        raise InputError(f"{what} is asked for on the device '{device_type}'; sessions run on 'cpu'")


def array_at(pointer: int, shape: Sequence[int], element_type: Any, what: str) -> Array:
    """The array at an address, which whoever gave it keeps alive. Raises InputError for a shape that is none."""
    if any(not isinstance(size, int | np.integer) or size < 0 for size in shape):
        raise InputError(f"{what} has shape {list(shape)!r}, expected whole numbers")
    dtype = dtype_of(element_type)
    size = math.prod(shape) * dtype.itemsize
    if not pointer and size:
        raise InputError(f"{what} has no address, but {size} bytes")
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * size).from_address(pointer)), dtype).reshape([int(n) for n in shape])


class OrtValue:
    """A tensor in this process's memory: an array that is not copied. Other libraries take it by DLPack."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """A value that is an array. Raises InputError for another device."""
        check_device(device_type, "an OrtValue")
        return OrtValue(as_array(numpy_obj, "an OrtValue"))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any, device_type: str = "cpu",
                                     device_id: int = 0) -> OrtValue:
        """A new value that holds anything. Raises InputError for another device, or an element type that is none."""
        check_device(device_type, "an OrtValue")
        return OrtValue(allocate_array(tuple(shape), dtype_of(element_type), "an OrtValue"))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """A value that is another library's array, where it lies."""
        return OrtValue(as_array(data, "an OrtValue"))

    def numpy(self) -> Array:
        """The array itself."""
        return self._array

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Its type as ONNX Runtime writes it."""
        return type_name(self._array.dtype.name)

    def element_type(self) -> int:
        """ONNX's number of its element type."""
        return _ELEMENTS[self._array.dtype.name][0]

    def data_ptr(self) -> int:
        """The address of its first element."""
        return address(self._array)

    def tensor_size_in_bytes(self) -> int:
        """The bytes of all its elements."""
        return self._array.nbytes

    def device_name(self) -> str:
        """Where it lies."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether there is one; optional values are not supported."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a dense tensor, as all are."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse one."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence."""
        return False

    def update_inplace(self, data: Any) -> None:
        """Copy an array of the same shape and dtype into it. Raises InputError for another."""
        array = as_array(data, "the new content of an OrtValue")
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise InputError(f"the new content of an OrtValue is {array.dtype} of shape {array.shape}, expected "
                             f"{self._array.dtype} of {self._array.shape}")
        self._array[...] = array

    def __dlpack__(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), int(number)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self._array, dtype) if not copy else np.array(self._array, dtype)
