"""Arrays of the caller's that results are written into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsc.errors import InputError, ShapeError
from tsc.runtime.arrays import AnyArray, DeviceArray, share_memory, write
from tsc.runtime.memory import as_array
from tsc.runtime.plan import TensorSpec
from tsc.runtime.schema import shown

_INTERFACES = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")


@dataclass(frozen=True, slots=True)
class Targets:
    """The caller's arrays by output number: kernels write into those that are `direct`; into the others results are copied
    when all is computed, since their elements are not one after the other, a feed lies there, or their shape is the run's."""

    direct: Mapping[int, AnyArray]
    copied: Mapping[int, AnyArray]

    def finish(self, results: list[AnyArray | None], specs: Sequence[TensorSpec]) -> None:
        """Copy what is to be copied; the caller's arrays are the results. Raises ShapeError where one does not fit."""
        for number, target in self.copied.items():
            made = results[number]
            if made is None or made.shape != target.shape:
                found = "not computed" if made is None else f"of shape {made.shape}"
                raise ShapeError(f"the array for output '{specs[number].name}' has shape {target.shape}, but the result is "
                                 f"{found}")
            if isinstance(target, DeviceArray):
                write(target, made)
            else:
                target[...] = made.numpy() if isinstance(made, DeviceArray) else made
            results[number] = target


def targets_of(out: Mapping[str, Any], specs: Sequence[TensorSpec], dtypes: Sequence[np.dtype[Any]],
               shapes: Sequence[tuple[int, ...] | None], feeds: Sequence[AnyArray],
               take: Callable[[Any, str], AnyArray] = as_array) -> Targets:
    """What `out` says by output name, each array as `take` says, checked before anything runs. Raises InputError for what is no
    array that can be written, of another dtype or in another's place, ShapeError for another shape."""
    if not isinstance(out, Mapping):
        raise InputError(f"out is a dict from output names to arrays, not {shown(out)}")
    meet: Callable[[Any, Any], bool] = np.may_share_memory if take is as_array else share_memory
    numbers = {spec.name: number for number, spec in enumerate(specs)}
    direct: dict[int, AnyArray] = {}
    copied: dict[int, AnyArray] = {}
    for name, value in out.items():
        if name not in numbers:
            known = ", ".join(f"'{n}'" for n in numbers)
            raise InputError(f"there is no output '{name}'; this model's outputs are {known}")
        number = numbers[name]
        target = _writable(value, f"the array for output '{name}'", take)
        if target.dtype != dtypes[number] and target.dtype != specs[number].dtype:
            raise InputError(f"the array for output '{name}' has dtype {target.dtype}, expected {dtypes[number]}")
        shape = shapes[number]
        if shape is not None and target.shape != tuple(shape):
            raise ShapeError(f"the array for output '{name}' has shape {target.shape}, expected {tuple(shape)}")
        for other in (*direct.values(), *copied.values()):
            if meet(target, other):
                raise InputError(f"the array for output '{name}' lies where another output's lies; give each its own")
        plain = target.aligned if isinstance(target, DeviceArray) else target.flags.c_contiguous and target.flags.aligned
        inside = plain and shape is not None and not any(meet(target, feed) for feed in feeds)
        (direct if inside else copied)[number] = target
    return Targets(direct, copied)


def _writable(value: Any, what: str, take: Callable[[Any, str], AnyArray]) -> AnyArray:
    """The memory of an array, as NumPy's where it is the host's. Raises InputError for what has none, or none that may be
    written."""
    if not isinstance(value, np.ndarray) and not any(hasattr(value, a) for a in _INTERFACES):
        raise InputError(f"{what} is a {type(value).__name__}, which has no memory to write to; give a NumPy array")
    array = take(value, what)
    if not (array.writable if isinstance(array, DeviceArray) else array.flags.writeable):
        raise InputError(f"{what} is read-only; give one that can be written")
    return array
