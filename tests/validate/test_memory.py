"""Who wrote what is read: the newest write to a place before a time."""

from __future__ import annotations

import numpy as np

from tsc.loop_ir.nodes import Store
from tsc.sym import dim
from tsc.te.expr import Buffer, index
from tsc.validate import memory
from tsc.validate.algebra import Value
from tsc.validate.frames import Frame
from tsc.validate.memory import Leaf, Storage


def test_the_newest_write_is_found_where_places_and_times_fit_into_no_number() -> None:
    rng = np.random.default_rng(0)
    cells, times = rng.integers(0, 40, 200) * 2**20, np.sort(rng.choice(2**60, 200, replace=False))
    store = Store(Buffer("b", "int64", (dim("n"),)), (index(0),), index(0))
    storage = Storage(store.buffer, "@base", False, 2**60)
    written = Leaf(store, Frame(200, known={memory.SEEN: times, memory.TIME: times}), storage, {}, cells=cells)
    storage.writers.append(written)
    storage.settle()
    storage.put(written.slots, Value(np.arange(200)))
    asked, seen = rng.integers(0, 40, 500) * 2**20, np.append(rng.integers(0, 2**60, 300), rng.choice(times, 200) + 1)
    got = storage.read(asked, seen)
    for k in range(500):
        before = np.flatnonzero((cells == asked[k]) & (times < seen[k]))
        assert got.poison is not None and got.poison[k] == (not len(before))
        assert not len(before) or got.data[k] == before[-1]
