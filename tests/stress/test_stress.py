"""The stress commands with small budgets, and that they see what is wrong."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.stress import run
from tests.stress.run import Failed, stress_compile, stress_fork, stress_threads
from tsc.runtime.executable import Executable


def test_threads() -> None:
    assert stress_threads(1.0, 32, 0) > 100


@pytest.mark.defect(17)
def test_compiling_processes_on_one_cache() -> None:
    counts = stress_compile(0.1, 3, 0, ("lookup",))
    assert counts["killed"] + counts["right"] == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks() -> None:
    assert stress_fork(1.0, 2, 0) > 1


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Executable.run
    monkeypatch.setattr(run.Executable, "run", lambda *a: [x + np.float32(1e-3) for x in whole(*a)])
    for stress, threads in ((stress_threads, 2), (stress_fork, 2), (stress_fork, 0)):  # the last: a child alone sees it
        with pytest.raises(Failed, match="wrong at"):
            stress(5.0, threads, 0)
