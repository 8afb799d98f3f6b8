"""Sizes that only the data tell: a kernel counts, the count is read, and what has so many elements is launched after that.

The arena is planned before anything runs, with room for as many as there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tsc.errors import InternalError, UnsupportedError
from tsc.ir import Graph
from tsc.runtime.plan import Bind, Element, Eval, Launch, Step, expressions_of, storages_of
from tsc.sym import ZERO, Dim, Guard, ShapeEnv, SymExpr, dim, product, sym_max, sym_min
from tsc.target import DeviceSpec


def check_counts(graph: Graph, spec: DeviceSpec) -> None:
    """Raise UnsupportedError where a GPU's kernels would count: its code has no search that is short enough."""
    for name, value in graph.counts.items() if spec.gpu is not None else ():
        raise UnsupportedError(f"'{name}' is counted in the data by node '{graph.producers()[value].name}', which target "
                               f"'{spec.name}' cannot do; compile for a CPU")


def count_binds(env: ShapeEnv, storages: Mapping[str, int], known: Collection[str]) -> list[Step]:
    """Steps that read the counted Dims of these names, each from its storage. One that something else tells too, as what is
    `known` does, is held to that."""
    steps: list[Step] = []
    for name, storage in storages.items():
        size, own = env.canon(dim(name)), name
        if size.as_dim() != Dim(name) or name in known:
            own = f"{name}_told"
        most = env.canon(env.counted[name])
        steps.append(Bind(own, Element(storage, "int64"), env.ranges[name], most, f"as many as there are for '{name}'"))
        if own != name:
            steps.append(Guard("==", dim(own), size, f"what was counted for '{name}' meets another size"))
    return steps


def in_order(steps: Iterable[Step], writes: Callable[[Launch], Collection[int]]) -> list[Step]:
    """Steps as they stand, but for those that have to wait for a name, or for a storage that such a step writes."""
    waiting, found = list(steps), list[Step]()
    unbound = {step.name for step in waiting if isinstance(step, Bind | Eval)}
    while waiting:
        later, late = list[Step](), set[int]()
        for step in waiting:
            names = frozenset[str]().union(*(expr.dims() for expr in expressions_of(step)))
            if names & unbound or late & {*storages_of(step)}:
                later.append(step)
                late |= set(writes(step)) if isinstance(step, Launch) else set()
            else:
                found.append(step)
                unbound -= {step.name} if isinstance(step, Bind | Eval) else set()
        if len(later) == len(waiting):
            raise InternalError(f"a plan counts what it has to know before: {', '.join(sorted(unbound))}")
        waiting = later
    return found


def late_names(env: ShapeEnv, names: Iterable[str], definitions: Mapping[str, SymExpr]) -> dict[str, SymExpr]:
    """The most that each name can be which is bound while a run is under way, in terms of those that shapes tell."""
    found: dict[str, SymExpr] = {}
    for name in names:
        found[name] = most(env.canon(env.counted[name]), found, env)
    for name, value in definitions.items():
        if value.dims() & found.keys():
            found[name] = most(value, found, env)
    return found


def most(size: SymExpr, late: Mapping[str, SymExpr], env: ShapeEnv) -> SymExpr:
    """What a size is at most, where the names in `late` are at most those expressions and not negative. Raises UnsupportedError
    where that is not seen."""
    if not size.dims() & late.keys():
        return size
    found = ZERO
    for monomial, factor in size.terms:
        atoms = [SymExpr((((atom,), 1),)) for atom in monomial]
        changing = any(atom.dims() & late.keys() for atom in atoms)
        if changing and any(low is None or low < 0 for low, _ in map(env.bounds, atoms)):
            raise UnsupportedError(f"memory of {size} bytes, of which the data decide, may be needed, whose most is not seen")
        if not changing:
            found += factor * product(atoms)
        elif factor > 0:  # what is taken away is nothing at least
            found += factor * product([_most_of(atom, late, env) for atom in atoms])
    return found


def _most_of(size: SymExpr, late: Mapping[str, SymExpr], env: ShapeEnv) -> SymExpr:
    """The same of one Dim or function."""
    atom = size.terms[0][0][0]
    if isinstance(atom, Dim):
        return late.get(atom.name, size)
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
            raise UnsupportedError(f"memory of {size} bytes, of which the data decide, may be needed, whose most is not seen")
