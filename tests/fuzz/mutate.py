"""Broken schedules: a random change to a kernel's tree, storage or loops. The checks refuse it, or it is still right."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.fuzz.check import Made, compare_variant
from tsc.errors import InternalError
from tsc.loop_ir.map_blocks import map_blocks
from tsc.loop_ir.nodes import Allocate, For, Func, If, Stmt, map_children, walk
from tsc.loop_ir.verify import verify
from tsc.poly import PatternMismatch, isl
from tsc.poly.deps import Dependences
from tsc.poly.promotion.promote import Promoted
from tsc.poly.proof.guards import check_loops
from tsc.poly.schedule import check_final
from tsc.poly.scop import Scop
from tsc.poly.steps import Steps
from tsc.poly.to_loops import iterators_for, to_loops
from tsc.sym import SymExpr
from tsc.te.expr import Call, add, call, index


@dataclass
class Kept(Steps):
    """What schedule_program had in hand at its end."""

    kept_scop: Scop | None = None
    kept_deps: Dependences | None = None
    kept_promoted: Promoted | None = None

    def scop(self, scop: Scop, deps: Dependences) -> None:
        self.kept_scop, self.kept_deps = scop, deps

    def tree(self, step: str, schedule: isl.Schedule) -> None:
        pass

    def promoted(self, promoted: Promoted, scop: Scop) -> None:
        self.kept_promoted = promoted


@dataclass(frozen=True)
class Subject:
    """What can be broken of a kernel: its tree and storage, the loops made of them, and what these are checked against."""

    promoted: Promoted
    scop: Scop
    deps: Dependences
    func: Func


def check_mutants(made: Made, steps: Kept, rng: Random, count: int) -> Counter[str]:
    """What became of `count` broken schedules of a kernel. Raises Wrong for one that was accepted and gives a wrong result."""
    found: Counter[str] = Counter()
    scop, deps, promoted = steps.kept_scop, steps.kept_deps, steps.kept_promoted
    if scop is None or deps is None or promoted is None:
        return found
    subject = Subject(promoted, scop, deps, made.scheduled.func)
    for _ in range(count):
        for kind in rng.sample(list(MUTATIONS), len(MUTATIONS)):  # the first that can be done to this kernel
            try:
                func = MUTATIONS[kind](subject, rng)
            except (InternalError, isl.IslError, PatternMismatch):
                found["broken schedules refused"] += 1
                break
            if func is not None:
                compare_variant(made, map_blocks(func), f"an illegal schedule: {kind}", rng)
                found[f"broken schedules equivalent: {kind}"] += 1
                break
        else:
            found["broken schedules not applicable"] += 1
    return found


# -- trees -----------------------------------------------------------------------------------------------------

Mutation = Callable[[Subject, Random], Func | None]


def _of_tree(change: Callable[[str, Random], str | None]) -> Mutation:
    """The loops of a schedule with its tree's text changed, if the checks let it pass."""

    def mutate(subject: Subject, rng: Random) -> Func | None:
        text = isl.tree_text(subject.promoted.schedule)
        changed = change(text, rng)
        if changed is None or changed == text:
            return None
        return _checked(subject, replace(subject.promoted, schedule=isl.parse_schedule(changed)))

    return mutate


def _checked(subject: Subject, promoted: Promoted) -> Func:
    check_final(promoted, subject.scop, subject.deps)
    func = to_loops(promoted, subject.scop, "mutant")
    return _verified(func, promoted, subject.scop)


def _verified(func: Func, promoted: Promoted, scop: Scop) -> Func:
    check_loops(func, promoted.schedule, scop, iterators_for(scop))
    verify(func)
    return func


def _swap_children(text: str, rng: Random) -> str | None:
    """Two neighbours of a sequence change places."""
    lines = text.splitlines()
    starts = [k for k, line in enumerate(lines) if line.strip() == "sequence:"]
    if not starts:
        return None
    start = rng.choice(starts)
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = next((k for k in range(start + 1, len(lines)) if len(lines[k]) - len(lines[k].lstrip()) < indent), len(lines))
    heads = [k for k in range(start + 1, end) if lines[k].startswith(" " * indent + "- ")] + [end]
    parts = [lines[a:b] for a, b in itertools.pairwise(heads)]
    if len(parts) < 2:
        return None
    k = rng.randrange(len(parts) - 1)
    parts[k], parts[k + 1] = parts[k + 1], parts[k]
    return "\n".join([*lines[:start + 1], *(line for part in parts for line in part), *lines[end:]]) + "\n"


