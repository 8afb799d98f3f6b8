"""Guarded runs at scale: `python3 dev.py memory [--models] [--targets ...] [--compilers ...] [--share K/N] [--only NAME]`.

Every operator sample (or shared model), compiled for each target by each compiler, runs with its memory mapped apart at its
own and at random sizes. Prints each failure, and at the end how many there were.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random

from tests.memory.cases import COMPILERS, MODELS, TARGETS, Case, lacking, model, samples
from tests.memory.guarded import check_guarded, computed_with_unwritten
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


def _work(name: str, of_models: bool, target: str, compiler: str, sizes: int, lanes: bool) -> tuple[str, list[str]]:
    case = model(name) if of_models else samples()[name]
    return f"{name} {target} {compiler}", check_case(case, target, compiler, sizes, lanes)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py memory", description=__doc__)
    parser.add_argument("--models", action="store_true", help="shared models instead of operator samples")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--compilers", default="gcc")
    parser.add_argument("--share", default="0/1", help="K/N: every Nth case from number K on")
    parser.add_argument("--sizes", type=int, default=3, help="random sizes tried besides a sample's own")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--lanes", action="store_true", help="also report kernels that compute with what nobody wrote")
    parser.add_argument("--only", help="names of cases, with commas")
    asked = parser.parse_args(argv)
    part, parts = map(int, asked.share.split("/"))
    known = sorted(MODELS if asked.models else samples())
    names = asked.only.split(",") if asked.only else known[part::parts]
    if unknown := set(names) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    pairs = [(t, c) for t in asked.targets.split(",") for c in asked.compilers.split(",")]
    for target, compiler in pairs:
        if compiler not in COMPILERS or lacking(target, compiler):
            print(f"left out {target} by {compiler}: {lacking(target, compiler) or 'unknown'}")
    pairs = [pair for pair in pairs if not lacking(*pair)]
    tally, begin = Counter[str](), time.perf_counter()
    with ProcessPoolExecutor(asked.jobs) as pool:
        work = [pool.submit(_work, name, asked.models, *pair, asked.sizes, asked.lanes) for name in names for pair in pairs]
        for done in as_completed(work):
            name, found = done.result()
            tally["failed" if found else "clean"] += 1
            for text in found:
                print(f"{name}: {text}", flush=True)
            if sum(tally.values()) % 100 == 0:
                print(f"{time.perf_counter() - begin:.0f} s: {dict(tally)}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s: {dict(tally)}")
    return 1 if tally["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
