"""Random Plans with regions over the kernels of `region_plans`: values made, overwritten, decided about and carried."""

from __future__ import annotations

from random import Random

from tests.runtime.region_plans import IDS, Making, N, X, call
from tsc.runtime.plan import Bind, Carried, Copy, Element, Eval, If, Loop, Plan, Step
from tsc.sym import ONE, Range, SymExpr, dim, parse

DEEPEST = 3


def random_plan(seed: int) -> Plan:
    """Every storage of the arena in a place of its own."""
    maker = _Maker(Random(seed))
    live = [X]
    body = maker.block(live, ["k", "l"], 0)
    out = maker.making.output()
    last = call("sum", maker.some(live), maker.some(live), out)
    known = [Bind(name, Element(IDS, "int64", SymExpr.of(at)), Range(0, 9)) for at, name in enumerate(("k", "l"))]
    return maker.making.plan(*known, *body, last, most=64)


class _Maker:
    def __init__(self, rng: Random) -> None:
        self.rng, self.making, self.names = rng, Making(), 0

    def some(self, live: list[int]) -> int:
        """A value, the last ones more often."""
        return self.rng.choice(live[-4:] if self.rng.random() < 0.7 else live)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def block(self, live: list[int], names: list[str], depth: int) -> list[Step]:
        """Steps; what they leave behind is added to `live`."""
        steps: list[Step] = []
        for _ in range(self.rng.randint(1, 5)):
            chance = self.rng.random()
            if depth < DEEPEST and chance < 0.2:
                steps += self.branch(live, names, depth)
            elif depth < DEEPEST and chance < 0.4:
                steps += self.loop(live, names, depth)
            else:
                steps += self.value(live, names)
        return steps

    def target(self, live: list[int]) -> int:
        """A new storage, or one that is overwritten."""
        old = [s for s in live if s != X]
        return self.rng.choice(old) if old and self.rng.random() < 0.3 else self.making.arena()

    def value(self, live: list[int], names: list[str]) -> list[Step]:
        target, source = self.target(live), self.some(live)
        if source != target and self.rng.random() < 0.15:
            steps: list[Step] = [Copy(source, target, 4 * N)]
        else:
            kernel = self.rng.choice(("twice", "sum", "shift"))
            args = {"twice": (source,), "sum": (source, self.some(live)), "shift": (source,)}[kernel]
            steps = [self.making.in_steps(*args, target)] if kernel == "twice" and self.rng.random() < 0.5 else [
                call(kernel, *args, target, sizes=[dim(self.rng.choice(names))] if kernel == "shift" else [])]
        if target not in live:
            live.append(target)
        return steps

    def condition(self, live: list[int], names: list[str]) -> tuple[list[Step], str | Element]:
        if self.rng.random() < 0.4:
            flag = self.making.arena(ONE)
            return [call("below", self.some(live), flag, sizes=[SymExpr.of(self.rng.randint(0, 40))])], Element(flag, "bool")
        name = self.name()
        return [Eval(name, parse(f"({self.rng.choice(names)} + {self.rng.randint(0, 2)}) % {self.rng.randint(2, 3)}"))], name

    def branch(self, live: list[int], names: list[str], depth: int) -> list[Step]:
        steps, condition = self.condition(live, names)
        both = self.target(live)
        branches = []
        for _ in range(2):
            inner = list(live)
            body = self.block(inner, names, depth + 1)
            branches.append((*body, call("twice", self.some(inner), both)))
        if both not in live:
            live.append(both)
        return [*steps, If(condition, *branches)]

    def loop(self, live: list[int], names: list[str], depth: int) -> list[Step]:
        index, steps, ends = self.name(), list[Step](), None
        if self.rng.random() < 0.3:
            steps, ends = self.condition(live, names)
            ends = ends if isinstance(ends, Element) else None
        old = [s for s in live if s != X]
        carried, inner = [], list(live)
        for _ in range(self.rng.randint(0, 2)):
            start = self.some(live)
            in_place = start in old and start not in {c.start for c in carried} and self.rng.random() < 0.3
            current = start if in_place else self.making.arena()
            carried.append(Carried(start, current, self.making.arena()))
            inner.append(current)
        if any(c.start == other.current for c in carried for other in carried if c is not other):
            carried = carried[:1]
            inner = [*live, carried[0].current]
        body = self.block(inner, [*names, index], depth + 1)
        if ends is not None and self.rng.random() < 0.7:
            body.append(call("below", self.some(inner), ends.storage, sizes=[SymExpr.of(self.rng.randint(0, 400))]))
        body += [call("sum", self.some(inner), c.current, c.next) for c in carried]
        live += [c.current for c in carried if c.current not in live]
        trips = parse(f"{self.rng.choice(names)} % {self.rng.randint(2, 4)}")
        return [*steps, Loop(index, trips, tuple(body), tuple(carried), ends)]
