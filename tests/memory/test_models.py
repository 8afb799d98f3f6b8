"""Operator samples and shared models in guarded runs, for every target and by every compiler, and with what lies on the stack
filled: a few of them by default, all with `-m slow` (guarded runs also by `python3 dev.py memory`)."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from functools import cache

import pytest

from tests.memory.cases import MODELS, TARGETS, Case, compiled_by, lacking, light, model, samples
from tests.memory.guarded import run_guarded
from tests.memory.mutate import built, forget_starts
from tests.memory.run import check_case
from tests.models.test_shared_models import FOLDER
from tsc.loop_ir.nodes import Func

#: Gathers, windows of slices, reductions with and without a rest, sizes that are symbolic, and a few at random.
CHOSEN = {"Gather-0", "Slice-3", "Softmax-0", "MatMul-1"} | set(random.Random(1).sample(light(), 3))
#: What takes longer to compile: for one target.
ONCE = {("Conv-3", "cpu-avx512", "gcc"), ("MaxPool-0", "cpu-avx2", "gcc"), ("Softmax-0", "cpu-avx2", "zig"),
        ("lgbm_regressor", "cpu-generic", "gcc"), ("mnist_cntk", "cpu-avx512", "gcc")}
COMPILERS = ("gcc", "zig")


def _cases(names: list[str]) -> list[object]:
    every = [(name, target, compiler) for name in names for compiler in COMPILERS for target in TARGETS]
    return [pytest.param(*one, id="-".join(one), marks=() if one in ONCE or (one[0] in CHOSEN and one[2] == "gcc")
                         else pytest.mark.slow) for one in every]


@pytest.mark.parametrize(("name", "target", "compiler"), _cases(sorted(samples())))
def test_sample(name: str, target: str, compiler: str) -> None:
    if reason := lacking(target, compiler):
        pytest.skip(reason)
    assert check_case(samples()[name], target, compiler, sizes=4, lanes=compiler == "gcc") == []


@pytest.mark.skipif(not MODELS, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize(("name", "target", "compiler"), _cases(sorted(MODELS)))
def test_model(name: str, target: str, compiler: str) -> None:
    if reason := lacking(target, compiler):
        pytest.skip(reason)
    assert check_case(model(name), target, compiler, sizes=0) == []


# -- what lies on the stack, where no page can be taken away: registers and small arrays that nobody wrote ---------------

FILLED = tuple(f"gcc -ftrivial-auto-var-init={how}" for how in ("zero", "pattern"))


@cache
def can_fill() -> bool:
    """Whether gcc fills variables that are not initialised."""
    if lacking("cpu-generic", "gcc"):
        return False
    asked = [*FILLED[1].split(), "-xc", "-fsyntax-only", "-"]
    return subprocess.run(asked, input=b"", capture_output=True, check=False).returncode == 0


def differs(case: Case, target: str, mutation: Callable[[Func], Func] = lambda func: func) -> bool:
    """Whether the results depend on how variables are filled."""
    made = []
    for compiler in FILLED:
        with compiled_by(compiler):
            package = built(case, target, mutation)
        made.append([y.tobytes() for y in run_guarded(package, case.feeds[0])])
    return made[0] != made[1]


@pytest.mark.skipif(not can_fill(), reason="there is no gcc that fills variables")
@pytest.mark.parametrize(("name", "target"), [
    pytest.param(name, target, marks=() if name in {"Softmax-0", "MatMul-1"} and target == "cpu-avx2" else pytest.mark.slow)
    for name in sorted(samples()) for target in TARGETS])
def test_nothing_depends_on_what_the_stack_held(name: str, target: str) -> None:
    if reason := lacking(target, "gcc"):
        pytest.skip(reason)
    assert not differs(samples()[name], target)


@pytest.mark.skipif(not can_fill(), reason="there is no gcc that fills variables")
def test_a_start_that_is_forgotten_is_found() -> None:
    if reason := lacking("cpu-avx2", "gcc"):
        pytest.skip(reason)
    assert differs(samples()["Softmax-0"], "cpu-avx2", forget_starts)
