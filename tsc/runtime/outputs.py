"""Arrays of the caller's that results are written into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsc.errors import InputError, ShapeError
from tsc.runtime.memory import Array, as_array
from tsc.runtime.plan import TensorSpec
from tsc.runtime.schema import shown


@dataclass(frozen=True, slots=True)
class Targets:
    """The caller's arrays by output number: kernels write into those that are `direct`; into the others results are copied
    when all is computed, since their elements are not one after the other, a feed lies there, or their shape is the run's."""

    direct: Mapping[int, Array]
    copied: Mapping[int, Array]

    def finish(self, results: list[Array | None], specs: Sequence[TensorSpec]) -> None:
        """Copy what is to be copied; the caller's arrays are the results. Raises ShapeError where one does not fit."""
        for number, target in self.copied.items():
            made = results[number]
            if made is None or made.shape != target.shape:
                found = "not computed" if made is None else f"of shape {made.shape}"
                raise ShapeError(f"the array for output '{specs[number].name}' has shape {target.shape}, but the result is "
                                 f"{found}")
            target[...] = made
            results[number] = target


def targets_of(out: Mapping[str, Any], specs: Sequence[TensorSpec], dtypes: Sequence[np.dtype[Any]],
               shapes: Sequence[tuple[int, ...] | None], feeds: Sequence[Array]) -> Targets:
    """What `out` says by output name, checked before anything runs. Raises InputError for what is no array that can be written,
    of another dtype or in another's place, ShapeError for another shape."""
    if not isinstance(out, Mapping):
        raise InputError(f"out is a dict from output names to arrays, not {shown(out)}")
    numbers = {spec.name: number for number, spec in enumerate(specs)}
    direct: dict[int, Array] = {}
    copied: dict[int, Array] = {}
    for name, value in out.items():
        if name not in numbers:
            known = ", ".join(f"'{n}'" for n in numbers)
            raise InputError(f"there is no output '{name}'; this model's outputs are {known}")
        number = numbers[name]
        target = _writable(value, f"the array for output '{name}'")
        if target.dtype != dtypes[number]:
            raise InputError(f"the array for output '{name}' has dtype {target.dtype}, expected {dtypes[number]}")
        shape = shapes[number]
        if shape is not None and target.shape != tuple(shape):
            raise ShapeError(f"the array for output '{name}' has shape {target.shape}, expected {tuple(shape)}")
        for other in (*direct.values(), *copied.values()):
            if np.may_share_memory(target, other):
                raise InputError(f"the array for output '{name}' lies where another output's lies; give each its own")
        plain = target.flags.c_contiguous and target.flags.aligned and shape is not None
        inside = plain and not any(np.may_share_memory(target, feed) for feed in feeds)
        (direct if inside else copied)[number] = target
    return Targets(direct, copied)


def _writable(value: Any, what: str) -> Array:
    """The memory of an array as NumPy's. Raises InputError for what has none, or none that may be written."""
    if not isinstance(value, np.ndarray) and not any(hasattr(value, a) for a in ("__dlpack__", "__array_interface__")):
        raise InputError(f"{what} is a {type(value).__name__}, which has no memory to write to; give a NumPy array")
    array = as_array(value, what)
    if not array.flags.writeable:
        raise InputError(f"{what} is read-only; give one that can be written")
    return array
