"""Several requests as one: how they are laid one behind the other, and how the results are taken apart again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tsc.errors import InputError
from tsc.runtime.bind import format_spec
from tsc.runtime.memory import Array
from tsc.runtime.plan import TensorSpec
from tsc.serve.settings import Batching
from tsc.sym import SymExpr

#: Requests are filled up with zeros while what is computed is at most so many times what was asked for.
MOST_PADDING = 1.3

Dims = Mapping[str, int]
Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Joint:
    """How requests of a model are joined: the name of the dim that each axis of its inputs and outputs is ("" for a fixed one),
    and the Batching."""

    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[tuple[str, ...], ...]
    batching: Batching


def joint_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batching: Batching) -> Joint | None:
    """How requests are joined by the deployer's settings; None where each runs alone. Raises InputError where the model's
    shapes are not as these say."""
    if batching.batch is None:
        return None
    found = [tuple(_axis(size, (batching.batch, *batching.pad), spec) for size in spec.shape) for spec in (*inputs, *outputs)]
    for spec, axes in zip((*inputs, *outputs), found):
        if axes[:1] != (batching.batch,) or batching.batch in axes[1:] or spec.contents:
            raise InputError(f"{format_spec(spec)}: requests are joined along '{batching.batch}' where it is the first axis of "
                             "all inputs and outputs, and no other axis")
    for name in batching.pad:
        if name == batching.batch or not any(name in axes for axes in found[:len(inputs)]):
            raise InputError(f"no input has the dim '{name}' that shorter requests are to be filled up along")
    return Joint(dict(zip((spec.name for spec in inputs), found)), tuple(found[len(inputs):]), batching)


def _axis(size: SymExpr, joined: Sequence[str], spec: TensorSpec) -> str:
    """The dim that an axis is. Raises InputError where a joined dim is in it otherwise."""
    dim = size.as_dim()
    if dim is not None:
        return dim.name
    if hidden := {*joined} & size.dims():
        raise InputError(f"'{spec.name}' has an axis of {size}, by which requests cannot be joined along '{min(hidden)}'")
    return ""


def key_of(joint: Joint, dims: Dims) -> tuple[tuple[str, int], ...]:
    """What two requests must have in common to be joined."""
    free = {joint.batching.batch, *joint.batching.pad}
    return tuple((name, size) for name, size in dims.items() if name not in free)


def volume(joint: Joint, dims: Dims) -> int:
    """How much is computed, relative to other requests: rows times what is filled up in each."""
    return dims[joint.batching.batch or ""] * math.prod(dims[name] for name in joint.batching.pad)


class Gathering:
    """Requests that are joined, as long as they are few rows, little padding, and no more than `most` of volume."""

    def __init__(self, joint: Joint, first: Dims, most: float) -> None:
        self._joint, self._key, self._most = joint, key_of(joint, first), most
        self._rows = self._wanted = 0
        self._longest = dict.fromkeys(joint.batching.pad, 0)
        self.takes(first)

    @property
    def is_full(self) -> bool:
        """Whether no request fits any more."""
        return self._rows >= self._joint.batching.rows

    def takes(self, dims: Dims) -> bool:
        """Take one more, or say that it does not fit."""
        batching = self._joint.batching
        rows = self._rows + dims[batching.batch or ""]
        longest = {name: max(size, dims[name]) for name, size in self._longest.items()}
        wanted, filled = self._wanted + volume(self._joint, dims), rows * math.prod(longest.values())
        if self._rows and (rows > batching.rows or filled > min(self._most, MOST_PADDING * wanted)
                           or key_of(self._joint, dims) != self._key):
            return False
        self._rows, self._longest, self._wanted = rows, longest, wanted
        return True


def joined(joint: Joint, requests: Sequence[Feeds], dims: Sequence[Dims]) -> dict[str, Array]:
    """One request of several."""
    longest = {name: max(own[name] for own in dims) for name in joint.batching.pad}
    found = {}
    for name, axes in joint.inputs.items():
        arrays = [request[name] for request in requests]
        shape = [longest.get(axis, size) for axis, size in zip(axes, arrays[0].shape)]
        shape[0] = sum(array.shape[0] for array in arrays)
        whole, row = np.zeros(shape, arrays[0].dtype), 0
        for array in arrays:
            whole[(slice(row, row + array.shape[0]), *map(slice, array.shape[1:]))] = array
            row += array.shape[0]
        found[name] = whole
    return found


def parted(joint: Joint, results: Sequence[Array], dims: Sequence[Dims], wanted: Sequence[int]) -> list[list[Array]]:
    """What each of the joined requests gets of the results, of which the numbers are `wanted`."""
    found, row = [], 0
    for own in dims:
        rows = own[joint.batching.batch or ""]
        found.append([np.ascontiguousarray(result[(slice(row, row + rows), *(
            slice(own[axis] if axis in joint.batching.pad else None) for axis in joint.outputs[number][1:]))])
            for result, number in zip(results, wanted)])
        row += rows
    return found
