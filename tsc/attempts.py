"""Which Programs become kernels: what is attempted for a group, or for a run of Computes, and what is left where it is refused.

`compile` and `explain` go through the same functions: what they make of a Program is their `attempt`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from tsc.errors import InternalError, UnsupportedError
from tsc.graph.fusion.group import FusionGroup, splits
from tsc.graph.fusion.to_te import LoweredGroup
from tsc.ir import Graph
from tsc.kernels import Workshop, bind, compile_program, of_kind
from tsc.ops.base import PatternKind
from tsc.ops.derive import compute_kind
from tsc.plan.build import KernelCall
from tsc.plan.kernel import Kernel
from tsc.poly import PatternMismatch
from tsc.poly.pattern import Wanted
from tsc.sym import ShapeEnv
from tsc.te.compute import Program
from tsc.te.dsl.assemble import Definition, sources
from tsc.te.passes.transform import lower
from tsc.trace import Recorder

#: At most this many Computes are tried as one kernel.
MOST_COMPUTES = 12

Made = TypeVar("Made", covariant=True)


class Attempt(Protocol[Made]):
    """Makes something of a Program by the patterns that are `wanted`, or raises PatternMismatch."""

    def __call__(self, lowered: LoweredGroup, *, wanted: Wanted = Wanted.ANY) -> Made: ...


def compile_definitions(definitions: Sequence[Definition], outputs: Collection[str], graph: Graph, env: ShapeEnv,
                        shop: Workshop, node: str = "") -> list[tuple[KernelCall, Kernel]]:
    """Computes to kernels with their calls. `node` is what errors name, by default the Compute's own name."""
    for definition in definitions:
        for note in dict.fromkeys(definition.notes):
            shop.recorder.decide("access", definition.compute.name, note)
    runs = cut(definitions, outputs, env, shop.recorder, partial(compile_program, graph=graph, shop=shop))
    return [(bind(lowered, kernel, node or names[-1], (*((node,) if node else ()), *names)), kernel)
            for names, lowered, kernel in runs]


def cut(definitions: Sequence[Definition], outputs: Collection[str], env: ShapeEnv, recorder: Recorder,
        attempt: Attempt[Made]) -> list[tuple[tuple[str, ...], LoweredGroup, Made]]:
    """The longest run of Computes, from the first on, that one pattern takes; then the rest. For each run its Computes, their
    Program, and what `attempt` made of it, which raises PatternMismatch where no pattern fits, or where a matrix product would
    run as one stage of many, without its register tiles.

    Raises UnsupportedError for a Compute, or a recurrence, that no pattern takes alone.
    """
    runs: list[tuple[tuple[str, ...], LoweredGroup, Made]] = []
    start = 0
    while start < len(definitions):
        refusal = ""
        most = min(len(definitions), start + MOST_COMPUTES)
        ends = [end for end in range(start + 1, most + 1) if not _within_trip(definitions, end)]
        if not ends:
            raise UnsupportedError(f"more than {MOST_COMPUTES} Computes make a trip with '{definitions[start].compute.name}'")
        for end in reversed(ends):
            lowered = _lowered(definitions[start:end], definitions[end:], outputs, env)
            names = tuple(d.compute.name for d in definitions[start:end])
            try:
                if end == ends[0]:
                    made = whole(lowered, attempt, recorder, names[0])
                else:
                    made = attempt(lowered, wanted=of_kind(lowered.kind))
            except PatternMismatch as mismatch:
                refusal = f"not in the kernel of {names[0]}: {_in_user_names(str(mismatch), lowered, definitions[start:end])}"
                if end == ends[0]:
                    raise UnsupportedError(f"no schedule pattern takes '{names[0]}' alone: {mismatch}") from mismatch
                continue
            if refusal:
                recorder.decide("split", definitions[end].compute.name, refusal)
            runs.append((names, lowered, made))
            start = end
            break
    return runs


def made_of(group: FusionGroup, shared: LoweredGroup | None, own: Callable[[], LoweredGroup], attempt: Attempt[Made],
            recorder: Recorder) -> tuple[LoweredGroup, Made] | None:
    """The Program that computes a group, and what `attempt` makes of it: the one that it shares with others, or its `own`, by
    plain patterns in the end where the group cannot be split; None where it is to be. What was refused is decided."""
    if shared is not None:
        try:
            return shared, attempt(shared)
        except PatternMismatch as mismatch:
            recorder.decide("refused", group.name, f"no pattern fits the Program that it shares: {mismatch}")
    lowered = own()
    try:
        return lowered, attempt(lowered) if splits(group) else whole(lowered, attempt, recorder, group.name)
    except PatternMismatch as mismatch:
        if not splits(group):
            raise InternalError(f"no schedule pattern fits node '{group.anchor.name}' ({mismatch})") from mismatch
        recorder.decide("split", group.name, str(mismatch))
    return None


def whole(lowered: LoweredGroup, attempt: Attempt[Made], recorder: Recorder, name: str) -> Made:
    """What `attempt` makes of a Program that cannot be cut: by plain patterns where it is refused otherwise, as when its proofs
    take more operations than a kernel may. Raises PatternMismatch where these refuse it, too."""
    try:
        return attempt(lowered)
    except PatternMismatch as mismatch:
        with suppress(PatternMismatch):
            made = attempt(lowered, wanted=Wanted.PLAIN)
            recorder.decide("plain", name, str(mismatch))
            return made
        raise


def _within_trip(definitions: Sequence[Definition], end: int) -> bool:
    """Whether the Computes before and behind a place make a trip together."""
    own = [definitions[k].compute.carried for k in (end - 1, end) if k < len(definitions)]
    return len(own) == 2 and own[0] is not None and own[1] is not None and own[0].name == own[1].name


def _in_user_names(text: str, lowered: LoweredGroup, run: Sequence[Definition]) -> str:
    """A reason about a canonical Program, with the names of the tensors that its user knows."""
    computes = lowered.program.computes
    names = lowered.values | ({c.name: d.compute.name for c, d in zip(computes, run)} if len(computes) == len(run) else {})
    return re.sub(r"\b(t\d+|acc)(_acc)?\b", lambda found: names.get(found[1], found[0]), text)


def _lowered(run: Sequence[Definition], later: Iterable[Definition], outputs: Collection[str],
             env: ShapeEnv) -> LoweredGroup:
    """The canonical Program of a run of Computes; it gives `outputs` and what `later` ones read."""
    needed = {*outputs, *(name for d in later for name in sources(d))}
    computes = tuple(d.compute for d in run)
    kinds = {c.name: compute_kind(c) for c in computes}
    sums = [name for name, kind in kinds.items() if kind is PatternKind.CONTRACTION and name not in needed]
    found = lower(Program((), tuple(c.target for c in computes if c.name in needed), computes, ()), env, sums)
    kind = next((k for k in (PatternKind.CONTRACTION, PatternKind.REDUCE) if k in kinds.values()), PatternKind.INJECTIVE)
    return LoweredGroup(found.program, found.buffers, found.sizes, kind)
