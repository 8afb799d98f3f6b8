"""Every shape that a host program is asked for is given to the Binder, too: the two must say the same, and so must the
host program in NumPy: that of a device, and one of every eighth Plan.

`watch` is called for the whole suite and in the children of the fuzzers, so that whatever runs anywhere is compared.
"""

from __future__ import annotations

import json
import re
import zlib
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tsc.errors import TscError
from tsc.runtime.bind import Binder, Binding, Bound, Shapes
from tsc.runtime.bounds import Bounds
from tsc.runtime.context import TableEngine
from tsc.runtime.host_numpy import NumpyProgram
from tsc.runtime.host_program import Ready
from tsc.runtime.image import ARGUMENT_COUNT, ARGUMENTS, COPIES, COPY, COPY_COUNT, ROW_COUNT, ROWS, SIZES
from tsc.runtime.over_driver import DriverEngine
from tsc.runtime.plan_json import plan_to_json

#: Where numbers are this small none is beyond 64 bits on the way, and a host program has no reason to give up.
SMALL = 1 << 12

_binders: WeakKeyDictionary[TableEngine, Binder] = WeakKeyDictionary()
_in_numpy: WeakKeyDictionary[TableEngine, NumpyProgram] = WeakKeyDictionary()
_written: WeakKeyDictionary[Binder, tuple[int, ...]] = WeakKeyDictionary()
_binders_on: WeakKeyDictionary[DriverEngine, Binder] = WeakKeyDictionary()
_init, _bind = TableEngine.__init__, TableEngine.bind
_init_on, _bind_on = DriverEngine.__init__, DriverEngine.bind


class DisagreementError(AssertionError):
    """A host program and the Binder say different things of the same request."""


def watch() -> None:
    """Compare from here on; a difference raises DisagreementError where the request is made. May be called again."""
    def init(engine: TableEngine, binder: Binder, bounds: Bounds, *args: Any) -> None:
        _init(engine, binder, bounds, *args)
        _binders[engine] = binder
        if engine._host is not None and zlib.crc32(" ".join(binder.plan.functions).encode()) % 8 == 0:
            _in_numpy[engine] = NumpyProgram(binder, bounds, engine.threads)

    def bind(engine: TableEngine, shapes: Shapes) -> Ready | None:
        found = _bind(engine, shapes)
        problem = None if engine._host is None else difference(engine, _binders[engine], shapes, found)
        if problem is None and engine in _in_numpy:
            problem = numpy_difference(_in_numpy[engine], _binders[engine], shapes)
        if problem is not None:
            raise DisagreementError(f"{problem} at {shapes}")
        return found

    def init_on(engine: DriverEngine, binder: Binder, *args: Any) -> None:
        _init_on(engine, binder, *args)
        _binders_on[engine] = binder

    def bind_on(engine: DriverEngine, shapes: Shapes) -> Ready | None:
        problem = None if engine._host is None else numpy_difference(engine._host, _binders_on[engine], shapes)
        if problem is not None:
            raise DisagreementError(f"{problem} at {shapes}")
        return _bind_on(engine, shapes)

    TableEngine.__init__, TableEngine.bind = init, bind  # type: ignore[method-assign, assignment]
    DriverEngine.__init__, DriverEngine.bind = init_on, bind_on  # type: ignore[method-assign, assignment]


def difference(engine: TableEngine, binder: Binder, shapes: Shapes, found: Ready | None) -> str | None:
    """How an answer differs from the Binder's."""
    try:
        binding = binder.bind(binder.sizes(shapes))
    except TscError as error:
        return None if found is None else f"the host program takes what the Binder refuses ({error})"
    if found is None:
        if fits(binder, binding, shapes) and max(written(binder), default=0) * SMALL < 1 << 63:
            return "the host program gives up"
        return None
    assert isinstance(binding.whole, Bound)
    words, segments = found.whole.words, binder.segments
    told = (found.outputs, found.arena_bytes, found.scratch_bytes)
    if told != (binding.outputs, binding.arena_bytes, binding.scratch_bytes):
        return f"{told} is not {(binding.outputs, binding.arena_bytes, binding.scratch_bytes)}"
    if not segments:
        return None if not words[ROW_COUNT] and not words[COPY_COUNT] else "something runs"
    expected = engine.image(segments[0], binding.whole).words
    for begin, end in ((SIZES, ROWS), (ROWS, ARGUMENTS), (ARGUMENTS, COPIES)):
        length = expected[end] - expected[begin]  # a host program has room for the most that may run
        one, other = (at[at[begin]:at[begin] + length].tolist() for at in (words, expected))
        if one != other:
            return f"words {one} are not {other}"
    if [words[k] for k in (ROW_COUNT, ARGUMENT_COUNT)] != [expected[k] for k in (ROW_COUNT, ARGUMENT_COUNT)]:
        return "another number of rows or arguments"
    return None if _copies(words) == _expected_copies(engine, binding) else "copies differ"


def fits(binder: Binder, binding: Binding, shapes: Shapes) -> bool:
    """Whether all sizes are small, and nothing that is made of them is large: no number on the way is beyond 64 bits."""
    small = max((size for shape in shapes for size in shape), default=0) < SMALL
    return small and max(map(abs, (binding.arena_bytes, *binding.names.values())), default=0) < SMALL ** 3


def numpy_difference(program: NumpyProgram, binder: Binder, shapes: Shapes) -> str | None:
    """How the answer of a host program in NumPy differs from the Binder's."""
    found = program.bind(shapes)
    try:
        want = binder.bind(binder.sizes(shapes))
    except TscError as error:
        return None if found is None else f"the host program in NumPy takes what the Binder refuses ({error})"
    if found is None:
        large = not fits(binder, want, shapes) or max(written(binder), default=0) >= SMALL ** 3
        return None if large else "the host program in NumPy gives up"
    one, other = found.whole, want.whole
    assert isinstance(one, Bound) and isinstance(other, Bound)
    told, wanted = ((ready.outputs, ready.arena_bytes, ready.scratch_bytes) for ready in (found, want))
    if told != wanted:
        return f"{told} is not {wanted}"
    for name in ("copies", "scratch_bytes", "together_bytes"):
        if getattr(one, name) != getattr(other, name):
            return f"{name}: {getattr(one, name)} is not {getattr(other, name)}"
    for name in ("sizes", "blocks", "offsets", "rows.calls", "rows.launches", "rows.sizes", "rows.arguments", "rows.storages"):
        mine, theirs = (attrgetter(name)(bound).tolist() for bound in (one, other))
        if mine != theirs:
            return f"{name}: {mine} are not {theirs}"
    return None


def written(binder: Binder) -> tuple[int, ...]:
    """The numbers that a Plan's own expressions have in them: strides of a file may be of any size."""
    if binder not in _written:
        _written[binder] = tuple(map(int, re.findall(r"\d+", json.dumps(plan_to_json(binder.plan)))))
    return _written[binder]


def _copies(words: np.ndarray) -> list[list[int]]:
    begin = int(words[COPIES])
    return words[begin:begin + COPY * int(words[COPY_COUNT])].reshape(-1, COPY).tolist()


def _expected_copies(engine: TableEngine, binding: Binding) -> list[list[int]]:
    def place(storage: int, offset: int) -> tuple[int, int]:
        return int(engine.base[storage]), int(engine.fixed[storage]) + offset

    assert binding.whole is not None
    return [[*place(source, at), *place(target, to), size] for source, at, target, to, size in binding.whole.copies]
