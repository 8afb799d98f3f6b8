"""A seeded part of the mutated model files, and that what it looks for would be seen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import onnx.parser
import pytest

import tsc
from tests.fuzz import models
from tests.fuzz.model_files import prey
from tests.fuzz.models import attempt, case, run_batch

pytestmark = pytest.mark.defect(18, 19)


def test_mutated_models_are_refused_or_accepted() -> None:
    tally = run_batch(0, range(60), front_only=True)
    assert not tally.failures, str(tally)
    assert tally.outcomes["refused"] > 20 and tally.outcomes["accepted"] > 5, str(tally)


def test_what_is_accepted_compiles_and_is_right() -> None:
    tally = run_batch(0, range(4))
    assert not tally.failures, str(tally)


def test_cases_are_the_same_again() -> None:
    assert [case(3, k) for k in range(30)] == [case(3, k) for k in range(30)]


def test_valid_models_are_right(tmp_path: Path) -> None:
    for name in ("constants", "lookup"):
        assert attempt(prey()[name], Random(0), tmp_path) == "right"


def test_what_rounding_decides_is_no_finding(tmp_path: Path) -> None:
    """A mean and variance of one element: the root of 0, or of a little less."""
    model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 3, H, W] x) => (float[N, 3, H, W] y) { h = MeanVarianceNormalization (x) y = HardSwish (h) }''')
    assert attempt(model.SerializeToString(), Random(17224), tmp_path) == "right"


@pytest.mark.parametrize(("crime", "says"), [
    (lambda *a, **k: (_ for _ in ()).throw(KeyError("x")), "KeyError"), (lambda *a, **k: os.abort(), "SIGABRT"),
    (lambda *a, **k: (_ for _ in ()).throw(tsc.InternalError("a bug")), "InternalError"),
    (lambda *a, **k: os._exit(3), "exit code 3"), (lambda *a, **k: bytearray(5 << 30), "MemoryError"),
    (lambda *a, **k: (_ for _ in ()).throw(tsc.ModelError("two\nlines")), "not one sentence")])
def test_the_fuzzer_sees_what_goes_wrong(
        crime: object, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models.tsc, "compile", crime)
    outcome = attempt(prey()["constants"], Random(0), tmp_path)
    assert outcome.startswith("failed") and says in outcome


def test_the_fuzzer_sees_wrong_results_and_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = tsc.Executable.run
    monkeypatch.setattr(tsc.Executable, "run", lambda self, names, feeds: [2 * y for y in plain(self, names, feeds)])
    assert "other values" in attempt(prey()["constants"], Random(0), tmp_path)
    monkeypatch.setattr(models, "SECONDS", 1)
    monkeypatch.setattr(models, "SHARED", 2)
    for endless in (lambda *_: [y for y in iter(int, 1)], lambda *_: time.sleep(99)):
        monkeypatch.setattr(tsc.Executable, "run", endless)
        assert "hang" in attempt(prey()["constants"], Random(0), tmp_path)
