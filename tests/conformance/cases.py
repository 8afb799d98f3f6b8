"""The cases of the ONNX standard's node suite, and what becomes of each: compiled, run, and held against the suite's outputs.

The suite is the `onnx` package's own; which of its cases are the core is said by the list beside the shared models. Those that
are not passed stand in `missing.json`, each with its reason.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import tsc
from tests.models.test_shared_models import FOLDER
from tsc.errors import ModelError, TscError
from tsc.ops.shapes import DTYPES

#: What is fed, and what the suite or the reference makes of it.
Run: TypeAlias = tuple[dict[str, Any], Sequence[Any]]

CORE = FOLDER.parent / "conformance" / "core_cases.json"
MISSING = Path(__file__).with_name("missing.json")


@dataclass(frozen=True, slots=True)
class Outcome:
    """`state` is "passed", "refused" (the model, by name) or "wrong"."""

    state: str
    text: str = ""


@cache
def suite() -> Mapping[str, Any]:
    """Every case of the suite by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's own arithmetic
        return {case.name: case for case in load_model_tests(kind="node")}


def core() -> list[str]:
    """The names of the core's cases; none where the list is not there."""
    return sorted(json.loads(CORE.read_text())) if CORE.is_file() else []


def expanded() -> list[str]:
    """The names of the cases in which function bodies stand in place of operators, with dtypes that `tsc` has."""
    return sorted(name for name, case in suite().items() if "_expanded" in name and all(
        v.type.tensor_type.elem_type in DTYPES for v in (*case.model.graph.input, *case.model.graph.output)))


def missing() -> dict[str, str]:
    """The cases of the core that are not passed, with the reason of each."""
    found: dict[str, str] = json.loads(MISSING.read_text())
    return found


def outcome(name: str, dynamic: bool = False, target: str = "cpu") -> Outcome:
    """What becomes of a case as it stands, or with a symbol for every size of its inputs."""
    case = suite()[name]
    if dynamic:
        return _dynamic(case, target)
    return _tried(case.model, target, lambda _: _stored(case), case)


def _tried(model: onnx.ModelProto, target: str, runs: Callable[[tsc.Executable], Iterator[Run]], case: Any) -> Outcome:
    try:
        executable = tsc.compile(model, target=target, threads=1)
        for feeds, wanted in runs(executable):
            text = _difference(executable.run(None, feeds), wanted, case.rtol, case.atol)
            if text:
                return Outcome("wrong", text)
    except ModelError as error:
        return Outcome("refused", str(error))
    except TscError as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    except Exception as error:
        return Outcome("wrong", f"untyped: {type(error).__name__}: {error}")
    return Outcome("passed")


def _feeds(model: onnx.ModelProto, inputs: Sequence[Any]) -> dict[str, Any]:
    fixed = {i.name for i in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in fixed]
    return {name: _array(x) for name, x in zip(names, inputs)}


def _array(value: Any) -> Any:
    """Some cases hold messages in place of arrays."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _difference(found: Sequence[Any], wanted: Sequence[Any], rtol: float, atol: float) -> str:
    """Where results are not the suite's; "" where they are."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs, expected {len(wanted)}"
    for number, (got, want) in enumerate(zip(found, wanted)):
        want = _array(want)
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"output {number} is {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        try:
            if want.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)
        except AssertionError as error:
            return f"output {number}: " + " ".join(str(error).split())[:160]
    return ""


# -- symbolic sizes ---------------------------------------------------------------------------------------------

def symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a symbol of its own for every size of its inputs, and nothing said of its outputs'. Sizes of 0
    and 1 stay: a dim is at least 1 if nothing else is declared, and what a broadcast repeats is known when it is compiled."""
    made = copy.deepcopy(model)
    fixed = {i.name for i in made.graph.initializer}
    for info in made.graph.input:
        if info.name not in fixed and info.type.HasField("tensor_type"):
            for axis, extent in enumerate(info.type.tensor_type.shape.dim):
                if extent.dim_value > 1:
                    extent.Clear()
                    extent.dim_param = f"{info.name}_{axis}"
    for info in made.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    del made.graph.value_info[:]
    return made


def _dynamic(case: Any, target: str) -> Outcome:
    """At the stored shapes, and at others if the reference takes them: one of the sizes that occur is one larger everywhere."""
    model = symbolic(case.model)

    def runs(executable: tsc.Executable) -> Iterator[Run]:
        yield from _stored(case)
        told = {spec.name for spec in executable.inputs if spec.contents}  # of which the reference takes too many as well
        yield from _other_shapes(model, next(_stored(case))[0], told)

    return _tried(model, target, runs, case)


def _stored(case: Any) -> Iterator[Run]:
    return ((_feeds(case.model, inputs), outputs) for inputs, outputs in case.data_sets)


#: Axes of inputs whose size the standard's text gives, which the reference does not check: the corners of a box, taps that are
#: one more than the state before has elements, two bounds of a crop for each axis.
_TIED = {"NonMaxSuppression": ((0, 2),), "CausalConvWithState": ((1, 2),), "Resize": ((1, 0),)}


def _other_shapes(model: onnx.ModelProto, feeds: Mapping[str, Any], told: Collection[str]) -> list[Run]:
    """Of a symbolic model, but for inputs of which each element is `told`."""
    said = {n for node in model.graph.node for a in node.attribute for n in (a.i, *a.ints)}  # as a hidden size: not checked
    said |= {feeds[node.input[i]].shape[axis] for node in model.graph.node for i, axis in _TIED.get(node.op_type, ())
             if i < len(node.input) and node.input[i] in feeds}
    sizes = sorted({extent for x in feeds.values() for extent in x.shape if extent > 1} - said)
    random.Random(str(sizes)).shuffle(sizes)
    for size in sizes:
        grown = {name: x if name in told else _grown(x, size) for name, x in feeds.items()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return [(grown, _reference(model, grown))]
        except Exception:  # such sizes are none of the operator's
            continue
    return []


def _reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Sequence[Any]:
    """What the reference gives; of whole numbers that halves have scaled, with floats in place of these: what it rounds to
    halves on the way may lie on the other side of the middle between two."""
    wanted = ReferenceEvaluator(model).run(None, dict(feeds))
    if any(np.asarray(y).dtype.kind not in "iu" for y in wanted) or all(x.dtype != np.float16 for x in feeds.values()):
        return wanted
    wide = copy.deepcopy(model)
    for info in wide.graph.input:
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return ReferenceEvaluator(wide).run(None, {
        name: x.astype(np.float32) if x.dtype == np.float16 else x for name, x in feeds.items()})


def _grown(x: Any, size: int) -> Any:
    """With every axis of a size repeated by one element."""
    for axis, extent in enumerate(x.shape):
        if extent == size:
            x = np.concatenate([x, np.take(x, [0], axis)], axis)
    return np.array(x, order="C")
