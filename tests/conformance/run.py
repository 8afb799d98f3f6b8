"""The ONNX standard's node suite: `python3 dev.py conformance [--jobs N] [--only PATTERN] [--sample N] [--target T]`.

Every core case is compiled and run in a child process and held against the suite's own outputs; with `--dynamic` with a
symbol for every size of its inputs but 1, at the stored shapes and at others; with `--expanded` the cases in which function
bodies stand in place of operators. Prints how many pass, by operator those that do not, and fails where `missing.json` says
otherwise; `--update` writes that file, and `--page` the page of operators that follows from it, without a run.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.conformance.cases import MISSING, Outcome, core, expanded, missing, outcome, suite
from tests.conformance.page import PAGE, page

#: Seconds that a case may take.
PATIENCE = 120.0


def _work(pipe: Connection, names: Sequence[str], dynamic: bool, target: str) -> None:
    for name in names:
        pipe.send((name, None))
        pipe.send((name, outcome(name, dynamic, target)))


@dataclass
class _Job:
    """A child and the cases that are left for it."""

    left: list[str]
    dynamic: bool
    target: str
    process: Any = None
    pipe: Any = None
    since: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(other, list(self.left), self.dynamic, self.target))
        self.process.start()
        other.close()
        self.since = time.monotonic()

    def hear(self) -> tuple[str, Outcome] | None:
        """What came of a case, None where one was begun."""
        try:
            name, found = self.pipe.recv()
        except EOFError:
            self.process.join()
            return self.lost(f"the process died with code {self.process.exitcode}")
        self.since = time.monotonic()
        if found is None:
            return None
        self.left.remove(name)
        return name, found

    def late(self) -> tuple[str, Outcome] | None:
        """The case that takes too long, if one does."""
        if time.monotonic() - self.since < PATIENCE:
            return None
        self.process.kill()
        self.process.join()
        return self.lost(f"no end after {PATIENCE:.0f} s")

    def lost(self, how: str) -> tuple[str, Outcome]:
        name = self.left.pop(0)
        if self.left:
            self.start()
        return name, Outcome("wrong", how)


def outcomes(names: Sequence[str], jobs: int = 1, dynamic: bool = False, target: str = "cpu") -> Iterator[tuple[str, Outcome]]:
    """What becomes of cases, as they are done."""
    suite()  # once, before children are forked
    active = [_Job(list(names[k::jobs]), dynamic, target) for k in range(jobs) if names[k::jobs]]
    for job in active:
        job.start()
    while active:
        ready = wait([job.pipe for job in active], timeout=1.0)
        for job in active:
            done = job.hear() if job.pipe in ready else job.late()
            if done is not None:
                yield done
        active = [job for job in active if job.left]


def operator(name: str) -> str:
    """What a case is of."""
    nodes = suite()[name].model.graph.node
    return nodes[0].op_type if len(nodes) == 1 else "several"


def report(found: dict[str, Outcome]) -> list[str]:
    """How many passed, and what did not, by operator."""
    states = Counter(one.state for one in found.values())
    lines = [f"{states['passed']} of {len(found)} passed, {states['refused']} refused, {states['wrong']} wrong"]
    by_operator: dict[str, list[str]] = {}
    for name, one in found.items():
        if one.state != "passed":
            by_operator.setdefault(operator(name), []).append(name)
    for op, names in sorted(by_operator.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"  {len(names):3} {op}: {found[names[0]].text[:140]}")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="dev.py conformance", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="*", help="names of cases, with * for anything")
    parser.add_argument("--dynamic", action="store_true", help="with symbolic sizes; of the cases that pass")
    parser.add_argument("--expanded", action="store_true", help="of function bodies in place of the core; none is to fail")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--update", action="store_true", help="write missing.json")
    parser.add_argument("--show", action="store_true", help="every case that does not pass")
    parser.add_argument("--sample", type=int, help="so many of the cases, drawn at random by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}, and do nothing else")
    asked = parser.parse_args(argv)
    if asked.page:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    known = {} if asked.expanded else missing()
    every = expanded() if asked.expanded else core()
    names = [n for n in every if fnmatch.fnmatch(n, asked.only) and not (asked.dynamic and n in known)]
    if asked.sample is not None:
        names = sorted(random.Random(asked.seed).sample(names, min(asked.sample, len(names))))
    if not names:
        parser.error("there is no such case, or no list of the core")
    found, begin = {}, time.monotonic()
    for name, one in outcomes(names, asked.jobs, asked.dynamic, asked.target):
        found[name] = one
        if one.state == "wrong" or (asked.show and one.state != "passed"):
            print(f"{name}: {one.state}: {one.text[:300]}", flush=True)
    print("\n".join(report(found)))
    print(f"{time.monotonic() - begin:.0f} s")
    failing = {name: one.text for name, one in found.items() if one.state != "passed"}
    if asked.update and not asked.expanded:
        kept = {name: text for name, text in known.items() if name not in found or (  # why it is wrong was said by hand
            text.startswith("roundings") and found[name].state == "wrong")}
        MISSING.write_text(json.dumps(dict(sorted({**failing, **kept}.items())), indent=1, ensure_ascii=False) + "\n")
        return 0
    other = [name for name in found if (name in failing) != (name in known)] if not asked.dynamic else list(failing)
    if other:
        print(f"not as {MISSING.name} says: {', '.join(sorted(other))}", file=sys.stderr)
    return bool(other)


if __name__ == "__main__":
    raise SystemExit(main())
