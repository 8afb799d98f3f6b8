"""Guarded runs at scale: `python3 dev.py memory [--models] [--targets ...] [--compilers ...] [--share K/N] [--only NAME]
[--emulate]`.

Every operator sample (or shared model), compiled for each target by each compiler, runs with its memory mapped apart at its
own and at random sizes, or with `--sanitizers address,undefined-gcc,...` under each of these. Prints what is wrong, and at the
end how much was.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random
from typing import TypeAlias

from tests.emulated import avx512
from tests.memory.cases import COMPILERS, MODELS, TARGETS, Case, lacking, model, samples
from tests.memory.guarded import check_guarded, computed_with_unwritten
from tests.memory.sanitized import BATCH, SANITIZERS, prepared, run_sanitized
from tests.memory.sanitized import lacking as lacking_sanitizer
from tsc.errors import InputError, LaunchError, ShapeError


def check_case(case: Case, target: str, compiler: str, sizes: int, lanes: bool = False) -> list[str]:
    """What is wrong with a case; `sizes` is how many random ones are tried, `lanes` whether flags are looked at."""
    try:
        executable = case.compile(target, compiler)
    except Exception as error:
        return [f"{type(error).__name__} when compiled: {error}"]
    found = []
    for known, feeds in [*((True, f) for f in case.feeds), *((False, f) for f in case.resized(Random(case.name), sizes))]:
        at = {n: x.shape for n, x in feeds.items()}
        try:
            check_guarded(executable, feeds)
            if lanes:
                found += [f"at {at}: computes with what nobody wrote: {k}" for k in computed_with_unwritten(executable, feeds)]
        except (InputError, ShapeError, LaunchError) as error:
            found += [f"at {at}: {error}"] if known else []
        except Exception as error:
            text = "" if isinstance(error, AssertionError) else traceback.format_exc()
            found.append(f"at {at}: {error}{text}")
    return found


#: How many cases were run in how many ways, and what was wrong.
Done: TypeAlias = tuple[int, list[str]]


def _case(name: str, of_models: bool) -> Case:
    return model(name) if of_models else samples()[name]


def _guard(name: str, of_models: bool, target: str, compiler: str, sizes: int, lanes: bool) -> Done:
    found = check_case(_case(name, of_models), target, compiler, sizes, lanes)
    return 1, [f"{name} {target} {compiler}: {text}" for text in found]


def _sanitize(names: list[str], of_models: bool, target: str, kinds: list[str], sizes: int) -> Done:
    """The kernels of some cases in one program, built for each of the sanitizers."""
    try:
        work = prepared([_case(name, of_models) for name in names], target, sizes)
        found = [f"{target} {kind}: {text}" for kind in kinds for text in run_sanitized(SANITIZERS[kind], work)]
    except Exception:
        found = [f"{', '.join(names)} {target}: {traceback.format_exc()}"]
    return len(names) * len(kinds), found


def _usable(ways: Sequence[tuple[str, str]], sanitized: bool) -> list[tuple[str, str]]:
    """The pairs of a target and a compiler, or sanitizer, that this machine has; says which it has not."""
    found = []
    for target, name in ways:
        compiler = SANITIZERS[name].compiler if sanitized else name
        reason = lacking(target, compiler) or (lacking_sanitizer(SANITIZERS[name]) if sanitized else "")
        if reason:
            print(f"left out {target} by {name}: {reason}")
        else:
            found.append((target, name))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py memory", description=__doc__)
    parser.add_argument("--models", action="store_true", help="shared models instead of operator samples")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--compilers", default="gcc", help=", ".join(COMPILERS))
    parser.add_argument("--sanitizers", default="", help=f"instead of guarded runs: {', '.join(SANITIZERS)}")
    parser.add_argument("--share", default="0/1", help="K/N: every Nth case from number K on")
    parser.add_argument("--sizes", type=int, default=3, help="random sizes tried besides a sample's own")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lanes", action="store_true", help="also report kernels that compute with what nobody wrote")
    parser.add_argument("--only", help="names of cases, with commas")
    parser.add_argument("--emulate", action="store_true", help="AVX-512 on a machine that has AVX2 (tests/emulated)")
    asked = parser.parse_args(argv)
    if asked.emulate:
        avx512.pretend()
    part, parts = map(int, asked.share.split("/"))
    known = sorted(MODELS if asked.models else samples())
    names = asked.only.split(",") if asked.only else known[part::parts]
    sanitized = bool(asked.sanitizers)
    wanted = (asked.sanitizers or asked.compilers).split(",")
    if unknown := set(names) - set(known) | set(wanted) - set(SANITIZERS if sanitized else COMPILERS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    ways = _usable([(target, name) for target in asked.targets.split(",") for name in wanted], sanitized)
    tally, begin, shown = Counter[str](), time.perf_counter(), 100
    with ProcessPoolExecutor(asked.jobs) as pool:
        if sanitized:
            step = 1 if asked.models else BATCH
            work = [pool.submit(_sanitize, names[at:at + step], asked.models, target, [k for t, k in ways if t == target],
                                asked.sizes)
                    for at in range(0, len(names), step) for target in dict.fromkeys(target for target, _ in ways)]
        else:
            work = [pool.submit(_guard, name, asked.models, *way, asked.sizes, asked.lanes) for name in names for way in ways]
        for done in as_completed(work):
            count, found = done.result()
            tally["wrong"] += len(found)
            tally["run"] += count
            for text in found:
                print(text, flush=True)
            if tally["run"] >= shown:
                shown += 100
                print(f"{time.perf_counter() - begin:.0f} s: {tally['run']} run, {tally['wrong']} findings", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s: {tally['run']} run, {tally['wrong']} findings")
    return 1 if tally["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
