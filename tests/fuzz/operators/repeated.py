"""Loop of the reference evaluator, anew from the standard's text: without a condition it goes on, slices are stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.op_loop import Loop as NamedLoop

Array = np.ndarray[Any, Any]


class Loop(NamedLoop):  # type: ignore[misc]  # onnx says nothing of its types
    """The reference joins slices along an axis that they have, and makes no trip where no condition is given."""

    op_domain = ""

    def _run(self, trips: Array | None, condition: Array | None, *states: Array, context: Any = None, body: Any = None,
             attributes: Any = None, bindings: Any = None) -> tuple[Array, ...]:
        number, goes_on, *own = self.body.input_names
        slices: list[list[Array]] = [[] for _ in self.body.output_names[1 + len(states):]]
        going, trip, held = condition is None or bool(np.all(condition)), 0, list(states)

        def once() -> list[Array]:
            inputs = {**(context or {}), number: np.array(trip, np.int64), goes_on: np.array(going), **dict(zip(own, held))}
            found: list[Array] = self._run_body(inputs, attributes=attributes, bindings=bindings)
            return found

        while going and (trips is None or trip < int(np.ravel(trips)[0])):
            ends, *made = once()
            going, trip, held = bool(np.all(ends)), trip + 1, made[:len(states)]
            for gathered, one in zip(slices, made[len(states):]):
                gathered.append(one)
        if slices and not trip:  # of a shape that a trip would have made
            return (*held, *(np.zeros((0, *one.shape), one.dtype) for one in once()[1 + len(states):]))
        return (*held, *map(np.stack, slices))
