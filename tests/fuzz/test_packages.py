"""A seeded part of the mutated Packages, and that what it looks for would be seen."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.package_files import PREY_NAMES, canaries, closed, compiled, opened
from tests.fuzz.package_mutations import Mutation, mutate
from tests.fuzz.packages import attempt, run_batch
from tsc.runtime import bounds, context, fitting, interface
from tsc.runtime.drivers.cpu import load_library


@pytest.mark.defect(16)
@pytest.mark.parametrize("numbers", [range(60), pytest.param(range(60, 120), marks=pytest.mark.slow)])
def test_mutated_packages_end_in_package_errors(numbers: range) -> None:
    tally = run_batch(2, numbers)
    assert not tally.failures, str(tally)
    assert tally.outcomes["refused"] > len(numbers) // 2 and tally.outcomes["same results"] > 0


def test_cases_are_the_same_again() -> None:
    data = compiled("lookup").data
    assert [mutate(data, Random(k), canaries()) for k in range(20)] == [mutate(data, Random(k), canaries()) for k in range(20)]


@pytest.mark.parametrize("name", PREY_NAMES)
def test_what_is_taken_apart_goes_together_again(name: str, tmp_path: Path) -> None:
    prey = compiled(name)
    mutation = Mutation(closed(opened(prey.data)), "nothing", False, "private")
    assert attempt(prey, mutation, tmp_path) == "same results"


def _with_plan(data: bytes, old: str, new: str) -> bytes:
    package = opened(data)
    part = next(name for name in package.parts if name.startswith("plan/"))
    text = json.dumps(json.loads(package.parts[part]))
    assert old in text
    package.parts[part] = text.replace(old, new, 1).encode()
    return closed(package)


def test_the_fuzzer_sees_crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prey = compiled("dense")
    mutation = Mutation(_with_plan(prey.data, '["arena", 0, "0"', '["arena", 0, "n*1099511627776"'), "", True, "private")
    assert attempt(prey, mutation, tmp_path) == "typed error at run"
    monkeypatch.setattr(bounds.Bounds, "check_layout", lambda *a: None)
    assert "gives up" in attempt(prey, mutation, tmp_path)  # as a host program checks for itself
    monkeypatch.setattr(context.TableEngine, "bind", lambda *a: None)
    assert "SIGSEGV" in attempt(prey, mutation, tmp_path)


@pytest.mark.defect(16)
def test_the_fuzzer_sees_code_that_runs_too_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prey, package = compiled("dense"), opened(compiled("dense").data)
    part = next(name for name in package.parts if name.startswith("module/"))
    package.parts[part] = canaries()[1]
    mutation = Mutation(closed(package), "", True, "private")
    assert attempt(prey, mutation, tmp_path) == "refused"

    def look_inside(binary: bytes) -> interface.ModuleInterface:
        load_library(binary, "canary")
        return interface.read_interface(binary)

    monkeypatch.setattr(fitting, "read_interface", look_inside)
    assert "code of a Package that was refused ran" in attempt(prey, mutation, tmp_path)
