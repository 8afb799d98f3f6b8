"""Generated C under AddressSanitizer and UndefinedBehaviorSanitizer: operator samples, a few by default, all with `-m slow`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import partial

import pytest

from tests.memory import test_guarded as hand_made
from tests.memory.cases import MODELS, TARGETS, Case, light, model, samples
from tests.memory.cases import lacking as lacking_machine
from tests.memory.mutate import Mutation, shift_loads, shift_scratch, shift_stores
from tests.memory.sanitized import ADDRESS, BATCH, SANITIZERS, Captured, Sanitizer, captured, lacking, prepared, run_sanitized
from tests.models.test_shared_models import FOLDER
from tsc.codegen_c.specs import CPU_SPECS

ALWAYS = ("Softmax-0", "Slice-3", "Gather-0", "Cast-1", "Mod-2")
CHOSEN = (*ALWAYS, *random.Random(2).sample(light(), 3))


def skip_where_lacking(sanitizer: Sanitizer, target: str) -> None:
    if reason := lacking_machine(target, sanitizer.compiler) or lacking(sanitizer):
        pytest.skip(reason)


def reports(kind: str, target: str, cases: Iterable[Case], sizes: int) -> list[str]:
    """What a sanitizer says of Cases at their own sizes and at others."""
    skip_where_lacking(SANITIZERS[kind], target)
    return run_sanitized(SANITIZERS[kind], prepared(cases, target, sizes))


@pytest.mark.parametrize(("kind", "target", "names"), [
    *(("address", target, CHOSEN) for target in TARGETS), ("undefined-gcc", "cpu-avx512", CHOSEN[:5]),
    ("undefined-gcc", "cpu-generic", CHOSEN), ("undefined-clang", "cpu-avx2", CHOSEN[:5]),
    ("undefined-zig", "cpu-avx512", CHOSEN[:2])])
def test_chosen_samples(kind: str, target: str, names: tuple[str, ...]) -> None:
    assert reports(kind, target, [samples()[name] for name in names], 3) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, len(samples()), BATCH))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", SANITIZERS)
def test_all_samples(kind: str, target: str, start: int) -> None:
    assert reports(kind, target, [samples()[name] for name in sorted(samples())[start:start + BATCH]], 3) == []


@pytest.mark.slow
@pytest.mark.skipif(not MODELS, reason=f"no shared model files at {FOLDER}")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", SANITIZERS)
def test_models(kind: str, target: str, name: str) -> None:
    assert reports(kind, target, [model(name)], 0) == []


# -- what they must find -----------------------------------------------------------------------------------------

def by_hand(**broken: int | None) -> Captured:
    texts = {"add": hand_made.text(**broken), "twice": ""}
    return Captured(hand_made.package(), texts, texts, CPU_SPECS["cpu-generic"])


@pytest.mark.parametrize(("kind", "broken", "message"), [
    ("address", {"SHIFT_READ": 1}, "heap-buffer-overflow .* READ of size 4"),
    ("address", {"SHIFT_WRITE": -1}, "heap-buffer-overflow .* WRITE of size 4"),
    ("address", {"SCRATCH_READ": 1}, "heap-buffer-overflow .* READ of size 4"),
    ("undefined-gcc", {"SHIFT_TOO_FAR": None}, "shift exponent 38 is too large"),
    ("undefined-gcc", {"CAST_TOO_LARGE": None}, "1e\\+30 is outside the range of representable values of type 'int'"),
    ("undefined-clang", {"SHIFT_TOO_FAR": None}, "shift exponent 38 is too large"),
    ("undefined-clang", {"CAST_TOO_LARGE": None}, "1e\\+30 is outside the range of representable values of type 'int"),
    ("undefined-zig", {"SHIFT_TOO_FAR": None}, "launch 0: ended with code -4"),
    ("undefined-zig", {"CAST_TOO_LARGE": None}, "launch 0: ended with code -4"),
])
def test_a_broken_kernel_is_reported(kind: str, broken: dict[str, int | None], message: str) -> None:
    skip_where_lacking(SANITIZERS[kind], "cpu-generic")
    found = run_sanitized(SANITIZERS[kind], [("hand", by_hand(**broken), {"x": hand_made.data(13)})])
    assert found and re.search(message, found[0]), found


@pytest.mark.parametrize("kind", SANITIZERS)
def test_right_kernels_give_no_report(kind: str) -> None:
    skip_where_lacking(SANITIZERS[kind], "cpu-generic")
    assert run_sanitized(SANITIZERS[kind], [("hand", by_hand(), {"x": hand_made.data(13)})]) == []


@pytest.mark.parametrize(("mutation", "message"), [
    (partial(shift_loads, by=1), "heap-buffer-overflow"), (partial(shift_stores, by=-1), "heap-buffer-overflow"),
    (partial(shift_scratch, by=1), "stack-buffer-overflow"), (partial(shift_scratch, by=-1), "stack-buffer-"),
], ids=["read one past", "write one before", "read one past in scratch", "read one before in scratch"])
def test_broken_loops_are_reported(mutation: Mutation, message: str) -> None:
    skip_where_lacking(ADDRESS, "cpu-avx2")
    case = samples()["Softmax-0"]
    found = run_sanitized(ADDRESS, [("Softmax-0", captured(case, "cpu-avx2", mutation), case.feeds[0])])
    assert found and message in found[0], found
