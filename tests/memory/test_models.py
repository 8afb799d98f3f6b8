"""Operator samples and shared models in guarded runs, for every target and by every compiler: a few of them by default, all
with `-m slow` (or `python3 dev.py memory`)."""

from __future__ import annotations

import random

import pytest

from tests.memory.cases import MODELS, TARGETS, lacking, model, samples
from tests.memory.run import check_case
from tests.models.test_shared_models import FOLDER

#: Windows, gathers, reductions with and without a rest, sizes that are symbolic, and a few at random.
ALWAYS = {"Conv-3", "Gather-0", "Slice-3", "Softmax-0", "MatMul-1"}
CHOSEN = ALWAYS | set(random.Random(1).sample(sorted(samples()), 8))
BY_ZIG = {"Conv-3", "Softmax-0"}
CHOSEN_MODELS = {"mnist_cntk", "super_resolution"}
COMPILERS = ("gcc", "zig")


def _cases(names: list[str], by_gcc: set[str], by_zig: set[str]) -> list[object]:
    chosen = {"gcc": by_gcc, "zig": by_zig}
    return [pytest.param(name, target, compiler, id=f"{name}-{target}-{compiler}",
                         marks=() if name in chosen[compiler] else pytest.mark.slow)
            for name in names for compiler in COMPILERS for target in TARGETS]


@pytest.mark.parametrize(("name", "target", "compiler"), _cases(sorted(samples()), CHOSEN, BY_ZIG))
def test_sample(name: str, target: str, compiler: str) -> None:
    if reason := lacking(target, compiler):
        pytest.skip(reason)
    assert check_case(samples()[name], target, compiler, sizes=4) == []


@pytest.mark.skipif(not MODELS, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize(("name", "target", "compiler"), _cases(sorted(MODELS), CHOSEN_MODELS, set()))
def test_model(name: str, target: str, compiler: str) -> None:
    if reason := lacking(target, compiler):
        pytest.skip(reason)
    assert check_case(model(name), target, compiler, sizes=0) == []
