"""Every primitive on random fragments: what a device makes of them beside what the emulator made.

Cases are data: a file holds the launches, their inputs, and the outputs of whoever ran them last. The emulator's are made with
the build; a device's become the goldens that the emulator is held to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.session import Again, Session
from tsc.errors import LaunchError
from tsc.runtime.drivers.protocol import Argument, Arguments, Driver, Function, Launch, Memory, Module, Size3, Stream, TensorMap

Array = NDArray[Any]
#: How far a float sum may be off, as a part of the largest one: the order and the rounding of sums are the hardware's.
CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: `array` numbers the case's array whose memory it is, or, as a map, whose tensor; or a scalar of `dtype`. A
    map's box is innermost first."""

    kind: Literal["memory", "map", "scalar"]
    array: int = 0
    dtype: str = ""
    value: int = 0
    box: tuple[int, ...] = ()
    swizzle: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A launch of `kernel` of `source` on `arrays`. Those numbered in `written` are results: the same to the bit, or, as a part
    of the largest value, as far off as `close`."""

    name: str
    source: str
    kernel: str
    grid: Size3
    block: Size3
    cluster: Size3
    shared: int
    parameters: tuple[Parameter, ...]
    arrays: tuple[Array, ...]
    written: tuple[int, ...]
    close: float = 0.0


#: What cases gave; None: the launch failed.
Results = dict[str, tuple[Array, ...] | None]


def write_cases(path: Path, cases: list[Case], results: Results) -> None:
    """Cases and what they gave, as one .npz."""
    arrays: dict[str, Array] = {}
    heads = []
    for number, case in enumerate(cases):
        heads.append({field: value for field, value in asdict(case).items() if field != "arrays"} | {"count": len(case.arrays)})
        arrays |= {f"{number}_in{i}": array for i, array in enumerate(case.arrays)}
        gave = results[case.name]
        heads[-1]["fails"] = gave is None
        arrays |= {f"{number}_out{i}": array for i, array in enumerate(gave or ())}
    arrays["heads"] = np.frombuffer(json.dumps(heads).encode(), np.uint8)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def read_cases(path: Path) -> tuple[list[Case], Results]:
    """What write_cases wrote."""
    cases, results = [], {}
    with np.load(path) as file:
        for number, head in enumerate(json.loads(bytes(file["heads"]))):
            count, fails = head.pop("count"), head.pop("fails", False)
            head["parameters"] = tuple(Parameter(**{**p, "box": tuple(p["box"])}) for p in head["parameters"])
            head |= {key: tuple(value) for key, value in head.items() if isinstance(value, list)}
            case = Case(arrays=tuple(file[f"{number}_in{i}"] for i in range(count)), **head)
            cases.append(case)
            results[case.name] = None if fails else tuple(file[f"{number}_out{i}"] for i in range(len(case.written)))
    return cases, results


def run_case(driver: Driver, function: Function, case: Case, stream: Stream) -> tuple[Array, ...]:
    """What the launch leaves in the arrays that it writes."""
    memories = []
    for array in case.arrays:
        memories.append(driver.allocate(max(1, array.nbytes)))
        if array.nbytes:
            driver.upload(memories[-1], array, stream)
    arguments = Arguments([_argument(driver, parameter, case.arrays, memories) for parameter in case.parameters])
    driver.launch(Launch(function, case.grid, case.block, arguments, case.shared, case.cluster), stream)
    outputs = tuple(np.empty_like(case.arrays[number]) for number in case.written)
    for output, number in zip(outputs, case.written):
        if output.nbytes:
            driver.download(output, memories[number], stream)
    driver.synchronize(stream)
    for memory in memories:
        driver.release(memory)
    return outputs


def attempt(driver: Driver, module: Module, case: Case, stream: Stream) -> tuple[Array, ...] | None:
    """The same in a device that outlives a launch that fails."""
    try:
        return run_case(driver, driver.function(module, case.kernel), case, stream)
    except LaunchError:
        return None


def difference(case: Case, got: tuple[Array, ...] | None, expected: tuple[Array, ...] | None) -> str | None:
    """How two sets of results differ more than they may, or None."""
    if got is None or expected is None:
        return None if got is expected else "it failed, and was to run" if got is None else "it ran, and was to fail"
    for number, one, other in zip(case.written, got, expected):
        if one.tobytes() == other.tobytes():
            continue
        if not case.close:
            places = np.flatnonzero(one.ravel() != other.ravel())
            first = int(places[0]) if places.size else 0
            return (f"array {number}: {places.size} of {one.size} differ, first at {first}: "
                    f"{one.ravel()[first]} where {other.ravel()[first]} was expected")
        error = _distance(one, other)
        if not error <= case.close:
            return f"array {number}: off by {error:.2e} of the largest value, {case.close} is allowed"
    return None


def _distance(one: Array, other: Array) -> float:
    """The largest difference of finite values as a part of the largest of them; infinite where others differ."""
    one, other = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return float("inf")
    apart = float(np.abs(one - other)[finite].max(initial=0))
    return apart / max(float(np.abs(other[finite]).max(initial=0)), np.finfo(np.float32).tiny)


def measure(session: Session, keep: Callable[[list[Case], Results], None], file: str = "cases") -> dict[str, Any]:
    """Run every case of a file that this device has the code for; `keep` is handed the results. Fails after the last, if any
    differ.

    A case is noted as broken before it runs: where it takes the process or the device with it (raises Again), the next process
    leaves it out. What breaks a device and was to break it is no difference."""
    cases, expected = read_cases(session.folder / session.manifest[file])
    broken: dict[str, str] = session.kept.setdefault("broken", {})
    here = [case for case in cases if session.has(case.source)]
    results: Results = {case.name: None if case.name in broken else _run_noted(session, case, broken) for case in here}
    session.kept["cases"] = len(here)
    if not session.computes:
        return session.kept
    differences = {case.name: found for case in here if (found := difference(case, results[case.name], expected[case.name]))}
    session.kept["differences"] = differences
    session.kept["not_to_the_bit"] = sum(not _same(results[case.name], expected[case.name]) for case in here)
    keep(here, results)
    assert not differences, (f"{len(differences)} of {len(here)} cases are not as they were to be: "
                             f"{', '.join(sorted(differences)[:8])}")
    return session.kept


def _same(one: tuple[Array, ...] | None, other: tuple[Array, ...] | None) -> bool:
    """Whether two sets of results are the same to the bit."""
    if one is None or other is None:
        return one is other
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other))


def _run_noted(session: Session, case: Case, broken: dict[str, str]) -> tuple[Array, ...] | None:
    broken[case.name] = "its process ended"
    session.save()
    try:
        results = run_case(session.driver, session.function(case.source, case.kernel), case, session.stream)
    except LaunchError as error:
        broken[case.name] = str(error)
        try:  # what a kernel did wrong stays with the device's context; what was refused does not
            session.driver.synchronize(session.stream)
        except LaunchError:
            raise Again(f"'{case.name}' fails: {error}") from error
        return None
    del broken[case.name]
    return results


def _argument(driver: Driver, parameter: Parameter, arrays: tuple[Array, ...], memories: list[Memory]) -> Argument:
    match parameter.kind:
        case "memory":
            return memories[parameter.array]
        case "scalar":
            scalar: np.generic[Any] = np.dtype(parameter.dtype).type(parameter.value)
            return scalar
        case "map":
            array = arrays[parameter.array]
            return driver.tensor_map(TensorMap(memories[parameter.array], array.dtype.name, array.shape[::-1],
                                               array.strides[-2::-1], parameter.box, parameter.swizzle))