def _change_row(text: str, rng: Random) -> str | None:
    """One statement's row of one band: reversed, shifted, doubled or made constant."""
    found = [(line, m) for line in re.finditer(r'schedule: ".*"', text)
             for m in re.finditer(r"-> \[\((.*?)\)\](?=[;: ])", line.group())]
    if not found:
        return None
    line, m = rng.choice(found)
    row = m.group(1)
    new = rng.choice([f"-({row})", f"({row}) + 1", f"({row}) - 1", f"2*({row})", "0"])
    at = line.start() + m.start()
    return text[:at] + f"-> [({new})]" + text[line.start() + m.end():]


def _change_constraint(text: str, rng: Random) -> str | None:
    """A bound of a filter, an extension or the domain, moved by one."""
    lines = [line for line in re.finditer(r'(filter|extension|domain): ".*"', text)]
    found = [(line, m) for line in lines for m in re.finditer(r"(?<=[ (])(\d+) <= |< (\w+)(?= and| }|;)", line.group())]
    if not found:
        return None
    line, m = rng.choice(found)
    new = f"{int(m.group(1)) + 1} <= " if m.group(1) else f"< {m.group(2)} {rng.choice(['- 1', '+ 1'])}"
    return text[:line.start() + m.start()] + new + text[line.start() + m.end():]


def _move_alloc(text: str, rng: Random) -> str | None:
    """Storage that begins one cell later."""
    found = list(re.finditer(r"-> alloc_\w+\[([^,\]]+)", text))
    if not found:
        return None
    m = rng.choice(found)
    return text[:m.start(1)] + f"{m.group(1)} + 1" + text[m.end(1):]


# -- storage and loops -----------------------------------------------------------------------------------------

def _shrink_storage(subject: Subject, rng: Random) -> Func | None:
    """A local one element smaller along one dimension."""
    promoted = subject.promoted
    if not promoted.locals:
        return None
    local = rng.choice(promoted.locals)
    if not local.storage.shape:
        return None
    k = rng.randrange(len(local.storage.shape))
    shape = (*local.storage.shape[:k], local.storage.shape[k] - 1, *local.storage.shape[k + 1:])
    if shape[k] == SymExpr.of(0):
        return None
    small = replace(local, storage=replace(local.storage, shape=shape))
    return _checked(subject, replace(promoted, locals=tuple(small if x is local else x for x in promoted.locals)))


def _of_loops(change: Callable[[Stmt, Random], Stmt | None]) -> Mutation:
    """The loops with one statement changed, if they pass the check."""

    def mutate(subject: Subject, rng: Random) -> Func | None:
        func = subject.func
        candidates = [s for s in walk(func.body) if change(s, Random(0)) is not None]
        if not candidates:
            return None
        chosen = rng.choice(candidates)
        done = False

        def visit(stmt: Stmt) -> Stmt:
            nonlocal done
            if stmt is chosen and not done:
                done = True
                return change(stmt, rng) or stmt
            return map_children(visit, stmt)

        return _verified(replace(func, body=visit(func.body)), subject.promoted, subject.scop)

    return mutate


def _drop_guard(stmt: Stmt, rng: Random) -> Stmt | None:
    return stmt.then if isinstance(stmt, If) else None


def _change_bound(stmt: Stmt, rng: Random) -> Stmt | None:
    """A loop one iteration longer or shorter, at another step, or without one operand of its bound."""
    if not isinstance(stmt, For):
        return None
    choices: list[Stmt] = [replace(stmt, hi=add(stmt.hi, index(1))), replace(stmt, hi=call("sub", stmt.hi, index(1))),
                           replace(stmt, lo=add(stmt.lo, index(1))), replace(stmt, step=stmt.step + 1)]
    if isinstance(stmt.hi, Call) and stmt.hi.fn == "min":
        choices += [replace(stmt, hi=a) for a in stmt.hi.args]
    if isinstance(stmt.lo, Call) and stmt.lo.fn == "max":
        choices += [replace(stmt, lo=a) for a in stmt.lo.args]
    return rng.choice(choices)


def _shrink_allocation(stmt: Stmt, rng: Random) -> Stmt | None:
    """Storage in the loops one element smaller; the accesses say the same as before."""
    if not isinstance(stmt, Allocate) or not stmt.buffer.shape:
        return None
    *rest, last = stmt.buffer.shape
    return None if last == SymExpr.of(1) else replace(stmt, buffer=replace(stmt.buffer, shape=(*rest, last - 1)))


MUTATIONS: dict[str, Mutation] = {
    "swapped children": _of_tree(_swap_children), "changed row": _of_tree(_change_row),
    "changed constraint": _of_tree(_change_constraint), "moved storage": _of_tree(_move_alloc),
    "smaller storage": _shrink_storage, "dropped guard": _of_loops(_drop_guard), "changed bound": _of_loops(_change_bound),
    "smaller allocation": _of_loops(_shrink_allocation)}
