"""The ONNX standard's node suite: a seeded part of the core as it stands and with symbolic sizes, all of it with `-m slow`."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from onnx import TensorProto, helper

import tsc
from tests.conformance import run
from tests.conformance.cases import CORE, Outcome, core, missing, outcome
from tests.conformance.page import PAGE, page
from tests.conformance.run import main, outcomes, report
from tests.test_tiny import expected, tiny_model
from tsc import onnx_backend

CASES = core()
PASSED = [name for name in CASES if name not in missing()]
CHOSEN = set(random.Random(13).sample(PASSED, min(100, len(PASSED))))
DYNAMIC = set(random.Random(14).sample(PASSED, min(24, len(PASSED))))
REFUSED = set(random.Random(15).sample(sorted(missing()), min(8, len(missing()))))

pytestmark = pytest.mark.skipif(not CASES, reason=f"no list of the core at {CORE}")


def _marked(names: list[str], chosen: set[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in chosen else pytest.mark.slow) for name in names or ["none"]]


@pytest.mark.parametrize("name", _marked(PASSED, CHOSEN))
def test_a_case(name: str) -> None:
    assert outcome(name) == Outcome("passed")


@pytest.mark.parametrize("name", _marked(PASSED, DYNAMIC))
def test_a_case_with_symbolic_sizes(name: str) -> None:
    assert (found := outcome(name, dynamic=True)).state in ("passed", "refused"), found


@pytest.mark.parametrize("name", _marked(sorted(missing()), REFUSED))
def test_what_is_missing_is_refused_by_name(name: str) -> None:
    """It may not be wrong, but by roundings of halves; and what passes by now must be taken off the list."""
    found = outcome(name)
    assert found.state == ("wrong" if missing()[name].startswith("roundings") else "refused") and found.text, found


def test_every_case_that_is_missing_is_of_the_core_and_has_its_reason() -> None:
    assert set(missing()) <= set(CASES) and all(missing().values())


def test_the_page_of_operators_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python3 dev.py conformance --page"


# -- the command ------------------------------------------------------------------------------------------------

def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "test_relu", "--jobs", "2"]) == 0
    assert "1 of 1 passed" in capsys.readouterr().out


def test_a_case_that_kills_its_process_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def deadly(name: str, *_: object) -> Outcome:
        if name == "test_abs":
            os.abort()
        return Outcome("passed")

    monkeypatch.setattr(run, "outcome", deadly)
    found = dict(outcomes(["test_abs", "test_add", "test_relu"]))
    assert found == {"test_abs": Outcome("wrong", "the process died with code -6"), "test_add": Outcome("passed"),
                     "test_relu": Outcome("passed")}
    assert report(found)[:2] == ["2 of 3 passed, 0 refused, 1 wrong", "    1 Abs: the process died with code -6"]


# -- the backend ------------------------------------------------------------------------------------------------

def test_the_backend_runs_models() -> None:
    model, x = tiny_model(), np.linspace(-1, 1, 39, dtype=np.float32).reshape(3, 13)
    prepared = onnx_backend.prepare(model)
    for found in (prepared.run([x]), prepared.run(x), prepared.run({"x": x}), onnx_backend.run_model(model, [x])):
        np.testing.assert_allclose(found[0], expected(model, x), rtol=1e-5)
        np.testing.assert_array_equal(found.y, found[0])  # type: ignore[attr-defined]
    with pytest.raises(tsc.InputError, match="2 inputs are given, expected 1: x"):
        prepared.run([x, x])
    with pytest.raises(tsc.InputError, match="no device 'CUDA'"):
        onnx_backend.prepare(model, "CUDA")
    assert onnx_backend.supports_device("CPU") and not onnx_backend.supports_device("CUDA")


def test_the_backend_runs_nodes() -> None:
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([10, 20])
    found, = onnx_backend.run_node(helper.make_node("Add", ["a", "b"], ["c"]), [a, b])
    np.testing.assert_array_equal(found, a + b)
    found, = onnx_backend.run_node(helper.make_node("ReduceSum", ["a"], ["c"], axes=[0], keepdims=0), [a], opset_version=11)
    np.testing.assert_array_equal(found, a.sum(0))


def test_the_backend_says_what_it_cannot_run() -> None:
    graph = helper.make_graph([helper.make_node("Nothing", ["x"], ["y"], domain="nobody")], "none",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("nobody", 1)], ir_version=8)
    assert onnx_backend.is_compatible(tiny_model()) and not onnx_backend.is_compatible(model)
