"""Where a session's inputs are read and its outputs written, set once for many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsc.errors import InputError
from tsc.runtime.executable import Executable
from tsc.runtime.memory import Array, as_array
from tsc.session.values import OrtValue, array_at, check_device


class IOBinding:
    """Arrays of the caller's for inputs and outputs, by name. Nothing of them is copied: feeds are read and results written
    where they lie. An output without an array gets a new one in each run."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._known = {"input": {s.name for s in executable.inputs}, "output": {s.name for s in executable.outputs}}
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[Array] = []

    # -- inputs --------------------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Read an input from an array. Raises InputError for an unknown name, or what is no array."""
        self._inputs[self._checked(name, "input")] = as_array(arr_on_cpu, f"input '{name}'")

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int],
                   buffer_ptr: int) -> None:
        """Read an input at an address. Raises InputError for an unknown name, type or device."""
        check_device(device_type, f"input '{name}'")
        self._inputs[self._checked(name, "input")] = array_at(buffer_ptr, shape, element_type, f"input '{name}'")

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value."""
        self._inputs[self._checked(name, "input")] = ortvalue.numpy()

    # -- outputs -------------------------------------------------------------------------------------------------------

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None,
                    shape: Sequence[int] | None = None, buffer_ptr: int | None = None) -> None:
        """Compute an output: at an address if there is one, else in a new array in each run. Raises InputError for an unknown
        name, type or device, or an address without a type and a shape."""
        check_device(device_type, f"output '{name}'")
        place: Array | None = None
        if buffer_ptr is not None:
            if shape is None or element_type is None:
                raise InputError(f"output '{name}' has an address; give its element_type and shape, too")
            place = array_at(buffer_ptr, shape, element_type, f"output '{name}'")
        self._outputs[self._checked(name, "output")] = place

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Write an output into a value."""
        self._outputs[self._checked(name, "output")] = ortvalue.numpy()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run(self, seconds: list[float] | None = None) -> None:
        """Run the model once (see `Executable.run`)."""
        names = list(self._outputs)
        if not names:
            raise InputError("no output is bound; bind those that are wanted with bind_output")
        out = {name: array for name, array in self._outputs.items() if array is not None}
        self._results = self._executable.run(names, self._inputs, out, seconds)

    def get_outputs(self) -> list[OrtValue]:
        """The results of the last run, in the order in which outputs were bound."""
        return [OrtValue(result) for result in self._results]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The same as arrays, where they are."""
        return list(self._results)

    def synchronize_inputs(self) -> None:
        """Nothing: no copy is under way when a run begins."""

    def synchronize_outputs(self) -> None:
        """Nothing: a run has ended when it returns."""

    def clear_binding_inputs(self) -> None:
        """Forget where inputs are."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget where outputs go, and the results."""
        self._outputs.clear()
        self._results = []

    def _checked(self, name: str, kind: str) -> str:
        known = self._known[kind]
        if name not in known:
            raise InputError(f"there is no {kind} '{name}'; this model's {kind}s are {', '.join(map(repr, sorted(known)))}")
        return name
