"""DLPack's structs and capsules (dmlc/dlpack 1.1, dlpack.h), through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from dataclasses import dataclass
from typing import Any

from tsc.errors import InputError

CPU, CUDA = 1, 2
#: Kinds of devices whose memory the host reads as its own: CPU, what CUDA and ROCm have page-locked, what CUDA manages.
HOST_DEVICES = (CPU, 3, 11, 13)
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED_PLAIN, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
_READ_ONLY = 1
#: (type code, bits) of the dtypes there are.
_CODES = {
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)}, **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)}, "bfloat16": (4, 16), "bool": (6, 8)}
DTYPES = tuple(_CODES)
_NAMES = {code: name for name, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64))


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
# Capsules are passed as addresses where they may be dying, which a reference count must not see.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))


@dataclass(eq=False, slots=True, weakref_slot=True)
class Described:
    """What a capsule said of its array; while this lives the array does. `strides` in elements, None where it is dense."""

    address: int
    device: tuple[int, int]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    writable: bool


def take_capsule(capsule: object, what: str) -> Described:
    """Consume a capsule, versioned or not. Raises InputError naming `what` where it cannot be used."""
    at = id(capsule)
    if _is_valid(at, _VERSIONED):
        raw: Any = _ManagedVersioned.from_address(_pointer(at, _VERSIONED))
        if raw.major > 1:
            raise InputError(f"{what} comes as version {raw.major} of DLPack; 1 is the newest that is understood")
        writable, used = not raw.flags & _READ_ONLY, _USED_VERSIONED
    elif _is_valid(at, _PLAIN):
        raw, writable, used = _Managed.from_address(_pointer(at, _PLAIN)), True, _USED_PLAIN
    else:
        raise InputError(f"{what} gave no fresh DLPack capsule")
    tensor = raw.tensor
    name = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if name is None:
        raise InputError(f"{what} has elements of DLPack's type {tensor.code} with {tensor.bits} bits; use another dtype")
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else None
    described = Described(
        (tensor.data or 0) + tensor.byte_offset, (tensor.device_type, tensor.device_id), name,
        tuple(tensor.shape[:tensor.ndim]), strides, writable)
    _set_name(at, used)
    if raw.deleter:
        weakref.finalize(described, _Deleter(raw.deleter), ctypes.addressof(raw)).atexit = False
    return described


_exported: dict[int, tuple[Any, ...]] = {}


def make_capsule(described: Described, owner: object, versioned: bool) -> object:
    """A capsule of a dense array that `owner` keeps until the consumer, or nobody, needs it any more."""
    code, bits = _CODES[described.dtype]
    rank = len(described.shape)
    sizes = (ctypes.c_int64 * max(rank, 1))(*described.shape)
    steps = (ctypes.c_int64 * max(rank, 1))(*dense_strides(described.shape))
    tensor = _Tensor(described.address, *described.device, rank, code, bits, 1, sizes, steps, 0)
    delete = ctypes.cast(_forget, ctypes.c_void_p).value
    raw: Any
    if versioned:
        raw = _ManagedVersioned(1, 1, None, delete, 0 if described.writable else _READ_ONLY, tensor)
    else:
        raw = _Managed(tensor, None, delete)
    address = ctypes.addressof(raw)
    _exported[address] = (raw, sizes, steps, owner)
    return _new(address, _VERSIONED if versioned else _PLAIN, ctypes.cast(_unused, ctypes.c_void_p))


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense row-major array."""
    return tuple(reversed(tuple(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)))) if shape else ()


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    """A capsule ends; where nobody took what it held, that ends as well."""
    for name in (_PLAIN, _VERSIONED):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name))


_forget: Any = _Deleter(_delete)
_unused: Any = _Destructor(_destroy)
