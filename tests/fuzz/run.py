"""Random programs at scale: `python3 dev.py fuzz --count 10000 --seed 0 [--start 0] [--jobs 1] [--only N]
[--trips]`.

Program number n of a seed is always the same one, so that a run can be split, resumed (`--start`) and a failure repeated
(`--only`). Prints what became of the programs, refusals by reason, and each failure with its program.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from tests.emulated import avx512
from tests.fuzz.break_loops import check_broken
from tests.fuzz.check import Made, check, check_compiled, compiled, reason
from tests.fuzz.generate import Case, random_case
from tests.fuzz.mutate import Kept, check_mutants
from tests.machine import runnable
from tsc.errors import InternalError
from tsc.poly import PatternMismatch
from tsc.sym import OversizeError
from tsc.target import DeviceSpec

#: Programs whose kernels are compiled as one unit.
BATCH = 50


@dataclass
class Tally:
    """What became of a range of programs. `failures` maps a reason to the numbers of the programs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)

    def add(self, other: Tally) -> None:
        self.outcomes += other.outcomes
        self.refusals += other.refusals
        for why, numbers in other.failures.items():
            self.failures.setdefault(why, []).extend(numbers)
        self.slowest = max(self.slowest, other.slowest)

    def fail(self, number: int, error: BaseException) -> None:
        self.outcomes["failed"] += 1
        self.failures.setdefault(reason(error), []).append(number)

    def __str__(self) -> str:
        total = sum(n for what, n in self.outcomes.items() if what in ("right", "refused", "failed"))
        counts = Counter[str]()
        for what, n in self.outcomes.items():
            counts[what.partition(":")[0]] += n
        lines = [f"{total} programs: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))]
        lines += [f"  {what}, {n}" for what, n in sorted(self.outcomes.items()) if ":" in what]
        lines += [f"  refused {n}: {why}" for why, n in self.refusals.most_common()]
        lines += [f"  FAILED {len(numbers)}: {why} (programs {', '.join(map(str, numbers[:8]))})"
                  for why, numbers in self.failures.items()]
        return "\n".join([*lines, f"  slowest: program {self.slowest[1]}, {self.slowest[0]:.1f} s"])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which programs: with recurrences alone; with random sizes of tiles; with large numbers now and then."""

    carried: bool = False
    configs: bool = False
    large: bool = True


def case_of(rng: Random, number: int, wanted: Wanted = Wanted()) -> Case:
    """Every fifth program reads at quotients and remainders by sizes."""
    rare = Random(str(rng.getstate()[1][:4])) if wanted.large else None
    return replace(random_case(rng, divided=number % 5 == 3, carried=wanted.carried, rare=rare), configs=wanted.configs)


def run_batch(seed: int, numbers: range, mutants: int = 1, device: DeviceSpec | None = None,
              wanted: Wanted = Wanted()) -> Tally:
    """Check programs `numbers` of a seed, compiled together, and `mutants` broken schedules of each; for `device`,
    or in turn for all that this machine can run."""
    tally, all_made = Tally(), []
    for number in numbers:
        rng, start = Random(f"{seed}/{number}"), time.perf_counter()
        try:
            steps = Kept()
            made = check(case_of(rng, number, wanted), rng, f"k{number}", steps, device or _device(number))
            tally.outcomes.update(check_mutants(made, steps, rng, mutants))
            tally.outcomes.update(check_broken(made, rng, mutants))
            tally.outcomes["values undecided"] += made.undecided is not None
            tally.outcomes["less exact"] += bool(made.opaque)
            all_made.append((number, made, rng))
        except (PatternMismatch, OversizeError) as refusal:  # a kernel whose indices are too long is cut as one that fits none
            tally.outcomes["refused"] += 1
            tally.refusals[reason(refusal)] += 1
        except Exception as error:
            tally.fail(number, error)
        tally.slowest = max(tally.slowest, (time.perf_counter() - start, number))
    for one in dict.fromkeys(made.device for _, made, _ in all_made):
        _run_compiled([made for made in all_made if made[1].device == one], tally)
    return tally


def _device(number: int) -> DeviceSpec:
    """This machine's own for half of the programs."""
    own, *others = runnable()
    turns = [own] * max(len(others), 1) + others
    return turns[number % len(turns)]


def _run_compiled(all_made: list[tuple[int, Made, Random]], tally: Tally) -> None:
    if not all_made:
        return
    try:
        library = compiled([made for _, made, _ in all_made])
    except InternalError as error:
        if len(all_made) == 1:
            tally.fail(all_made[0][0], error)
        else:  # find the one that is refused
            for one in all_made:
                _run_compiled([one], tally)
        return
    for number, made, rng in all_made:
        try:
            check_compiled(made, library, rng)
            tally.outcomes["right"] += 1
        except Exception as error:
            tally.fail(number, error)


def show(seed: int, number: int, wanted: Wanted) -> int:
    """One program in full, with the traceback of its failure."""
    rng = Random(f"{seed}/{number}")
    case = case_of(rng, number, wanted)
    device = _device(number)
    print(f"{case.kind}{', loose' if case.loose else ''}{', real' if case.real else ''}, {device.name}\n{case.program}")
    try:
        steps = Kept()
        made = check(case, rng, f"k{number}", steps, device)
        print(made.program if case.loose else "", dict(check_mutants(made, steps, rng, 1)), dict(check_broken(made, rng, 1)))
        check_compiled(made, compiled([made]), rng)
    except (PatternMismatch, OversizeError) as refusal:
        print(f"refused: {refusal}")
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def _collect_seldom() -> None:
    """Programs of a batch are kept to its end: looking for garbage among them again and again is a tenth of all computing."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--mutants", type=int, default=1, help="broken schedules, and broken loops, tried for each program")
    parser.add_argument("--only", type=int, help="show this program alone")
    parser.add_argument("--trips", action="store_true", help="programs with recurrences alone")
    parser.add_argument("--configs", action="store_true", help="random sizes of tiles in place of those that patterns have")
    parser.add_argument("--emulate", action="store_true", help="AVX-512 on a machine that has AVX2 (tests/emulated)")
    asked = parser.parse_args(argv)
    if asked.emulate:
        avx512.pretend()
    wanted = Wanted(asked.trips, asked.configs)
    if asked.only is not None:
        return show(asked.seed, asked.only, wanted)
    end = asked.start + asked.count
    batches = [range(a, min(a + BATCH, end)) for a in range(asked.start, end, BATCH)]
    tally, begin = Tally(), time.perf_counter()
    with ProcessPoolExecutor(asked.jobs, initializer=_collect_seldom) as pool:
        run = partial(run_batch, mutants=asked.mutants, wanted=wanted)
        for done in pool.map(run, [asked.seed] * len(batches), batches):
            tally.add(done)
            print(f"{time.perf_counter() - begin:.0f} s: {tally}", flush=True)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
