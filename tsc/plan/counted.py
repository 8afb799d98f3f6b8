"""Sizes that only the data tell: a kernel counts, the count is read, and what has so many elements is launched after that.

The arena is planned before anything runs, with room for as many as there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from tsc.errors import InternalError, UnsupportedError
from tsc.runtime.plan import Bind, Copy, Element, Eval, Launch, Loop, Step, expressions_of, steps_of, storages_of
from tsc.sym import GREATEST, ZERO, Dim, Guard, ShapeEnv, SymExpr, dim, product, sym_max, sym_min


def count_binds(env: ShapeEnv, storages: Mapping[str, int]) -> list[Step]:
    """Steps that read the counted Dims of these names, each from its storage. What has become another size is held to it."""
    steps: list[Step] = []
    for name, storage in storages.items():
        size, own = env.canon(dim(name)), name
        if size != dim(name):
            own, = env.fresh(f"{name}_told").dims()
        most = env.canon(env.counted[name])
        steps.append(Bind(own, Element(storage, "int64"), env.ranges[name], most, f"as many as there are for '{name}'"))
        if own != name:
            steps.append(Guard("==", dim(own), size, f"what was counted for '{name}' meets another size"))
    return steps


def in_order(steps: Sequence[Step], writes: Callable[[Launch], Collection[int]]) -> list[Step]:
    """Steps in an order in which all that a step needs comes before it. Each count is read as soon as what it is made of is
    there, and what is held to it follows at once: nothing else runs with sizes that may be wrong. Else steps stand as they
    stood."""
    needs, found = _Needs(steps, writes), dict[int, None]()
    counts = {n: step.name for n, step in enumerate(steps) if isinstance(step, Bind) and isinstance(step.source, Element)}
    plain = [n for n, step in enumerate(steps) if isinstance(step, Bind | Eval | Guard) and n not in counts]
    for count, name in counts.items():
        found |= dict.fromkeys(n for n in plain if needs.all_of(n).isdisjoint(counts.keys() - found.keys()))
        needed = needs.all_of(count)
        if not needed.isdisjoint(counts.keys() - found.keys()):
            raise InternalError(f"a plan counts what it has to know before: {name}")
        found |= dict.fromkeys((*sorted(needed), count))
    found |= dict.fromkeys((*plain, *range(len(steps))))
    return [steps[n] for n in found]


class _Needs:
    """Which of some steps, by their numbers, a step needs: those that bind its names, and those before it that write its
    storages."""

    def __init__(self, steps: Sequence[Step], writes: Callable[[Launch], Collection[int]]) -> None:
        self._steps = steps
        self._binds = {step.name: n for n, step in enumerate(steps) if isinstance(step, Bind | Eval)}
        self._writes: dict[int, list[int]] = {}
        for n, step in enumerate(steps):
            for storage in {s for inner in steps_of((step,)) for s in _written(inner, writes)}:
                self._writes.setdefault(storage, []).append(n)

    def all_of(self, number: int) -> set[int]:
        """Those that it needs, and those need; itself only where it does."""
        found, waiting = set[int](), [number]
        while waiting:
            step = self._steps[own := waiting.pop()]
            inner = [*steps_of((step,))]
            names = (self._binds.get(name) for part in inner for expr in expressions_of(part) for name in expr.dims())
            makers = (n for part in inner for s in storages_of(part) for n in self._writes.get(s, ()))
            before = own if not isinstance(step, Bind | Eval | Guard) else len(self._steps)
            fresh = {n for n in names if n is not None and n != own} | {n for n in makers if n < before and n != own}
            waiting += fresh - found
            found |= fresh
        return found


def _written(step: Step, writes: Callable[[Launch], Collection[int]]) -> Collection[int]:
    """The storages that a step itself writes."""
    match step:
        case Launch():
            return writes(step)
        case Copy(target=target):
            return (target,)
        case Loop(carried=carried):
            return [s for c in carried for s in (c.current, c.next)]
    return ()


#: The most that names can be which are bound while a run is under way; None where that is not seen.
Late = Mapping[str, SymExpr | None]


def late_names(env: ShapeEnv, mosts: Mapping[str, SymExpr], definitions: Mapping[str, SymExpr],
               late: Late = MappingProxyType({}), everything: bool = False) -> dict[str, SymExpr | None]:
    """The most that each name can be which is bound while a run is under way, in terms of those that shapes tell: names that
    are at most `mosts`, and of the Dims with `definitions` those that depend on such or on `late` ones, or `everything`."""
    found = dict(late)
    for name, end in mosts.items():
        found[name] = _most_if_seen(env.canon(end), found, env)
    for name, value in definitions.items():
        if everything or value.dims() & found.keys():
            found[name] = _most_if_seen(value, found, env)
    return found


def _most_if_seen(size: SymExpr, late: Late, env: ShapeEnv) -> SymExpr | None:
    """The most that a size can be; None where that is not seen, or more than there is."""
    with suppress(UnsupportedError):
        found = most(size, late, env)
        return None if (found.as_int() or 0) >= GREATEST - 1 else found
    return None


def most(size: SymExpr, late: Late, env: ShapeEnv) -> SymExpr:
    """What a size is at most, where the names in `late` are at most those expressions and not negative. Raises UnsupportedError
    where that is not seen."""
    if not size.dims() & late.keys():
        return size
    found = ZERO
    for monomial, factor in size.terms:
        atoms = [SymExpr((((atom,), 1),)) for atom in monomial]
        changing = any(atom.dims() & late.keys() for atom in atoms)
        if changing and any(low is None or low < 0 for low, _ in map(env.bounds, atoms)):
            raise _unseen(size)
        if not changing:
            found += factor * product(atoms)
        elif factor > 0:  # what is taken away is nothing at least
            found += factor * product([_most_of(atom, late, env) for atom in atoms])
    return found


def _most_of(size: SymExpr, late: Late, env: ShapeEnv) -> SymExpr:
    """The same of one Dim or function."""
    atom = size.terms[0][0][0]
    if isinstance(atom, Dim):
        end = late.get(atom.name, size)
        if end is None:
            raise _unseen(size)
        return end
    args: Sequence[SymExpr] = atom.args
    match atom.fn:
        case "max":
            return sym_max(*(most(arg, late, env) for arg in args))
        case "min":
            return sym_min(*(most(arg, late, env) for arg in args))
        case "//" if not args[1].dims() & late.keys():
            return most(args[0], late, env) // args[1]
        case "%" if not args[1].dims() & late.keys():
            return args[1] - 1
        case _:
            raise _unseen(size)


def _unseen(size: SymExpr) -> UnsupportedError:
    return UnsupportedError(f"memory of {size} bytes, of which the data decide, may be needed, whose most is not seen")
